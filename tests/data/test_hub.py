"""Datasets are streamed once, row by row, into the cache; whole or not at all."""

import json

import numpy as np
import pytest

from attnlab.data import corpora, hub
from attnlab.data.cache import CorpusError
from attnlab.data.corpus import SPLITS

datasets = pytest.importorskip("datasets")

ROWS = [f"Row {i}: caf\u00e9 \u6c34\n" * (1 + i % 4) for i in range(60)]


@pytest.fixture(scope="module", autouse=True)
def _quiet():
    datasets.disable_progress_bars()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)  # nothing here may ask the network
        yield


def made(root, columns=None, splits=("train",)):
    """A dataset in a folder, written by the package itself: a file for each split."""
    root.mkdir()
    for number, split in enumerate(splits):
        rows = [f"{number}{row}" for row in ROWS]
        table = datasets.Dataset.from_dict(columns or {"id": list(range(60)), "text": rows})
        table.to_parquet(root / f"{split}.parquet")
    return root


def load(name, root, tokenizer="char"):
    return corpora.load(f"hf:{name}", tokenizer, cache_dir=root / "cache")


def entries(root):
    path = root / "cache" / "texts"
    return sorted(p.name for p in path.iterdir()) if path.exists() else []


def text_of(corpus):
    return "".join(corpus.vocabulary.decode(corpus.split(s)) for s in SPLITS)


def test_rows_are_documents_in_order_cut_by_position(tmp_path):
    corpus = load(made(tmp_path / "d"), tmp_path)
    rows = [f"0{row}" for row in ROWS]
    assert text_of(corpus) == "".join(rows)
    lengths = np.array([len(row) for row in rows])
    expected = np.cumsum(lengths) - lengths
    train = corpus.documents["train"]
    np.testing.assert_array_equal(train, expected[: len(train)])
    assert len(train) > 50
    assert len(corpus.test) == round(sum(lengths) * 0.05)


