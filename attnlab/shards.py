"""A sweep divided among jobs: which members each of them trains.

A group compiles once in every job that trains some of it, so groups stay whole as long as that shares out the work;
beyond that the largest are cut. The division is written down (`shards.json`) by whichever job comes first and read by
the others, so that all agree whatever has been trained meanwhile, and a job that is started again gets what it had.
"""

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnlab import costs
from attnlab import plan as plan_lib
from attnlab.plan import Group
from attnlab.tracking import Part, locks, read_groups
from attnlab.tracking.files import read_json, write_json

UNEVEN = 1.25
"""A job may have so many times its fair share before a group is cut for it."""

PATIENCE = 60.0
"""Seconds to wait for another job that writes the division."""


@dataclass(frozen=True)
class Shard:
    """One of `count` jobs that train a sweep together, counted from 0."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """`"2/8"`: the third of eight.

        Raises:
          ValueError: it is not of that form, or out of range.
        """
        index, slash, count = text.partition("/")
        if not (slash and index.isdecimal() and count.isdecimal()):
            raise ValueError(f"--shard: got {text!r}; allowed: I/N, such as 0/4 for the first of 4")
        shard = cls(int(index), int(count))
        if not shard.index < shard.count:
            allowed = (
                f"0/{shard.count} to {shard.count - 1}/{shard.count}" if shard.count else "I/N"
            )
            raise ValueError(f"--shard: got {text!r}; allowed: {allowed}, and at least one job")
        return shard


def part(workdir: Path, planned: Sequence[Group], shard: Shard) -> Part:
    """The members of one shard of a sweep in `workdir`; the first job of a sweep writes the division down.

    Members that were added to the sweep go to the shards that have least to do. Another number of shards is a new
    division, made when nobody trains; members that started together stay together.

    Raises:
      ValueError: more shards than there are members to train, or another number of shards while some of it trains.
      OSError: the workdir cannot be written.
    """
    check_count(planned, shard.count)
    workdir.mkdir(parents=True, exist_ok=True)
    lock = locks.take(workdir / ".lock-shards", patience=PATIENCE)
    if lock is None:
        raise ValueError(f"workdir={str(workdir)!r}: another job has been dividing it for a minute")
    with lock:
        before = read_json(workdir / locks.SHARDS, default=None)
        if before is not None and before["count"] != shard.count:
            if locks.in_use(workdir):
                raise ValueError(
                    f"--shard: got {shard.index}/{shard.count}, but the sweep in {str(workdir)!r} is being trained in "
                    f"{before['count']} shards; allowed: I/{before['count']}, or any when none of them trains"
                )
            before = None
        kept: Mapping[str, int] = {} if before is None else before["members"]
        recorded = () if before is not None else tuple(read_groups(workdir).values())
        members = divide(planned, shard.count, kept=kept, together=recorded)
        if before is None or members != kept:
            write_json(workdir / locks.SHARDS, {"count": shard.count, "members": members})
    mine = frozenset(run_id for run_id, index in members.items() if index == shard.index)
    return Part(shard.index, shard.count, mine)


def check_count(planned: Sequence[Group], count: int) -> None:
    """Refuses more shards than members.

    Raises:
      ValueError: naming the most that are allowed.
    """
    members = sum(len(g.members) for g in planned)
    if count > members:
        raise ValueError(f"shards: got {count} for {members} members; allowed: 1 to {members}")


def divide(
    planned: Sequence[Group],
    count: int,
    *,
    kept: Mapping[str, int] | None = None,
    together: Collection[Sequence[str]] = (),
) -> dict[str, int]:
    """Run id -> shard, by the work of the members: updates times FLOPs an update.

    `kept`: a division that stays as it is. `together`: runs that share a checkpoint, which one shard must have.
    """
    shards = dict(kept or {})
    work = {m.id: _work(g, m.steps) for g in planned for m in g.members}
    loads = np.zeros(count)
    for run_id, index in shards.items():
        loads[index] += work.get(run_id, 0)
    held = {run_id for ids in together for run_id in ids} | shards.keys()
    fixed = [[i for i in ids if i in work] for ids in together if set(ids) - shards.keys()]
    groups = [[m.id for m in g.members if m.id not in held] for g in planned]
    pieces = [ids for ids in fixed if ids] + _cut([ids for ids in groups if ids], work, count)
    weights = [sum(work[i] for i in ids) for ids in pieces]
    for piece in sorted(range(len(pieces)), key=lambda p: (-weights[p], p)):
        index = int(loads.argmin())
        loads[index] += weights[piece]
        shards |= dict.fromkeys(pieces[piece], index)
    return shards


def first_groups(planned: Sequence[Group], shard: Shard) -> list[Group]:
    """The groups that a shard trains of a sweep that nobody has started."""
    check_count(planned, shard.count)
    members = divide(planned, shard.count)
    corpora = {g.corpus.key: g.corpus for g in planned}
    mine = [m for g in planned for m in g.members if members[m.id] == shard.index]
    return plan_lib.group(mine, corpora)


def _work(group: Group, steps: int) -> float:
    return float(costs.flops_per_update(group.task)) * steps


def _cut(groups: Sequence[list[str]], work: Mapping[str, float], count: int) -> list[list[str]]:
    """Groups, the largest of them cut, until there is a piece for every shard and none is much above its share."""
    totals = [sum(work[i] for i in ids) for ids in groups]
    cuts = [1] * len(groups)
    fair = sum(totals) / count
    while True:
        sizes = [t / c if c < len(g) else 0.0 for t, c, g in zip(totals, cuts, groups, strict=True)]
        largest = max(range(len(groups)), key=sizes.__getitem__, default=0)
        enough = sum(cuts) >= count and max(sizes, default=0.0) <= UNEVEN * fair
        if enough or not any(sizes):
            break
        cuts[largest] += 1
    pieces = []
    for ids, c in zip(groups, cuts, strict=True):
        ends = [math.ceil(len(ids) * k / c) for k in range(c + 1)]
        pieces += [ids[a:b] for a, b in itertools.pairwise(ends)]
    return pieces
