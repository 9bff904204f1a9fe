"""Reading runs back: what claims, plots and reports know of a sweep."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.tracking import locks
from attnlab.tracking.directory import ENDED, read_sweep
from attnlab.tracking.files import effective_status, read_json, read_rows


@dataclass(frozen=True)
class RunResult:
    """One run read back.

    Attributes:
      status: one of STATUSES. A run whose process died reads "interrupted".
      history: column -> array over the union of logged steps, ascending. `history["step"]` is
        int64; a column of whole numbers without gaps is int64, any other float64 with NaN where
        the step has no value. Where a step was logged twice the later value counts.
      summary: what the run ended with; for a run that never ended, the last value of each column.
    """

    id: str
    name: str
    arm: str
    seed: int
    tags: tuple[str, ...]
    config: dict[str, Any]
    status: str
    summary: dict[str, Any]
    history: dict[str, np.ndarray]
    path: Path
    logged: dict[str, np.ndarray] = field(repr=False)
    """Column -> bool over the steps of `history`: whether a value was logged there."""

    @property
    def last_step(self) -> int | None:
        """The largest step with a row, or None."""
        steps = self.history["step"]
        return int(steps[-1]) if steps.size else None

    def series(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """Return (steps, values) of the rows that logged `column`.

        Raises:
          KeyError: no row has the column.
        """
        if column not in self.logged:
            raise KeyError(f"column={column!r}: run {self.id} has {sorted(self.history)}")
        mask = self.logged[column]
        return self.history["step"][mask], self.history[column][mask]


def read_runs(workdir: str | os.PathLike[str]) -> list[RunResult]:
    """Read every run of a sweep, in the order its members were listed.

    Unreadable rows are skipped with a warning that names file and line; a torn last line, the
    mark of a crash, is skipped silently.

    Raises:
      ValueError: `workdir` holds no sweep, or its sweep.json cannot be read.
    """
    root = Path(workdir).absolute()
    alive = locks.alive(root)
    return [_read_run(root, m, alive(m["id"])) for m in read_sweep(root)["members"]]


def _read_run(root: Path, member: dict[str, Any], alive: bool) -> RunResult:
    path = root / "runs" / member["id"]
    rows = read_rows(path / "metrics.jsonl")
    history, logged = _columns(rows)
    ending = read_json(path / "summary.json", default={})
    status = effective_status(ending, rows=bool(rows), alive=alive)
    summary = {key: value for key, value in ending.items() if key != "status"}
    if status not in ENDED or "status" not in ending or ending["status"] not in ENDED:
        summary = {name: history[name][mask][-1].item() for name, mask in logged.items()}
    return RunResult(
        id=member["id"],
        name=member["name"],
        arm=member["arm"],
        seed=member["seed"],
        tags=tuple(member["tags"]),
        config=read_json(path / "config.json", default={}),
        status=status,
        summary=summary,
        history=history,
        path=path,
        logged=logged,
    )


def _columns(
    rows: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    by_step: dict[int, dict[str, Any]] = {}
    for row in rows:
        by_step.setdefault(row["step"], {}).update(row)
    steps = sorted(by_step)
    names = list(dict.fromkeys(name for row in rows for name in row if name != "step"))
    history = {"step": np.array(steps, np.int64)}
    logged = {}
    for name in names:
        values = [by_step[step].get(name) for step in steps]
        logged[name] = np.array([value is not None for value in values])
        if all(isinstance(value, int) for value in values):
            history[name] = np.array(values, np.int64)
        else:
            history[name] = np.array(
                [math.nan if value is None else value for value in values], np.float64
            )
    return history, logged
