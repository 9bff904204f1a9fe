"""Figures of results: one style, colours that survive colour blindness and grey print, no global state.

Every function returns a `matplotlib.figure.Figure` that belongs to nobody else (pyplot is never imported), and
says in the figure itself what its lines and bands are. `save` writes PNG and SVG.
"""

import os
import textwrap
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import EngFormatter, FixedLocator, MaxNLocator

from attnlab.claims.judging import Judgement
from attnlab.claims.rules import Rule, Verdict
from attnlab.results import DIVERGED, Results
from attnlab.whole_files import replacing

K = TypeVar("K")
V = TypeVar("V", bound=Sized)

# Okabe & Ito's palette, in the order in which neighbours differ most; dashes say the same in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 1)))
LEGEND_COLUMNS = 68  # characters of the legend font that fit beside its lines in one panel
LEGEND_LINE = 0.19  # height of such a line, inches
# Of words on white: dark enough to be read (a contrast of at least 5 to 1).
VERDICT_COLOURS = {
    Verdict.REPRODUCED: "#006B4C",
    Verdict.NOT_REPRODUCED: "#A83F00",
    Verdict.INCONCLUSIVE: "#735400",
    Verdict.INVALID: "#57606A",
}
STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "savefig.dpi": 160,
    "svg.hashsalt": "attnlab",  # equal figures give equal files
}


class NothingToDrawError(ValueError):
    """No run has what the figure shows."""


def nonempty(what: str, found: Mapping[K, V]) -> dict[K, V]:
    """The entries that hold something.

    Raises:
      NothingToDrawError: none does; `what` says in words what was looked for.
    """
    some = {key: value for key, value in found.items() if len(value)}
    if not some:
        raise NothingToDrawError(f"{what}: no run has it")
    return some


def loss_by_tokens(
    results: Results,
    arms: Sequence[str] | Mapping[str, Sequence[str]],
    metric: str = "val/loss",
    references: Mapping[str, float] | None = None,
) -> Figure:
    """A metric in nats by tokens seen: per arm a line (mean over seeds) and a band (smallest to largest seed).

    `arms` is one list, or panel title -> list: objectives whose losses are not on one scale belong in
    panels of their own. Colours follow the order within a panel, so that equal places mean equal things.
    `references` are horizontal lines, label -> nats. A seed that diverged is no part of the mean and the band: it
    is drawn by itself, cut off at the frame, and crossed out where it ends.

    Raises:
      ValueError: an arm or metric that the results do not have.
    """
    panels = arms if isinstance(arms, Mapping) else {"": arms}
    with mpl.rc_context(STYLE):
        figure, axes = _panels(len(panels), ylabel=f"{metric}, nats per token")
        curves = []
        for axis, (title, names) in zip(axes, panels.items(), strict=True):
            axis.set_title("\n".join(textwrap.wrap(title, 40)), loc="left")
            _reference_lines(axis, references or {}, label=axis is axes[-1])
            for place, arm in enumerate(names):
                tokens_T, values_ST = results.curve(metric, arm)
                apart_S = [run.status == DIVERGED for run in results.runs(arm).values()]
                curves.append(_Curve(axis, place, arm, tokens_T, values_ST, np.array(apart_S)))
        _draw_curves(curves)
        for axis in axes:
            axis.legend(loc="best")
    return figure


def gap_by_tokens(
    results: Results, pairs: Mapping[str, tuple[str, str]], metric: str = "val/loss"
) -> Figure:
    """How far one arm is behind another by tokens seen, paired by seed: label -> (arm, arm it is compared with).

    Per pair a line (mean over seeds of the difference) and a band (smallest to largest), in nats. A pair with a
    diverged run is drawn as in `loss_by_tokens`.

    Raises:
      ValueError: an arm or metric that the results do not have, or a pair without a common seed.
    """
    with mpl.rc_context(STYLE):
        figure, (axis,) = _panels(1, ylabel=f"difference of {metric}, nats per token")
        curves = [
            _paired_curve(results, metric, pair, axis, place, label)
            for place, (label, pair) in enumerate(pairs.items())
        ]
        axis.axhline(0.0, color="black", linewidth=0.8)
        _draw_curves(curves)
        axis.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0))
        lines = sum(curve.label.count("\n") + 1 for curve in curves)
        figure.set_figheight(figure.get_figheight() + LEGEND_LINE * max(0, lines - 3))
    return figure


def mask_gallery(masks: Mapping[str, np.ndarray], *, columns: int = 4) -> Figure:
    """Who may read whom: title -> bool [T, S]; row = query, column = key, filled = may read.

    Raises:
      ValueError: no mask, or one that is not a two-dimensional bool array.
    """
    if not masks:
        raise ValueError("masks: need at least one")
    for title, allowed_TS in masks.items():
        if allowed_TS.ndim != 2 or allowed_TS.dtype != np.bool_:
            raise ValueError(
                f"masks[{title!r}]: must be bool [T, S], got {allowed_TS.dtype} {allowed_TS.shape}"
            )
    columns = min(columns, len(masks))
    rows = -(-len(masks) // columns)
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        size = (2.1 * columns, 2.4 * rows)
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(h_pad=0.08))
        axes = figure.subplots(rows, columns, squeeze=False)
        for index, axis in enumerate(axes.flat):
            axis.set_visible(index < len(masks))
        for axis, (title, allowed_TS) in zip(axes.flat, masks.items(), strict=False):
            _draw_mask(axis, title, allowed_TS)
        figure.supxlabel("key", size=9)
        figure.supylabel("query", size=9)
    return figure


