"""What is left to do of a sweep: exactly the members that have not ended, in the groups they started in.

A group is recorded when it starts (`groups.json`: id -> member ids). Resuming rebuilds it with all its members, the
ended ones included, because the program and the checkpoint are those of the whole group. Members that no recorded
group holds, such as the seeds added to a finished sweep, form groups of their own.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab import knobs
from attnlab import plan as plan_lib
from attnlab.plan import Group, Member
from attnlab.results import arm_of
from attnlab.tracking import read_runs, read_sweep
from attnlab.tracking.files import plain, read_json, write_json

OVER = ("finished", "diverged", "stopped")
MOST_LINES = 8  # of a configuration that has nothing to do with the stored one


def remaining(workdir: Path, planned: Sequence[Group]) -> list[Group]:
    """The groups that still have something to train, in order; all of `planned` in a new directory.

    How a sweep is run may differ from session to session (`sweeps.Settings`), and members may be added; what a
    member is may not.

    Raises:
      ValueError: the directory holds a member that is not planned; it names the keys that differ from the planned
        member nearest to it, with both values.
    """
    if not (workdir / "sweep.json").exists():
        return list(planned)
    members = {m.id: m for g in planned for m in g.members}
    _refuse_other_configurations(workdir, members)
    over = {run.id for run in read_runs(workdir) if run.status in OVER}
    corpora = {g.corpus.key: g.corpus for g in planned}
    recorded = _recorded(workdir)
    started = [[members[i] for i in ids] for ids in recorded.values() if set(ids) - over]
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


def _refuse_other_configurations(workdir: Path, planned: Mapping[str, Member]) -> None:
    stored = [member["id"] for member in read_sweep(workdir)["members"]]
    gone = [run_id for run_id in stored if run_id not in planned]
    if not gone:
        return
    configs = [read_json(workdir / "runs" / run_id / "config.json") for run_id in gone]
    new = [plain(m.config) for m in planned.values() if m.id not in stored]
    if new:
        # The planned member with the fewest differences is what became of a stored one.
        changes = [min((_differences(old, config) for config in new), key=len) for old in configs]
        lines = list(dict.fromkeys(line for change in changes for line in change))
        what = "; ".join(lines[:MOST_LINES] + ["..."] * (len(lines) > MOST_LINES))
        must = "must be resumed with the configuration it was started with"
    else:
        what = ", ".join(f"{arm_of(config)} s{config['seed']['init']}" for config in configs)
        must = "must be resumed with at least the members it was started with"
    raise ValueError(
        f"workdir={str(workdir)!r}: {len(gone)} of its {len(stored)} members are not in this sweep "
        f"({what}); {must}"
    )


def _differences(stored: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """A line for each key in which two configurations differ."""
    old, new = dict(knobs.flatten(stored)), dict(knobs.flatten(asked))
    return [
        f"config.{key}: stored {_value(old, key)}, asked {_value(new, key)}"
        for key in sorted(old.keys() | new.keys())
        if _value(old, key) != _value(new, key)
    ]


def _value(flat: Mapping[str, Any], key: str) -> str:
    return repr(flat[key]) if key in flat else "nothing"
