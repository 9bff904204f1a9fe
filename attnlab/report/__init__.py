"""A sweep as one page: `report.html`, the tables behind it and every figure as PNG and SVG.

    OUT/report.html        self-contained: opens from a file, asks no network for anything, prints
    OUT/runs.csv           a row per run: what it was, how it ended, its final numbers
    OUT/history.csv        a row per run and logged step (history.parquet where pyarrow is installed)
    OUT/report.json        the same for programs; names what the W&B mirror sends
    OUT/figures/STEM.png   and .svg

What the page shows, and where it is read from. A section appears when its data exist; a run that diverged, stopped or
was interrupted is listed near the top and never left out.

    verdict, forest, published numbers   the claim named by the sweep (NAME or NAME-PRESET) and the rows below
    loss and gap by tokens               runs/RUN_ID/metrics.jsonl, "val/loss"
    loss by position                     runs/RUN_ID/summary.json, "val/loss_by_position"
    attention entropy                    runs/RUN_ID/metrics.jsonl, "attn/entropy_l03h02"
    position probe by layer              runs/RUN_ID/probes.json           (`attnlab.measurements.Probes`)
    shuffled against intact prefix       runs/RUN_ID/shuffled_prefix.json  (`attnlab.measurements.ShuffledPrefix`)
    loss by context length               runs/RUN_ID/loss_by_length.json   (`attnlab.measurements.LossByLength`)
    gap by a knob (depth, context, ...)  the claim's `trends`
    figures of this claim alone          the claim's `figures`
    masks, arms, differences of arms     runs/RUN_ID/config.json
    environment, command, commit         runs/RUN_ID/environment.json

Works on a sweep that is unfinished or partly failed, and on one without a claim. Knows results only; the command is
`attnlab.commands.report_command`.
"""

from attnlab.report.build import Report, build
from attnlab.report.source import Source

__all__ = ["Report", "Source", "build"]
