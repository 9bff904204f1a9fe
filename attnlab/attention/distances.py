"""How much of a tile's attention mass lies at which distance, for the statistics of blockwise attention."""

import math

import jax.numpy as jnp
from jax import Array, lax

from attnlab.attention.tiles import Plan


def mass_below(plan: Plan, edges: tuple[int, ...], offset: Array, p: Array, mass: Array) -> Array:
    """The mass of a tile at distances below each edge: [B, K, D, R].

    `offset` is the distance of the tile's first query to its first key, `mass` [B, K, R] the sums of `p` over its keys.
    Edges are powers of two, so a tile farther away than it is long contains one of them at most, and most such tiles
    none.
    """
    keys, R = p.shape[2:]
    span = plan.block_q + keys - 1
    low, high = offset - (keys - 1), offset + plan.block_q - 1
    nearest, farthest = jnp.maximum(jnp.maximum(low, -high), 0), jnp.maximum(high, -low)
    edge = jnp.asarray(edges, jnp.int32)
    is_inside = (edge > nearest) & (edge <= farthest)
    whole = jnp.where((edge > farthest)[:, None], mass[:, :, None], 0)
    own = offset + lax.broadcasted_iota(jnp.int32, (1, R), 1) % plan.block_q

    def no_edge(_: Array) -> Array:
        return whole

    def one_edge(p: Array) -> Array:
        distance = jnp.abs(own - lax.broadcasted_iota(jnp.int32, (keys, R), 0))
        closer = jnp.where(distance < jnp.max(jnp.where(is_inside, edge, 0)), p, 0)
        return jnp.where(is_inside[:, None], jnp.sum(closer, axis=2)[:, :, None], whole)

    def several_edges(p: Array) -> Array:
        inner = tuple(e for e in edges if e < 2 * span)  # the others are farther than any key
        return jnp.concatenate([_mass_around(inner, own, p), whole[:, :, len(inner) :]], axis=2)

    kind = jnp.where(nearest < span, 2, jnp.any(is_inside).astype(jnp.int32))
    return lax.switch(kind, (no_edge, one_edge, several_edges), p)


def _mass_around(edges: tuple[int, ...], own: Array, p: Array) -> Array:
    """The mass of a tile below each edge [B, K, D, R], where many of them lie; own: [1, R] the key of distance 0.

    A few keys next to the own one are gathered. Keys closer than a wider edge are a run, so its mass is a difference of
    two prefix sums. Those exist at every `step`-th key only, counted from the own one of each row: all wider edges are
    multiples of `step`. A masked sum per edge would take several times as long.
    """
    B, K, keys, R = p.shape
    step = math.gcd(keys, 8)
    blocks, residue = keys // step, own % step
    narrow = [e for e in edges if e < step or e == 1]
    wide = jnp.asarray(edges[len(narrow) :], jnp.int32)[:, None]
    by_block = p.reshape(B, K, blocks, step, R)
    is_head = lax.broadcasted_iota(jnp.int32, (step, 1), 0) < residue
    head = jnp.sum(jnp.where(is_head, by_block, 0), axis=3)
    lower = jnp.tril(jnp.ones((blocks + 1, blocks), p.dtype), k=-1)
    before = jnp.einsum(
        "ts,bksr->bktr", lower, jnp.sum(by_block, axis=3), precision=lax.Precision.HIGHEST
    )
    # Of the keys below step * t + residue.
    before += jnp.pad(head, ((0, 0), (0, 0), (0, 1), (0, 0)))

    def gather(x: Array, index: Array) -> Array:
        found = jnp.take_along_axis(
            x, jnp.broadcast_to(index, (B, K, *index.shape)), axis=2, mode="clip"
        )
        return jnp.where(index >= 0, found, 0)

    reach = narrow[-1] - 1
    near = jnp.concatenate([jnp.arange(-reach, reach + 1, dtype=jnp.int32)[:, None], -wide]) + own
    at = jnp.where(near < keys, gather(p, near), 0)
    band, last = at[:, :, : 2 * reach + 1], at[:, :, 2 * reach + 1 :]
    below = [jnp.sum(band[:, :, reach - e + 1 : reach + e], axis=2, keepdims=True) for e in narrow]
    upper, under = jnp.split(
        gather(before, jnp.concatenate([own + wide, own - wide]) // step), 2, axis=2
    )
    closer = jnp.maximum(upper - under - last, below[-1])
    return jnp.concatenate([*below, closer], axis=2)
