"""Figures of measurements hold the numbers they claim to hold, and say when there is nothing to draw."""

from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from fake_runs import fake_run

from attnlab.claims import Trend
from attnlab.claims.judging import TrendRow
from attnlab.measurements import LossByLength, Probes, ShuffledPrefix
from attnlab.plots import NothingToDrawError, measurement_plots
from attnlab.results import Results


@pytest.fixture
def results(tmp_path):
    """Arm "a" with two measured seeds, arm "b" with none."""
    runs = []
    for seed in (0, 1):
        directory = tmp_path / str(seed)
        directory.mkdir()
        run = replace(fake_run("a", seed, [2.0]), path=directory)
        run.summary["val/loss_by_position"] = [3.0 + seed, 0.0, 2.0 + seed]
        run.history["attn/entropy_l00h00"] = np.array([0.9, 0.2 + 0.2 * seed])
        run.history["attn/entropy_l01h00"] = np.array([0.9, 0.8])
        curves = {"random init": [[6.0, 5.0]], "trained": [[6.0, 2.0], [6.0, 4.0 + seed]]}
        Probes(24, {**curves, "bag of prefix": [[5.5]]}).write(directory)
        ShuffledPrefix([1.0, 2.0, 3.0], [2.0 + seed, 3.0, 4.0]).write(directory)
        LossByLength(16, [16, 32], [2.0 + seed, 3.0]).write(directory)
        runs.append(run)
    return Results([*runs, fake_run("b", 0, [2.0])])


def line(axis, label):
    (found,) = [line for line in axis.lines if line.get_label() == label]
    return found


def texts(figure) -> str:
    return "\n".join(t.get_text() for t in figure.findobj(mpl.text.Text))


def test_loss_by_position_is_the_mean_over_seeds_from_position_one(results):
    (axis,) = measurement_plots.loss_by_position(results, {"p": ["a", "b"], "q": ["b"]}).axes
    np.testing.assert_array_equal(line(axis, "a").get_xdata(), [1, 2, 3])
    np.testing.assert_array_equal(line(axis, "a").get_ydata(), [3.5, np.nan, 2.5])
    assert axis.get_title(loc="left") == "p", "a panel without a measured arm is left out"


def test_probe_error_shows_the_trained_model_first_and_both_guesses(results):
    figure = measurement_plots.probe_error(results, ["a", "b"])
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles == ["trained", "random init", "bag of prefix"]
    np.testing.assert_allclose(line(figure.axes[0], "a").get_ydata(), [6.0, 3.25])
    np.testing.assert_allclose(line(figure.axes[2], "a").get_ydata(), [5.5, 5.5])
    for axis in figure.axes:
        levels = [x.get_ydata()[0] for x in axis.lines if x.get_label().startswith("_")]
        assert levels == [pytest.approx((24**2 - 1) / 72), 6.0]
        assert axis.get_ylim()[0] == 0.0
    assert "uniform guess, N/3" in texts(figure)


def test_boxes_hold_the_sequences_of_all_seeds(results):
    (axis,) = measurement_plots.shuffled_prefix(results, ["a", "b"]).axes
    means = [x.get_ydata()[0] for x in axis.lines if x.get_marker() == "D"]
    np.testing.assert_allclose(means, [2.0, (2 + 3 + 4 + 3 + 3 + 4) / 6])
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["a"]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == [
        "prefix intact",
        "prefix shuffled",
    ]


def test_loss_by_length_marks_the_training_context(results):
    figure = measurement_plots.loss_by_length(results, ["a"])
    (axis,) = figure.axes
    np.testing.assert_allclose(line(axis, "a").get_ydata(), [2.5, 3.0])
    assert list(axis.get_xticks()) == [16, 32]
    assert "trained at 16" in texts(figure)


def test_entropy_is_layer_down_and_head_across_with_its_numbers(results):
    figure = measurement_plots.attention_entropy(results, ["a", "b"])
    (image,) = [i for axis in figure.axes for i in axis.images if axis.get_title() == "a"]
    np.testing.assert_allclose(image.get_array(), [[0.3], [0.8]])
    assert image.get_clim() == (0.0, 1.0)
    assert {"0.30", "0.80"} <= set(texts(figure).split("\n"))


def test_trend_shows_seeds_mean_and_interval_at_each_value(results):
    row = TrendRow(Trend("cost", "layers", {}), {1: {0: 0.3, 1: 0.5}, 4: {0: 0.1}})
    (axis,) = measurement_plots.trend(row).axes
    (means,) = [x for x in axis.lines if x.get_marker() == "D"]
    np.testing.assert_allclose(means.get_ydata(), [0.4, 0.1])
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["1", "4"]
    bars = [x for x in axis.lines if x.get_linewidth() == 3]
    assert len(bars) == 1, "one seed has no interval"


@pytest.mark.parametrize(
    "draw",
    [
        lambda r: measurement_plots.loss_by_position(r, {"p": ["b"]}),
        lambda r: measurement_plots.probe_error(r, ["b"]),
        lambda r: measurement_plots.shuffled_prefix(r, ["b"]),
        lambda r: measurement_plots.loss_by_length(r, ["b"]),
        lambda r: measurement_plots.attention_entropy(r, ["b"]),
        lambda r: measurement_plots.trend(TrendRow(Trend("t", "k", {}), {1: {}})),
    ],
)
def test_nothing_to_draw_is_its_own_error(draw, results):
    with pytest.raises(NothingToDrawError, match="no run has it"):
        draw(results)
