"""The figure of `attnlab eval`, in the style of `attnlab.plots`."""

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attnlab.plots.base import COLOURS, STYLE
from attnlab.statistics import Interval


def loss_by_position(
    title: str,
    loss_T: np.ndarray,
    segments: Sequence[tuple[int, int, Interval]],
    references: Mapping[str, float],
) -> Figure:
    """Held-out loss of one member at each target position, in nats: dots are positions, bars segments with intervals.

    Args:
      title: says which member and which text.
      loss_T: mean loss at each position, float [T]; nan where no target fell.
      segments: (first position, last position + 1, interval of the mean loss there), positions from 0.
      references: label -> nats, drawn as horizontal lines.
    """
    positions_T = np.arange(1, len(loss_T) + 1)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axis = figure.subplots()
        axis.set_title(title, loc="left")
        axis.plot(positions_T, loss_T, ".", color=COLOURS[0], ms=3, alpha=0.5, label="one position")
        for index, (start, stop, interval) in enumerate(segments):
            span = [start + 0.6, stop + 0.4]
            axis.plot(
                span, [interval.mean] * 2, color=COLOURS[1],
                label="mean of a segment" if index == 0 else None,
            )  # fmt: skip
            axis.fill_between(
                span, interval.low, interval.high, color=COLOURS[1], alpha=0.25, lw=0,
                label=f"{interval.level:.0%} interval over blocks" if index == 0 else None,
            )  # fmt: skip
        for name, nats in references.items():
            axis.axhline(nats, color="0.35", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
            axis.annotate(
                f"{name.replace('_', '-')} {nats:.3f}", (1.0, nats), xycoords=("axes fraction", "data"),
                xytext=(4, 0), textcoords="offset points", va="center", color="0.35", size=8,
            )  # fmt: skip
        axis.set_ylabel("loss, nats per token")
        axis.set_xlabel("target position in the window, from 1")
        axis.xaxis.set_major_locator(MaxNLocator(9, integer=True))
        # Below the frame, where no line can run through it.
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3, fontsize=8)
    return figure
