"""Masks from explicit pairs, in the dense structure: a boolean array, an edge list, a set of keys.

Their memory is O(T S). Anything that can be said with intervals is cheaper said so.
"""

from typing import Any

import jax.numpy as jnp

from attnlab.masks import inputs
from attnlab.masks.mask import Mask, from_allowed


def dense(allowed: Any) -> Mask:
    """Any mask: bool `(T, S)` or `(1|B, 1|N, T, S)`, True = may read.

    dense(jnp.arange(6)[:, None] % 2 == jnp.arange(6)[None, :] % 2):

        x.x.x.
        .x.x.x
        x.x.x.
        .x.x.x
        x.x.x.
        .x.x.x

    Raises TypeError for anything but booleans: 0/1 numbers and additive masks are the commonest
    silent errors of attention code. Raises ValueError for rank 3, where the leading axis could be
    batch or heads: write `allowed[:, None]` or `allowed[None]`.
    """
    allowed = inputs.booleans("allowed", allowed)
    if allowed.ndim not in (2, 4) or allowed.size == 0:
        raise ValueError(
            f"allowed has shape {allowed.shape}; it must be (T, S) or (batch, heads, T, S): "
            "allowed[:, None] adds the heads axis, allowed[None] the batch axis"
        )
    return from_allowed(allowed.reshape((1, 1, 1, 1, *allowed.shape)[-4:]))


def key_mask(q_len: int, keep: Any, *, kv_len: int | None = None) -> Mask:
    """The same keys for every query: keep is bool `[S]` or `[B, S]`, with or without gaps.

    For keys without gaps `key_padding` says the same at O(T) memory. `kv_len`, where given, guards
    against a `keep` of the queries' length.

    key_mask(6, [True, False, True, True, False, True]):

        x.xx.x
        x.xx.x
        x.xx.x
        x.xx.x
        x.xx.x
        x.xx.x
    """
    T = inputs.length("q_len", q_len)
    keep = inputs.booleans("keep", keep)
    if keep.ndim not in (1, 2) or keep.size == 0:
        raise ValueError(f"keep has shape {keep.shape}; it must be [keys] or [batch, keys]")
    S = keep.shape[-1]
    if kv_len is not None and inputs.length("kv_len", kv_len) != S:
        raise ValueError(f"keep covers {S} keys; kv_len is {kv_len}")
    keep = keep.reshape(-1, 1, 1, S)
    return from_allowed(jnp.broadcast_to(keep, (keep.shape[0], 1, T, S)))


def graph(edge_index: Any, num_nodes: int, self_loops: bool = False) -> Mask:
    """Attention over the edges of a graph: int `[2, E]` or `[B, 2, E]`, source row, target row.

    Messages flow from source to target (PyTorch Geometric's convention), so the *target* node is
    the query and reads the *source*: edge (0, 1) lets node 1 read node 0. An undirected graph lists
    both directions. Edges with an id below 0 are padding. `self_loops` lets every node read itself;
    without them a node that no edge enters reads nothing and gets output 0.

    graph([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]], 6), and with self_loops=True:

        ......    x.....
        x.....    xx....
        .x....    .xx...
        ..x...    ..xx..
        ...x..    ...xx.
        ....x.    ....xx

    Raises ValueError for ids of num_nodes or more; in a traced array those edges are dropped.
    """
    size = inputs.length("num_nodes", num_nodes)
    edges = inputs.integers("edge_index", edge_index)
    if edges.ndim not in (2, 3) or edges.shape[-2] != 2:
        raise ValueError(
            f"edge_index has shape {edges.shape}; it must be [2, edges] or [batch, 2, edges]"
        )
    inputs.check_range("edge_index", edges, high=size - 1)
    edges = jnp.asarray(edges if edges.ndim == 3 else edges[None])
    # A negative index would count from the end; num_nodes is out of range and dropped.
    edges = jnp.where(jnp.any(edges < 0, axis=1, keepdims=True), size, edges)
    b = jnp.arange(edges.shape[0], dtype=jnp.int32)[:, None]
    none = jnp.zeros((edges.shape[0], size, size), bool)
    allowed = none.at[b, edges[:, 1], edges[:, 0]].set(True, mode="drop")
    if inputs.flag("self_loops", self_loops):
        allowed = allowed | jnp.eye(size, dtype=bool)[None]
    return from_allowed(allowed[:, None])
