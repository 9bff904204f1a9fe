"""What is left to do of a sweep: exactly the members that have not ended, in the groups they started in.

A group is recorded when it starts (`groups*.json`: id -> member ids). Resuming rebuilds it with all its members, the
ended ones included, because the program and the checkpoint are those of the whole group. Members that no recorded
group holds, such as the seeds added to a finished sweep, form groups of their own.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab import knobs
from attnlab import plan as plan_lib
from attnlab.plan import Group, Member
from attnlab.results import arm_of
from attnlab.tracking import Part, read_groups, read_runs, read_sweep, record_group
from attnlab.tracking.files import plain, read_json

OVER = ("finished", "diverged", "stopped")
MOST_LINES = 8  # of a configuration that has nothing to do with the stored one


def remaining(
    workdir: Path, planned: Sequence[Group], only: Collection[str] | None = None
) -> list[Group]:
    """The groups that still have something to train, in order; all of `planned` in a new directory.

    `only`: ids of the members that this process trains; all when None. How a sweep is run may differ from session to session (`sweeps.Settings`), and members may be added; what a
    member is may not.

    Raises:
      ValueError: the directory holds a member that is not planned; it names the keys that differ from the planned
        member nearest to it, with both values.
    """
    members = {m.id: m for g in planned for m in g.members}
    corpora = {g.corpus.key: g.corpus for g in planned}
    mine = set(members if only is None else only)
    if only is None and not (workdir / "sweep.json").exists():
        return list(planned)
    if not (workdir / "sweep.json").exists():
        return plan_lib.group([m for m in members.values() if m.id in mine], corpora)
    _refuse_other_configurations(workdir, members)
    over = {run.id for run in read_runs(workdir) if run.status in OVER}
    recorded = read_groups(workdir).values()
    started = [[members[i] for i in ids] for ids in recorded if set(ids) & mine - over]
    held = {i for ids in recorded for i in ids}
    new = [m for m in members.values() if m.id in mine - held - over]
    groups = [g for part in started for g in plan_lib.group(part, corpora)]
    return groups + plan_lib.group(new, corpora)


def record(workdir: Path, group: Group, part: Part | None = None) -> None:
    """Writes down that these members train together."""
    record_group(workdir, group.id, [m.id for m in group.members], part)


def checkpoint_directory(workdir: Path, group: Group) -> Path:
    """Where the checkpoints of a group lie."""
    return workdir / "checkpoints" / group.id


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
