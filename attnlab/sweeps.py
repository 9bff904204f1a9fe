"""A sweep from start to end: configurations, plan, run directory, training, and, for a claim, its verdict."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import jax

from attnlab import console, fitting, measuring, processes, resume, sharding, shards
from attnlab import plan as plan_lib
from attnlab.checkpoints import Checkpoints, reached_preemption
from attnlab.claims import Claim, Measurement, outcomes
from attnlab.data import corpora, references
from attnlab.data.feed import Place
from attnlab.knobs import set_flat
from attnlab.plan import Group
from attnlab.population import GroupReport, Progress, run_group
from attnlab.results import Results
from attnlab.shards import Shard
from attnlab.signals import StopFlag
from attnlab.tracking import (
    MemberRecord,
    Mirror,
    Part,
    SweepDirectory,
    Tracker,
    TrackingError,
    TrackingReport,
    WandbMode,
    environment_record,
    read_groups,
    read_runs,
    resolve_mode,
)
from attnlab.tracking.environment import current_command

FAILED = 1
RESUME = "the same command with --workdir and --resume"


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


def dry_run(planned: Plan, shard: Shard | None = None) -> int:
    """Prints what would be trained, by one shard of a new directory where one is named; writes and compiles nothing."""
    groups = planned.groups if shard is None else shards.first_groups(planned.groups, shard)
    console.print_plan(planned.name, groups, len(jax.devices()))
    return 0


@dataclass(frozen=True)
class Settings:
    """How a sweep is run, as opposed to what it is: none of it changes a result.

    `shard`: which share of the members to train; all when None.

    `wandb`: online, offline, disabled, or None to find out. `checkpoint_steps`, `checkpoint_minutes`: save after so
    many updates or minutes. `keep`: newest checkpoints to keep; `keep_every`: and those at its multiples.
    `debug_nans`: name the first bad tensor of a diverged member. `data_on`: the corpus is on the device, or the host
    cuts windows from it; auto: by its size. `profile`: a profiler trace of each group, in workdir/profile.
    """

    workdir: Path
    wandb: str | None = None
    resume: bool = False
    checkpoint_steps: int | None = None
    checkpoint_minutes: float = 10.0
    keep: int = 2
    keep_every: int | None = None
    debug_nans: bool = False
    shard: Shard | None = field(default=None, kw_only=True)
    data_on: Place = "auto"
    profile: bool = False


@dataclass(frozen=True)
class Session:
    """A sweep whose directory is open: what is left of it to train, and how."""

    directory: SweepDirectory
    groups: tuple[Group, ...]
    wandb: WandbMode
    settings: Settings


def open_session(planned: Plan, settings: Settings) -> Session:
    """Opens the workdir for a sweep; the last moment at which bad input can be refused.

    Raises:
      ValueError: the workdir holds another sweep, was started and is not resumed, or cannot be written, or a
        setting is impossible; nothing is written then.
    """
    mode = resolve_mode(settings.wandb)
    SweepDirectory(settings.workdir, planned.name)  # refuses before anything is written
    for group in planned.groups:
        _checkpoints(group, settings)
    part = _part(planned, settings)
    directory = SweepDirectory(settings.workdir, planned.name, part)
    groups = planned.groups
    if settings.resume or part is not None:
        only = None if part is None else part.members
        groups = tuple(resume.remaining(settings.workdir, planned.groups, only))
    groups = tuple(fitting.in_waves(groups, read_groups(settings.workdir)))
    fitting.refuse_too_large(groups)
    if settings.profile:
        _check_profile(groups)
    for group in groups:
        sharding.make_mesh(len(group.members), group.task.budget.data_devices)
    if processes.several() and settings.debug_nans:
        raise ValueError("--debug-nans: with one process only")
    processes.by_first(lambda: directory.create(_records(planned.members), resume=settings.resume))
    return Session(directory, groups, mode, settings)


def _check_profile(groups: Sequence[Group]) -> None:
    for index, group in enumerate(groups):
        chunk = group.task.budget.log_every
        if group.steps < 3 * chunk:
            raise ValueError(
                f"--profile: traces the second call and times the next ones, but group {index} has {group.steps // chunk} "
                f"of {chunk} updates; allowed: config.steps of at least {3 * chunk}"
            )


def _part(planned: Plan, settings: Settings) -> Part | None:
    if settings.shard is None:
        return None
    try:
        return shards.part(settings.workdir, planned.groups, settings.shard)
    except OSError as error:
        raise ValueError(
            f"workdir={str(settings.workdir)!r}: cannot be written ({error.strerror})"
        ) from error


def run(session: Session) -> int:
    """Trains a sweep; returns the exit code."""
    code = train(session)
    console.print_paths({"runs": session.settings.workdir})
    return code


def reproduce(
    claim: Claim, session: Session, measured: Sequence[Measurement], base: Mapping[str, Any]
) -> int:
    """Trains a claim's sweep, measures its members, judges it and writes its report; returns the exit code.

    The exit code says whether the experiment ran, not what it found: NOT REPRODUCED is an answer.
    """
    workdir = session.settings.workdir
    code = train(session)
    paths = {"runs": workdir}
    if code == 0:
        code = measure(workdir, measured, base)
    if code == 0:
        from attnlab.commands import (
            sweep_report,  # brings matplotlib, which takes seconds to import
        )

        outcome = claim.judge(Results(read_runs(workdir)))
        paths["verdict"] = workdir / "verdict.json"
        outcomes.write_verdict(outcome, paths["verdict"])
        console.print_outcome(outcome)
        paths["report"] = sweep_report.make(workdir, claim, workdir / "report").page
        _mirror_report(session)
    console.print_paths(paths)
    return code


def measure(workdir: Path, measured: Sequence[Measurement], base: Mapping[str, Any]) -> int:
    """Measures what the finished members still lack; returns 0, or 128 + the signal that kept it from the end.

    `base`: the configuration that holds every knob.
    """
    with StopFlag() as stop:
        runs = read_runs(workdir)
        done = measuring.measure(workdir, runs, measured, base, say=console.say, should_stop=stop)
        return 0 if done else stop.exit_code


def _mirror_report(session: Session) -> None:
    """Has W&B take the report, which was not there yet when the members were delivered."""
    with _mirror(session) as mirror:
        if mirror is not None:
            sent = mirror.close(timeout=60.0)
            there = [f"W&B {sent.mode}: the report is a run of the group"]
            for line in there if sent.report else sent.lines():
                console.say(line)


def train(session: Session) -> int:
    """Trains every group that is not done; returns the exit code.

    0, or 128 + the signal that kept it from the end, or 1 when the disk refused rows to the end.
    """
    started = time.monotonic()
    reports: list[GroupReport] = []
    agreed = reached_preemption if processes.several() else None
    with session.directory, StopFlag(agreed) as stop, _mirror(session) as mirror:
        console.say(f"W&B: {session.wandb.mode} ({session.wandb.reason})")
        try:
            for index, group in enumerate(session.groups):
                if not stop():
                    with console.GroupProgress(index, len(session.groups), group) as progress:
                        reports.append(_train_group(session, group, mirror, stop, progress))
        except TrackingError as lost:
            for line in (*lost.report.lines(), f"to train again what was lost: {RESUME}"):
                console.say(line)
            return FAILED
        if mirror is not None:
            for line in mirror.close(timeout=60.0).lines():
                console.say(line)
    console.print_reports(reports, time.monotonic() - started)
    complete = len(reports) == len(session.groups) and not any(r.interrupted for r in reports)
    return 0 if complete else stop.exit_code


def _mirror(session: Session) -> AbstractContextManager[Mirror | None]:
    if session.wandb.mode == "disabled" or not processes.is_first():
        return nullcontext()
    return Mirror(session.directory.path, session.wandb.mode, part=session.directory.part)


def _checkpoints(group: Group, settings: Settings) -> Checkpoints:
    return Checkpoints(
        resume.checkpoint_directory(settings.workdir, group),
        every_steps=settings.checkpoint_steps,
        every_minutes=settings.checkpoint_minutes,
        keep=settings.keep,
        keep_every=settings.keep_every,
    )


def _train_group(
    session: Session,
    group: Group,
    mirror: Mirror | None,
    stop: StopFlag,
    progress: Callable[[Progress], None],
) -> GroupReport:
    directory, corpus = session.directory, group.corpus
    environment = environment_record(
        current_command(), corpus.record(), device=_device(), attention=group.attention
    )
    processes.by_first(lambda: resume.record(directory.path, group, directory.part))
    members = _records(group.members)
    with (
        _tracker(directory, members, mirror, environment) as tracker,
        _checkpoints(group, session.settings) as checkpoints,
    ):
        log = _WithReferences(tracker, _references(corpus))
        report = run_group(
            group, log, checkpoints=checkpoints, debug_nans=session.settings.debug_nans,
            data_on=session.settings.data_on,
            profile=directory.path / "profile" / group.id if session.settings.profile else None,
            should_stop=stop, progress=progress,
        )  # fmt: skip
        for line in tracker.close(stop.exit_code if report.interrupted else 0).lines():
            console.say(line)
    return report


def _tracker(
    directory: SweepDirectory,
    members: Sequence[MemberRecord],
    mirror: Mirror | None,
    environment: Mapping[str, Any],
) -> AbstractContextManager[Any]:
    """Of the first process; the others' says nothing and is always content."""
    if not processes.is_first():
        return nullcontext(_Silent())
    return Tracker(directory, members, mirror, environment=environment)


