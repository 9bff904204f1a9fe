"""Figures of what trained members make of their context, in the style of `attnlab.plots.measurement_plots`.

Each function raises `NothingToDrawError` where no run has what it draws.
"""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from attnlab.measurements.context import Reach, TruncatedContext
from attnlab.plots.base import STYLE
from attnlab.plots.measurement_plots import band, by_arm, legend_below, row_of_axes
from attnlab.results import Results


def truncated_context(results: Results, arms: Sequence[str]) -> Figure:
    """Loss by position, a panel each: of whole windows, and with the context cut off behind the position."""
    measured = by_arm("truncated context", results, TruncatedContext.read, arms)
    with mpl.rc_context(STYLE):
        figure, axes = row_of_axes(2, ylabel="loss, nats per token")
        for axis, field, title in zip(
            axes, ("whole", "truncated"), ("as trained", "future cut off"), strict=True
        ):
            axis.set_title(title, loc="left")
            for place, (arm, found) in enumerate(measured.items()):
                loss_ST = np.stack([getattr(x, field) for x in found])
                band(axis, np.arange(1, loss_ST.shape[1] + 1), loss_ST, place, arm)
            legend_below(axis)
        figure.supxlabel("position    (line: mean over seeds; band: smallest to largest)", size=9)
    return figure


def reach(results: Results, arms: Sequence[str]) -> Figure:
    """Share of all influence by distance, on logarithmic axes; a line ends at the farthest token that is read."""
    measured = by_arm("reach", results, Reach.read, arms)
    with mpl.rc_context(STYLE):
        figure, (axis,) = row_of_axes(1, ylabel="share of the influence", width=4.6)
        for place, (arm, found) in enumerate(measured.items()):
            shares_ST = np.stack([x.shares for x in found])
            shares_ST = np.where(shares_ST > 0, shares_ST, np.nan)
            band(axis, np.arange(1, shares_ST.shape[1] + 1), shares_ST, place, arm)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_yscale("log")
        legend_below(axis)
        figure.supxlabel(
            "tokens back from the last input, itself 1    (line: mean over seeds; band: smallest to largest)", size=8
        )  # fmt: skip
    return figure
