"""What is left to do of a sweep: exactly the members that have not ended, in the groups they started in.

A group is recorded when it starts (`groups.json`: id -> member ids). Resuming rebuilds it with all its members, the
ended ones included, because the program and the checkpoint are those of the whole group. Members that no recorded
group holds, such as the seeds added to a finished sweep, form groups of their own.
"""

from collections.abc import Sequence
from pathlib import Path

from attnlab import plan as plan_lib
from attnlab.plan import Group, Member
from attnlab.tracking import read_runs
from attnlab.tracking.files import read_json, write_json

OVER = ("finished", "diverged", "stopped")


def remaining(workdir: Path, planned: Sequence[Group]) -> list[Group]:
    """The groups that still have something to train, in order; all of `planned` in a new directory.

    Raises:
      ValueError: the directory holds a group with a member that is not planned.
    """
    if not (workdir / "sweep.json").exists():
        return list(planned)
    over = {run.id for run in read_runs(workdir) if run.status in OVER}
    members = {m.id: m for g in planned for m in g.members}
    corpora = {g.corpus.name: g.corpus for g in planned}
    recorded = _recorded(workdir)
    started = [
        [_planned(i, members, workdir) for i in ids] for ids in recorded.values() if set(ids) - over
    ]
    held = {i for ids in recorded.values() for i in ids}
    new = [m for m in members.values() if m.id not in held and m.id not in over]
    groups = [g for part in started for g in plan_lib.group(part, corpora)]
    return groups + plan_lib.group(new, corpora)


def record(workdir: Path, group: Group) -> None:
    """Writes down that these members train together."""
    write_json(
        workdir / "groups.json", {**_recorded(workdir), group.id: [m.id for m in group.members]}
    )


def checkpoint_directory(workdir: Path, group: Group) -> Path:
    """Where the checkpoints of a group lie."""
    return workdir / "checkpoints" / group.id


def _recorded(workdir: Path) -> dict[str, list[str]]:
    path = workdir / "groups.json"
    return read_json(path) if path.exists() else {}


def _planned(run_id: str, members: dict[str, Member], workdir: Path) -> Member:
    if run_id not in members:
        raise ValueError(
            f"workdir={str(workdir)!r}: member {run_id} was started there and is not in this sweep; "
            "must be resumed with the configuration and at least the seeds it was started with"
        )
    return members[run_id]
