"""A sweep from start to end: configurations, plan, run directory, training, and, for a claim, its verdict."""

import copy
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from attnlab import console, outcomes, plots
from attnlab import plan as plan_lib
from attnlab.data import corpora, references
from attnlab.knobs import set_flat
from attnlab.plan import Group
from attnlab.population import GroupReport, run_group
from attnlab.results import Results
from attnlab.signals import StopFlag
from attnlab.tracking import (
    MemberRecord,
    SweepDirectory,
    Tracker,
    current_command,
    environment_record,
    read_runs,
    resolve_mode,
)


@dataclass(frozen=True)
class Plan:
    """What a sweep will train: its name, and its members grouped into programs."""

    name: str
    groups: tuple[Group, ...]

    @property
    def members(self) -> tuple[plan_lib.Member, ...]:
        return tuple(member for group in self.groups for member in group.members)


def expand(
    config: Mapping[str, Any], overrides: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """One full configuration per member: `config` with flat overrides such as `{"model.width": 128}`.

    Raises:
      ValueError: an override of a key that the configuration does not have.
    """
    expanded = []
    for flat in overrides:
        member = copy.deepcopy(dict(config))
        for key, value in flat.items():
            set_flat(member, key, value)
        expanded.append(member)
    return expanded


def plan(name: str, configs: Sequence[Mapping[str, Any]], base: Mapping[str, Any]) -> Plan:
    """Checks and groups the members: see `attnlab.plan.plan`."""
    return Plan(name, tuple(plan_lib.plan(name, configs, base, corpora.load)))


def dry_run(planned: Plan) -> int:
    """Prints what would be trained; writes and compiles nothing."""
    console.print_plan(planned.name, planned.groups, len(jax.devices()))
    return 0


def run(planned: Plan, *, workdir: Path | None, wandb: str | None) -> int:
    """Trains a sweep; returns the exit code."""
    workdir = workdir or _default_workdir(planned.name)
    code = train(planned, workdir, wandb)
    console.print_paths({"runs": workdir})
    return code


def reproduce(
    experiment: ModuleType, planned: Plan, *, workdir: Path | None, wandb: str | None
) -> int:
    """Trains a claim's sweep and judges it; returns the exit code.

    The exit code says whether the experiment ran, not what it found: NOT REPRODUCED is an answer.
    """
    workdir = workdir or _default_workdir(planned.name)
    code = train(planned, workdir, wandb)
    if code:
        console.print_paths({"runs": workdir})
        return code
    results = Results(read_runs(workdir))
    outcome = experiment.judge(results)
    outcomes.write_verdict(outcome, workdir / "verdict.json")
    paths = {"runs": workdir, "verdict": workdir / "verdict.json"}
    for stem, figure in experiment.figures(results, outcome).items():
        paths[stem.replace("_", " ")], _ = plots.save(figure, workdir / f"{stem}.png")
    console.print_outcome(outcome)
    console.print_paths(paths)
    return 0


def train(planned: Plan, workdir: Path, wandb: str | None) -> int:
    """Trains every group into `workdir`; returns 0, or 128 + the signal that stopped it.

    Raises:
      ValueError: `workdir` holds another sweep or cannot be written; nothing is written then.
    """
    started = time.monotonic()
    mode = resolve_mode(wandb)
    members = [
        MemberRecord(m.id, m.name, m.arm, m.config["seed"]["init"], m.config)
        for m in planned.members
    ]
    reports: list[GroupReport] = []
    with ExitStack() as stack:
        directory = stack.enter_context(SweepDirectory(workdir, planned.name))
        directory.create(members)
        stop = stack.enter_context(StopFlag())
        tracker = stack.enter_context(_tracker(planned, directory, members, mode))
        for index, group in enumerate(planned.groups):
            if stop():
                break
            first = sum(report.members for report in reports)
            with console.GroupProgress(index, len(planned.groups), group) as progress:
                view = _GroupLog(tracker, first, len(group.members), len(members), _facts(group))
                reports.append(run_group(group, view, should_stop=stop, progress=progress))
        tracker.exit_code = stop.exit_code
    console.print_reports(reports, time.monotonic() - started)
    return stop.exit_code
