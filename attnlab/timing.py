"""Timing what a member does, alone on the machine: whole updates, and attention by itself."""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlab import training
from attnlab.attention import attend
from attnlab.data import feed
from attnlab.masks import Mask
from attnlab.measurements.times import AttentionTime, UpdateTime
from attnlab.members import Trained
from attnlab.training import Task

TURNS = 5
LEAST_SECONDS = 0.05  # of a turn of attention: the clock and the dispatch are not what is measured


def update_time(trained: Trained) -> UpdateTime:
    """Seconds of an update, from the member's first parameters on, in calls of `log_every` updates."""
    task, knobs, budget = _as_trained(trained), trained.knobs, trained.task.budget
    tokens = jax.device_put(feed.device_tokens(trained.corpus, documents=budget.packed))
    state = _fresh(task, knobs)
    seconds = _turns(lambda: _chunk(task, state, knobs, tokens)) / budget.log_every
    return UpdateTime(seconds, budget.batch_size, task.architecture.context, _device())


def attention_time(trained: Trained) -> AttentionTime:
    """Seconds of the member's attention and its gradient on random inputs: its implementation, mask, heads and batch."""
    task, knobs = _as_trained(trained), trained.knobs
    arch, B = task.architecture, task.budget.batch_size
    shape = (B, arch.context, arch.heads, arch.head_dim)
    q, k, v, w = (jax.random.normal(key, shape) for key in jax.random.split(jax.random.key(0), 4))

    def step() -> Any:
        return _attention_gradients(
            arch.attention, (q, k, v), w, knobs.mask, knobs.model.logit_scale
        )

    jax.block_until_ready(step())
    started = time.perf_counter()
    jax.block_until_ready(step())
    calls = max(1, round(LEAST_SECONDS / (time.perf_counter() - started)))

    def turn() -> Any:
        for _ in range(calls):
            last = step()
        return last

    return AttentionTime(_turns(turn) / calls, B, arch.context, _device())


# Seeds of an arm share what was compiled for the first of them.
_fresh = jax.jit(training.init_state, static_argnums=0)
_chunk = jax.jit(training.train_chunk, static_argnums=0)


@functools.partial(jax.jit, static_argnums=0)
def _attention_gradients(
    implementation: str, qkv: tuple[jax.Array, ...], w: jax.Array, mask: Mask, scale: jax.Array
) -> Any:
    def weighted(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        out = attend(q, k, v, mask, scale=scale, impl=implementation)
        assert isinstance(out, jax.Array)  # without statistics
        return jnp.vdot(out, w)

    return jax.grad(weighted, argnums=(0, 1, 2))(*qkv)


def _as_trained(trained: Trained) -> Task:
    """The member's task with the attention it asked for: one that is read back has what suits the machine."""
    attention = trained.config["model"]["attention"]
    own = dataclasses.replace(trained.architecture, attention=attention)
    return dataclasses.replace(trained.task, architecture=own)


def _turns(run: Callable[[], Any]) -> np.ndarray:
    """Seconds of each of TURNS calls, after one that compiles and warms up."""
    jax.block_until_ready(run())
    seconds = []
    for _ in range(TURNS):
        started = time.perf_counter()
        jax.block_until_ready(run())
        seconds.append(time.perf_counter() - started)
    return np.array(seconds)


def _device() -> str:
    return jax.devices()[0].device_kind
