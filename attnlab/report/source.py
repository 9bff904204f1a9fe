"""What a report is made from, and what is worked out of it once for all sections."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnlab.claims import Claim, judging
from attnlab.claims.judging import ArmRow, Outcome
from attnlab.results import Results, Run, arm_of, flat, seed_of

DEFAULT_METRIC = "val/loss"


@dataclass(frozen=True)
class Source:
    """Everything that was read from a sweep's directory.

    Attributes:
      name: of the sweep.
      runs: every member, whatever became of it.
      claim: what the sweep is judged by, or None.
      environments: run id -> records of its sessions, as `environment.json` holds them.
      masks: mask text -> bool [T, S], to be drawn.
      wandb_url: page of the W&B project, None when the sweep is not there.
      refresh: seconds after which a browser reloads the page, None for a page that is final.
    """

    name: str
    runs: Sequence[Run]
    claim: Claim | None = None
    environments: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    masks: Mapping[str, np.ndarray] = field(default_factory=dict)
    wandb_url: str | None = None
    refresh: int | None = None


@dataclass(frozen=True)
class Facts:
    """A source with its runs as arms and seeds, and its verdict.

    `not_judged` says why there is no outcome where a claim was given. `arms` are rows of `metric` at the end; empty
    when no run has finished with it.
    """

    source: Source
    results: Results
    outcome: Outcome | None
    not_judged: str | None
    metric: str
    arms: tuple[ArmRow, ...]


def facts(source: Source) -> Facts:
    """Works out what all sections need.

    Raises:
      ValueError: a sweep without members.
    """
    results = Results(with_distinct_arms(source.runs))
    outcome, not_judged = None, None
    if source.claim is not None:
        try:
            outcome = source.claim.judge(results)
        except ValueError as error:
            not_judged = str(error)
    metric = source.claim.metric if source.claim is not None else DEFAULT_METRIC
    arms: tuple[ArmRow, ...] = ()
    try:
        arms = outcome.arms if outcome else judging.arm_rows(metric, results.arms, results)
    except ValueError as error:
        not_judged = not_judged or str(error)
    return Facts(source, results, outcome, not_judged, metric, arms)


@dataclass(frozen=True)
class _Relabelled:
    """A run under another arm's name."""

    run: Run
    arm: str

    @property
    def config(self) -> Mapping[str, Any]:
        return {**self.run.config, "arm": self.arm}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.run, name)


def with_distinct_arms(runs: Iterable[Run]) -> list[Run]:
    """The runs, with whatever tells two runs of one arm and seed apart added to the name of their arm.

    A sweep over learning rates that names no arms has several runs of "causal next_token none" and seed 0; their
    arms become "causal next_token none, learning_rate 0.001" and so on.
    """
    by_arm: dict[str, list[Run]] = {}
    for run in runs:
        by_arm.setdefault(arm_of(run.config), []).append(run)
    labelled: list[Run] = []
    for arm, members in by_arm.items():
        if len({seed_of(run.config) for run in members}) == len(members):
            labelled += members
            continue
        configs = [flat(run.config) for run in members]
        keys = varying(configs, ignore=("arm", "seed.init", "seed.data"))
        if len({(c["seed.init"], *(repr(c.get(key)) for key in keys)) for c in configs}) < len(
            members
        ):
            keys.append("seed.data")
        for run, config in zip(members, configs, strict=True):
            extra = ", ".join(f"{key.split('.')[-1]} {config.get(key)}" for key in keys)
            renamed: Any = _Relabelled(run, f"{arm}, {extra}")
            labelled.append(renamed)
    return labelled


def varying(configs: Sequence[Mapping[str, Any]], ignore: Iterable[str] = ()) -> list[str]:
    """The keys on which flat configurations disagree, in the order of the first."""
    keys = dict.fromkeys(key for config in configs for key in config)
    return [
        key
        for key in keys
        if key not in ignore and len({repr(config.get(key)) for config in configs}) > 1
    ]
