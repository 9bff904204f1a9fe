"""Logged metrics by update, several columns as one: the mean entropy of all heads, the gradient of all layers."""

import re
import textwrap
from collections.abc import Callable, Mapping, Sized
from typing import TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from attnlab.plots.base import COLOURS, DASHES, STYLE, nonempty
from attnlab.plots.measurement_plots import band, legend_below, row_of_axes
from attnlab.results import Results, Run

T = TypeVar("T", bound=Sized)


def mean_by_step(
    results: Results,
    panels: Mapping[str, Mapping[str, str]],
    columns: str,
    *,
    ylabel: str,
    log: bool = False,
) -> Figure:
    """The mean of all columns that match a pattern, by update: panel title -> label of a line -> arm.

    A line is the mean over seeds, a band reaches from the smallest to the largest; where they have different rows (one
    diverged) both are of those that go on.

    Raises:
      NothingToDrawError: no run of any arm has such a column.
    """
    shown = _lines(results, panels, lambda arm: _by_step(results, arm, columns), ylabel)
    with mpl.rc_context(STYLE):
        figure, axes = row_of_axes(len(shown), ylabel=ylabel, width=3.0)
        for axis, (title, lines) in zip(axes, shown.items(), strict=True):
            axis.set_title("\n".join(textwrap.wrap(title, 36)), loc="left")
            for label, steps in lines.items():
                place = list(panels[title]).index(label)  # one colour in all panels
                colour, dash = COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]
                means = [float(np.mean(x)) for x in steps.values()]
                axis.plot(list(steps), means, color=colour, linestyle=dash, label=label)
                low, high = [min(x) for x in steps.values()], [max(x) for x in steps.values()]
                axis.fill_between(list(steps), low, high, color=colour, alpha=0.18, lw=0)
            if log:
                axis.set_yscale("log")
            legend_below(axis)
        figure.supxlabel("update    (line: mean over seeds; band: smallest to largest)", size=9)
    return figure


def _lines(
    results: Results,
    panels: Mapping[str, Mapping[str, str]],
    read: Callable[[str], T],
    what: str,
) -> dict[str, dict[str, T]]:
    """Panel title -> label -> what is read of its arm, where there is something."""
    found = {
        title: {
            label: line
            for label, arm in lines.items()
            if arm in results.arms and len(line := read(arm))
        }
        for title, lines in panels.items()
    }
    return nonempty(what, found)


def _by_step(results: Results, arm: str, columns: str) -> dict[int, list[float]]:
    """Update -> the number of each seed that has one there."""
    found: dict[int, list[float]] = {}
    for run in results.runs(arm).values():
        for step, value in _mean_of(run, columns).items():
            found.setdefault(step, []).append(value)
    return dict(sorted(found.items()))


def _mean_of(run: Run, columns: str) -> dict[int, float]:
    """Update -> mean of the matching columns; a later row of the same update counts."""
    matching = [name for name in run.history if re.fullmatch(columns, name)]
    if not matching:
        return {}
    values_CT = np.array([np.asarray(run.history[name], np.float64) for name in matching])
    there_T = np.isfinite(values_CT).all(axis=0)
    steps_T = np.asarray(run.history["step"])[there_T].astype(int)
    means_T = values_CT[:, there_T].mean(axis=0)
    return dict(zip(steps_T.tolist(), means_T.tolist(), strict=True))


def first_by_layer(
    results: Results, panels: Mapping[str, Mapping[str, str]], column: str, *, ylabel: str
) -> Figure:
    """A metric of each layer in the first row that has it: panel title -> label of a line -> arm; `opt/grad_norm`, say.

    Raises:
      NothingToDrawError: no run of any arm has such a column.
    """
    shown = _lines(results, panels, lambda arm: _first_rows(results, arm, column), ylabel)
    with mpl.rc_context(STYLE):
        figure, axes = row_of_axes(len(shown), ylabel=ylabel, width=3.0)
        for axis, (title, lines) in zip(axes, shown.items(), strict=True):
            axis.set_title(title, loc="left")
            for label, rows in lines.items():
                values_SL, place = np.array(rows), list(panels[title]).index(label)
                band(axis, np.arange(values_SL.shape[1]), values_SL, place, label, marker="o")
            axis.set_yscale("log")
            legend_below(axis)
        figure.supxlabel("layer    (line: mean over seeds; band: smallest to largest)", size=9)
    return figure


def _first_rows(results: Results, arm: str, column: str) -> list[list[float]]:
    """By seed, the first finite value of each layer."""
    rows = []
    for run in results.runs(arm).values():
        names = sorted(name for name in run.history if re.fullmatch(rf"{column}_l\d+", name))
        values_LT = [np.asarray(run.history[name], np.float64) for name in names]
        if names and all(np.isfinite(values).any() for values in values_LT):
            rows.append([float(values[np.isfinite(values)][0]) for values in values_LT])
    return rows
