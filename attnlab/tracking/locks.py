"""Who trains in a sweep's directory: one process all of it, or several a shard each.

Locks are held by open files, so they go when a process ends, however it ends. Whoever trains everything holds `.lock`
alone; a shard shares `.lock` with the other shards and holds `.lock-I-of-N` alone.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from attnlab.tracking.files import is_locked, read_json

SHARDS = "shards.json"
"""`count`, and `members`: run id -> the shard that trains it. Written by `attnlab.shards`."""


def take(path: Path, *, shared: bool = False, patience: float = 1.0) -> IO[str] | None:
    """Return an open, locked file, or None if another process holds the lock.

    `shared`: any number may share it, and nobody then has it alone. `patience` (seconds) outlasts a reader that tests
    the lock at this moment. Where the file system knows no locks none is taken.
    """
    # For reading and writing: network file systems give a shared lock only to readers, the other only to writers.
    file = open(path, "a+")  # noqa: SIM115 (held open on purpose)
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                file.close()
                return None
            time.sleep(0.05)
        except OSError:
            return file
        else:
            return file


def whole(root: Path) -> Path:
    """The lock of who trains everything, shared by who trains a shard."""
    return root / ".lock"


def of_shard(root: Path, index: int, count: int) -> Path:
    """The lock of one shard."""
    return root / f".lock-{index}-of-{count}"


def in_use(root: Path) -> bool:
    """Whether some process trains in this directory."""
    return is_locked(whole(root)) or any(is_locked(path) for path in root.glob(".lock-*-of-*"))


def alive(root: Path) -> Callable[[str], bool]:
    """For a run id: whether a process that trains it lives. Looked up once, now."""
    if is_locked(whole(root)):
        return lambda _: True
    shards = read_json(root / SHARDS, default=None)
    if shards is None:
        return lambda _: False
    count, members = shards["count"], shards["members"]
    at_work = {i for i in range(count) if is_locked(of_shard(root, i, count))}
    return lambda run_id: members.get(run_id) in at_work
