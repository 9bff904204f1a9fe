"""Figures over learning rates: what is drawn, where a run diverged, and what is left out."""

from dataclasses import replace

import numpy as np
import pytest
from fake_runs import fake_run

from attnlab.plots import NothingToDrawError, rate_plots
from attnlab.results import Results

RATES = (1e-3, 1e-2, 1e-1)
GRIDS = {norm: {rate: f"{norm}-{rate:g}" for rate in RATES} for norm in ("none", "layernorm")}
ENDS = {"none": (2.2, 2.0, 9.0), "layernorm": (2.2, 2.0, 2.1)}


def runs(*, diverged: str = "none-0.1"):
    made = []
    for norm, grid in GRIDS.items():
        for (rate, arm), end in zip(grid.items(), ENDS[norm], strict=True):
            for seed in range(2):
                status = "diverged" if arm == diverged else "finished"
                run = fake_run(arm, seed, [3.0, end + seed / 10], initial=4.2, status=status)
                logits = np.array([1.0, np.nan, 10.0, np.nan, 1e3 * rate])
                columns = {"attn/max_logit_l00": logits, "attn/max_logit_l01": logits / 2}
                made.append(replace(run, history=run.history | columns))
    return made


def test_loss_by_rate_caps_what_diverged_and_marks_it():
    figure = rate_plots.loss_by_rate(Results(runs()), {"small": GRIDS}, references={"bigram": 2.5})
    (axis,) = figure.axes
    assert axis.get_xscale() == "log"
    lines = {line.get_label(): line for line in axis.lines}
    np.testing.assert_allclose(lines["none"].get_ydata(), [2.25, 2.05, 4.2])
    np.testing.assert_allclose(lines["layernorm"].get_ydata(), [2.25, 2.05, 2.15])
    crosses = [line.get_xydata() for line in axis.lines if line.get_marker() == "x"]
    np.testing.assert_allclose(np.concatenate(crosses), [[0.1, 4.2]])


def test_size_without_a_run_has_no_panel():
    elsewhere = {"none": {rate: f"none-big-{rate:g}" for rate in RATES}}
    figure = rate_plots.loss_by_rate(Results(runs()), {"small": GRIDS, "big": elsewhere})
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["small"]
    for draw in (rate_plots.loss_by_rate, rate_plots.largest_logit_by_step):
        with pytest.raises(NothingToDrawError):
            draw(
                Results(runs()),
                {"big": elsewhere if draw is rate_plots.loss_by_rate else elsewhere["none"]},
            )


def test_largest_logit_is_that_of_any_layer_with_the_line_of_instability():
    figure = rate_plots.largest_logit_by_step(Results(runs()), GRIDS)
    first, second = (axis for axis in figure.axes if axis.get_visible())
    drawn = [line.get_xydata() for line in first.lines if len(line.get_xydata()) == 3]
    assert len(drawn) == 6, "a line a seed and rate"
    np.testing.assert_allclose(drawn[-1], [[0, 1.0], [2, 10.0], [4, 100.0]])
    assert 1e4 in [y for line in first.lines for y in line.get_ydata()]
    assert sum(line.get_marker() == "x" for line in first.lines) == 2, "both seeds of the rate"
    assert not any(line.get_marker() == "x" for line in second.lines)


def test_by_size_draws_means_and_every_seed():
    series = {"none": {1e5: {0: 0.1, 1: 0.3}, 1e4: {0: 0.2}}, "layernorm": {1e5: {}}}
    (axis,) = rate_plots.by_size(series, xlabel="parameters", ylabel="sensitivity").axes
    (line,) = [line for line in axis.lines if line.get_marker() == "D"]
    np.testing.assert_allclose(line.get_xydata(), [[1e4, 0.2], [1e5, 0.2]])
    assert sum(len(line.get_xdata()) for line in axis.lines if line.get_marker() == "o") == 3
