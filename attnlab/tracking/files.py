"""Files that survive: JSON replaced atomically, rows that may be torn, locks that cannot be left over.

NaN and the infinities are written as the strings "NaN", "Infinity" and "-Infinity" (the
convention of protobuf's JSON mapping), since JSON has no such numbers.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import socket
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_NONFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a metrics.jsonl in file order, without those that cannot be read."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    complete, _, _torn = data.rpartition(b"\n")
    rows = []
    for number, line in enumerate(complete.split(b"\n") if complete else (), 1):
        row = decode_row(line)
        if row is None:
            warnings.warn(f"{path}: line {number} is unreadable and was skipped", stacklevel=3)
        else:
            rows.append(row)
    return rows


def decode_row(line: bytes) -> dict[str, Any] | None:
    """Return the row a line holds, or None if it is no row."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not isinstance(row.get("step"), int):
        return None
    return _finite_or_not(row)


def repair_rows(path: Path) -> int:
    """Cut what a crash left behind the last readable row; return the size of the file, in bytes.

    A torn line has no newline; a power cut may also leave whole lines of zeros.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return 0
    size = data.rfind(b"\n") + 1
    while size:
        start = data.rfind(b"\n", 0, size - 1) + 1
        if decode_row(data[start : size - 1]) is not None:
            break
        size = start
    if size != len(data):
        os.truncate(path, size)
    return size


def effective_status(summary: Mapping[str, Any], *, rows: bool, alive: bool) -> str:
    """The status a summary claims, except that what has rows does not wait, and nothing runs where
    no process is alive."""
    status = summary.get("status", "waiting")
    if status == "waiting" and rows:
        status = "running"
    return "interrupted" if status == "running" and not alive else status


def plain(value: Any) -> Any:
    """Return `value` as JSON knows it: tuples as lists, numpy scalars as numbers.

    Raises:
      TypeError: something in it has no JSON form.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError(f"{value!r} is a {type(value).__name__}; must be a number, string, list or map")


def spell_nonfinite(value: Any) -> Any:
    """Return `value` with NaN and infinities as strings, so that any JSON reader accepts it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: spell_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [spell_nonfinite(item) for item in value]
    return value


def _finite_or_not(value: Any) -> Any:
    if isinstance(value, str):
        return _NONFINITE.get(value, value)
    if isinstance(value, dict):
        return {key: _finite_or_not(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite_or_not(item) for item in value]
    return value


def read_json(path: Path, **default: Any) -> Any:
    """Return what `write_json` wrote. With `default=`, that where there is no file."""
    try:
        return _finite_or_not(json.loads(path.read_bytes()))
    except FileNotFoundError:
        if "default" in default:
            return default["default"]
        raise


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Write `value` as sorted, indented JSON; a reader sees the old file or the new, never half.

    `durable`: return only when the file would survive a power cut (milliseconds a file).

    Raises:
      OSError: it could not be written; the old file, if any, is intact.
    """
    text = json.dumps(spell_nonfinite(plain(value)), sort_keys=True, indent=2, allow_nan=False)
    # Two machines may write the same file of a shared directory, from processes of the same number.
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w") as file:
            file.write(text + "\n")
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        make_durable(path.parent)


def make_durable(path: Path) -> None:
    """Have a file, or the names in a directory, survive a power cut, where the disk can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock at `path`."""
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
