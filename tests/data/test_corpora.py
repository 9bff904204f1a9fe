import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.data import corpora
from attnlab.data.vocabulary import NumberVocabulary

TINYSHAKESPEARE = Path(__file__).parents[2].parent / "shared" / "data" / "tinyshakespeare.txt"


def _file(tmp_path, raw):
    path = tmp_path / "text.txt"
    path.write_bytes(raw)
    return f"text:{path}"


@given(st.integers(20, 2000), st.floats(0.05, 0.4), st.floats(0.05, 0.4))
def test_splits_are_the_text_in_order_without_overlap_or_loss(n, validation, test):
    tokens = np.arange(n, dtype=np.uint16)
    corpus = corpora.from_tokens(
        "x",
        tokens,
        NumberVocabulary(n),
        "",
        validation_fraction=validation,
        test_fraction=test,
    )
    joined = np.concatenate([corpus.train, corpus.validation, corpus.test])
    np.testing.assert_array_equal(joined, tokens)
    assert abs(len(corpus.validation) - n * validation) <= 0.5
    assert abs(len(corpus.test) - n * test) <= 0.5


def test_default_splits_are_90_5_5_and_cannot_be_written(tmp_path):
    corpus = corpora.load(_file(tmp_path, bytes(range(97, 117)) * 10))
    assert [len(getattr(corpus, split)) for split in corpora.SPLITS] == [180, 10, 10]
    for split in corpora.SPLITS:
        with pytest.raises(ValueError, match="read-only"):
            getattr(corpus, split)[0] = 0


def test_a_file_is_taken_as_it_is(tmp_path):
    raw = "caf\u00e9\r\nna\u00efve\n".encode() * 10
    corpus = corpora.load(_file(tmp_path, raw), validation_fraction=0.1, test_fraction=0.2)
    joined = np.concatenate([corpus.train, corpus.validation, corpus.test])
    assert corpus.vocabulary.decode(joined).encode() == raw
    assert corpus.sha256 == hashlib.sha256(raw).hexdigest()
    assert len(corpus.test) == 24


def test_record_names_the_data_and_is_json(tmp_path):
    corpus = corpora.load(_file(tmp_path, b"abcdefghij" * 10))
    record = json.loads(json.dumps(corpus.record()))
    assert record["sha256"] == corpus.sha256
    assert record["tokens"] == {"train": 90, "validation": 5, "test": 5}
    assert record["vocabulary_size"] == 10
    other = corpora.load(_file(tmp_path, b"abcdefghij" * 9 + b"abcdefghji"))
    assert other.record()["sha256"] != record["sha256"]


def test_random_corpus_is_uniform_and_always_the_same():
    corpus = corpora.load("random:65")
    # If numpy's stream changed, say so in the release notes: old leak tests saw other tokens.
    assert corpus.sha256 == "45abf0e2889ba82cceeb2e0a96087054bf7ffe518a8c31dee58cefae4f575f6a"
    assert corpus.vocabulary.size == 65
    counts = np.bincount(corpus.train, minlength=65)
    assert len(counts) == 65
    expected = len(corpus.train) / 65
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert 32 < chi2 < 112  # 64 degrees of freedom: standard deviation 11
    pairs = np.bincount(corpus.train[:-1].astype(int) * 65 + corpus.train[1:], minlength=65**2)
    chi2 = ((pairs - expected / 65) ** 2 / (expected / 65)).sum()
    assert 3800 < chi2 < 4680  # 4224 degrees of freedom, standard deviation 92


def test_random_corpora_of_many_ids_use_a_wider_dtype():
    corpus = corpora.load("random:1000")
    assert corpus.train.dtype == np.uint16
    assert corpus.train.max() == 999


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shakespear", r"unknown name 'shakespear' \(did you mean 'shakespeare'\?\); allowed: sh"),
        ("tiny-shakespeare", r"did you mean 'tinyshakespeare'"),
        ("txt:book.txt", r"did you mean 'text:PATH'"),
        ("text", r"did you mean 'text:PATH'"),
        ("wikipedia", r"unknown name 'wikipedia'; allowed: shakespeare, tinyshakespeare, text:PAT"),
        ("shakespeare:x", r"unknown name 'shakespeare:x'"),
        ("", r"unknown name ''"),
        ("random:", "V must be a whole number 2 <= V <= 65536"),
        ("random:1", "V must be"),
        ("random:65537", "V must be"),
        ("random:-3", "V must be"),
        ("random:6.5", "V must be"),
        ("token:x", r"did you mean 'tokens:PATH'"),
        ("hf", r"did you mean 'hf:NAME"),
    ],
)
def test_unknown_names_are_refused_with_what_is_allowed(name, words):
    with pytest.raises(ValueError, match=words) as error:
        corpora.load(name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "the file is empty"),
        (b"caf\xe9 au lait" * 10, r"text\.txt: byte 3 is not UTF-8"),
        (b"a" * 100, "100 characters, all alike"),
        (b"abc", "at least 1 in each"),
    ],
)
def test_files_that_are_no_corpus_are_refused(tmp_path, raw, words):
    name = _file(tmp_path, raw)
    with pytest.raises(ValueError, match=words) as error:
        corpora.load(name)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_paths_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(corpora.CorpusError, match=r"cannot be read .*allowed: text:PATH"):
        corpora.load(f"text:{tmp_path / 'absent.txt'}")


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_fractions_that_are_none_are_refused(fraction):
    with pytest.raises(ValueError, match="test_fraction: must be 0 < fraction < 1"):
        corpora.from_text("x", "ab" * 100, test_fraction=fraction)


def test_fractions_that_leave_no_training_text_are_refused():
    with pytest.raises(ValueError, match="allowed: at least 1 in each"):
        corpora.from_text("x", "ab" * 100, validation_fraction=0.5, test_fraction=0.5)


@pytest.mark.skipif(not TINYSHAKESPEARE.exists(), reason="no copy of tiny Shakespeare here")
def test_tinyshakespeare_is_the_file_the_literature_uses(tmp_path):
    (tmp_path / "tinyshakespeare.txt").write_bytes(TINYSHAKESPEARE.read_bytes())
    corpus = corpora.load("tinyshakespeare", cache_dir=tmp_path)
    assert corpus.record() == {
        "name": "tinyshakespeare",
        "sha256": corpora.TINYSHAKESPEARE_SHA256,
        "tokenizer": "char",
        "vocabulary_size": 65,
        "tokens": {"train": 1003854, "validation": 55770, "test": 55770},
        "text_bytes": {"train": 1003854, "validation": 55770, "test": 55770},
    }