class _Silent:
    """What a process has for a tracker when another one writes."""

    def log(self, step: int, rows: Mapping[str, Any], where: Any = None) -> None: ...

    def flush(self) -> bool:
        return True

    def stop_requests(self) -> frozenset[int]:
        return frozenset()

    def finish(self, index: int, status: str, summary: Mapping[str, Any] | None = None) -> None: ...

    def close(self, exit_code: int = 0) -> TrackingReport:
        return TrackingReport(0, {}, (), {}, None, 0, 0)


class _WithReferences:
    """A tracker whose summaries also hold the n-gram losses of the corpus, which verdicts are measured against."""

    def __init__(self, tracker: Any, references: Mapping[str, float]):
        self.log, self.flush = tracker.log, tracker.flush
        self.stop_requests = tracker.stop_requests
        self._finish, self._references = tracker.finish, dict(references)

    def finish(self, index: int, status: str, summary: dict[str, Any]) -> None:
        self._finish(index, status, {**summary, "references": self._references})


def _references(corpus: corpora.Corpus) -> dict[str, float]:
    losses = references.reference_losses(corpus)
    return {name: loss.held_out for name, loss in losses.items()}


def _records(members: Sequence[plan_lib.Member]) -> list[MemberRecord]:
    return [MemberRecord(m.id, m.name, m.arm, m.config["seed"]["init"], m.config) for m in members]


def _device() -> str:
    devices = jax.devices()
    return f"{len(devices)} x {devices[0].device_kind}"


def default_workdir(name: str) -> Path:
    """A new directory below runs/: the sweep's name and the time."""
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