def test_it_is_streamed_once_and_then_read_from_the_cache(tmp_path, monkeypatch):
    root = made(tmp_path / "d")
    first = load(root, tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", None)
    monkeypatch.setattr(datasets, "get_dataset_split_names", None)
    np.testing.assert_array_equal(load(root, tmp_path).train, first.train)
    assert isinstance(load(root, tmp_path, "bytes").train.base, np.memmap)
    (entry,) = entries(tmp_path)
    header = json.loads((tmp_path / "cache" / "texts" / entry / "header.json").read_text())
    assert header["sha256"] == first.sha256
    assert (header["rows"], header["empty_rows"], header["source"]["column"]) == (60, 0, "text")


def test_a_local_dataset_that_has_changed_is_read_again(tmp_path):
    root = made(tmp_path / "d")
    load(root, tmp_path)
    datasets.Dataset.from_dict({"text": ["other text\n"] * 50}).to_parquet(root / "train.parquet")
    assert text_of(load(root, tmp_path)) == "other text\n" * 50
    assert len(entries(tmp_path)) == 2


def test_the_splits_of_a_dataset_that_has_all_three_are_kept(tmp_path):
    root = made(tmp_path / "d", splits=SPLITS)
    corpus = load(root, tmp_path)
    for number, split in enumerate(SPLITS):
        expected = "".join(f"{number}{row}" for row in ROWS)
        assert corpus.vocabulary.decode(corpus.split(split)) == expected
        assert len(corpus.documents[split]) == 60


def test_a_split_a_column_and_a_number_of_rows_can_be_named(tmp_path):
    columns = {"title": [f"title {i}; " for i in range(60)], "text": ROWS}
    root = made(tmp_path / "d", columns, splits=SPLITS)
    corpus = load(f"{root}::title:test[:40]", tmp_path)
    assert text_of(corpus) == "".join(columns["title"][:40])


def test_rows_without_text_are_left_out_and_counted(tmp_path):
    texts = [None if i % 5 == 0 else "" if i % 5 == 1 else f"row {i}\n" for i in range(100)]
    corpus = load(made(tmp_path / "d", {"text": texts}), tmp_path)
    assert text_of(corpus) == "".join(t for t in texts if t)
    (entry,) = entries(tmp_path)
    header = json.loads((tmp_path / "cache" / "texts" / entry / "header.json").read_text())
    assert (header["rows"], header["empty_rows"]) == (100, 40)


def test_a_dataset_is_encoded_by_bpe_document_by_document(tmp_path):
    pytest.importorskip("tokenizers")
    root = made(tmp_path / "d")
    corpus = load(root, tmp_path, "bpe:270")
    assert text_of(corpus) == "".join(f"0{row}" for row in ROWS)
    char = load(root, tmp_path)
    assert corpus.record()["documents"] == char.record()["documents"]


@pytest.mark.parametrize(
    ("suffix", "words"),
    [
        (":other", "BuilderConfig 'other' not found"),
        ("::summary", "no column 'summary'; allowed: id, text, as hf:NAME:CONFIG:COLUMN"),
        ("::id", "column 'id' of row 0 is int; allowed: a column of text"),
        ("::text:dev", "Bad split: dev"),
        ("::text:train[10:]", r"not a dataset; allowed: hf:NAME\[:CONFIG\[:COLUMN\[:SPLIT\]\]\]"),
        ("::text:train[:0]", "0 rows"),
        ("/absent", "cannot be read: .*; allowed: hf:NAME"),
    ],
)
def test_what_a_dataset_does_not_have_is_refused_and_leaves_nothing(tmp_path, suffix, words):
    with pytest.raises(ValueError, match=words) as error:
        load(f"{made(tmp_path / 'd')}{suffix}", tmp_path)
    assert "\n" not in str(error.value)
    assert f"hf:{tmp_path / 'd'}{suffix}" in str(error.value)
    assert entries(tmp_path) == []


def test_a_column_without_text_is_refused(tmp_path):
    with pytest.raises(CorpusError, match="column 'text' of split 'train' has no text in 3 rows"):
        load(made(tmp_path / "d", {"text": ["", None, ""]}), tmp_path)
    assert entries(tmp_path) == []


def test_no_network_is_one_line_with_a_way_out(tmp_path):
    with pytest.raises(
        CorpusError, match=r"cannot be read: .*; with no network, name a local"
    ) as error:
        load("nobody/nothing", tmp_path)
    assert "\n" not in str(error.value)
    assert entries(tmp_path) == []


def test_a_connection_lost_on_the_way_leaves_nothing(tmp_path, monkeypatch):
    def rows(*args, **kwargs):
        yield {"text": "first"}
        raise ConnectionError("connection reset")

    root = made(tmp_path / "d")
    monkeypatch.setattr(datasets, "load_dataset", rows)
    with pytest.raises(CorpusError, match="connection reset; with no network"):
        load(root, tmp_path)
    assert entries(tmp_path) == []


def test_a_disk_that_fills_up_leaves_nothing(tmp_path, monkeypatch):
    def rows(*args):
        yield "first"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hub, "_texts", rows)
    with pytest.raises(CorpusError, match=r"No space left on device.*nothing was kept"):
        load(made(tmp_path / "d"), tmp_path)
    assert entries(tmp_path) == []


def test_a_damaged_text_is_refused_with_the_way_out(tmp_path):
    root = made(tmp_path / "d")
    load(root, tmp_path)
    (entry,) = entries(tmp_path)
    path = tmp_path / "cache" / "texts" / entry / "text.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorpusError, match=r"is damaged .*delete it to fetch the dataset again"):
        load(root, tmp_path)


def test_a_missing_package_is_named_with_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(hub.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CorpusError, match=r"pip install 'attnlab\[datasets\]'"):
        load("nobody/nothing", tmp_path)


def test_what_came_is_said(tmp_path, capsys):
    load(made(tmp_path / "d"), tmp_path)
    assert ": 60 rows, 0.0 MB of text" in capsys.readouterr().err
