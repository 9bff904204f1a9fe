"""`attnlab data`: what it says is what the corpus holds."""

import json

import numpy as np
import pytest

from attnlab import cli
from attnlab.data import corpora, references


def attnlab(capsys, *words):
    """(exit code, standard output, standard error)."""
    code = cli.main(["data", *words])
    return (code, *capsys.readouterr())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "texts").mkdir()
    for i in range(40):
        (tmp_path / "texts" / f"{i:02d}.txt").write_text(f"caf\u00e9 {i:02d}, [bold]\n" * 3)
    return f"text:{tmp_path / 'texts'}"


def cells(out, row):
    (line,) = [line for line in out.splitlines() if f" {row} " in line and "\u2502" in line]
    return [cell.strip() for cell in line.split("\u2502")[1:-1]]


def test_splits_losses_and_a_sample_are_shown(folder, capsys):
    code, out, _ = attnlab(capsys, folder, "--sample", "20")
    assert code == 0
    corpus = corpora.load(folder)
    assert cells(out, "train") == ["train", "1,728", "36", "1,836", "1.062"]
    assert cells(out, "validation") == ["validation", "96", "2", "102", "1.062"]
    assert f"vocabulary: {corpus.vocabulary.size} ids" in out
    assert corpus.sha256 in out
    assert "goes to the device whole" in out
    loss = references.reference_losses(corpus)["bigram"].held_out
    assert cells(out, "bigram") == ["bigram", f"{loss:.4f}", f"{loss * corpus.bits_per_nat():.4f}"]
    assert "'c' 'a' 'f' '\u00e9'" in out
    assert out.endswith("caf\u00e9 36, [bold]\ncaf\u00e9\n")


def test_tokenizers_are_compared_on_the_same_text(folder, capsys):
    pytest.importorskip("tokenizers")
    _, out, _ = attnlab(capsys, folder, "--tokenizer", "bpe:270", "--sample", "0")
    assert "(bpe:270)" in out
    assert cells(out, "train")[2:4] == ["36", "1,836"]
    assert int(cells(out, "train")[1].replace(",", "")) < 1728
    assert "first tokens" not in out


def test_random_tokens_have_no_text(capsys):
    _, out, _ = attnlab(capsys, "random:17")
    assert cells(out, "test") == ["test", "52,429", "-", "-", "-"]
    assert cells(out, "unigram")[2] == "-"


def test_what_is_written_is_the_corpus(folder, tmp_path, capsys):
    made = tmp_path / "made"
    _, out, _ = attnlab(capsys, folder, "--write", str(made))
    assert f"written: tokens:{made}" in out
    read, asked = corpora.load(f"tokens:{made}"), corpora.load(folder)
    np.testing.assert_array_equal(read.train, asked.train)
    code, out, _ = attnlab(capsys, f"tokens:{made}")
    assert code == 0
    assert cells(out, "train")[1] == "1,728"


@pytest.mark.parametrize(
    ("words", "pieces"),
    [
        (("text:/nowhere",), ("text:/nowhere", "cannot be read")),
        (("random:17", "--tokenizer", "bytes"), ("config.tokenizer", "'bytes'", "random:17")),
        (
            ("random:17", "--tokenizer", "bpe"),
            ("config.tokenizer", "'bpe'", "char, bytes, or bpe:V"),
        ),
        (("random:17", "--sample", "-1"), ("--sample", "-1")),
        (("random:17", "--write", "."), ("--write", "exists")),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(words, pieces, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = attnlab(capsys, *words)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    for piece in pieces:
        assert piece in err
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_token_file_is_refused(folder, tmp_path, capsys):
    made = tmp_path / "made"
    attnlab(capsys, folder, "--write", str(made))
    raw = bytearray((made / "tokens.bin").read_bytes())
    raw[10] ^= 1
    (made / "tokens.bin").write_bytes(raw)
    code, _, err = attnlab(capsys, f"tokens:{made}")
    assert code == 2
    assert "the file is damaged" in err
    header = json.loads((made / "header.json").read_text())
    assert header["source"] == {"corpus": folder}
