"""Writing metrics while training goes on: rows on disk first, W&B behind them.

One background thread turns rows into lines, appends them to each member's metrics.jsonl and forces
them to the disk, a second or so after they were logged, and at once when `flush` is called. The
trainer only copies a few small arrays into a queue. The W&B mirror is a
process of its own that follows those files (`wandb_mirror`), so nothing that happens to W&B can
reach the trainer.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from attnlab.tracking.directory import ENDED, MemberRecord, SweepDirectory
from attnlab.tracking.files import spell_nonfinite
from attnlab.tracking.wandb_mirror import Mirror
from attnlab.tracking.writer import RunWriter

BATCH_SECONDS = (0.25, 5.0)
"""Rows wait this long for company before they are forced to the disk together..."""

BATCH_SHARE = 0.01
"""...namely so long that forcing them costs about this share of one core (64 fsyncs: 10 to 20 ms)."""

RETRY_SECONDS = 5.0
"""How often a disk that refused is asked again while nothing new is logged."""


class TrackingError(RuntimeError):
    """Some rows or summaries could not be written; `report` says which and why."""

    def __init__(self, report: TrackingReport) -> None:
        super().__init__("; ".join(report.lines()))
        self.report = report


@dataclass(frozen=True)
class TrackingReport:
    """What became of everything that was logged.

    Attributes:
      rows: rows on disk, written by this session.
      lost: member id -> rows that could not be written.
      unwritten: ids of members whose summary could not be written.
      vanished: member id -> bytes that were on the disk and that something else removed.
      disk_error: the last error of the disk, or None when everything is written.
      repeated: rows of steps trained again after a resume that were equal, and so not written twice.
      changed: the same, but with other values; both are in the file and the later counts.
    """

    rows: int
    lost: dict[str, int]
    unwritten: tuple[str, ...]
    vanished: dict[str, int]
    disk_error: str | None
    repeated: int
    changed: int

    @property
    def complete(self) -> bool:
        """Whether every row and summary is on disk."""
        return not (self.lost or self.unwritten or self.vanished)

    def lines(self) -> list[str]:
        """What a person must know, one line a fact; empty when all is well."""
        lines = []
        if self.lost or self.unwritten:
            lines.append(
                f"NOT WRITTEN: {sum(self.lost.values())} rows of {len(self.lost)} members and "
                f"{len(self.unwritten)} summaries ({self.disk_error})"
            )
        for run, count in self.vanished.items():
            lines.append(f"metrics.jsonl of {run} lost {count} bytes that had been written")
        if self.changed:
            lines.append(f"{self.changed} rows were logged again with other values after resuming")
        return lines


class Tracker:
    """Logs a population: one run directory for each member.

    Args:
      sweep: its directory, created, with these members in it.
      members: in the order of the member axis of everything that is logged.
      environment: `environment_record(...)`; appended to each member's environment.json.
      mirror: the W&B mirror that follows the sweep's directory, or None; asked for stop buttons and
        otherwise left alone, so that it goes on while the next group trains.

    Use it as a context manager, or call `close`. In a multi-process job only process 0 has one.
    Rows that the disk refuses are kept in memory and tried again.

    Raises:
      ValueError: a member that is not in the sweep directory.
      OSError: the run directories cannot be written.
    """

    def __init__(
        self,
        sweep: SweepDirectory,
        members: Sequence[MemberRecord],
        mirror: Mirror | None = None,
        *,
        environment: Mapping[str, Any],
    ) -> None:
        for member in members:
            if not (sweep.run(member.id) / "config.json").exists():
                raise ValueError(
                    f"id={member.id!r}: has no directory in {sweep.path}; must be created first"
                )
        self.members = tuple(members)
        self._runs = [RunWriter(sweep.run(member.id), environment) for member in members]
        self._ended = [False] * len(members)
        self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._urgent = threading.Event()
        self._pause = BATCH_SECONDS[0]
        self._disk_error: str | None = None
        self._report: TrackingReport | None = None
        self._process = os.getpid()
        self._mirror = mirror
        self._thread = threading.Thread(target=self._write_all, name="attnlab-tracker", daemon=True)
        self._thread.start()
        atexit.register(self._close_at_exit)

    def log(
        self, step: int, rows: Mapping[str, np.ndarray], where: np.ndarray | None = None
    ) -> None:
        """Queue one row for each member; returns at once.

        Several calls for one step add up to one row for the reader, the later value counting.

        Args:
          step: updates done.
          rows: column -> [M] numbers or booleans, on the host (one `jax.device_get` for all).
          where: [M] bool, the members the row is for; all when None.

        Raises:
          ValueError: a wrong shape or column name, a negative step, or a row for a member that has
            already finished.
        """
        count = len(self.members)
        if step < 0:
            raise ValueError(f"step={step}: must be at least 0")
        if self._report is not None:
            raise ValueError(f"step={step}: logged after close")
        mask = np.ones(count, bool) if where is None else np.array(where, bool)
        if mask.shape != (count,):
            raise ValueError(f"where: has shape {mask.shape}; must be ({count},), one per member")
        columns = {name: _column(name, values, count) for name, values in rows.items()}
        for index in np.flatnonzero(mask & np.array(self._ended)):
            raise ValueError(f"where: member {self.members[index].id} has already finished")
        self._queue.put(_Rows(int(step), columns, mask))

    def finish(self, index: int, status: str, summary: Mapping[str, Any] | None = None) -> None:
        """Record how a member ended, after all its rows; returns at once.

        Raises:
          ValueError: `status` is not an end, `summary` has a key "status", or the member has
            already finished.
        """
        if status not in ENDED:
            raise ValueError(f"status={status!r}: must be one of {', '.join(sorted(ENDED))}")
        if summary is not None and "status" in summary:
            raise ValueError("summary: the key 'status' is reserved")
        if self._ended[index]:
            raise ValueError(f"index={index}: member {self.members[index].id} has already finished")
        self._ended[index] = True
        self._queue.put(_Ending(index, {**(summary or {}), "status": status}))

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything logged so far is on the disk; return whether it is.

        Call it before a checkpoint is committed: a run resumed from there never trains its way to
        the earlier rows again, so they must not be lost with the queue. False after `timeout`
        seconds, or while the disk refuses.
        """
        done = threading.Event()
        self._queue.put(done)
        self._urgent.set()
        return done.wait(timeout) and self._disk_error is None

    @property
    def disk_error(self) -> str | None:
        """What keeps rows from the disk at this moment, or None. They are kept and tried again."""
        return self._disk_error

    def stop_requests(self) -> frozenset[int]:
        """Members whose stop button was pressed on the W&B page; the trainer decides what follows."""
        stopped = frozenset() if self._mirror is None else self._mirror.stopped()
        return frozenset(i for i, member in enumerate(self.members) if member.id in stopped)

    def close(self, exit_code: int = 0) -> TrackingReport:
        """Write what is left, record the end of unfinished members.

        A member that trained and was never finished is "failed" after an exit code of 1 to 127 and
        "interrupted" otherwise; one that never trained stays as it was. Calling it again returns
        the same report.

        Raises:
          TrackingError: rows or summaries could not be written; it carries the report.
        """
        if self._report is None:
            self._report = self._close(exit_code)
            if not self._report.complete:
                raise TrackingError(self._report)
        return self._report

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None:
            self.close(0)
            return
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        if isinstance(error, SystemExit) and isinstance(error.code, int):
            code = error.code
        try:
            self.close(code)
        except TrackingError as lost:  # the first error is the one to show
            error.add_note(str(lost))

    def _close(self, exit_code: int) -> TrackingReport:
        atexit.unregister(self._close_at_exit)
        status = "failed" if 0 < exit_code < 128 else "interrupted"
        for index, ended in enumerate(self._ended):
            if not ended:
                self._queue.put(_Ending(index, {"status": status}, unless_untouched=True))
        self._queue.put(None)
        self._urgent.set()
        self._thread.join()
        return TrackingReport(
            rows=sum(run.written for run in self._runs),
            lost={run.id: len(run.pending) for run in self._runs if run.pending},
            unwritten=tuple(run.id for run in self._runs if run.ending is not None),
            vanished={run.id: run.vanished for run in self._runs if run.vanished},
            disk_error=self._disk_error,
            repeated=sum(run.repeated for run in self._runs),
            changed=sum(run.changed for run in self._runs),
        )

    def _close_at_exit(self) -> None:
        """For a program that ends without closing: its rows are written, its members marked."""
        if os.getpid() == self._process:
            self.close(1)

    def _write_all(self) -> None:
        """The background thread. Nothing raised here reaches the trainer; `close` tells."""
        closing = False
        while not closing:
            flushed = []
            for item in self._next_batch():
                if item is None:
                    closing = True
                elif isinstance(item, threading.Event):
                    flushed.append(item)
                else:
                    item.deliver(self._runs)
            before = time.thread_time()
            self._disk_error = self._write_pending()
            shortest, longest = BATCH_SECONDS
            self._pause = min(longest, max(shortest, (time.thread_time() - before) / BATCH_SHARE))
            for event in flushed:
                event.set()

    def _next_batch(self) -> list[_Item]:
        try:
            batch = [self._queue.get(timeout=RETRY_SECONDS if self._disk_error else None)]
        except queue.Empty:
            return []
        self._urgent.wait(self._pause)
        self._urgent.clear()
        while not self._queue.empty():
            batch.append(self._queue.get())
        return batch

    def _write_pending(self) -> str | None:
        """Write what every run has pending; the first error, or None. What failed stays pending."""
        first = None
        for run in self._runs:
            try:
                run.write()
            except Exception as error:  # whatever it is, the other members' rows must be written
                reason = getattr(error, "strerror", None) or repr(error)
                first = first or f"{run.id}: {reason}"
        return first


