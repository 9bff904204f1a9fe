"""The W&B page of a sweep as code: a workspace and the skeleton of a report, saved online or written as JSON.

The x axis is tokens and runs are grouped by arm, a band being the standard error over the seeds. Only names that
attnlab logs appear; where a workdir is given, only those that its runs have logged.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnlab.tracking import read_runs, read_sweep, resolve_mode
from attnlab.tracking.wandb_mirror import MirrorSettings, read_state
from attnlab.tracking.wandb_mode import credentials

MISSING = "dashboard: wandb-workspaces is not installed; pip install 'attnlab[dashboards]'"
MAX_RUNS = 128
LINES = {
    "loss": ("val/loss", "train/loss", "val/bpb"),
    "stability": ("train/grad_norm", "opt/learning_rate"),
}
"""Section -> columns drawn by tokens, a line an arm."""

ENDS = {"stability": ("health/loss_spikes", "health/last_grad_norm"), "performance": ("tokens",)}
"""Section -> numbers of a run's summary, a bar an arm."""


@dataclass(frozen=True)
class Subject:
    """What a page is about.

    `sweep`: the runs' group. `arms`: in the order of the claim. `columns`: what was logged, None where nobody knows yet.
    `statement`, `source`: of the claim, for the report.
    """

    sweep: str
    project: str
    entity: str
    arms: tuple[str, ...] = ()
    columns: frozenset[str] | None = None
    statement: str | None = None
    source: str | None = None

    def has(self, column: str) -> bool:
        return self.columns is None or column in self.columns


def build(subject: Subject) -> tuple[Any, Any]:
    """The workspace and the report, as objects of wandb-workspaces; needs no network.

    Raises:
      ValueError: wandb-workspaces is not installed.
    """
    try:
        import wandb_workspaces.reports.v2 as wr
        import wandb_workspaces.workspaces as ws
    except ImportError as error:
        raise ValueError(MISSING) from error
    sections = _sections(wr, subject)
    workspace = ws.Workspace(
        entity=subject.entity,
        project=subject.project,
        name=f"attnlab {subject.sweep}",
        sections=[
            ws.Section(name=name, panels=panels, is_open=name in ("loss", "arms"))
            for name, panels in sections.items()
        ],
        settings=ws.WorkspaceSettings(x_axis="tokens", max_runs=MAX_RUNS),
        # By W&B's own group: its filter takes a config key named `sweep` for the column Sweep.
        runset_settings=ws.RunsetSettings(
            filters=ws.And(ws.Metric("Group") == subject.sweep), groupby=[ws.Config("arm")]
        ),
    )
    return workspace, _report(wr, subject, sections)


def _sections(wr: Any, subject: Subject) -> dict[str, list[Any]]:
    arm = wr.Config("arm")

    def line(column: str) -> Any:
        return wr.LinePlot(
            title=column, x="tokens", y=[column], title_x="tokens", groupby=arm, groupby_aggfunc="mean",
            groupby_rangefunc="stderr", max_runs_to_show=MAX_RUNS,
        )  # fmt: skip

    def lines(pattern: str, title: str) -> Any:
        return wr.LinePlot(
            title=title, x="tokens", metric_regex=pattern, groupby=arm, groupby_aggfunc="mean",
            groupby_rangefunc="stderr", max_runs_to_show=MAX_RUNS,
        )  # fmt: skip

    def bar(column: str) -> Any:
        return wr.BarPlot(
            title=f"{column}, at the end", metrics=[column], groupby=arm, groupby_aggfunc="mean",
            groupby_rangefunc="stderr",
        )  # fmt: skip

    def scatter(key: str) -> Any:
        return wr.ScatterPlot(
            title=f"val/loss by {key}", x=wr.Config(key), y=wr.SummaryMetric("val/loss"), log_x=True
        )

    column = wr.ParallelCoordinatesPlotColumn
    parallel = [column(metric=wr.Config("arm")), column(metric=wr.SummaryMetric("val/loss"))]
    parallel.insert(1, column(metric=wr.Config("optimizer.learning_rate"), log=True))
    drawn = {s: [line(c) for c in names if subject.has(c)] for s, names in LINES.items()}
    ends = {s: [bar(c) for c in names] for s, names in ENDS.items()}
    return {
        "loss": drawn["loss"],
        "arms": [
            bar("val/loss"),
            scatter("optimizer.learning_rate"),
            wr.ParallelCoordinatesPlot(columns=parallel),
            wr.RunComparer(diff_only=True),
        ],
        "stability": [
            *drawn["stability"],
            lines(r"opt/grad_norm_l\d+", "gradient norm of a layer"),
            lines(r"opt/update_rms_l\d+", "update of a layer, root mean square"),
            *ends["stability"],
        ],
        "attention": [
            lines(r"attn/max_logit_l\d+", "largest logit of a layer"),
            lines(r"attn/[qk]_norm_l\d+", "length of queries and keys of a layer"),
            lines(r"attn/entropy_l\d+h\d+", "entropy of a head, nats"),
        ],
        "probes": [
            wr.MarkdownPanel(
                markdown="Position probes and gradients are measured on trained members by `attnlab measure`; "
                "their figures come with the report, which is a run of this group."
            ),
            wr.MediaBrowser(media_keys=["figures/probe", "figures/probe_error1"]),
        ],
        "performance": [
            wr.LinePlot(
                title="tokens by wall time", x="RelativeTime(Wall)", y=["tokens"], groupby=arm
            ),
            *ends["performance"],
        ],
    }


