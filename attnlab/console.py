"""What the terminal shows: the plan, progress, tables. Plain lines where the output is not a terminal."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table

from attnlab import costs, fitting
from attnlab.claims import outcomes
from attnlab.claims.judging import Outcome
from attnlab.plan import Group
from attnlab.population import GroupReport, Progress

PLAIN_SECONDS = 10.0  # between two lines of progress where there is no terminal


def _console() -> Console:
    console = Console(highlight=False, soft_wrap=True)
    # A pipe or a file has no width: tables there are as wide as their text.
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=160)


def say(text: str) -> None:
    """One line."""
    _console().print(text, markup=False)


def print_plan(name: str, groups: Sequence[Group], devices: int) -> None:
    """What would be trained: a row per group, and the number of programs."""
    table = Table(title=f"sweep {name}", title_justify="left")
    for column in (
        "group",
        "members",
        "updates",
        "parameters",
        "GFLOP / update",
        "state, MB",
        "memory, MB",
        "tokens",
        "model",
    ):
        table.add_column(column, justify="left" if column == "model" else "right")
    for index, group in enumerate(groups):
        table.add_row(str(index), *_plan_row(group))
    console = _console()
    console.print(table)
    for index, group in enumerate(groups):
        for member in group.members:
            console.print(f"  group {index}  {member.id}  {member.name}", markup=False)
    members = sum(len(g.members) for g in groups)
    console.print(
        f"{members} members in {len(groups)} compiled programs (expected traces of the train step: "
        f"{len(groups)}), on {devices} devices"
    )


def _plan_row(group: Group) -> list[str]:
    arch, budget = group.task.architecture, group.task.budget
    members = len(group.members)
    families = "+".join((*arch.position_families, *arch.qk_norms)) or "none"
    tokens = sum(m.steps for m in group.members) * budget.batch_size * arch.context
    return [
        str(members),
        str(group.steps),
        f"{costs.parameter_count(arch):,}",
        f"{costs.flops_per_update(group.task) / 1e9:.3f}",
        f"{members * costs.state_bytes(arch) / 1e6:.1f}",
        f"{fitting.need(group.task, members).total / 1e6:.0f}",
        f"{tokens:,}",
        f"layers {arch.layers} width {arch.width} heads {arch.heads} T {arch.context} "
        f"batch {budget.batch_size} families {families} attention {group.attention} corpus {budget.corpus} ({budget.tokenizer})",
    ]


class GroupProgress:
    """Shows a group's training: a bar on a terminal, a line every few seconds elsewhere."""

    def __init__(self, index: int, groups: int, group: Group):
        self.label = f"group {index + 1}/{groups}"
        self.members, self.steps = len(group.members), group.steps
        self.console = _console()
        self.last = 0.0
        self.started = time.monotonic()
        self.bars: Bars | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.bars = Bars(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                TimeRemainingColumn(), TextColumn("{task.fields[state]}"), console=self.console,
            )  # fmt: skip
            self.bars.start()
            self.bars.add_task(self.label, total=self.steps, state="compiling")
        else:
            self.console.print(f"{self.label}: compiling one program for {self.members} members")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bars is not None:
            self.bars.stop()

    def __call__(self, progress: Progress) -> None:
        state = (
            f"members {progress.active}/{self.members} training, loss {progress.loss:.3f}, "
            f"{progress.tokens_per_second:,.0f} tokens/s"
        )
        if self.bars is not None:
            self.bars.update(self.bars.task_ids[0], completed=progress.step, state=state)
            return
        now = time.monotonic()
        if now - self.last >= PLAIN_SECONDS or progress.step >= progress.steps:
            left = (now - self.started) / progress.step * (progress.steps - progress.step)
            self.console.print(
                f"{self.label}: update {progress.step}/{progress.steps}, {state}, about {left:.0f} s left"
            )
            self.last = now


def print_reports(reports: Sequence[GroupReport], seconds: float) -> None:
    """How the groups ran: traces, time."""
    for index, report in enumerate(reports):
        say(
            f"group {index + 1}: {report.members} members, traces of the train step: "
            f"{report.traces['train']}, first call {report.first_call_seconds:.1f} s, "
            f"then {report.ms_per_member_update:.2f} ms per update of one member"
        )
    say(f"wall time {seconds:.0f} s")


def print_outcome(outcome: Outcome) -> None:
    """The table of arms and the verdicts."""
    title = f"{outcome.claim.name}: {outcome.claim.metric}, at the end"
    print_table(title, outcomes.ARM_COLUMNS, outcomes.arm_rows(outcome.arms))
    console = _console()
    for name, value in outcome.references.items():
        console.print(f"reference of the corpus: {name} {value:.4f} nats", markup=False)
    for line in outcomes.verdict_lines(outcome):
        console.print(line, markup=False)


def print_paths(paths: Mapping[str, Path]) -> None:
    """Where things lie."""
    for label, path in paths.items():
        say(f"{label}: {path}")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table of text, the first column left, the others right."""
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    for row in rows:
        table.add_row(*row)
    _console().print(table)
