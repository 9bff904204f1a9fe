"""What a claim is judged on: the runs of a sweep, seen as arms and seeds.

An arm is what is compared, a seed is what is repeated, and a run is one seed of one arm. A run that diverged
or has not ended is never dropped in silence: `Results.gaps` says which are missing and why.
"""

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

FINISHED = "finished"
DIVERGED = "diverged"

T = TypeVar("T")


class Run(Protocol):
    """One member as read back from its run directory.

    `history` holds columns of equal length, among them "step" (updates done) and "tokens"; a column that has no
    value in a row is nan there. `status` is "finished", "diverged", or any word for a run that has not ended.
    `summary` may hold "diverged_at", a step, and "references", numbers of the corpus. `path` is the run's
    directory, where `attnlab.measurements` finds what was measured on the trained member.
    """

    @property
    def id(self) -> str: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def history(self) -> Mapping[str, np.ndarray]: ...
    @property
    def summary(self) -> Mapping[str, Any]: ...
    @property
    def status(self) -> str: ...
    @property
    def path(self) -> Path: ...


def arm_of(config: Mapping[str, Any]) -> str:
    """The arm a run belongs to: its label, or else mask, objective and positions."""
    return config["arm"] or f"{config['mask']} {config['objective']} {config['positions']}"


def seed_of(config: Mapping[str, Any]) -> int:
    """The replication a run belongs to: the seed of its parameters."""
    return int(config["seed"]["init"])


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """A nested configuration by dotted keys: `{"model": {"width": 64}}` gives `{"model.width": 64}`."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= {f"{key}.{inner}": x for inner, x in flat(value).items()}
        else:
            found[key] = value
    return found


class Results:
    """Runs by arm and seed.

    `references` are numbers that belong to the corpus, in nats per token of the validation text (for example
    "unigram", "bigram"). When they are not given they are read from the runs' summaries, key "references".

    Raises:
      ValueError: no runs, two runs of one arm and seed, or runs whose references disagree.
    """

    def __init__(self, runs: Iterable[Run], references: Mapping[str, float] | None = None) -> None:
        self._runs: dict[str, dict[int, Run]] = {}
        for run in runs:
            arm, seed = arm_of(run.config), seed_of(run.config)
            by_seed = self._runs.setdefault(arm, {})
            if seed in by_seed:
                raise ValueError(
                    f"runs: {by_seed[seed].id} and {run.id} are both seed {seed} of arm {arm!r}; one run each"
                )
            by_seed[seed] = run
        if not self._runs:
            raise ValueError("runs: there are none to judge")
        self.references = _references(self) if references is None else dict(references)

    @property
    def arms(self) -> tuple[str, ...]:
        return tuple(self._runs)

    def runs(self, arm: str) -> dict[int, Run]:
        """The runs of an arm by seed, in order of seed, whatever became of them.

        Raises:
          ValueError: no run of that arm.
        """
        if arm not in self._runs:
            raise ValueError(f"arm: no run of {arm!r}; the sweep has {', '.join(self.arms)}")
        return dict(sorted(self._runs[arm].items()))

    def seeds(self, arms: Sequence[str]) -> tuple[int, ...]:
        """Every seed that the sweep planned for all of the arms, whatever became of it.

        A sweep lists its members before the first one trains: what is not listed was not planned, and an arm may have
        more seeds than the others.
        """
        planned = [set(self.runs(arm)) for arm in arms]
        return tuple(sorted(set.intersection(*planned)))

    def complete(
        self, arms: Sequence[str], *, may_diverge: Collection[str] = ()
    ) -> tuple[int, ...]:
        """The seeds that finished in every one of the arms, or diverged in those of `may_diverge`."""
        return tuple(
            seed
            for seed in self.seeds(arms)
            if all(self._ended(arm, seed, may_diverge) for arm in arms)
        )

    def gaps(self, arms: Sequence[str], *, may_diverge: Collection[str] = ()) -> tuple[str, ...]:
        """One phrase for each seed and arm that `complete` misses; empty when the comparison is complete."""
        return tuple(
            f"{arm} seed {seed} {fate(self.runs(arm)[seed])}"
            for arm in arms
            for seed in self.seeds(arms)
            if not self._ended(arm, seed, may_diverge)
        )

    def _ended(self, arm: str, seed: int, may_diverge: Collection[str]) -> bool:
        status = self.runs(arm)[seed].status
        return status == FINISHED or (status == DIVERGED and arm in may_diverge)

    def diverged(self, arms: Iterable[str] | None = None) -> tuple[str, ...]:
        """One phrase for each diverged run of these arms, or of any."""
        return tuple(
            f"{arm} seed {seed} {fate(run)}"
            for arm in (self.arms if arms is None else arms)
            for seed, run in self.runs(arm).items()
            if run.status == DIVERGED
        )

    def unfinished(self) -> tuple[str, ...]:
        """One phrase for each run of any arm that neither finished nor diverged."""
        return tuple(
            f"{arm} seed {seed} {fate(run)}"
            for arm in self.arms
            for seed, run in self.runs(arm).items()
            if run.status not in (FINISHED, DIVERGED)
        )

    def measured(self, read: Callable[[Run], T | None], arm: str) -> dict[int, T]:
        """By seed, what `read` finds of a run (see `attnlab.measurements`); runs of which it finds None are left out.

        Raises:
          ValueError: unknown arm, or a file that `read` refuses.
        """
        found = {seed: read(run) for seed, run in self.runs(arm).items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def config(self, arm: str) -> dict[str, Any]:
        """The flat configuration of an arm's first run: `{"model.width": 64, ...}`.

        Raises:
          ValueError: unknown arm.
        """
        return flat(next(iter(self.runs(arm).values())).config)

    def reference(self, name: str) -> float:
        """A number of the corpus, nats per token of the validation text.

        Raises:
          ValueError: no run recorded it.
        """
        return self.references[_known("reference", name, self.references)]

    def final(self, metric: str, arm: str) -> dict[int, float]:
        """The last value of a metric by seed, over the finished runs of an arm.

        Raises:
          ValueError: unknown arm or metric, or a finished run that ends in a value that is not finite.
        """
        return {
            seed: _last(run, metric)[1]
            for seed, run in self.runs(arm).items()
            if run.status == FINISHED
        }

    def initial(self, metric: str, arm: str) -> dict[int, float]:
        """The value of a metric before the first update, by seed.

        Raises:
          ValueError: unknown arm or metric, or a run that was not validated before its first update.
        """
        return {seed: _at_start(run, metric) for seed, run in self.runs(arm).items()}

    def capped(self, metric: str, arm: str) -> dict[int, float]:
        """The last value by seed, but at most the value before training, which is what a diverged run counts as.

        So says the definition of learning-rate sensitivity (Wortsman et al. 2023, arXiv 2309.14322, section 2). Runs
        that have not ended have no value.

        Raises:
          ValueError: as `initial` and `final`.
        """
        finished, values = self.final(metric, arm), {}
        for seed, run in self.runs(arm).items():
            if run.status in (FINISHED, DIVERGED):
                start = _at_start(run, metric)
                values[seed] = min(finished.get(seed, start), start)
        return values

    def reached(self, metric: str, arm: str) -> dict[int, float]:
        """The last finite value by seed of the runs that finished or diverged; nan where there is none.

        Raises:
          ValueError: unknown arm, or a metric that a run lacks.
        """
        values = {}
        for seed, run in self.runs(arm).items():
            if run.status in (FINISHED, DIVERGED):
                _known(f"metric of run {run.id}", metric, run.history)
                logged = np.asarray(run.history[metric], np.float64)
                logged = logged[np.isfinite(logged)]
                values[seed] = float(logged[-1]) if len(logged) else float("nan")
        return values

    def paired(
        self, metric: str, arms: Sequence[str]
    ) -> tuple[tuple[int, ...], dict[str, np.ndarray]]:
        """Last values for the seeds that finished in every arm: `(seeds, {arm: values_S})`.

        Raises:
          ValueError: a seed whose arms saw different data or a different number of tokens: such a
            difference is not the arms' doing.
        """
        seeds = self.complete(arms)
        for seed in seeds:
            runs = {arm: self.runs(arm)[seed] for arm in arms}
            _same("data seed", seed, {a: run.config["seed"]["data"] for a, run in runs.items()})
            _same("tokens", seed, {a: _last(run, metric)[0] for a, run in runs.items()})
        return seeds, {
            arm: np.array([self.final(metric, arm)[seed] for seed in seeds]) for arm in arms
        }

    def curve(self, metric: str, arm: str) -> tuple[np.ndarray, np.ndarray]:
        """A metric by tokens: `(tokens_T, values_ST)`, seeds in ascending order.

        Where a run has no finite value (it diverged, or has not got there) the entry is nan.

        Raises:
          ValueError: unknown arm, or no run of it has the metric.
        """
        runs = self.runs(arm).values()
        _known("metric", metric, {column for run in runs for column in run.history})
        series = [_series(run, metric) for run in runs]
        tokens_T = np.unique(np.concatenate([tokens for tokens, _ in series]))
        values_ST = np.full((len(series), len(tokens_T)), np.nan)
        for row_T, (tokens, values) in zip(values_ST, series, strict=True):
            row_T[np.searchsorted(tokens_T, tokens)] = np.where(np.isinf(values), np.nan, values)
        return tokens_T, values_ST


def fate(run: Run) -> str:
    """What became of a run, in words: "finished", "diverged at step 120", "is interrupted after step 40"."""
    if run.status == FINISHED:
        return FINISHED
    if run.status == DIVERGED and "diverged_at" in run.summary:
        return f"{DIVERGED} at step {run.summary['diverged_at']}"
    steps = run.history.get("step", np.array([]))
    where = f"after step {int(steps[-1])}" if len(steps) else "before its first row"
    return f"{DIVERGED} {where}" if run.status == DIVERGED else f"is {run.status} {where}"


def _series(run: Run, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and values of the rows that have the metric."""
    values = np.asarray(run.history.get(metric, ()), dtype=np.float64)
    present = ~np.isnan(values)
    tokens = np.asarray(run.history.get("tokens", ()))
    return tokens[: len(values)][present], values[present]


