"""Files become one text: every byte of them, in order, and nothing else."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.data import corpora, texts
from attnlab.data.cache import CorpusError
from attnlab.data.corpus import SPLITS
from attnlab.data.texts import Text

# Characters of one, two, three and four bytes.
STRINGS = st.text(st.sampled_from("a \n\u00e9\u3000\u6c34\U0001f600"), min_size=1, max_size=200)


def folder(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return f"text:{root}"


def test_a_directory_is_its_text_files_in_order_of_their_paths_each_a_document(tmp_path):
    files = {"b.txt": b"second\n", "a.md": b"first\n", "z/deep/c.TXT": b"third\r\n"}
    others = {"a.py": b"no", ".hidden.txt": b"no", ".git/x.txt": b"no", "image.png": b"\xff"}
    text = texts.read("x", folder(tmp_path, files | others).removeprefix("text:"))
    assert text.raw.tobytes() == b"first\nsecond\nthird\r\n"
    assert text.starts.tolist() == [0, 6, 13]


def test_a_glob_pattern_takes_what_it_matches_whatever_the_ending(tmp_path):
    folder(tmp_path, {"src/b.py": b"b = 1\n", "src/deep/a.py": b"a = 1\n", "src/c.txt": b"no"})
    text = texts.read("x", f"{tmp_path}/src/**/*.py")
    assert text.raw.tobytes() == b"b = 1\na = 1\n"


def test_documents_are_found_in_every_split_also_the_one_that_a_cut_begins(tmp_path):
    files = {
        f"{i:02d}.txt": f"caf\u00e9 {i:02d}\n".encode() for i in range(50)
    }  # 8 characters each
    corpus = corpora.load(folder(tmp_path, files), validation_fraction=0.1, test_fraction=0.0125)
    assert [len(corpus.split(s)) for s in SPLITS] == [355, 40, 5]
    assert corpus.documents is not None
    assert corpus.documents["train"].tolist() == list(range(0, 355, 8))
    assert corpus.documents["validation"].tolist() == [0, *range(5, 40, 8)]
    assert corpus.documents["test"].tolist() == [0]
    assert corpus.text_bytes == {"train": 355 + 44, "validation": 45, "test": 6}
    assert corpus.record()["documents"] == {"train": 45, "validation": 6, "test": 1}


def test_a_single_file_has_no_documents(tmp_path):
    path = tmp_path / "one.txt"
    path.write_text("ab" * 100)
    assert corpora.load(f"text:{path}").documents is None


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"a.py": b"x"}, r"no text file there; allowed: text:PATH .*\*\.md, \*\.txt"),
        ({"a.txt": b"fine", "b.txt": b""}, r"the file is empty \(.*b\.txt\)"),
        ({"a.txt": b"fine", "b.txt": b"caf\xe9"}, r"b\.txt: byte 3 is not UTF-8"),
        ({"a.txt": b"\xed\xa0\x80"}, r"a\.txt: byte 0 is not UTF-8"),  # a lone surrogate
    ],
)
def test_directories_that_are_no_text_are_refused_with_the_file(tmp_path, files, words):
    with pytest.raises(CorpusError, match=words) as error:
        corpora.load(folder(tmp_path, files))
    assert "\n" not in str(error.value)


def test_a_pattern_without_files_is_refused(tmp_path):
    with pytest.raises(CorpusError, match="no text file there"):
        texts.read("x", f"{tmp_path}/*.py")


@given(STRINGS)
def test_characters_and_bytes_are_counted_across_blocks(monkeypatch_blocks, string):
    text = Text.of([string])
    assert texts.characters(text.raw) == len(string)
    places = [len(string[:i].encode()) for i in range(len(string) + 1)]
    assert [texts.byte_of_character(text.raw, i) for i in range(len(string) + 1)] == places
    found = texts.characters_before(text.raw, np.array(places, np.int64))
    assert found.tolist() == list(range(len(string) + 1))


@given(STRINGS, st.data())
def test_pieces_are_the_text_and_cut_no_character(monkeypatch_blocks, string, data):
    text = Text.of([string])
    start, end = (len(string[: data.draw(st.integers(0, len(string)))].encode()) for _ in range(2))
    found = list(texts.pieces(text.raw, start, end))
    assert "".join(found).encode() == text.raw[start : max(start, end)].tobytes()
    assert all(found)
    for left, right in itertools.pairwise(found):
        assert left[-1] == "a", "a cut elsewhere can change how BPE splits words"
        assert right[0] in " \n"


@pytest.fixture(scope="module")
def monkeypatch_blocks():
    """Blocks and pieces of 7 bytes, so that short texts have many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "_BLOCK_BYTES", 7)
        patch.setattr(texts, "_PIECE_BYTES", 7)
        yield


def test_every_tokenizer_splits_the_same_characters(tmp_path):
    string = "na\u00efve caf\u00e9 \u6c34\n" * 40
    (tmp_path / "a.txt").write_text(string)
    corpus = {t: corpora.load(f"text:{tmp_path / 'a.txt'}", t) for t in ("char", "bytes")}
    for split in SPLITS:
        decoded = {t: c.vocabulary.decode(c.split(split)) for t, c in corpus.items()}
        assert decoded["char"] == decoded["bytes"]
        assert corpus["char"].text_bytes == corpus["bytes"].text_bytes
    assert corpus["bytes"].vocabulary.size == 256
    assert corpus["bytes"].train.dtype == np.uint8


def test_bits_per_byte_do_not_depend_on_the_tokenizer(tmp_path):
    """A uniform model over characters, asked in characters and in bytes that each take the same time."""
    (tmp_path / "a.txt").write_text("ab\u00e9\u00e8" * 100)
    char, byte = (corpora.load(f"text:{tmp_path / 'a.txt'}", t) for t in ("char", "bytes"))
    assert byte.bits_per_nat() == pytest.approx(1 / np.log(2))
    assert char.bits_per_nat() == pytest.approx(20 / 30 / np.log(2))
    assert corpora.load("random:5").bits_per_nat() is None
