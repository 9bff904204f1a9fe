"""The table and the figures of a benchmark of attention."""

from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from attnlab.bench.attention import Cell
from attnlab.plots import COLOURS, DASHES, STYLE


def print_table(cells: Sequence[Cell]) -> None:
    """A row a length and mask, a column a contender: milliseconds forward / forward + backward, and peak MB."""
    names = list(dict.fromkeys(c.contender for c in cells))
    table = Table(
        title="attention: ms forward / forward + backward (peak MB)", title_justify="left"
    )
    table.add_column("T", justify="right")
    table.add_column("mask")
    for name in names:
        table.add_column(name, justify="right")
    for length, mask in dict.fromkeys((c.length, c.mask) for c in cells):
        row = [c for c in cells if (c.length, c.mask) == (length, mask)]
        table.add_row(
            str(length), mask, *(_entry([c for c in row if c.contender == n]) for n in names)
        )
    console = Console(highlight=False)
    (console if console.is_terminal else Console(highlight=False, width=160)).print(table)
    for name, why in sorted({(c.contender, c.why) for c in cells if c.why}):
        console.print(f"  {name}: not run: {why}", markup=False)


def _entry(cells: Sequence[Cell]) -> str:
    times = " / ".join("-" if c.milliseconds is None else f"{c.milliseconds:.1f}" for c in cells)
    peak = [c.megabytes for c in cells if c.megabytes is not None]
    return f"{times} ({max(peak):.0f})" if peak else times


def figures(cells: Sequence[Cell]) -> dict[str, Figure]:
    """Log-log, a panel a mask and a line a contender: time and peak memory of forward + backward against T."""
    return {
        "time": _figure(cells, "milliseconds", "ms, forward + backward"),
        "memory": _figure(cells, "megabytes", "peak MB, forward + backward"),
    }


def _figure(cells: Sequence[Cell], field: str, label: str) -> Figure:
    cells = [c for c in cells if c.direction == "forward + backward"]
    names, kinds = (
        list(dict.fromkeys(x)) for x in zip(*((c.contender, c.mask) for c in cells), strict=True)
    )
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(2.6 * len(kinds) + 1.2, 3.4), layout="constrained")
        axes = figure.subplots(1, len(kinds), sharex=True, sharey=True, squeeze=False)[0]
        for axis, kind in zip(axes, kinds, strict=True):
            for place, name in enumerate(names):
                line = [
                    c for c in cells if c.mask == kind and c.contender == name and getattr(c, field)
                ]
                axis.plot(
                    [c.length for c in line],
                    [getattr(c, field) for c in line],
                    label=name,
                    marker="o",
                    markersize=3,
                    color=COLOURS[place % len(COLOURS)],
                    linestyle=DASHES[place % len(DASHES)],
                )
            axis.set(xscale="log", yscale="log", title=kind, xlabel="T")
            lengths = sorted({c.length for c in cells})
            axis.set_xticks(lengths, [str(n) for n in lengths])
            axis.minorticks_off()
        axes[0].set_ylabel(label)
        figure.legend(
            *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(names)
        )
    return figure
