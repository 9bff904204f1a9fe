"""Figures of sweeps over learning rates: what a rate costs, what a size costs, and how logits grow on the way.

In the style of `attnlab.plots`: lines are means over seeds, bands reach from the smallest to the largest seed, a cross is
a run that diverged. A grid is learning rate -> arm.
"""

import re
import textwrap
from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullLocator

from attnlab.plots.base import COLOURS, DASHES, STYLE, nonempty
from attnlab.plots.measurement_plots import row_of_axes
from attnlab.results import DIVERGED, Results

Grid = Mapping[float, str]
# Wortsman et al. 2023, arXiv 2309.14322: every run whose largest logit passed it went on to diverge.
UNSTABLE_LOGIT = 1e4
MOST_COLUMNS = 3


def loss_by_rate(
    results: Results,
    panels: Mapping[str, Mapping[str, Grid]],
    metric: str = "val/loss",
    references: Mapping[str, float] | None = None,
) -> Figure:
    """Final loss by peak learning rate: panel title -> label of a line -> grid. Loss is capped at that before training.

    Raises:
      NothingToDrawError: no run of any grid has ended.
    """
    shown = nonempty(
        "loss by learning rate",
        {title: _drawable(results, lines) for title, lines in panels.items()},
    )
    with mpl.rc_context(STYLE):
        figure, axes = row_of_axes(len(shown), ylabel=f"final {metric}, nats per token")
        for axis, (title, lines) in zip(axes, shown.items(), strict=True):
            axis.set_title("\n".join(textwrap.wrap(title, 40)), loc="left")
            for place, (label, grid) in enumerate(lines.items()):
                _rate_line(axis, results, grid, metric, place, label)
            for name, nats in (references or {}).items():
                axis.axhline(nats, color="0.35", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
                axis.annotate(name, (0.01, nats), xycoords=("axes fraction", "data"), xytext=(0, 2),
                              textcoords="offset points", color="0.35", size=7)  # fmt: skip
            axis.set_xscale("log")
            axis.legend(loc="best")
        figure.supxlabel(
            "peak learning rate    (line: mean over seeds; band: smallest to largest; x: a seed diverged)",
            size=9,
        )
    return figure


def by_size(
    series: Mapping[str, Mapping[float, Mapping[int, float]]], *, xlabel: str, ylabel: str
) -> Figure:
    """A number by size, both axes as they fall: label -> size -> {seed: number}; rings are seeds, lines means.

    Raises:
      NothingToDrawError: no number at all.
    """
    shown = {
        label: {x: list(values.values()) for x, values in sorted(points.items()) if values}
        for label, points in series.items()
    }
    shown = nonempty(ylabel, shown)
    with mpl.rc_context(STYLE):
        figure, (axis,) = row_of_axes(1, ylabel=ylabel, width=4.6)
        for place, (label, points) in enumerate(shown.items()):
            colour = COLOURS[place % len(COLOURS)]
            # A little apart, so that equal numbers of two lines are both seen.
            sizes = np.array(list(points)) * 1.04 ** (place - (len(shown) - 1) / 2)
            for size, values in zip(sizes, points.values(), strict=True):
                axis.plot([size] * len(values), values, "o", mfc="none", color=colour, ms=4)
            means = [float(np.mean(values)) for values in points.values()]
            axis.plot(sizes, means, "D-", color=colour, ms=5, mec="white", label=label)
        axis.set_xscale("log")
        everywhere = sorted({x for points in shown.values() for x in points})
        axis.set_xticks(everywhere, [EngFormatter(places=0, sep="")(x) for x in everywhere])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
        axis.set_xlabel(f"{xlabel}    (ring: one seed; diamond: mean)")
        axis.legend(loc="best")
    return figure


def largest_logit_by_step(results: Results, panels: Mapping[str, Grid]) -> Figure:
    """Largest attention logit of any layer by update, a line a learning rate: panel title -> grid.

    Raises:
      NothingToDrawError: no run of any grid has a logit.
    """
    shown = {t: {r: a for r, a in grid.items() if a in results.arms} for t, grid in panels.items()}
    curves = {
        title: {rate: _largest_logit(results, arm) for rate, arm in sorted(grid.items())}
        for title, grid in shown.items()
        if grid
    }
    curves = {t: {r: c for r, c in lines.items() if len(c)} for t, lines in curves.items()}
    curves = nonempty("largest logit by update", curves)
    columns = min(MOST_COLUMNS, len(curves))
    rows = -(-len(curves) // columns)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1.2 + 3.0 * columns, 0.8 + 2.6 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        rates = sorted({rate for lines in curves.values() for rate in lines})
        for place, axis in enumerate(axes.flat):
            axis.set_visible(place < len(curves))
            axis.xaxis.set_tick_params(labelbottom=place >= len(curves) - columns)
        for axis, (title, lines) in zip(axes.flat, curves.items(), strict=False):
            axis.set_title(title, loc="left")
            axis.set_yscale("log")
            axis.axhline(UNSTABLE_LOGIT, color="black", linewidth=0.9, linestyle=(0, (4, 3)))
            for rate, seeds in lines.items():
                _logit_lines(axis, seeds, _shade(rates.index(rate), len(rates)))
        for rate in rates:
            axes.flat[0].plot(
                [], [], color=_shade(rates.index(rate), len(rates)), label=f"{rate:g}"
            )
        figure.legend(loc="outside right upper", title="learning rate")
        figure.supylabel("largest attention logit", size=9)
        figure.supxlabel("update    (a line a seed; x: diverged; dashed: 1e4)", size=9)
    return figure


def _drawable(results: Results, lines: Mapping[str, Grid]) -> dict[str, Grid]:
    """The grids of which something has ended, without the arms of which nothing has."""
    ended = {
        label: {
            rate: arm
            for rate, arm in sorted(grid.items())
            if arm in results.arms and results.complete((arm,), may_diverge=(arm,))
        }
        for label, grid in lines.items()
    }
    return {label: grid for label, grid in ended.items() if grid}


def _rate_line(
    axis: Axes, results: Results, grid: Grid, metric: str, place: int, label: str
) -> None:
    colour, dash = COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]
    losses = [list(results.capped(metric, arm).values()) for arm in grid.values()]
    rates_R, mean_R = np.array(list(grid)), np.array([np.mean(x) for x in losses])
    axis.plot(rates_R, mean_R, color=colour, linestyle=dash, label=label, marker="o", ms=3.5)
    low_R, high_R = [min(x) for x in losses], [max(x) for x in losses]
    axis.fill_between(rates_R, low_R, high_R, color=colour, alpha=0.18, lw=0)
    crossed_R = np.array([bool(results.diverged((arm,))) for arm in grid.values()])
    axis.plot(rates_R[crossed_R], mean_R[crossed_R], "x", color=colour, ms=8)


def _largest_logit(results: Results, arm: str) -> list[tuple[np.ndarray, np.ndarray, bool]]:
    """(updates, largest logit of any layer, whether it diverged) of each seed that has a row."""
    found = []
    for run in results.runs(arm).values():
        columns = [c for c in run.history if re.fullmatch(r"attn/max_logit_l\d+", c)]
        if not columns:
            continue
        logits_LT = np.array([np.asarray(run.history[c], np.float64) for c in columns])
        # A row without a validation has none; what overflowed is drawn at the top of the frame.
        there_T = ~np.isnan(logits_LT).all(axis=0)
        if there_T.any():
            largest_T = np.nanmax(logits_LT[:, there_T], axis=0)
            steps_T = np.asarray(run.history["step"])[there_T]
            found.append((steps_T, largest_T, run.status == DIVERGED))
    return found


def _logit_lines(
    axis: Axes, seeds: Sequence[tuple[np.ndarray, np.ndarray, bool]], colour: tuple[float, ...]
) -> None:
    for steps_T, largest_T, diverged in seeds:
        shown_T = np.where(largest_T > 0, np.minimum(largest_T, 1e12), np.nan)
        axis.plot(steps_T, shown_T, color=colour, linewidth=1.1)
        if diverged:
            axis.plot(steps_T[-1:], shown_T[-1:], "x", color=colour, ms=6)


def _shade(place: int, count: int) -> tuple[float, ...]:
    """Dark for small rates, light for large ones, and never too light to see."""
    colour: tuple[float, ...] = mpl.colormaps["cividis"](0.9 * place / max(count - 1, 1))
    return colour
