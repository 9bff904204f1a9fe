"""Figures of what trained members make of their context, in the style of `attnlab.measurement_plots`.

Each function raises `NothingToDrawError` where no run has what it draws.
"""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from attnlab.context_measurements import TruncatedContext
from attnlab.measurement_plots import band, legend_below, row_of_axes
from attnlab.plots import STYLE, NothingToDrawError
from attnlab.results import Results


def truncated_context(results: Results, arms: Sequence[str]) -> Figure:
    """Loss by position, a panel each: of whole windows, and with the context cut off behind the position."""
    measured = {arm: list(results.measured(TruncatedContext.read, arm).values()) for arm in arms}
    measured = {arm: found for arm, found in measured.items() if found}
    if not measured:
        raise NothingToDrawError("truncated context: no run has it")
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
