"""Contenders that take turns, so that whatever else the machine is doing hits all of them."""

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from attnlab.bench.contenders import UnavailableError

LEAST_TURNS, MOST_TURNS = 3, 1000
MATMUL_SIZE = 1024


@dataclass(frozen=True)
class Contender:
    """`prepare` compiles and warms up, and returns (run once, giving its seconds; how many units that was).

    A unit is what the table counts: an update of one member. Raises UnavailableError where it cannot run.
    """

    name: str
    prepare: Callable[[], tuple[Callable[[], float], int]]


@dataclass(frozen=True)
class Timing:
    """Seconds of one unit: the median over turns, the extremes, and the reason where there is none."""

    median: float | None
    low: float | None
    high: float | None
    turns: int
    why: str | None = None


def take_turns(contenders: Sequence[Contender], seconds: float) -> dict[str, Timing]:
    """Each contender runs once a round until it has had `seconds`, three times at least."""
    runs: dict[str, Callable[[], float]] = {}
    units: dict[str, int] = {}
    result: dict[str, Timing] = {}
    for contender in contenders:
        try:
            run, units[contender.name] = contender.prepare()
            run()
            runs[contender.name] = run
        except UnavailableError as error:
            result[contender.name] = Timing(None, None, None, 0, str(error))
    times: dict[str, list[float]] = {name: [] for name in runs}
    while waiting := [n for n, t in times.items() if _wants_more(t, seconds)]:
        for name in waiting:
            times[name].append(runs[name]())
    for name, taken in times.items():
        each = [t / units[name] for t in taken]
        result[name] = Timing(statistics.median(each), min(each), max(each), len(each))
    return {c.name: result[c.name] for c in contenders}


def _wants_more(taken: Sequence[float], seconds: float) -> bool:
    return len(taken) < LEAST_TURNS or (sum(taken) < seconds and len(taken) < MOST_TURNS)


def matmul() -> Contender:
    """The ceiling: one large float32 matrix product, 2 MATMUL_SIZE^3 operations a unit."""

    def prepare() -> tuple[Callable[[], float], int]:
        x = jax.random.normal(jax.random.key(0), (MATMUL_SIZE, MATMUL_SIZE), jnp.float32)
        product = jax.jit(lambda x: x @ x)

        def run() -> float:
            start = time.perf_counter()
            for _ in range(4):
                last = product(x)
            last.block_until_ready()
            return time.perf_counter() - start

        return run, 4

    return Contender("matmul", prepare)


def machine() -> dict[str, Any]:
    """Where this was measured, and by which command."""
    return {
        "command": " ".join(sys.argv),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "platform": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "cpus": os.cpu_count(),
        "load_at_start": round(os.getloadavg()[0], 2),
    }
