"""Token files: what is written is what is read, and nothing else is read."""

import json
from pathlib import Path

import numpy as np
import pytest

from attnlab.data import corpora, token_files
from attnlab.data.cache import CorpusError
from attnlab.data.corpus import SPLITS
from attnlab.data.vocabulary import ByteVocabulary, NumberVocabulary


def texts(root: Path, tokenizer: str = "char") -> corpora.Corpus:
    for i in range(30):
        path = root / "texts" / f"{i:02d}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"caf\u00e9 number {i}\n" * (1 + i % 3))
    return corpora.load(f"text:{root / 'texts'}", tokenizer, cache_dir=root / "cache")


def same(read, written):
    for split in SPLITS:
        np.testing.assert_array_equal(read.split(split), written.split(split))
        assert read.split(split).dtype == written.split(split).dtype
        assert isinstance(read.split(split).base, np.memmap)
        assert not read.split(split).flags.writeable
        if written.documents is None:
            assert read.documents is None
        else:
            np.testing.assert_array_equal(read.documents[split], written.documents[split])
    assert read.vocabulary == written.vocabulary
    assert read.text_bytes == written.text_bytes
    assert read.sha256 == written.sha256


@pytest.mark.parametrize("tokenizer", ["char", "bytes", "bpe:260"])
def test_a_corpus_comes_back_whole(tmp_path, tokenizer):
    if tokenizer.startswith("bpe"):
        pytest.importorskip("tokenizers")
    written = texts(tmp_path, tokenizer)
    token_files.write(written, tmp_path / "made")
    same(corpora.load(f"tokens:{tmp_path / 'made'}"), written)
    token_files.check_digest("x", tmp_path / "made")
    assert token_files.source(tmp_path / "made") == {"corpus": written.name}


def test_random_tokens_without_text_or_documents_come_back(tmp_path):
    written = corpora.load("random:300")
    token_files.write(written, tmp_path / "made")
    same(corpora.load(f"tokens:{tmp_path / 'made'}"), written)
    assert not (tmp_path / "made" / "documents.bin").exists()


def by_hand(root, ids, sizes, dtype="uint16", vocabulary=None, **more):
    """A token file made elsewhere, as the documentation says: two lines of numpy and a header."""
    root.mkdir()
    np.array(ids, f"<{np.dtype(dtype).str[1:]}").tofile(root / "tokens.bin")
    header = {"format": "attnlab-tokens", "version": 1, "dtype": dtype,
              "tokens": dict(zip(SPLITS, sizes, strict=True)),
              "vocabulary": vocabulary or {"kind": "numbers", "size": 50257}, **more}  # fmt: skip
    (root / "header.json").write_text(json.dumps(header))
    return f"tokens:{root}"


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_a_file_made_elsewhere_is_read(tmp_path, dtype):
    ids = [50256, 0, 1, 2, 3, 4]
    corpus = corpora.load(by_hand(tmp_path / "made", ids, (3, 1, 2), dtype))
    assert [corpus.split(s).tolist() for s in SPLITS] == [[50256, 0, 1], [2], [3, 4]]
    assert corpus.vocabulary == NumberVocabulary(50257)
    assert corpus.documents is None
    assert corpus.bits_per_nat() is None
    assert corpus.sha256 == token_files.digest(np.array(ids, dtype))


def test_documents_made_elsewhere_are_cut_by_the_splits(tmp_path):
    name = by_hand(tmp_path / "made", range(10), (6, 2, 2), vocabulary={"kind": "bytes"})
    np.array([0, 4, 7, 8], "<i8").tofile(tmp_path / "made" / "documents.bin")
    corpus = corpora.load(name)
    assert corpus.vocabulary == ByteVocabulary()
    assert {k: v.tolist() for k, v in corpus.documents.items()} == {
        "train": [0, 4], "validation": [0, 1], "test": [0],
    }  # fmt: skip


def test_one_header_and_one_file_are_enough_and_are_little_endian(tmp_path):
    token_files.write(corpora.load("random:300"), tmp_path / "made")
    assert sorted(p.name for p in (tmp_path / "made").iterdir()) == ["header.json", "tokens.bin"]
    raw = (tmp_path / "made" / "tokens.bin").read_bytes()
    first = int(corpora.load("random:300").train[0])
    assert raw[0] + 256 * raw[1] == first


