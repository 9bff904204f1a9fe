"""The directory of a sweep: who is in it, and the door at which bad input is refused."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from attnlab.tracking import locks
from attnlab.tracking.files import plain, read_json, write_json

STATUSES = ("waiting", "running", "finished", "diverged", "stopped", "interrupted", "failed")
ENDED = frozenset(STATUSES) - {"waiting", "running"}

_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


def run_id(sweep: str, config: Mapping[str, Any]) -> str:
    """Return `<sweep>-<10 hex digits>`, the digits being the SHA-256 of the sorted config JSON.

    The same configuration always gets the same id, so that a restart finds its own run again and
    two equal members are noticed.

    Raises:
      ValueError: the sweep name is not a slug, or the config holds a NaN or an infinity.
      TypeError: the config holds something JSON cannot express.
    """
    _check_slug("sweep", sweep)
    text = json.dumps(plain(config), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"{sweep}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


@dataclass(frozen=True)
class MemberRecord:
    """One member of a sweep as its run directory and its W&B run know it.

    Attributes:
      id: directory name and W&B run id; `run_id(sweep, config)`.
      name: what a reader of a dashboard sees.
      arm: the variant the member belongs to.
      seed: the seed that tells it from its siblings in the arm.
      config: the full configuration, JSON-ready.
      tags: further W&B tags; arm and seed are added on their own.
    """

    id: str
    name: str
    arm: str
    seed: int
    config: Mapping[str, Any] = field(hash=False)
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """The share of one of several processes that train a sweep together: shard `index` of `count`.

    `members`: ids of the runs that are its own.
    """

    index: int
    count: int
    members: frozenset[str]

    @property
    def name(self) -> str:
        """What the files that are its own end in."""
        return f"{self.index}-of-{self.count}"


class SweepDirectory:
    """The directory of one sweep. Constructing it looks and refuses; only `create` writes.

    With a `part` it is opened for that part alone: other processes may train the others at the same time.

    Raises:
      ValueError: `name` is not a slug, or `workdir` is a file, or holds another sweep.
    """

    def __init__(
        self, workdir: str | os.PathLike[str], name: str, part: Part | None = None
    ) -> None:
        _check_slug("name", name)
        self.name, self.part = name, part
        self.path = Path(workdir).absolute()
        self._locks: list[IO[str]] = []
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"workdir={str(workdir)!r}: is a file; must be a directory or new")
        if not self._file.exists():
            if self.runs.exists():
                raise ValueError(
                    f"workdir={str(workdir)!r}: has a runs/ directory but no sweep.json; "
                    "must be new, empty or hold this sweep"
                )
            return
        there = read_sweep(self.path)["name"]
        if there != name:
            raise ValueError(
                f"workdir={str(workdir)!r}: holds the sweep {there!r}; "
                f"must be new, empty or hold {name!r}"
            )

    @property
    def _file(self) -> Path:
        return self.path / "sweep.json"

    @property
    def runs(self) -> Path:
        """The parent of all run directories."""
        return self.path / "runs"

    @property
    def wandb(self) -> Path:
        """Where everything that W&B writes goes."""
        return self.path / "wandb"

    def run(self, run_id: str) -> Path:
        """The directory of one run."""
        return self.runs / run_id

    def create(self, members: Sequence[MemberRecord], *, resume: bool = False) -> None:
        """Check `members`, then write the sweep file and their configurations, and take the lock.

        Members of an earlier session stay; new ones are added. The lock says to readers and other
        processes that the sweep is being trained; it is held until `close` or the process ends. `members` are
        always those of the whole sweep, also where this process trains a part of them.

        Raises:
          ValueError: two members are equal, an id is not a slug, a directory holds another
            configuration under the same id, a member was already started and `resume` is False,
            the directory cannot be written, or another process is training in it.
            Nothing is written in any of these cases.
        """
        known = self._known_members()
        _check_members(members)
        started = []
        for member in members:
            config = self.run(member.id) / "config.json"
            if config.exists() and read_json(config) != plain(member.config):
                raise ValueError(f"id={member.id!r}: its directory holds another configuration")
            metrics = self.run(member.id) / "metrics.jsonl"
            ours = self.part is None or member.id in self.part.members
            if ours and metrics.exists() and metrics.stat().st_size:
                started.append(member.id)
        if started and not resume:
            raise ValueError(
                f"workdir={str(self.path)!r}: {len(started)} of {len(members)} members were "
                "already started; must be resumed, or given another workdir"
            )
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
            self._take_lock()
        except OSError as error:
            raise ValueError(
                f"workdir={str(self.path)!r}: cannot be written ({error.strerror})"
            ) from error
        for member in members:
            known[member.id] = {
                "id": member.id,
                "name": member.name,
                "arm": member.arm,
                "seed": member.seed,
                "tags": list(member.tags),
            }
            self.run(member.id).mkdir(exist_ok=True)
            config = self.run(member.id) / "config.json"
            if not config.exists():
                write_json(config, member.config, durable=False)  # the first row makes it so
        write_json(self._file, {"format": 1, "name": self.name, "members": list(known.values())})

    def close(self) -> None:
        """Release the lock. Safe to call twice."""
        held, self._locks = self._locks, []
        for lock in held:
            lock.close()

    def __enter__(self) -> SweepDirectory:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _known_members(self) -> dict[str, dict[str, Any]]:
        if not self._file.exists():
            return {}
        return {member["id"]: member for member in read_sweep(self.path)["members"]}

    def _take_lock(self) -> None:
        if self._locks:
            return
        wanted = [(locks.whole(self.path), self.part is not None)]
        if self.part is not None:
            wanted.append((locks.of_shard(self.path, self.part.index, self.part.count), False))
        for path, shared in wanted:
            lock = locks.take(path, shared=shared)
            if lock is None:
                self.close()
                what = "it" if self.part is None or shared else f"shard {self.part.name} of it"
                raise ValueError(
                    f"workdir={str(self.path)!r}: another process is training in {what}; "
                    "must be left to that process or stopped first"
                )
            self._locks.append(lock)


def read_sweep(workdir: str | os.PathLike[str]) -> dict[str, Any]:
    """Return sweep.json: `name` and `members` (id, name, arm, seed, tags).

    Raises:
      ValueError: there is none, or it is not readable as one.
    """
    file = Path(workdir) / "sweep.json"
    try:
        sweep = read_json(file)
        if not isinstance(sweep["name"], str) or not isinstance(sweep["members"], list):
            raise TypeError("name or members missing")
    except FileNotFoundError:
        raise ValueError(f"workdir={str(workdir)!r}: no sweep.json in it") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"workdir={str(workdir)!r}: unreadable sweep.json ({error})") from error
    return sweep


def record_group(
    workdir: Path, group: str, members: Sequence[str], part: Part | None = None
) -> None:
    """Write down that these runs train together; in a file of its own for each part."""
    file = workdir / ("groups.json" if part is None else f"groups-{part.name}.json")
    write_json(file, {**read_json(file, default={}), group: list(members)})


def read_groups(workdir: str | os.PathLike[str]) -> dict[str, list[str]]:
    """Return group id -> ids of the runs that train together, of all parts."""
    files = sorted(Path(workdir).glob("groups*.json"))
    return {group: ids for file in files for group, ids in read_json(file, default={}).items()}


def _check_slug(name: str, value: str) -> None:
    if not isinstance(value, str) or not _SLUG.fullmatch(value):
        raise ValueError(
            f"{name}={value!r}: must be 1 to 64 letters, digits, '-' or '_', "
            "starting with a letter or digit"
        )


def _check_members(members: Sequence[MemberRecord]) -> None:
    if not members:
        raise ValueError("members=[]: must hold at least one member")
    seen: dict[str, MemberRecord] = {}
    for member in members:
        if not _ID.fullmatch(member.id):
            raise ValueError(
                f"id={member.id!r}: must be 1 to 128 letters, digits, '-' or '_', "
                "starting with a letter or digit"
            )
        if member.id in seen:
            raise ValueError(
                f"id={member.id!r}: shared by the members {seen[member.id].name!r} and "
                f"{member.name!r}; members must differ in their configuration"
            )
        seen[member.id] = member