@dataclass(frozen=True)
class _Rows:
    step: int
    columns: dict[str, np.ndarray]
    where: np.ndarray

    def deliver(self, runs: Sequence[RunWriter]) -> None:
        names = ("step", *self.columns)
        lists = [_jsonable(values) for values in self.columns.values()]
        for index in np.flatnonzero(self.where).tolist():
            values = (self.step, *(column[index] for column in lists))
            runs[index].add(dict(zip(names, values, strict=True)))


@dataclass(frozen=True)
class _Ending:
    index: int
    summary: dict[str, Any]
    unless_untouched: bool = False

    def deliver(self, runs: Sequence[RunWriter]) -> None:
        run = runs[self.index]
        if run.touched or not self.unless_untouched:
            run.ending = self.summary


_Item = _Rows | _Ending | threading.Event | None
"""What travels to the background thread: work, a call to report back, or the end."""


def _column(name: str, values: Any, count: int) -> np.ndarray:
    if not isinstance(name, str) or not name or name == "step" or name.startswith("_"):
        raise ValueError(
            f"rows: column {name!r}; must be a name other than 'step', not starting with '_'"
        )
    array = np.array(values)
    if array.shape != (count,):
        raise ValueError(f"rows: {name!r} has shape {array.shape}; must be ({count},)")
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise ValueError(f"rows: {name!r} has dtype {array.dtype}; must be a number or boolean")
    return array


def _jsonable(values: np.ndarray) -> list[Any]:
    """[M] numbers as Python's, float32 widened exactly; NaN and infinities by name."""
    if values.dtype.kind in "iu":
        return values.tolist()
    if values.dtype.kind == "b":
        return values.astype(np.int64).tolist()
    wide = values.astype(np.float64)
    return wide.tolist() if np.isfinite(wide).all() else spell_nonfinite(wide.tolist())