def change(root, **entries):
    path = root / "header.json"
    header = {**json.loads(path.read_text()), **entries}
    path.write_text(json.dumps({k: v for k, v in header.items() if v != "absent"}))


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"format": "nanogpt"}, "format must be 'attnlab-tokens'"),
        ({"format": "absent"}, "format must be"),
        ({"version": 2}, "version must be 1, got 2"),
        ({"dtype": "int64"}, "dtype must be one of uint8, uint16, uint32, got 'int64'"),
        ({"tokens": 10}, "tokens must give train, validation and test, at least 1 each, got 10"),
        ({"tokens": {"train": 6, "validation": 0, "test": 4}}, "at least 1 each"),
        ({"tokens": {"train": 6, "validation": 2}}, "tokens must give"),
        ({"tokens": {"train": 6, "validation": 2, "test": True}}, "tokens must give"),
        (
            {"tokens": {"train": 6, "validation": 2, "test": 3}},
            "holds 10 tokens, .*says 11: a file is dam",
        ),
        ({"text_bytes": {"train": 6}}, "text_bytes must give"),
        ({"vocabulary": {"kind": "numbers", "size": 9}}, r"token 9 is 9; allowed: 0\.\.8"),
        ({"vocabulary": {"kind": "words"}}, "kind must be numbers, bytes, characters or bpe"),
        ({"vocabulary": {"kind": "numbers"}}, "vocabulary .*size"),
        ({"vocabulary": {"kind": "characters", "characters": "ba"}}, "code-point order"),
        ({"vocabulary": {"kind": "bpe"}}, r"tokenizer\.json"),
        ({"vocabulary": "gpt2"}, "vocabulary must be a section"),
    ],
)
def test_headers_that_are_wrong_are_refused(tmp_path, entries, words):
    name = by_hand(tmp_path / "made", range(10), (6, 2, 2))
    change(tmp_path / "made", **entries)
    with pytest.raises(CorpusError, match=words) as error:
        corpora.load(name)
    assert "\n" not in str(error.value)
    assert str(tmp_path / "made") in str(error.value)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("header.json", None, r"header\.json cannot be read .*allowed: tokens:DIRECTORY"),
        ("header.json", b"{", "is not JSON"),
        ("header.json", b"[]", "format must be"),
        ("tokens.bin", None, r"tokens\.bin cannot be read"),
        ("tokens.bin", b"", "0 bytes; allowed: a positive multiple of 2"),
        ("tokens.bin", b"abc", "3 bytes; allowed"),
        ("documents.bin", np.array([1, 4], "<i8").tobytes(), "ascending places from 0 to below 10"),
        ("documents.bin", np.array([0, 4, 4], "<i8").tobytes(), "ascending places"),
        ("documents.bin", np.array([0, 10], "<i8").tobytes(), "ascending places"),
        ("documents.bin", b"", "0 bytes"),
    ],
)
def test_files_that_are_damaged_or_absent_are_refused(tmp_path, file, content, words):
    name = by_hand(tmp_path / "made", range(10), (6, 2, 2))
    if content is None:
        (tmp_path / "made" / file).unlink()
    else:
        (tmp_path / "made" / file).write_bytes(content)
    with pytest.raises(CorpusError, match=words) as error:
        corpora.load(name)
    assert "\n" not in str(error.value)


def test_an_id_beyond_the_vocabulary_is_found_wherever_it_stands(tmp_path, monkeypatch):
    monkeypatch.setattr(token_files, "_BLOCK", 3)
    name = by_hand(tmp_path / "made", [0, 1, 2, 3, 4, 5, 6, 60_000, 1, 2], (6, 2, 2))
    with pytest.raises(CorpusError, match=r"token 7 is 60000; allowed: 0\.\.50256"):
        corpora.load(name)


def test_a_changed_byte_is_found_by_the_checksum(tmp_path):
    token_files.write(corpora.load("random:300"), tmp_path / "made")
    path = tmp_path / "made" / "tokens.bin"
    raw = bytearray(path.read_bytes())
    raw[1000] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorpusError, match=r"SHA-256 of .*tokens\.bin is .*: the file is damaged"):
        token_files.check_digest("x", tmp_path / "made")


def test_nothing_is_overwritten(tmp_path):
    with pytest.raises(ValueError, match="exists; allowed: a new directory"):
        token_files.write(corpora.load("random:5"), tmp_path)