def _report(wr: Any, subject: Subject, sections: dict[str, list[Any]]) -> Any:
    """Statement, loss, arms, and places for what a person has to write. Its runs are added where it is saved."""
    blocks: list[Any] = [wr.H1(subject.statement or f"Sweep {subject.sweep}")]
    if subject.source:
        blocks.append(wr.P(f"Source: {subject.source}"))
    if subject.arms:
        blocks += [wr.H2("Arms"), wr.UnorderedList(items=list(subject.arms))]
    blocks += [
        wr.H2("Verdict"),
        wr.P(
            f"From `attnlab report`: the run {subject.sweep}-report of this group holds the page."
        ),
    ]
    for name in ("loss", "arms", "stability", "attention"):
        blocks += [wr.H2(name.capitalize()), wr.PanelGrid(panels=sections[name])]
    blocks += [wr.H2("What this does not show"), wr.P("One architecture, one text, one size.")]
    return wr.Report(
        project=subject.project,
        entity=subject.entity,
        title=f"attnlab {subject.sweep}, report",
        description=f"Runs of the group {subject.sweep}",
        blocks=blocks,
    )


def as_json(workspace: Any, report: Any) -> dict[str, Any]:
    """What W&B would be sent, for a file."""
    models = {"workspace": workspace, "report": report}
    return {k: json.loads(v._to_model().model_dump_json(by_alias=True)) for k, v in models.items()}


def save(workspace: Any, report: Any, subject: Subject) -> list[str]:
    """Saves both as new views of the project and returns their addresses; the report gets the runs of the sweep."""
    import wandb_workspaces.reports.v2 as wr

    runs = wr.Runset(
        entity=subject.entity, project=subject.project, name=subject.sweep,
        filters=f"Metric('Group') == '{subject.sweep}'", groupby=["config.arm"],
    )  # fmt: skip
    for block in report.blocks:
        if isinstance(block, wr.PanelGrid):
            block.runsets = [runs]
    workspace.save()
    report.save()
    return [workspace.url, report.url]


def subject_of(
    target: str, claim: Any, workdir: Path | None, project: str | None, entity: str | None
) -> Subject:
    """What a claim's name (`nope`, `nope:quick`) or the directory of a sweep stands for."""
    named = MirrorSettings(project=project)
    known: dict[str, Any] = {}
    if workdir is not None:
        state = read_state(workdir)
        named = MirrorSettings(project=project or state.get("project"))
        entity = entity or state.get("entity")
        runs = read_runs(workdir)
        arms: Sequence[str] = list(dict.fromkeys(run.arm for run in runs))
        logged = frozenset(c for run in runs for c in run.history)
        known = {"arms": tuple(arms), "columns": logged - {"step"} or None}
        sweep = read_sweep(workdir)["name"]
    else:
        _, _, preset = target.partition(":")
        sweep = f"{claim.name}-{preset or 'quick'}"
        known = {"arms": tuple(claim.arms)}
    if claim is not None:
        known |= {"statement": claim.statement, "source": claim.source}
    return Subject(sweep, named.project_name, entity or "", **known)


def run(args: Any, claim: Any, workdir: Path | None, say: Callable[[str], None]) -> int:
    """`attnlab dashboard`: saves online where there is a key, else writes JSON; returns the exit code.

    Raises:
      ValueError: wandb-workspaces is not installed, no key for an online page, or an unknown preset or entity.
    """
    if claim is not None and workdir is None:
        preset = args.target.partition(":")[2]
        if preset and preset not in claim.presets:
            raise ValueError(f"preset: got {preset!r}; allowed: {', '.join(claim.presets)}")
    found = credentials(os.environ)
    if args.wandb == "online" and found is None:
        raise ValueError(
            "--wandb online: no W&B key found; allowed: `wandb login` first, or --wandb offline for a JSON file"
        )
    online = args.wandb == "online" or (args.wandb is None and resolve_mode().mode == "online")
    subject = subject_of(args.target, claim, workdir, args.project, args.entity)
    if online and not subject.entity:
        raise ValueError("--entity: W&B needs your user or team name for an online dashboard")
    workspace, report = build(subject)
    if online:
        for url in save(workspace, report, subject):
            say(f"saved: {url}")
        return 0
    out = args.out or (workdir or Path()) / "dashboard.json"
    out.write_text(json.dumps(as_json(workspace, report), indent=2) + "\n", encoding="utf-8")
    say(f"dashboard: {out}")
    say(f"to save it in W&B: attnlab dashboard {args.target} --wandb online")
    return 0
