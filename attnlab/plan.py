"""From many configurations to few programs: members and the groups that train together.

Members of a group differ in data only: mask, objective, position family, norm, scale, learning rate, seed.
Everything a user can get wrong is refused here, before anything is compiled or written.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from attnlab import knobs as knobs_lib
from attnlab import objectives, sharding
from attnlab.attention import choose_impl
from attnlab.data import sampling
from attnlab.data.corpora import Corpus
from attnlab.knobs import Architecture, Budget, Knobs
from attnlab.masks import Mask
from attnlab.results import arm_of
from attnlab.tracking import run_id
from attnlab.training import Task


@dataclass(frozen=True)
class Member:
    """One training run: its identity, its resolved configuration, and which arm of the comparison it is."""

    id: str
    name: str
    arm: str
    config: Mapping[str, Any]
    architecture: Architecture
    budget: Budget

    @property
    def steps(self) -> int:
        return int(self.config["steps"])


@dataclass(frozen=True)
class Group:
    """Members that train in one program."""

    task: Task
    corpus: Corpus
    members: tuple[Member, ...]

    def knobs(self) -> list[Knobs]:
        """Each member's data, alike in structure and shapes: a gate for every family of the group, and a mask
        that is dense or per head as soon as one member's is."""
        made = [knobs_lib.knobs(m.config, self.task.architecture) for m in self.members]
        masks = Mask.stack([k.mask for k in made])
        return [
            dataclasses.replace(k, mask=jax.tree.map(lambda leaf, i=i: leaf[i], masks))
            for i, k in enumerate(made)
        ]

    @property
    def id(self) -> str:
        """Ten hex digits that say which members train together; the name of their checkpoints."""
        names = "\n".join(m.id for m in self.members)
        return hashlib.sha256(names.encode()).hexdigest()[:10]

    @property
    def attention(self) -> str:
        """The implementation of attention in this group's program: what "auto" means here."""
        arch = self.task.architecture
        if arch.mixer != "attention":
            return f"none ({arch.mixer})"
        return choose_impl(arch.context, arch.context, impl=arch.attention)

    @property
    def steps(self) -> int:
        """Updates of the longest member."""
        return max(m.steps for m in self.members)


def plan(
    sweep: str,
    configs: Sequence[Mapping[str, Any]],
    base: Mapping[str, Any],
    load_corpus: Callable[..., Corpus],
) -> list[Group]:
    """Checks every configuration and groups them by their static part; nothing is compiled or written.

    `sweep`: name of the sweep, part of every member's id. `base`: the configuration that holds every knob.
    `load_corpus`: called with a corpus and a tokenizer, once for each pair.

    Raises:
      ValueError: no member, an unknown or missing key, an impossible value, two equal members.
    """
    if not configs:
        raise ValueError(f"sweep {sweep}: it has no members")
    for config in configs:
        knobs_lib.check_keys(config, base)
        knobs_lib.check_values(config)
    wanted = dict.fromkeys((c["corpus"], c["tokenizer"]) for c in configs)
    corpora = {key: load_corpus(*key) for key in wanted}
    members = [_member(sweep, c, corpora[c["corpus"], c["tokenizer"]]) for c in configs]
    _refuse_equal(members)
    return group(members, corpora)


def group(members: Sequence[Member], corpora: Mapping[tuple[str, str], Corpus]) -> list[Group]:
    """Members that can share a program, together; in the order in which they come. `corpora` by `Corpus.key`."""
    groups: dict[tuple[Architecture, Budget], list[Member]] = {}
    for member in members:
        key = (knobs_lib.without_families(member.architecture), member.budget)
        groups.setdefault(key, []).append(member)
    return [_group(members, corpora[members[0].budget.data]) for members in groups.values()]


def _member(sweep: str, config: Mapping[str, Any], corpus: Corpus) -> Member:
    budget = knobs_lib.budget(config)
    sharding.check_devices(budget.data_devices)
    _check_windows(corpus, budget, config["context"])
    if budget.packed and corpus.documents is None:
        raise ValueError(
            f"config.packing: got {budget.packing!r}, but corpus {corpus.name!r} has no documents; allowed: none, or "
            f"a corpus of several (a directory of files, rows of a dataset, shakespeare)"
        )
    arm = arm_of(config)
    arch = knobs_lib.architecture(
        config, vocab_size=corpus.vocabulary.size, input_size=corpus.vocabulary.input_size
    )
    return Member(
        run_id(sweep, config), f"{arm} s{config['seed']['init']}", arm, config, arch, budget
    )


def _check_windows(corpus: Corpus, budget: Budget, context: int) -> None:
    """Every split holds a window, and the validation split as many different ones as are asked for."""
    length = objectives.window_length(context)
    split, shortest = corpus.shortest()
    if shortest < length:
        beyond = length - context
        most = min(shortest, len(corpus.validation) - budget.final_eval_windows + 1) - beyond
        context_too = f", or config.context of at most {most}" if most > 0 else ""
        raise ValueError(
            f"corpus {corpus.name!r}: its {split} split has {shortest} tokens, fewer than one window of {length} "
            f"(config.context = {context} and {beyond} more for the targets); allowed: a longer text{context_too}"
        )
    if len(corpus.train) >= sampling.MOST_TOKENS:
        raise ValueError(
            f"corpus {corpus.name!r}: its train split has {len(corpus.train)} tokens; allowed: fewer than "
            f"{sampling.MOST_TOKENS}"
        )
    most = len(corpus.validation) - length + 1
    if budget.final_eval_windows > most:
        raise ValueError(
            f"config.eval.final_windows: got {budget.final_eval_windows}, but the validation split of "
            f"{corpus.name!r} holds {len(corpus.validation)} tokens; allowed: at most {most} windows"
        )


def _refuse_equal(members: Sequence[Member]) -> None:
    seen: dict[str, int] = {}
    for index, member in enumerate(members):
        if member.id in seen:
            raise ValueError(
                f"members {seen[member.id]} and {index} ({member.name}) are equal: every member must "
                "differ from the others in at least one value"
            )
        seen[member.id] = index


def _group(members: Sequence[Member], corpus: Corpus) -> Group:
    arch = knobs_lib.union([m.architecture for m in members])
    inputs = objectives.Inputs(
        corpus.vocabulary.mask_id,
        corpus.vocabulary.bos_id,
        shuffles=any(m.config["order"] == "shuffled" for m in members),
    )
    task = Task(arch, members[0].budget, inputs)
    return Group(task, corpus, tuple(members))
