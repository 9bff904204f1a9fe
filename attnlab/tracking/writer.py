"""Appending to one run directory, whatever the disk does meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.tracking.files import (
    make_durable,
    plain,
    read_json,
    read_rows,
    repair_rows,
    spell_nonfinite,
    write_json,
)

MEASURED = ("perf/", "time/")
"""Columns that a repeated step need not repeat exactly: they tell of the machine, not the model."""


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class RunWriter:
    """One run directory, and what still has to go into it.

    Opening it repairs what a crash left, notes the rows that are there, and records the session.

    Attributes:
      pending: encoded rows that are not on the disk yet.
      ending: the summary to record after them, or None.
      status: what summary.json says.
      written: rows this session brought to the disk.
      repeated: rows a resumed session trained its way to again, equal to the ones there.
      changed: the same, with other values.
      vanished: bytes that were on the disk and, through no doing of ours, no longer are.

    Raises:
      OSError: the directory cannot be written.
    """

    def __init__(self, path: Path, environment: Mapping[str, Any]) -> None:
        self.path = path
        self.id = path.name
        self.pending: list[bytes] = []
        self.ending: dict[str, Any] | None = None
        self.written = self.repeated = self.changed = self.vanished = 0
        self._metrics = path / "metrics.jsonl"
        self._settled = False
        # Bytes known to be on the disk; what a failed write left beyond them is written over.
        self._size = repair_rows(self._metrics)
        # Place of a row -> hashes of the rows there were before this session.
        self._earlier: dict[int, set[int]] = {}
        self._earlier_end = -1
        for row in read_rows(self._metrics):
            place, content = _identity(row)
            self._earlier.setdefault(place, set()).add(content)
            self._earlier_end = max(self._earlier_end, row["step"])
        sessions = read_json(path / "environment.json", default=[])
        if not sessions or sessions[-1] != plain(environment):
            write_json(path / "environment.json", [*sessions, environment], durable=False)
        self.status = read_json(path / "summary.json", default={}).get("status", "")
        # A member that reached its end keeps it until it really trains on.
        if self.status not in ("finished", "diverged", "stopped"):
            self._record({"status": "running" if self._size else "waiting"}, durable=False)

    def add(self, row: dict[str, Any]) -> None:
        """Queue a row, unless a resumed run has trained its way to a row that is there already."""
        if row["step"] <= self._earlier_end:
            place, content = _identity(row)
            before = self._earlier.get(place, ())
            if content in before:
                self.repeated += 1
                return
            self.changed += bool(before)
        elif self._earlier:
            self._earlier.clear()
        self.pending.append(_encode(row).encode() + b"\n")

    def write(self) -> None:
        """Bring the pending rows to the disk, then the ending.

        Raises:
          OSError: the disk refused. Everything is still pending and no half row is counted.
        """
        if self.pending:
            data = b"".join(self.pending)
            self._append(data)
            self._size += len(data)
            self.written += len(self.pending)
            self.pending.clear()
            if self.ending is None and self.status != "running":
                self._record({"status": "running"}, durable=False)
        if self.ending is not None:
            self._record(self.ending)
            self.ending = None

    @property
    def touched(self) -> bool:
        """Whether this session has anything to say about how the run ended."""
        return bool(self.pending) or self.status == "running"

    def _record(self, summary: dict[str, Any], *, durable: bool = True) -> None:
        if summary != {"status": self.status}:
            write_json(self.path / "summary.json", summary, durable=durable)
            self.status = summary["status"]

    def _append(self, data: bytes) -> None:
        # Opened for each batch: 256 members would otherwise hold 256 descriptors, and a file system
        # that went read-only and came back needs no care.
        descriptor = os.open(self._metrics, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            there = os.fstat(descriptor).st_size
            if there < self._size:
                self.vanished += self._size - there
                self._size = repair_rows(self._metrics)
            view, offset = memoryview(data), self._size
            while view:
                count = os.pwrite(descriptor, view, offset)
                view, offset = view[count:], offset + count
            os.fsync(descriptor)
        except OSError:
            # Also after a failed fsync: the system may have dropped the pages and forgotten it.
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, self._size)
            raise
        finally:
            os.close(descriptor)
        if not self._settled:
            # What the rows need to be understood; not at the start, where it would delay training.
            for name in ("config.json", "environment.json", "."):
                make_durable(self.path / name)
            make_durable(self.path.parent)
            self._settled = True


def _identity(row: Mapping[str, Any]) -> tuple[int, int]:
    """Hashes of a row's place (step and columns) and of what training decided in it."""
    kept = {k: v for k, v in sorted(row.items()) if not k.startswith(MEASURED)}
    return hash((row["step"], *kept)), hash(json.dumps(spell_nonfinite(kept)))
