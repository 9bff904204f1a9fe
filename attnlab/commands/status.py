"""The state of a sweep, from its directory alone: which members wait, run, ended, and how."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnlab.tracking import RunResult, read_groups, read_runs

COLUMNS = ("member", "status", "updates", "val/loss", "train/loss", "last row", "checkpoint")
DONE, UNFINISHED, RUNNING, FAULTY = 0, 3, 4, 5
EXIT_CODES = (
    "exit code: 0 all finished; 3 some can be resumed; 4 training now; 5 all ended, some not well"
)


@dataclass(frozen=True)
class Row:
    """One member. `age`: seconds since its last row. `checkpoint`: updates of the newest one of its group."""

    name: str
    status: str
    step: int | None
    steps: int
    val_loss: float | None
    train_loss: float | None
    age: float | None
    checkpoint: int | None
    diverged_at: int | None

    def cells(self) -> tuple[str, ...]:
        """Text for the columns of `COLUMNS`; "-" where there is nothing yet."""
        where = "" if self.diverged_at is None else f" at {self.diverged_at}"
        return (
            self.name,
            f"{self.status}{where}",
            f"{'-' if self.step is None else self.step}/{self.steps}",
            *("-" if x is None else f"{x:.4f}" for x in (self.val_loss, self.train_loss)),
            "-" if self.age is None else _ago(self.age),
            "-" if self.checkpoint is None else str(self.checkpoint),
        )


def read(workdir: Path) -> list[Row]:
    """A row per member, in the order of the sweep.

    Raises:
      ValueError: `workdir` holds no sweep.
    """
    checkpoints = _newest_checkpoints(workdir)
    return [_row(run, checkpoints.get(run.id)) for run in read_runs(workdir)]


def exit_code(rows: list[Row]) -> int:
    """What a script needs to know: see `EXIT_CODES`."""
    states = {row.status for row in rows}
    if "running" in states:
        return RUNNING
    if states & {"waiting", "interrupted", "failed"}:
        return UNFINISHED
    return DONE if states <= {"finished"} else FAULTY


def _row(run: RunResult, checkpoint: int | None) -> Row:
    file = run.path / "metrics.jsonl"
    diverged_at = run.summary.get("diverged_at")
    return Row(
        name=run.name,
        status=run.status,
        step=run.last_step,
        steps=int(run.config["steps"]),
        val_loss=_last(run, "val/loss"),
        train_loss=_last(run, "train/loss"),
        age=time.time() - file.stat().st_mtime if file.exists() and file.stat().st_size else None,
        checkpoint=checkpoint,
        diverged_at=None if diverged_at is None else int(diverged_at),
    )


def _last(run: RunResult, column: str) -> float | None:
    values = np.asarray(run.history.get(column, ()), np.float64)
    values = values[~np.isnan(values)]
    return float(values[-1]) if len(values) else None


def _newest_checkpoints(workdir: Path) -> dict[str, int]:
    """Member id -> updates of its group's newest complete checkpoint; by name, without starting Orbax."""
    newest: dict[str, int] = {}
    for group, members in read_groups(workdir).items():
        saved = (workdir / "checkpoints" / group).glob("*/_CHECKPOINT_METADATA")
        steps = [int(path.parent.name) for path in saved if path.parent.name.isdigit()]
        newest |= {member: max(steps) for member in members if steps}
    return newest


def _ago(seconds: float) -> str:
    # A clock that jumped back makes the age negative: now is the honest answer.
    seconds = max(seconds, 0.0)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
