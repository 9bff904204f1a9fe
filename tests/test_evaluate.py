"""`attnlab eval`: the right numbers on the right text, with intervals, as table, JSON and figure."""

import argparse
import json
import math

import numpy as np
import pytest
import tiny
import trained_run

from attnlab import cli, heldout, members
from attnlab.commands import evaluate
from attnlab.data import references
from attnlab.plots import heldout_plots
from attnlab.statistics import Interval


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with tiny.quick_compilation():
        yield


@pytest.fixture(autouse=True)
def _no_cache_on_disk(monkeypatch):
    monkeypatch.setenv("ATTNLAB_COMPILE_CACHE", "off")


def run(workdir, *words, member="learned s0"):
    parser = argparse.ArgumentParser()
    evaluate.add_arguments(parser)
    words = [str(workdir), "--member", member, "--bootstrap", "1000", *map(str, words)]
    return evaluate.run(parser.parse_args(words), tiny.BASE)


@pytest.fixture(scope="module")
def report(trained_workdir, tmp_path_factory):
    """What one evaluation writes, and the directory it lies in."""
    place = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNLAB_COMPILE_CACHE", "off")
        run(trained_workdir, "--json", place / "eval.json", "--png", place / "eval.png")
    return json.loads((place / "eval.json").read_text()), place


def test_the_loss_is_that_of_the_whole_split_in_its_interval(report, trained_workdir):
    written, _ = report
    trained = members.load(trained_workdir, "learned s0", tiny.BASE)
    starts = heldout.window_starts(len(trained.corpus.test), 8)
    losses = heldout.block_losses(
        trained.task, trained.params, trained.knobs, trained.corpus.test, starts, 1
    )
    assert written["loss"]["mean"] == pytest.approx(losses.loss, rel=1e-6)
    assert written["loss"]["low"] < losses.loss < written["loss"]["high"]
    assert written["loss"]["n"] == written["windows"] == len(starts) == 24
    assert written["targets"] == 24 * 8
    np.testing.assert_allclose(written["loss_by_position"], losses.by_position, rtol=1e-6)
    weighted = sum(s["mean"] * (s["stop"] - s["first"]) for s in written["segments"])
    assert weighted / 8 == pytest.approx(losses.loss, rel=1e-6)


def test_bits_are_counted_per_token_character_and_byte_of_the_targets(report):
    """The text ends in é, two bytes, which no window of this split asks for or one does."""
    written, _ = report
    text = trained_run.TEXT[-200:][1 : 1 + 24 * 8]
    bits = written["loss"]["mean"] / math.log(2)
    assert written["bits"]["token"] == pytest.approx(bits)
    assert written["bits"]["character"] == pytest.approx(bits)
    assert written["bits"]["byte"] == pytest.approx(bits * len(text) / len(text.encode()))
    assert written["perplexity"] == pytest.approx(math.exp(written["loss"]["mean"]))


def test_references_are_counted_on_train_and_asked_on_the_split(report, trained_workdir):
    written, _ = report
    corpus = members.load(trained_workdir, "learned s0", tiny.BASE).corpus
    for name in ("unigram", "bigram"):
        loss = references.ngram_loss(
            corpus.train, corpus.test, corpus.vocabulary.size, context=references.CONTEXTS[name]
        )
        assert written["references"][name] == loss.held_out


def test_the_table_shows_what_is_written(trained_workdir, report, capsys):
    written, _ = report
    assert run(trained_workdir) == 0
    shown = capsys.readouterr().out
    assert "learned s0, 8 updates, test of text:" in shown
    for part in (
        f"{written['loss']['mean']:.4f}",
        "bits per byte",
        "perplexity",
        "bigram",
        "8 to 8",
    ):
        assert part in shown


def test_the_other_split_and_fewer_windows_are_what_is_asked(trained_workdir, tmp_path):
    file = tmp_path / "val.json"
    run(trained_workdir, "--split", "val", "--windows", 12, "--blocks", 3, "--json", file)
    written = json.loads(file.read_text())
    assert (written["split"], written["windows"], written["loss"]["n"]) == ("val", 12, 3)


def test_hidden_tokens_have_no_bytes(trained_workdir, tmp_path):
    file = tmp_path / "mlm.json"
    run(trained_workdir, "--blocks", 2, "--json", file, member="encoder s0")
    written = json.loads(file.read_text())
    assert set(written["bits"]) == {"token"}
    assert 0.2 < written["targets"] / (24 * 8) < 0.6


def test_figures_are_written(report):
    _, place = report
    assert (place / "eval.png").stat().st_size > 10_000
    assert (place / "eval.svg").exists()


def test_the_figure_shows_positions_segments_and_references():
    segments = [(0, 2, Interval(2.0, 1.9, 2.1, 0.95, "", 9)), (2, 4, Interval(1.0, 0.9, 1.2, 0.95, "", 9))]  # fmt: skip
    figure = heldout_plots.loss_by_position(
        "who", np.array([2.2, 1.8, 1.0, np.nan]), segments, {"bigram": 2.5}
    )
    (axis,) = figure.axes
    dots, first, second, reference = axis.lines
    np.testing.assert_array_equal(dots.get_xdata(), [1, 2, 3, 4])
    assert list(first.get_ydata()) == [2.0, 2.0]
    assert list(second.get_ydata()) == [1.0, 1.0]
    assert first.get_xdata()[0] < 1 < 2 < first.get_xdata()[1] < second.get_xdata()[0]
    assert reference.get_ydata()[0] == 2.5
    assert {t.get_text() for t in axis.texts} == {"bigram 2.500"}


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--windows", "1"), ("--windows", "at least 2", "1")),
        (("--windows", "25"), ("--windows", "25", "1..24")),
        (("--blocks", "1"), ("--blocks", "at least 2", "1")),
        (("--bootstrap", "10"), ("--bootstrap", "1000", "10")),
        (("--json", "report.txt"), ("--json", "report.txt", ".json")),
        (("--png", "/no/such/place/a.png"), ("--png", "/no/such/place", "exists")),
    ],
)
def test_bad_requests_get_one_line(trained_workdir, words, parts, capsys):
    with pytest.raises(ValueError, match=parts[0]) as error:
        run(trained_workdir, *words)
    for part in parts:
        assert part in str(error.value)
    assert capsys.readouterr().out == ""


def test_the_command_line_says_it_in_one_line_and_exits_with_2(trained_workdir, capsys):
    words = ["eval", str(trained_workdir), "--member", "learned s0"]
    assert cli.main([*words, "--windows", "25"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("attnlab: --windows: got 25; allowed: 1..24")
    assert err.count("\n") == 1
    assert cli.main(["eval", str(trained_workdir)]) == 2
    assert "--member: the sweep has 3" in capsys.readouterr().err


def test_blocks_without_a_target_are_refused(trained_workdir):
    with pytest.raises(ValueError, match="--blocks: got 24, some of them without a target"):
        run(trained_workdir, member="encoder s0")
