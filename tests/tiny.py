"""The smallest runs that still train: configurations, corpora and a log in memory, shared by the tests of the engine."""

import contextlib
import copy
import functools
import runpy
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from attnlab import plan as plan_lib
from attnlab import population
from attnlab.data import corpora
from attnlab.plan import Group

BASE_FILE = Path(__file__).parents[1] / "configs" / "base.py"
BASE: dict[str, Any] = runpy.run_path(str(BASE_FILE))["get_config"]().to_dict()

TINY = {
    "corpus": "random:17", "context": 8, "batch_size": 4, "steps": 8, "log_every": 4,
    "model.layers": 1, "model.width": 16, "model.heads": 2, "model.kv_heads": 2,
    "optimizer.learning_rate": 1e-2, "optimizer.warmup_steps": 2,
    "eval.every": 4, "eval.windows": 8, "eval.final_windows": 16,
}  # fmt: skip

load = functools.cache(corpora.load)


def config(overrides: Mapping[str, Any] | None = None, /, **top_level: Any) -> dict[str, Any]:
    """The base configuration made tiny, with flat overrides: `config({"model.width": 8}, mask="full")`."""
    result = copy.deepcopy(BASE)
    for key, value in {**TINY, **(overrides or {}), **top_level}.items():
        *sections, leaf = key.split(".")
        functools.reduce(lambda section, name: section[name], sections, result)[leaf] = value
    return result


@contextlib.contextmanager
def quick_compilation() -> Iterator[None]:
    """Halves the time to compile, for tests to which the speed and the last bits of a program do not matter."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def plan(configs: Iterable[Mapping[str, Any]]) -> list[Group]:
    return plan_lib.plan("tiny", list(configs), BASE, load)


def group(*configs: Mapping[str, Any]) -> Group:
    """The only group of these configurations."""
    (only,) = plan(configs)
    return only


class MemoryLog:
    """What a tracker is told: `rows[member]` in order of arrival, `ends[member]` = (status, summary)."""

    def __init__(self, members: int):
        self.rows: list[list[dict[str, Any]]] = [[] for _ in range(members)]
        self.ends: dict[int, tuple[str, dict[str, Any]]] = {}

    def log(self, step: int, rows: dict[str, np.ndarray], where: np.ndarray) -> None:
        for index in np.flatnonzero(where):
            self.rows[index].append({"step": step} | {k: v[index] for k, v in rows.items()})

    def flush(self) -> bool:
        return True

    def stop_requests(self) -> frozenset[int]:
        return frozenset()

    def finish(self, index: int, status: str, summary: dict[str, Any]) -> None:
        assert index not in self.ends, f"member {index} was finished twice"
        self.ends[index] = status, summary

    def column(self, member: int, name: str) -> np.ndarray:
        """[(step, value)] of the rows that have the column."""
        return np.array([(r["step"], r[name]) for r in self.rows[member] if name in r])


def train(
    configs: Iterable[Mapping[str, Any]], **kwargs: Any
) -> tuple[MemoryLog, population.GroupReport]:
    """Trains configurations that form one group."""
    members = group(*configs)
    log = MemoryLog(len(members.members))
    return log, population.run_group(members, log, **kwargs)
