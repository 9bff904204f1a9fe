"""Masks from segment ids: packed documents, cross-attention between them, and their positions.

Segment ids are int `[T]` or `[B, T]`. Ids below 0 are padding: such a query reads nothing and such
a key is read by nobody. Equal ids must be neighbours, which is checked where the values are known;
in a traced array every run of equal ids is a document of its own. Everything here is O(T).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from attnlab.masks import inputs
from attnlab.masks.inputs import Data
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
    start, end = _runs(ids)
    hi = _iota(ids) + 1 if causal else end
    if prefix_len is not None:
        prefix = inputs.add(start, _prefix_per_token(prefix_len, ids))
        xp = inputs.backend(prefix, end)
        hi = xp.maximum(hi, xp.minimum(prefix, end))
    hi = inputs.backend(ids, hi).where(ids < 0, 0, hi)
    return make(start[:, None], hi[:, None], None, ids.shape[-1])


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
    places = inputs.backend(ids).where(ids < 0, 0, _iota(ids) - start)
    return jnp.asarray(places).reshape(shape)


def _segment_ids(name: str, value: Any, contiguous: bool) -> tuple[tuple[int, ...], Data]:
    """The shape given, and the ids as strong int32 `[1|B, T]`, in numpy if they are known."""
    ids = inputs.integers(name, value)
    if ids.ndim not in (1, 2) or ids.size == 0:
        raise ValueError(f"{name} has shape {ids.shape}; it must be [length] or [batch, length]")
    if contiguous and inputs.is_known(ids):
        _check_contiguous(name, np.asarray(ids))
    return ids.shape, ids.reshape(-1, ids.shape[-1])


def _check_contiguous(name: str, ids: np.ndarray) -> None:
    for row in ids.reshape(-1, ids.shape[-1]):
        starts = row[np.append(True, row[1:] != row[:-1])]
        values, runs = np.unique(starts[starts >= 0], return_counts=True)
        if (runs > 1).any():
            raise ValueError(
                f"{name}: id {values[runs > 1][0]} appears in separate runs; equal ids must be "
                "contiguous; for others build `dense` from ids[:, None] == ids[None, :]"
            )


def _runs(ids: Data) -> tuple[Data, Data]:
    """First index, and one past the last, of the run of equal ids each token belongs to."""
    xp = inputs.backend(ids)
    edge = np.ones((ids.shape[0], 1), bool)
    change = ids[:, 1:] != ids[:, :-1]
    i = _iota(ids)
    first = xp.where(xp.concatenate([edge, change], axis=1), i, 0)
    past = xp.where(xp.concatenate([change, edge], axis=1), i + 1, ids.shape[-1])
    if xp is np:
        end = np.minimum.accumulate(past[:, ::-1], axis=1)[:, ::-1]
        return np.maximum.accumulate(first, axis=1), end
    return lax.cummax(first, axis=1), lax.cummin(past, axis=1, reverse=True)


def _prefix_per_token(prefix_len: Any, ids: Data) -> Data:
    """int32 `[B, T]`: the prefix length of the document each token belongs to."""
    prefix = inputs.integers("prefix_len", prefix_len)
    inputs.check_range("prefix_len", prefix, low=0)
    xp = inputs.backend(prefix, ids)
    if prefix.ndim == 0:
        return xp.broadcast_to(prefix, ids.shape)
    B, M = ids.shape[0], prefix.shape[-1]
    if prefix.ndim > 2 or M == 0 or (prefix.ndim == 2 and prefix.shape[0] not in (1, B)):
        raise ValueError(
            f"prefix_len has shape {prefix.shape}; it must be a scalar, [documents] or "
            f"[batch, documents] with batch {B}"
        )
    if inputs.is_known(ids) and int(np.max(ids)) >= M:
        raise ValueError(
            f"prefix_len is given for {M} documents; segment id {np.max(ids)} has none"
        )
    per_id = xp.broadcast_to(prefix.reshape(-1, M), (B, M))
    found = xp.take_along_axis(per_id, xp.clip(ids, 0, M - 1), axis=1)
    return xp.where(ids < M, found, 0)


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


def _iota(ids: Data) -> np.ndarray:
    return np.arange(ids.shape[1], dtype=np.int32)[None, :]