def _last(run: Run, metric: str) -> tuple[int, float]:
    _known(f"metric of run {run.id}", metric, run.history)
    tokens, values = _series(run, metric)
    end = int(np.max(run.history["tokens"], initial=0))
    if len(values) == 0 or tokens[-1] != end or not np.isfinite(values[-1]):
        raise ValueError(
            f"{metric}: run {run.id} is {FINISHED}, with no finite value at its end ({end} tokens)"
        )
    return end, float(values[-1])


def _at_start(run: Run, metric: str) -> float:
    _known(f"metric of run {run.id}", metric, run.history)
    values = np.asarray(run.history[metric], np.float64)
    first = (np.asarray(run.history["step"]) == 0) & np.isfinite(values)
    if not first.any():
        raise ValueError(f"{metric}: run {run.id} has no finite value before its first update")
    return float(values[first][0])


def _same(what: str, seed: int, by_arm: Mapping[str, Any]) -> None:
    if len(set(by_arm.values())) > 1:
        raise ValueError(f"{what}: must be equal in all arms of seed {seed}, got {dict(by_arm)}")


def _references(results: Results) -> dict[str, float]:
    merged: dict[str, float] = {}
    for arm in results.arms:
        for run in results.runs(arm).values():
            for name, value in run.summary.get("references", {}).items():
                if abs(merged.setdefault(name, float(value)) - value) > 1e-6:
                    raise ValueError(
                        f"references.{name}: run {run.id} has {value}, another {merged[name]}; "
                        "runs of one comparison must share corpus and split"
                    )
    return merged


def _known(field: str, name: str, allowed: Iterable[str]) -> str:
    names = sorted(allowed)
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(names) or 'none'}"
    raise ValueError(f"{field}: got {name!r}; {hint}")
