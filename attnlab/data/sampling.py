"""Windows of a token array, as pure functions: training windows of (seed, step), evaluation windows.

There is no iterator and so no iterator state: the batch of update 1234 is computed from the data
seed and the number 1234, inside the compiled step or, for tokens that are not on the device, by the host
(attnlab/data/feed.py). Resuming, replaying and giving every arm of a
claim the same text follow from that. Letters in names: B batch, W window length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from attnlab.data.vocabulary import Tokens

MOST_TOKENS = 2**31  # starts are int32


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Packed:
    """Tokens with document borders: `tokens` integer[n]; `starts` int32[D], the first token of each document."""

    tokens: Any
    starts: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Windows:
    """Windows that are cut: `tokens` integer[..., B, W]; `segments` int32, shaped alike, says which document of its
    window a token belongs to, counted from 0; None where documents do not matter."""

    tokens: Any
    segments: Any = None


# What training reads: running tokens, tokens with document borders, or the windows of the very batch.
Data = Array | Packed | Windows


def batch_key(seed: Array | int, step: Array | int) -> Array:
    """The key of the batch that update number `step` reads; a function of nothing else.

    `windows` draws from `fold_in(batch_key, 0)`; whatever else is random about the same batch (the
    places that masked-LM hides) folds in another number. The generator is named (threefry), so
    that a different default, another device or another mesh does not change the data.

    Args:
      seed: data seed, uint32 or int32 scalar, may be traced.
      step: updates done before this batch, uint32 or int32 scalar, may be traced.
    """
    return jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), step)


def window_starts(
    seed: Array | int, step: Array | int, *, batch_size: int, length: int, n_tokens: int
) -> Array:
    """int32[B]: where the windows of this batch start, uniform over all `n_tokens - length + 1`.

    Separate from `windows` for tokens that do not fit on the device: the same law holds when the
    host cuts the windows from a memory-mapped file.

    Raises:
      ValueError: batch_size or length below 1, length over n_tokens, n_tokens over int32.
    """
    _check_positive("batch_size", batch_size)
    _check_length(length, n_tokens)
    key = jax.random.fold_in(batch_key(seed, step), 0)
    return jax.random.randint(key, (batch_size,), 0, n_tokens - length + 1, jnp.int32)


def windows(
    tokens: Array, seed: Array | int, step: Array | int, *, batch_size: int, length: int
) -> Array:
    """int32[B, W]: `batch_size` windows of `length` consecutive tokens, a function of (seed, step).

    Made to be called inside jit, scan, map and vmap; the same (seed, step) gives the same windows
    in each. The gather is one slice per window: 14-25 us a batch at B 32, W 33 on one CPU core.

    Args:
      tokens: integer[n], on the device; the smallest dtype that holds the ids is best.
      seed: data seed, uint32 or int32 scalar, may be traced.
      step: updates done before this batch, uint32 or int32 scalar, may be traced.
      batch_size: B, static.
      length: W, static: every token of a window, so a context of T with next-token targets
        needs W = T + 1.

    Raises:
      ValueError: tokens not one-dimensional, batch_size or length below 1, length over n.
      TypeError: tokens not integers.
    """
    _check_tokens(tokens)
    starts_B = window_starts(
        seed, step, batch_size=batch_size, length=length, n_tokens=tokens.shape[0]
    )
    cut = jax.vmap(lambda start: lax.dynamic_slice_in_dim(tokens, start, length))
    return cut(starts_B).astype(jnp.int32)


def cut(
    data: Array | Packed, seed: Array | int, step: Array | int, *, batch_size: int, length: int
) -> Windows:
    """The windows of the batch of (seed, step), with their documents where the data have borders; as `windows`."""
    if not isinstance(data, Packed):
        return Windows(windows(data, seed, step, batch_size=batch_size, length=length))
    starts_B = window_starts(
        seed, step, batch_size=batch_size, length=length, n_tokens=data.tokens.shape[0]
    )
    tokens_BW = windows(data.tokens, seed, step, batch_size=batch_size, length=length)
    return Windows(tokens_BW, segments(data.starts, starts_B, length))


def segments(document_starts: Any, starts: Any, length: int) -> Any:
    """int32[..., W]: which document of its window each token belongs to, counted from 0.

    Args:
      document_starts: integer[D], ascending from 0; in numpy, the result is numpy too.
      starts: integer[...], where the windows start.
      length: W.
    """
    xp: Any = np if isinstance(document_starts, np.ndarray) else jnp
    places = starts[..., None] + xp.arange(length).reshape((1,) * starts.ndim + (length,))
    found = xp.searchsorted(document_starts, places, side="right")
    return (found - found[..., :1]).astype(xp.int32)


def evaluation_windows(tokens: Array | Tokens, *, count: int, length: int) -> Array:
    """int32[count, W]: windows spaced evenly over all of `tokens`, the same every time.

    The first starts at the first token and the last ends at the last. They do not overlap whenever
    `count` * `length` <= n; beyond that they overlap evenly, and no two are equal.

    Args:
      tokens: integer[n].
      count: how many, static.
      length: W, as in `windows`, static.

    Raises:
      ValueError: tokens not one-dimensional, count or length below 1, length over n, or more
        windows than there are starts.
      TypeError: tokens not integers.
    """
    _check_tokens(tokens)
    starts = evaluation_starts(tokens.shape[0], count=count, length=length)
    places = starts[:, None] + np.arange(length)[None, :]
    return jnp.asarray(tokens[places].astype(np.int32))


def evaluation_starts(n_tokens: int, *, count: int, length: int) -> np.ndarray:
    """int64[count]: where the windows of `evaluation_windows` start; raises as it does."""
    _check_positive("count", count)
    _check_length(length, n_tokens)
    last = n_tokens - length
    if count > last + 1:
        raise ValueError(
            f"count: {count} windows of {length} do not differ in {n_tokens} tokens; allowed: "
            f"1 <= count <= {last + 1}"
        )
    # int64 on the host: count * last passes 2^31 on a corpus of a few megabytes.
    return np.arange(count, dtype=np.int64) * last // max(count - 1, 1)


def _check_tokens(tokens: Array | Tokens) -> None:
    if tokens.ndim != 1:
        raise ValueError(f"tokens: must be one-dimensional, got shape {tokens.shape}")
    if not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise TypeError(f"tokens: must be integers, got {tokens.dtype}")


def _check_positive(field: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{field}: must be at least 1, got {value}")


def _check_length(length: int, n_tokens: int) -> None:
    _check_positive("length", length)
    if length > n_tokens:
        raise ValueError(
            f"length: a window of {length} is longer than the {n_tokens} tokens it is cut from; "
            f"allowed: 1 <= length <= {n_tokens}"
        )
    if n_tokens >= MOST_TOKENS:
        raise ValueError(f"tokens: {n_tokens} do not fit int32 starts; allowed: below 2^31")
