# ruff: noqa: N815  (fields carry their shapes in their names)
"""Loss on a held-out text, kept apart by block and by position, so that both can have error bars.

A block is a stretch of consecutive windows. Neighbouring tokens, and windows of one scene, are not independent; far
stretches of a text nearly are, so blocks are what a bootstrap resamples.
"""

import functools
from dataclasses import dataclass

import jax
import numpy as np
from jax import Array

from attnlab import model, objectives, training
from attnlab.data.sampling import Windows, segments
from attnlab.data.vocabulary import Tokens
from attnlab.knobs import Knobs
from attnlab.training import EVALUATION_KEY, Task


@dataclass(frozen=True)
class BlockLosses:
    """Sums over the windows of each of K blocks, by position: `losses_KT` in nats, `counts_KT` targets (float64)."""

    losses_KT: np.ndarray
    counts_KT: np.ndarray

    @property
    def loss(self) -> float:
        """Mean over all targets, nats."""
        return float(self.losses_KT.sum() / self.counts_KT.sum())

    @property
    def by_position(self) -> np.ndarray:
        """Mean at each position, nats, float64 [T]; nan where no target fell."""
        count_T = self.counts_KT.sum(axis=0)
        loss_T = self.losses_KT.sum(axis=0)
        return np.divide(loss_T, count_T, out=np.full_like(loss_T, np.nan), where=count_T > 0)

    def segment(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """(nats, targets) of each block at positions start ... stop - 1: float64 [K] each."""
        part = slice(start, stop)
        return self.losses_KT[:, part].sum(axis=1), self.counts_KT[:, part].sum(axis=1)


def window_starts(n_tokens: int, context: int, count: int | None = None) -> np.ndarray:
    """Where windows start, int64 [E]: every `context` tokens, so that no target is asked for twice.

    `count`: only so many of them, evenly spread; None takes all.

    Raises:
      ValueError: no window fits, or fewer than `count` do.
    """
    length = objectives.window_length(context)
    most = (n_tokens - length) // context + 1 if n_tokens >= length else 0
    if most < 1:
        raise ValueError(
            f"context: a window of {length} tokens is longer than the {n_tokens} of the split; "
            "allowed: a longer text"
        )
    if count is None:
        count = most
    if not 1 <= count <= most:
        raise ValueError(
            f"windows: got {count}; allowed: 1..{most} windows of {context} tokens in {n_tokens}"
        )
    return np.arange(count, dtype=np.int64) * most // count * context


def block_losses(
    task: Task,
    params: model.Params,
    knobs: Knobs,
    tokens: Tokens,
    starts: np.ndarray,
    blocks: int,
    documents: np.ndarray | None = None,
) -> BlockLosses:
    """Losses of the windows that start at `starts`, with the member's own objective and mask, in `blocks` blocks.

    The places that masked-LM hides depend on nothing but the number of the window's batch.

    `documents`: the first token of each document of the split, for a member whose windows are packed.

    Raises:
      ValueError: more blocks than windows, or fewer than 1.
    """
    count, T = len(starts), task.architecture.context
    if not 1 <= blocks <= count:
        raise ValueError(f"blocks: got {blocks}; allowed: 1..{count}, the number of windows")
    size = task.budget.batch_size // task.budget.accumulation
    offsets_W = np.arange(objectives.window_length(T))
    losses_KT, counts_KT = np.zeros((blocks, T)), np.zeros((blocks, T))
    block_of = np.arange(count) * blocks // count
    params = jax.device_put(params)
    for index, first in enumerate(range(0, count, size)):
        chosen = np.arange(first, min(first + size, count))
        padded = np.resize(chosen, size)  # one shape, one program
        first_B = starts[padded]
        windows = Windows(
            np.asarray(tokens[first_B[:, None] + offsets_W[None, :]], np.int32),
            None if documents is None else segments(documents, first_B, len(offsets_W)),
        )
        losses_BT, weights_BT = jax.device_get(
            _window_losses(task, params, knobs, windows, np.int32(index))
        )
        np.add.at(losses_KT, block_of[chosen], losses_BT[: len(chosen)])
        np.add.at(counts_KT, block_of[chosen], weights_BT[: len(chosen)])
    return BlockLosses(losses_KT, counts_KT)


@functools.partial(jax.jit, static_argnums=0)
def _window_losses(
    task: Task, params: model.Params, knobs: Knobs, windows: Windows, index: Array
) -> tuple[Array, Array]:
    """Weighted losses in nats and weights of every target, float32 [B, T] each."""
    key = jax.random.fold_in(jax.random.key(EVALUATION_KEY, impl="threefry2x32"), index)
    batch = training.batch_of(task, knobs, windows, key)
    logits, _ = training.logits_of(task, params, knobs, batch)
    return objectives.weighted_losses(logits, batch), batch.weights