def forest(judgements: Sequence[Judgement], *, names: Sequence[str] | None = None) -> Figure:
    """One row per sub-claim on its own scale: seeds, confidence interval, claimed region, verdict in words.

    `names`: the claim that each belongs to, where there are several.

    Raises:
      ValueError: no judgement.
    """
    if not judgements:
        raise ValueError("judgements: need at least one")
    with mpl.rc_context(STYLE):
        height = 1.35 * len(judgements) + 0.5
        figure = Figure(figsize=(7.0, height), layout=ConstrainedLayoutEngine(h_pad=0.12))
        axes = figure.subplots(len(judgements), 1, squeeze=False)[:, 0]
        labels = [f"{name} " for name in names] if names else [""] * len(judgements)
        for axis, judgement, label in zip(axes, judgements, labels, strict=True):
            _draw_judgement(axis, judgement, label)
        figure.supxlabel("shaded: claimed region; bar: 95 % CI of the mean; ring: one seed", size=8)
    return figure


def save(figure: Figure, path: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Writes `path` (a .png) and the same name with .svg; each is either the old file or the whole new one.

    Raises:
      ValueError: the path does not end in .png.
    """
    png = Path(path)
    if png.suffix != ".png":
        raise ValueError(
            f"path: must end in .png (the .svg is written beside it), got {png.name!r}"
        )
    svg = png.with_suffix(".svg")
    with mpl.rc_context(STYLE):
        for target, no_stamp in ((png, {"Software": None}), (svg, {"Date": None})):
            with replacing(target) as partial:
                figure.savefig(partial, format=target.suffix[1:], metadata=no_stamp)
            figure.set_layout_engine("none")  # done, and the slower half of the work
    return png, svg


@dataclass(frozen=True)
class _Curve:
    """What becomes one line and one band: tokens [T], values [seeds, T]; seeds in `apart` [seeds] stand alone."""

    axis: Axes
    place: int
    label: str
    tokens: np.ndarray
    values: np.ndarray
    apart: np.ndarray


def _panels(count: int, *, ylabel: str) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(2.2 + 3.6 * count, 3.8), layout="constrained")
    axes = list(figure.subplots(1, count, sharey=True, squeeze=False)[0])
    axes[0].set_ylabel(ylabel)
    for axis in axes:
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.xaxis.set_major_locator(MaxNLocator(5))
    figure.supxlabel(
        "tokens seen    (line: mean over seeds; band: smallest to largest seed)", size=9
    )
    return figure, axes


def _draw_curves(curves: Sequence[_Curve]) -> None:
    for curve in curves:
        colour, dash = COLOURS[curve.place % len(COLOURS)], DASHES[curve.place % len(DASHES)]
        diverged = int(curve.apart.sum())
        label = f"{curve.label} ({diverged} diverged: x)" if diverged else curve.label
        held_ST = curve.values[~curve.apart]
        begun_S = np.isfinite(held_ST).any(axis=1)
        if not begun_S.all():
            label += f" ({begun_S.sum()} of {len(begun_S)} begun)"
        held_ST = held_ST[begun_S]
        whole_T = np.isfinite(held_ST).all(axis=0) & (len(held_ST) > 0)
        tokens_T, held_ST = curve.tokens[whole_T], held_ST[:, whole_T]
        mean_T = held_ST.mean(axis=0) if len(held_ST) else []
        curve.axis.plot(tokens_T, mean_T, color=colour, linestyle=dash, label=label)
        if len(held_ST):
            low_T, high_T = held_ST.min(axis=0), held_ST.max(axis=0)
            curve.axis.fill_between(tokens_T, low_T, high_T, color=colour, alpha=0.18, lw=0)
    some_held = any((~curve.apart).any() for curve in curves)
    for curve in curves:
        frame = curve.axis.get_ylim() if some_held else (-np.inf, np.inf)
        for values_T in curve.values[curve.apart]:
            shown_T = np.isfinite(values_T)
            tokens_T, values_T = curve.tokens[shown_T], np.clip(values_T[shown_T], *frame)
            colour = COLOURS[curve.place % len(COLOURS)]
            curve.axis.plot(tokens_T, values_T, color=colour, lw=0.8)
            curve.axis.plot(tokens_T[-1:], values_T[-1:], "x", color=colour, ms=7, clip_on=False)
        if some_held:
            curve.axis.set_ylim(frame)


def _paired_curve(
    results: Results, metric: str, pair: tuple[str, str], axis: Axes, place: int, label: str
) -> _Curve:
    """Differences of the seeds that both arms have, at the token counts that both have."""
    runs_a, runs_b = (results.runs(arm) for arm in pair)
    (tokens_a, values_a), (tokens_b, values_b) = (results.curve(metric, arm) for arm in pair)
    seeds = [seed for seed in runs_a if seed in runs_b]
    if not seeds:
        raise ValueError(f"pairs[{label!r}]: {pair[0]} and {pair[1]} have no seed in common")
    tokens_T, in_a, in_b = np.intersect1d(tokens_a, tokens_b, return_indices=True)
    row_a, row_b = (np.isin(list(runs), seeds) for runs in (runs_a, runs_b))
    gap_ST = values_a[row_a][:, in_a] - values_b[row_b][:, in_b]
    apart_S = [DIVERGED in (runs_a[seed].status, runs_b[seed].status) for seed in seeds]
    text = textwrap.fill(
        f"{label}: {pair[0]} $-$ {pair[1]}", LEGEND_COLUMNS, break_on_hyphens=False
    )
    return _Curve(axis, place, text, tokens_T, gap_ST, np.array(apart_S))


def _reference_lines(axis: Axes, references: Mapping[str, float], *, label: bool) -> None:
    for name, nats in references.items():
        axis.axhline(nats, color="0.35", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        if label:
            axis.annotate(
                f"{name} {nats:.3f}",
                (1.0, nats),
                xycoords=("axes fraction", "data"),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                color="0.35",
                size=8,
            )


def _draw_mask(axis: Axes, title: str, allowed_TS: np.ndarray) -> None:
    T, S = allowed_TS.shape
    axis.imshow(
        allowed_TS,
        cmap=ListedColormap(["#E9ECEF", COLOURS[0]]),
        vmin=0,
        vmax=1,
        interpolation="none",
    )
    axis.set_title("\n".join(textwrap.wrap(title, 24)), size=8)
    axis.tick_params(length=0, labelsize=7)
    for side, size in ((axis.xaxis, S), (axis.yaxis, T)):
        side.set_major_locator(MaxNLocator(7, integer=True, steps=[1, 2, 5, 10]))
        if size <= 64:
            side.set_minor_locator(FixedLocator([edge - 0.5 for edge in range(size + 1)]))
    axis.set_xlim(-0.5, S - 0.5)
    axis.set_ylim(T - 0.5, -0.5)
    width = 1.0 if max(T, S) <= 16 else 0.3
    axis.grid(which="minor", color="white", linewidth=width, alpha=1.0)
    axis.tick_params(which="minor", length=0)
    axis.spines[:].set_visible(False)


def _draw_judgement(axis: Axes, judgement: Judgement, label: str) -> None:
    subclaim, interval = judgement.subclaim, judgement.interval
    colour = VERDICT_COLOURS[judgement.verdict]
    number = (
        f": {interval.mean:.3f} ({interval.low:.3f} to {interval.high:.3f})" if interval else ""
    )
    axis.set_title(f"{label}{subclaim.id}  {subclaim.title}{number}", loc="left", size=9)
    axis.set_title(judgement.verdict, loc="right", color=colour, weight="bold", size=9)
    why = textwrap.wrap(judgement.reason, 110) if judgement.verdict is Verdict.INVALID else []
    why = why if len(why) <= 3 else [*why[:2], f"{why[2]} ..."]
    metric = f"{subclaim.metric}, {subclaim.unit}" if subclaim.unit else subclaim.metric
    axis.set_xlabel("\n".join([metric, *why]), size=8)
    axis.set_yticks([])
    axis.set_ylim(-1, 1)
    axis.grid(axis="y", visible=False)
    axis.spines["left"].set_visible(False)
    if interval is None:
        axis.set_xticks([])
        axis.text(
            0.5, 0.5, "no number", transform=axis.transAxes, ha="center", va="center", color=colour
        )
        return
    values = list(judgement.values.values())
    axis.plot(values, [-0.45] * len(values), "o", mfc="none", color="0.3", ms=4)
    bar = [interval.low, interval.high]
    axis.plot(bar, [0.25, 0.25], color=colour, lw=3, solid_capstyle="butt")
    axis.plot(interval.mean, 0.25, "D", color=colour, ms=6, mec="white")
    _draw_region(axis, subclaim.rule, [*values, *bar])


def _draw_region(axis: Axes, rule: Rule, shown: Sequence[float]) -> None:
    borders = [border for border in (rule.low, rule.high) if np.isfinite(border)]
    first, last = min(*shown, *borders), max(*shown, *borders)
    margin = 0.12 * (last - first) or 1.0
    axis.set_xlim(first - margin, last + margin)
    region = max(rule.low, first - margin), min(rule.high, last + margin)
    axis.axvspan(*region, color="0.5", alpha=0.13, lw=0)
    for border in borders:
        axis.axvline(border, color="black", linewidth=1.0)
