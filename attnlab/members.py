"""A trained member read back from its run directory: what `sample`, `eval` and probes start from.

A checkpoint holds a whole group in the group's architecture, with every position family and QK-norm that some member
uses. What is given back is the one member in its own architecture: a family whose gate is off is exactly absent, and
without its table the member can read more tokens than the table has rows.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from attnlab import knobs as knobs_lib
from attnlab import model, training
from attnlab import plan as plan_lib
from attnlab.checkpoints import Checkpoints
from attnlab.data import corpora
from attnlab.data.corpora import Corpus
from attnlab.data.vocabulary import Vocabulary
from attnlab.knobs import Architecture, Knobs
from attnlab.plan import Group
from attnlab.tracking import read_groups, read_sweep
from attnlab.tracking.files import read_json
from attnlab.training import Task

ALLOWED = "allowed: a run directory (WORKDIR/runs/ID), or a WORKDIR with --member"


@dataclass(frozen=True)
class Trained:
    """One member after `step` updates. `task` holds its own architecture, with attention chosen for this machine."""

    id: str
    name: str
    config: Mapping[str, Any]
    step: int
    task: Task
    knobs: Knobs
    params: model.Params
    corpus: Corpus

    @property
    def architecture(self) -> Architecture:
        return self.task.architecture

    @property
    def vocabulary(self) -> Vocabulary:
        return self.corpus.vocabulary


def find(path: Path, member: str | None = None) -> tuple[Path, str]:
    """(workdir, run id) of RUN: a run directory, or a workdir and the name or id of one of its members.

    Raises:
      ValueError: no such directory, neither of the two, or a member that is missing, unknown or one too many.
    """
    if not path.is_dir():
        raise ValueError(f"RUN: no directory {str(path)!r}; {ALLOWED}")
    if (path / "sweep.json").exists():
        return path, _member_id(path, member)
    workdir = path.absolute().parent.parent
    if path.absolute().parent.name != "runs" or not (workdir / "sweep.json").exists():
        raise ValueError(f"RUN: {str(path)!r} is not a run directory; {ALLOWED}")
    if member is not None:
        raise ValueError(
            f"--member: got {member!r}, but RUN is already the directory of one member"
        )
    return workdir, _member_id(workdir, path.absolute().name)


def load(
    path: Path,
    member: str | None,
    base: Mapping[str, Any],
    load_corpus: Callable[[str], Corpus] = corpora.load,
) -> Trained:
    """The member at its newest complete checkpoint; after a run that ended, its final state.

    `base`: the configuration that holds every knob. A knob that did not exist when the run was made takes its default
    there: a new knob's default is what the program did before. Reading disturbs no training that is going on.

    Raises:
      ValueError: see `find`; or no checkpoint, a configuration that this version cannot build, or a corpus that
        cannot be had or is not the one that the member was trained on.
    """
    workdir, run_id = find(path, member)
    (trained,) = load_all(workdir, [run_id], base, load_corpus)
    return trained


def load_all(
    workdir: Path,
    run_ids: Sequence[str],
    base: Mapping[str, Any],
    load_corpus: Callable[[str], Corpus] = corpora.load,
) -> Iterator[Trained]:
    """Several members of a sweep; the checkpoint of a group is read once for all of its members. See `load`."""
    groups: dict[str, tuple[list[str], list[str]]] = {}
    for run_id in run_ids:
        group_id, ids = _recorded_group(workdir, run_id)
        groups.setdefault(group_id, (ids, []))[1].append(run_id)
    for group_id, (ids, wanted) in groups.items():
        group = _rebuilt(workdir, ids, base, load_corpus)
        _check_corpus(workdir, wanted[0], group.corpus)
        step, states = _restore(workdir, wanted[0], group_id, group)
        for run_id in wanted:
            yield _trained(group, ids.index(run_id), step, states)


def _trained(group: Group, index: int, step: int, states: training.TrainState) -> Trained:
    chosen = group.members[index]
    arch = dataclasses.replace(chosen.architecture, attention="auto")
    whole = jax.tree.map(lambda x: x[index], states.params)
    return Trained(
        id=chosen.id,
        name=chosen.name,
        config=chosen.config,
        step=min(step, chosen.steps),
        task=dataclasses.replace(group.task, architecture=arch),
        knobs=knobs_lib.knobs(chosen.config, arch),
        params=_only(whole, jax.eval_shape(lambda: model.init(arch, jax.numpy.uint32(0)))),
        corpus=group.corpus,
    )


def _member_id(workdir: Path, member: str | None) -> str:
    listed = read_sweep(workdir)["members"]
    if member is None and len(listed) == 1:
        return listed[0]["id"]
    names = ", ".join(m["name"] for m in listed)
    if member is None:
        raise ValueError(f"--member: the sweep has {len(listed)}, so name one; allowed: {names}")
    matching = [m["id"] for m in listed if member in (m["name"], m["id"])]
    if len(matching) != 1:
        what = "is no member" if not matching else f"names {len(matching)} members; give the id"
        raise ValueError(f"--member: {member!r} {what} of the sweep; allowed: {names}")
    return matching[0]


def _recorded_group(workdir: Path, run_id: str) -> tuple[str, list[str]]:
    for group_id, ids in read_groups(workdir).items():
        if run_id in ids:
            return group_id, ids
    raise ValueError(_no_checkpoint(workdir, run_id))


def _rebuilt(
    workdir: Path,
    ids: Sequence[str],
    base: Mapping[str, Any],
    load_corpus: Callable[[str], Corpus],
) -> Group:
    """The group that trained together, from the configurations it wrote down."""
    configs = [
        _filled(read_json(workdir / "runs" / run_id / "config.json"), base) for run_id in ids
    ]
    groups = plan_lib.plan(read_sweep(workdir)["name"], configs, base, load_corpus)
    if len(groups) != 1:
        raise ValueError(
            f"RUN: the {len(ids)} members that trained together in {str(workdir)!r} form {len(groups)} programs in "
            "this version of attnlab; allowed: the version that trained them"
        )
    return groups[0]


def _filled(config: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """`config`, with the keys of `base` that it lacks."""
    filled = copy.deepcopy(dict(config))
    for key, value in base.items():
        if key not in filled:
            filled[key] = copy.deepcopy(value)
        elif isinstance(value, Mapping) and isinstance(filled[key], Mapping):
            filled[key] = _filled(filled[key], value)
    return filled


def _check_corpus(workdir: Path, run_id: str, corpus: Corpus) -> None:
    sessions = read_json(workdir / "runs" / run_id / "environment.json", default=[])
    trained_on = sessions[-1]["data"].get("sha256") if sessions else None
    if trained_on is not None and trained_on != corpus.sha256:
        raise ValueError(
            f"corpus {corpus.name!r}: has changed since the run (SHA-256 {corpus.sha256[:12]}, trained on "
            f"{trained_on[:12]}), so token ids mean something else; allowed: the text it was trained on"
        )


def _restore(
    workdir: Path, run_id: str, group_id: str, group: Group
) -> tuple[int, training.TrainState]:
    def states() -> Any:
        made = [training.init_state(group.task, k) for k in group.knobs()]
        return jax.tree.map(lambda *leaves: jax.numpy.stack(leaves), *made)

    with Checkpoints(workdir / "checkpoints" / group_id, reading=True) as checkpoints:
        there = checkpoints.steps()
        found = checkpoints.restore(jax.eval_shape(states))
    if found is None and there:
        raise ValueError(
            f"RUN: none of the checkpoints of {run_id} in {str(workdir)!r} can be read; allowed: a member with a "
            "whole one (train it again)"
        )
    if found is None:
        raise ValueError(_no_checkpoint(workdir, run_id))
    return found


def _no_checkpoint(workdir: Path, run_id: str) -> str:
    return (
        f"RUN: {run_id} in {str(workdir)!r} has no checkpoint yet; allowed: a member that has one "
        "(see `attnlab status WORKDIR`)"
    )


def _only(params: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that `like` has, by name."""
    return {
        name: _only(params[name], part) if isinstance(part, Mapping) else params[name]
        for name, part in like.items()
    }
