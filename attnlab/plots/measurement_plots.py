"""Figures of what was measured on trained members: by position, by layer, by length, by knob.

In the style of `attnlab.plots`: lines are means over seeds, bands reach from the smallest to the largest seed.
Each function raises `NothingToDrawError` where no run has what it draws.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, MaxNLocator

from attnlab import measurements, statistics
from attnlab.claims.judging import TrendRow
from attnlab.measurements import LossByLength, Probes, ShuffledPrefix
from attnlab.plots.base import COLOURS, DASHES, STYLE, nonempty
from attnlab.results import Results, Run

T = TypeVar("T")


def loss_by_position(results: Results, panels: Mapping[str, Sequence[str]]) -> Figure:
    """Validation loss at each target position; panel title -> arms. An arm that was not measured has no line."""
    measured = {
        arm: _stacked(results.measured(measurements.loss_by_position, arm))
        for arms in panels.values()
        for arm in arms
    }
    shown = {title: [a for a in arms if len(measured[a])] for title, arms in panels.items()}
    shown = nonempty("loss by position", shown)
    with mpl.rc_context(STYLE):
        figure, axes = row_of_axes(len(shown), ylabel="val/loss, nats per token")
        for axis, (title, arms) in zip(axes, shown.items(), strict=True):
            axis.set_title("\n".join(textwrap.wrap(title, 40)), loc="left")
            for place, arm in enumerate(arms):
                loss_ST = measured[arm]
                band(axis, np.arange(1, loss_ST.shape[1] + 1), loss_ST, place, arm)
            legend_below(axis)
        figure.supxlabel(
            "target position    (line: mean over seeds; band: smallest to largest)", size=9
        )
    return figure


def probe_error(results: Results, arms: Sequence[str]) -> Figure:
    """Error of the position probe by layer: a panel per kind of curve, the trained model first; a line per arm.

    Horizontal lines: (N^2 - 1) / 3N, a uniform guess, and N / 4, the best guess that looks at nothing. What has no
    layers is a level line.
    """
    measured = by_arm("probe error", results, Probes.read, arms)
    everything = [probes for found in measured.values() for probes in found]
    labels = list(dict.fromkeys(label for probes in everything for label in probes.curves))
    labels.sort(key=lambda label: label != Probes.TRAINED)
    layers = max(mad_PL.shape[1] for probes in everything for mad_PL in probes.curves.values())
    with mpl.rc_context(STYLE):
        figure, axes = row_of_axes(len(labels), ylabel="mean absolute error, positions", width=3.0)
        for axis, label in zip(axes, labels, strict=True):
            axis.set_title("\n".join(textwrap.wrap(label, 34)), loc="left")
            for place, (arm, found) in enumerate(measured.items()):
                curves = [p.curves[label].mean(axis=0) for p in found if label in p.curves]
                if curves:
                    mad_SL = np.stack([_level(mad_L, layers) for mad_L in curves])
                    band(axis, np.arange(layers), mad_SL, place, arm, marker="o")
            _guesses(axis, {probes.positions for probes in everything}, name=axis is axes[-1])
            axis.set_ylim(bottom=0)
        legend_below(axes[0])
        figure.supxlabel(
            "layer (0: embedding)    (line: mean over seeds; band: smallest to largest)", size=9
        )
    return figure


def shuffled_prefix(results: Results, arms: Sequence[str]) -> Figure:
    """Loss of the same target with its prefix intact and shuffled: two boxes per arm over the sequences of all seeds.

    Box: quartiles and median; whiskers: 5 to 95 %; diamond: mean.
    """
    measured = by_arm("shuffled prefix", results, ShuffledPrefix.read, arms)
    with mpl.rc_context(STYLE):
        size = (2.0 + 1.1 * len(measured), 3.6)
        figure = Figure(figsize=size, layout="constrained")
        axis = figure.subplots()
        for place, (name, offset) in enumerate((("intact", -0.2), ("shuffled", 0.2))):
            axis.boxplot(
                [np.concatenate([getattr(x, name) for x in found]) for found in measured.values()],
                positions=np.arange(len(measured)) + offset,
                widths=0.34,
                whis=(5, 95),
                showfliers=False,
                showmeans=True,
                patch_artist=True,
                boxprops={"facecolor": (*_rgb(COLOURS[place]), 0.3), "edgecolor": COLOURS[place]},
                whiskerprops={"color": COLOURS[place]},
                capprops={"color": COLOURS[place]},
                medianprops={"color": COLOURS[place], "linewidth": 1.8},
                meanprops={
                    "marker": "D",
                    "markerfacecolor": COLOURS[place],
                    "markeredgecolor": COLOURS[place],
                    "markersize": 4,
                },
            )
            axis.plot([], [], color=COLOURS[place], linewidth=5, alpha=0.6, label=f"prefix {name}")
        names = ["\n".join(textwrap.wrap(arm.replace("-", "- "), 12)) for arm in measured]
        axis.set_xticks(np.arange(len(measured)), [name.replace("- ", "-") for name in names])
        axis.set_xlim(-0.6, len(measured) - 0.4)
        axis.grid(axis="x", visible=False)
        axis.set_ylabel("loss of one target, nats")
        axis.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
    return figure


def loss_by_length(results: Results, arms: Sequence[str]) -> Figure:
    """Loss of the same last targets by the length of the context; the vertical line is the training context."""
    measured = by_arm("loss by length", results, LossByLength.read, arms)
    with mpl.rc_context(STYLE):
        figure, (axis,) = row_of_axes(1, ylabel="loss of the same last targets, nats", width=4.6)
        for place, (arm, found) in enumerate(measured.items()):
            for lengths in {tuple(x.lengths) for x in found}:
                loss_ST = np.stack([x.loss for x in found if tuple(x.lengths) == lengths])
                band(axis, np.array(lengths), loss_ST, place, arm, marker="o")
        for trained in {x.trained for found in measured.values() for x in found}:
            axis.axvline(trained, color="0.35", linewidth=0.9, linestyle=(0, (4, 3)))
            axis.annotate(
                f"trained at {trained}", (trained, 1.0), xycoords=("data", "axes fraction"),
                xytext=(3, -9), textcoords="offset points", color="0.35", size=8,
            )  # fmt: skip
        axis.set_xticks(
            sorted({n for found in measured.values() for x in found for n in x.lengths})
        )
        legend_below(axis)
        figure.supxlabel(
            "tokens of context    (line: mean over seeds; band: smallest to largest)", size=9
        )
    return figure


def attention_entropy(results: Results, arms: Sequence[str], *, columns: int = 4) -> Figure:
    """Entropy of each head's weights over the log of its visible keys, layer by head; mean over an arm's seeds.

    1: attention is spread evenly over all that may be read; 0: it is on one token.
    """
    entropy = {arm: _stacked(results.measured(measurements.attention_entropy, arm)) for arm in arms}
    entropy = nonempty("attention entropy", entropy)
    means = {arm: e_SLN.mean(axis=0) for arm, e_SLN in entropy.items()}
    columns = min(columns, len(means))
    rows = -(-len(means) // columns)
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        size = (0.9 + 1.75 * columns, 0.6 + 1.9 * rows)
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(h_pad=0.08))
        axes = figure.subplots(rows, columns, squeeze=False)
        image = None
        for axis in axes.flat:
            axis.set_visible(False)
        for axis, (arm, entropy_LN) in zip(axes.flat, means.items(), strict=False):
            axis.set_visible(True)
            image = _heat(axis, arm, entropy_LN)
        assert image is not None
        bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=30, pad=0.02)
        bar.ax.tick_params(labelsize=7)
        bar.outline.set_visible(False)
        figure.supxlabel("head", size=9)
        figure.supylabel("layer", size=9)
    return figure


def trend(row: TrendRow, unit: str = "nats") -> Figure:
    """A paired difference by the value of a knob: rings are seeds, bars 95 % intervals of the mean."""
    points = nonempty(
        row.trend.title, {at: list(values.values()) for at, values in row.points.items()}
    )
    with mpl.rc_context(STYLE):
        figure, (axis,) = row_of_axes(1, ylabel=f"paired difference, {unit}", width=4.6)
        axis.set_title("\n".join(textwrap.wrap(row.trend.title, 60)), loc="left")
        places = np.arange(len(points))
        for place, values in zip(places, points.values(), strict=True):
            axis.plot([place] * len(values), values, "o", mfc="none", color="0.3", ms=4)
            if len(values) >= 2:
                interval = statistics.mean_interval(values)
                axis.plot([place + 0.12] * 2, [interval.low, interval.high], color=COLOURS[0], lw=3)
        means = [float(np.mean(values)) for values in points.values()]
        axis.plot(places + 0.12, means, "D-", color=COLOURS[0], ms=5, mec="white", lw=1.0)
        axis.axhline(0.0, color="black", linewidth=0.8)
        axis.set_xticks(places, [f"{at:g}" for at in points])
        axis.set_xlim(-0.5, len(points) - 0.4)
        axis.set_xlabel(row.trend.knob)
        figure.supxlabel("ring: one seed; bar: 95 % CI of the mean; diamond: mean", size=8)
    return figure


def row_of_axes(count: int, *, ylabel: str, width: float = 3.6) -> tuple[Figure, list[Axes]]:
    """A figure of panels side by side that share their y axis."""
    figure = Figure(figsize=(1.2 + width * count, 3.8), layout="constrained")
    axes = list(figure.subplots(1, count, sharey=True, squeeze=False)[0])
    axes[0].set_ylabel(ylabel)
    for axis in axes:
        axis.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    return figure, axes


def band(
    axis: Axes, x: np.ndarray, values_ST: np.ndarray, place: int, label: str, marker: str = ""
) -> None:
    """The line and the band of an arm, in the colour of its place in the figure."""
    colour, dash = COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]
    mean_T = values_ST.mean(axis=0)
    axis.plot(x, mean_T, color=colour, linestyle=dash, label=label, marker=marker, markersize=3.5)
    axis.fill_between(
        x, values_ST.min(axis=0), values_ST.max(axis=0), color=colour, alpha=0.18, lw=0
    )


def legend_below(axis: Axes) -> None:
    """Outside the frame, where no line can run through it."""
    handles, labels = axis.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    beside = 1 if max(map(len, unique), default=0) > 22 else 2
    axis.legend(
        unique.values(), unique.keys(), loc="upper center", bbox_to_anchor=(0.5, -0.1),
        ncols=min(beside, max(1, len(unique))), fontsize=8,
    )  # fmt: skip


def _guesses(axis: Axes, sizes: set[int], *, name: bool) -> None:
    for n in sorted(sizes):
        for text, level in (
            ("uniform guess, N/3", (n * n - 1) / (3 * n)),
            ("blind guess, N/4", n / 4),
        ):
            axis.axhline(level, color="0.35", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
            if name:
                axis.annotate(
                    text, (1.0, level), xycoords=("axes fraction", "data"), xytext=(4, 0),
                    textcoords="offset points", va="center", color="0.35", size=8,
                )  # fmt: skip


def _heat(axis: Axes, title: str, entropy_LN: np.ndarray) -> mpl.cm.ScalarMappable:
    image = axis.imshow(
        entropy_LN, cmap="cividis", vmin=0.0, vmax=1.0, aspect="auto", interpolation="none"
    )
    axis.set_title("\n".join(textwrap.wrap(title, 22)), size=8)
    axis.tick_params(length=0, labelsize=7)
    for side, size in ((axis.yaxis, entropy_LN.shape[0]), (axis.xaxis, entropy_LN.shape[1])):
        side.set_major_locator(FixedLocator(range(0, size, 1 + (size - 1) // 8)))
    axis.spines[:].set_visible(False)
    if entropy_LN.size <= 36:
        for (layer, head), value in np.ndenumerate(entropy_LN):
            # Not pure black and white, which a report recolours for dark pages; cells stay as they are.
            ink = "#010101" if value > 0.5 else "#fefefe"
            axis.text(head, layer, f"{value:.2f}", ha="center", va="center", color=ink, size=7)
    return image


def by_arm(
    what: str, results: Results, read: Callable[[Run], T | None], arms: Sequence[str]
) -> dict[str, list[T]]:
    """What was measured on the runs of each arm; arms of which no run was measured are left out.

    Raises:
      NothingToDrawError: none was.
    """
    return nonempty(what, {arm: list(results.measured(read, arm).values()) for arm in arms})


def _stacked(by_seed: Mapping[int, np.ndarray]) -> np.ndarray:
    """[S, ...]; runs of another shape than the first (another context or depth) are no part of the mean."""
    arrays = list(by_seed.values())
    return np.stack([a for a in arrays if a.shape == arrays[0].shape]) if arrays else np.zeros(0)


def _level(mad_L: np.ndarray, layers: int) -> np.ndarray:
    return (
        np.resize(mad_L, layers)
        if len(mad_L) == 1
        else np.pad(mad_L, (0, layers - len(mad_L)), constant_values=np.nan)
    )


def _rgb(colour: str) -> tuple[float, float, float]:
    return mpl.colors.to_rgb(colour)
