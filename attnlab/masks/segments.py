"""Masks from segment ids: packed documents, cross-attention between them, and their positions.

Segment ids are int `[T]` or `[B, T]`. Ids below 0 are padding: such a query reads nothing and such
a key is read by nobody. Equal ids must be neighbours, which is checked where the values are known;
in a traced array every run of equal ids is a document of its own. Everything here is O(T).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from attnlab.masks import inputs
from attnlab.masks.mask import Mask, make


def documents(segment_ids: Any, *, causal: bool = True, prefix_len: Any = None) -> Mask:
    """Packed documents: each token reads its own document only, causally unless `causal=False`.

    `prefix_len` makes the first tokens of each document bidirectional among themselves: one number
    for all documents, or `[M]` or `[B, M]` indexed by segment id. A prefix longer than its document
    covers the document. In a traced array, documents with an id of M or more have no prefix.

    Resetting positions does not separate documents, this mask does; `positions` is its companion.

    documents([0, 0, 0, 1, 1, -1]), with causal=False, and documents([0, 0, 0, 1, 1, 1],
    prefix_len=[2, 1]):

        x.....    xxx...    xx....
        xx....    xxx...    xx....
        xxx...    xxx...    xxx...
        ...x..    ...xx.    ...x..
        ...xx.    ...xx.    ...xx.
        ......    ......    ...xxx

    Raises ValueError for ids that are not contiguous; `dense` can be built from
    `(ids[:, None] == ids[None, :]) & (ids >= 0)` then, at O(T^2) memory.
    """
    if not inputs.flag("causal", causal) and prefix_len is not None:
        raise ValueError("prefix_len needs causal=True; without it all is bidirectional")
    _, ids = _segment_ids("segment_ids", segment_ids, contiguous=True)
    prefix = None if prefix_len is None else _prefix_per_token(prefix_len, segment_ids, ids)
    return _documents(ids, prefix, causal)


def cross_documents(q_segment_ids: Any, kv_segment_ids: Any) -> Mask:
    """Cross-attention between packed sequences: a query reads every key of its own segment.

    A query whose id no key has reads nothing. Only the key ids must be contiguous; a traced array
    of key ids that is not gives undefined intervals.

    cross_documents([0, 0, 1, 1, 2, -1], [0, 1, 1, 1, 2, 2]):

        x.....
        x.....
        .xxx..
        .xxx..
        ....xx
        ......
    """
    _, q_ids = _segment_ids("q_segment_ids", q_segment_ids, contiguous=False)
    _, kv_ids = _segment_ids("kv_segment_ids", kv_segment_ids, contiguous=True)
    batches = {q_ids.shape[0], kv_ids.shape[0]} - {1}
    if len(batches) > 1:
        raise ValueError(
            f"{q_ids.shape[0]} rows of q_segment_ids do not match "
            f"{kv_ids.shape[0]} rows of kv_segment_ids"
        )
    B, T, S = max(batches, default=1), q_ids.shape[-1], kv_ids.shape[-1]
    q_ids, kv_ids = jnp.broadcast_to(q_ids, (B, T)), jnp.broadcast_to(kv_ids, (B, S))
    return _cross_documents(q_ids, kv_ids)


def positions(segment_ids: Any) -> Array:
    """int32, shaped like the ids: 0, 1, 2 ... within each document, and 0 on padding.

    The positions for learned embeddings and RoPE beside `documents`. [0, 0, 0, 1, 1, -1] gives
    [0, 1, 2, 0, 1, 0].
    """
    shape, ids = _segment_ids("segment_ids", segment_ids, contiguous=True)
    start, _ = _runs(ids)
    return jnp.where(ids < 0, 0, _iota(ids) - start).reshape(shape)


def _segment_ids(name: str, value: Any, contiguous: bool) -> tuple[tuple[int, ...], Array]:
    """The shape given, and the ids as strong int32 `[1|B, T]`."""
    ids = inputs.integers(name, value)
    if ids.ndim not in (1, 2) or ids.size == 0:
        raise ValueError(f"{name} has shape {ids.shape}; it must be [length] or [batch, length]")
    if contiguous and inputs.is_known(ids):
        _check_contiguous(name, np.asarray(ids))
    return ids.shape, jnp.asarray(ids).reshape(-1, ids.shape[-1])


def _check_contiguous(name: str, ids: np.ndarray) -> None:
    for row in ids.reshape(-1, ids.shape[-1]):
        starts = row[np.append(True, row[1:] != row[:-1])]
        values, runs = np.unique(starts[starts >= 0], return_counts=True)
        if (runs > 1).any():
            raise ValueError(
                f"{name}: id {values[runs > 1][0]} appears in separate runs; equal ids must be "
                "contiguous; for others build `dense` from ids[:, None] == ids[None, :]"
            )


@functools.partial(jax.jit, static_argnames="causal")
def _documents(ids: Array, prefix: Array | None, causal: bool) -> Mask:
    start, end = _runs(ids)
    hi = _iota(ids) + 1 if causal else end
    if prefix is not None:
        hi = jnp.maximum(hi, jnp.minimum(inputs.add(start, prefix), end))
    hi = jnp.where(ids < 0, 0, hi)
    return make(start[:, None], hi[:, None], None, ids.shape[-1])


@jax.jit
def _runs(ids: Array) -> tuple[Array, Array]:
    """First index, and one past the last, of the run of equal ids each token belongs to."""
    edge = jnp.ones_like(ids[:, :1], dtype=bool)
    change = ids[:, 1:] != ids[:, :-1]
    i = _iota(ids)
    first = jnp.where(jnp.concatenate([edge, change], axis=1), i, 0)
    past = jnp.where(jnp.concatenate([change, edge], axis=1), i + 1, ids.shape[-1])
    return lax.cummax(first, axis=1), lax.cummin(past, axis=1, reverse=True)


def _prefix_per_token(prefix_len: Any, segment_ids: Any, ids: Array) -> Array:
    """int32 `[B, T]`: the prefix length of the document each token belongs to."""
    prefix = inputs.integers("prefix_len", prefix_len)
    inputs.check_range("prefix_len", prefix, low=0)
    if prefix.ndim == 0:
        return jnp.broadcast_to(prefix, ids.shape)
    B, M = ids.shape[0], prefix.shape[-1]
    if prefix.ndim > 2 or M == 0 or (prefix.ndim == 2 and prefix.shape[0] not in (1, B)):
        raise ValueError(
            f"prefix_len has shape {prefix.shape}; it must be a scalar, [documents] or "
            f"[batch, documents] with batch {B}"
        )
    if inputs.is_known(segment_ids) and int(np.max(segment_ids)) >= M:
        raise ValueError(
            f"prefix_len is given for {M} documents; segment id {np.max(segment_ids)} has none"
        )
    per_id = jnp.broadcast_to(jnp.asarray(prefix).reshape(-1, M), (B, M))
    found = jnp.take_along_axis(per_id, jnp.clip(ids, 0, M - 1), axis=1)
    return jnp.where(ids < M, found, 0)


@jax.jit
def _cross_documents(q_ids: Array, kv_ids: Array) -> Mask:
    lo, hi = jax.vmap(_matching_keys)(q_ids, kv_ids)
    return make(lo[:, None], hi[:, None], None, kv_ids.shape[-1])


def _matching_keys(q_ids: Array, kv_ids: Array) -> tuple[Array, Array]:
    """For `[T]` query ids, the interval of the contiguous `[S]` key ids equal to each."""
    order = jnp.argsort(kv_ids, stable=True).astype(jnp.int32)
    ordered = kv_ids[order]
    left = jnp.searchsorted(ordered, q_ids, side="left").astype(jnp.int32)
    right = jnp.searchsorted(ordered, q_ids, side="right").astype(jnp.int32)
    lo = order[jnp.minimum(left, kv_ids.shape[0] - 1)]
    return lo, jnp.where(q_ids < 0, lo, lo + right - left)


def _iota(ids: Array) -> Array:
    return lax.broadcasted_iota(jnp.int32, ids.shape, 1)
