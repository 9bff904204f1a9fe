"""What a blockwise implementation visits: which tiles of the [T, S] plane, in which order, with which arrays.

A tile is (queries of one block) x (keys of one block). The rows of a tile are the G queries of a kv head times the
block of positions, R = G * block_q, so grouped heads share one load of the keys. Tiles are held transposed, keys first
([B, K, block_k, R]): then no product needs a transposed left operand, which XLA's CPU back end runs at a third of
the speed, and everything per query lies along the vector axis.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from attnlab.attention.bias import PositionBias


@dataclass(frozen=True)
class Plan:
    """Everything static about one call.

    Attributes:
      block_q, block_k: the tile.
      softcap: as in `attend`.
      logit_scale: a factor of q . k that was not multiplied into q.
      stats: also accumulate statistics.
    """

    block_q: int
    block_k: int
    softcap: float | None
    logit_scale: float
    stats: bool


class MaskArrays(NamedTuple):
    """The leaves of a Mask: bounds int32 (1|B, 1|N, T), dense bool (1|B, 1|N, T, S) or None."""

    lo: Array
    hi: Array
    dense: Array | None


class Schedule(NamedTuple):
    """The tiles of each query block: first those that need the mask, then those that do not.

    Attributes:
      keys: int32 [nq, nk], the first key of each tile; entries past `visited` mean nothing.
      masked: int32 [nq], how many of them need the mask.
      visited: int32 [nq], how many are visited at all.
    """

    order: Array
    masked: Array
    visited: Array


def count(length: int, block: int) -> int:
    """How many blocks cover `length`."""
    return -(-length // block)


def schedule(plan: Plan, lo_rows: Array, hi_rows: Array, mask: MaskArrays, kv_len: int) -> Schedule:
    """The visits of every query block, jointly over batch, heads and rows, from `row_blocks` of the bounds.

    The tiles of a block begin at the first key that anyone in it reads, not at a multiple of their width: a window that
    is as wide as a tile is one visit, not two. A dense mask needs one grid for all blocks.
    """
    bk, nk = plan.block_k, count(kv_len, plan.block_k)
    rows = (1, 2, 3)
    nonempty = lo_rows < hi_rows
    # What anyone reads. Empty rows read nothing and must not drag the range to 0.
    begin = jnp.min(jnp.where(nonempty, lo_rows, kv_len), axis=rows)
    end = jnp.max(hi_rows, axis=rows)
    grid = jnp.zeros_like(begin) if mask.dense is not None else _grid(plan, begin, end, nk)
    first, last = (begin - grid) // bk, -(-(end - grid) // bk)
    # First and past-the-last tile that everyone reads whole; an empty row has hi = 0, and then there is none.
    inner_first = -(-(jnp.max(lo_rows, axis=rows) - grid) // bk)
    inner_last = (jnp.min(hi_rows, axis=rows) - grid) // bk
    tile = lax.broadcasted_iota(jnp.int32, (1, nk), 1)
    if mask.dense is not None:
        some, every = _dense_tiles(plan, mask.dense, lo_rows.shape[0], nk)
        some &= (tile >= first[:, None]) & (tile < last[:, None])
        every &= (tile >= inner_first[:, None]) & (tile < inner_last[:, None])
        order = jnp.argsort(jnp.where(every, 1, jnp.where(some, 0, 2)), axis=1, stable=True)
        return Schedule(
            order.astype(jnp.int32) * bk,
            jnp.sum(some & ~every, axis=1, dtype=jnp.int32),
            jnp.sum(some, axis=1, dtype=jnp.int32),
        )
    last = jnp.maximum(first, last)
    inner_first = jnp.clip(inner_first, first, last)
    inner_last = jnp.maximum(inner_first, inner_last)
    left = inner_first - first
    masked = left + last - inner_last
    order = jnp.where(
        tile < left[:, None],
        first[:, None] + tile,
        jnp.where(
            tile < masked[:, None],
            (inner_last - left)[:, None] + tile,
            inner_first[:, None] + tile - masked[:, None],
        ),
    )
    return Schedule(grid[:, None] + order * bk, masked, last - first)


def _grid(plan: Plan, begin: Array, end: Array, nk: int) -> Array:
    """Where the tiles of each query block begin: int32 [nq].

    At the first key it reads, rounded down to whole cache lines, and early enough for its last tile to end with the
    padded keys: a slice that reached past them would be moved.
    """
    grid = begin - begin % math.gcd(plan.block_k, 16)
    tiles = jnp.maximum(-(-(end - grid) // plan.block_k), 0)
    return jnp.minimum(grid, (nk - tiles) * plan.block_k)


def _dense_tiles(plan: Plan, dense: Array, nq: int, nk: int) -> tuple[Array, Array]:
    """Which tiles hold any, and which hold nothing but, visible pairs in every example and head: bool [nq, nk]."""
    padded = pad_dense(plan, dense)
    b, n = dense.shape[:2]
    tiles = padded.reshape(b, n, nq, plan.block_q, nk, plan.block_k)
    return jnp.any(tiles, axis=(0, 1, 3, 5)), jnp.all(tiles, axis=(0, 1, 3, 5))


def pad_dense(plan: Plan, dense: Array) -> Array:
    """The boolean array up to whole tiles; the padding is invisible."""
    q_len, kv_len = dense.shape[2:]
    q_pad = count(q_len, plan.block_q) * plan.block_q - q_len
    k_pad = count(kv_len, plan.block_k) * plan.block_k - kv_len
    return jnp.pad(dense, ((0, 0), (0, 0), (0, q_pad), (0, k_pad)))


def padded(
    plan: Plan, dense: Array | None, bias: PositionBias | None, q_len: int, kv_len: int
) -> tuple[Array | None, PositionBias | None]:
    """The dense mask and the bias up to whole tiles."""
    if dense is not None:
        dense = pad_dense(plan, dense)
    if bias is not None:
        bias = bias.padded(
            count(q_len, plan.block_q) * plan.block_q, count(kv_len, plan.block_k) * plan.block_k
        )
    return dense, bias


def query_blocks(plan: Plan, x_BTNH: Array, kv_heads: int, *, pad: str = "edge") -> Array:
    """[B, T, N, H] -> [nq, B, K, R, H]; `pad` as in `row_blocks`."""
    B, T, N, H = x_BTNH.shape
    nq = count(T, plan.block_q)
    x = jnp.pad(x_BTNH, ((0, 0), (0, nq * plan.block_q - T), (0, 0), (0, 0)), mode=pad)
    x = x.reshape(B, nq, plan.block_q, kv_heads, N // kv_heads, H).transpose(1, 0, 3, 4, 2, 5)
    return x.reshape(nq, B, kv_heads, N // kv_heads * plan.block_q, H)


def from_query_blocks(plan: Plan, x: Array, q_len: int, groups: int) -> Array:
    """Transposed blocks [nq, B, K, H, R] -> [B, T, N, H]."""
    nq, B, K, H, _ = x.shape
    x = x.reshape(nq, B, K, H, groups, plan.block_q).transpose(1, 0, 5, 2, 4, 3)
    return x.reshape(B, nq * plan.block_q, K * groups, H)[:, :q_len]


def row_blocks(plan: Plan, x_BNT: Array, kv_heads: int, heads: int, *, pad: str = "edge") -> Array:
    """One number per query, (1|B, 1|N, T) -> [nq, 1|B, 1|K, R].

    Past the end the last query is repeated (`pad="edge"`): then rows that will be dropped do not stop a tile from being
    visible to all, and hold no surprising number. Cotangents are 0 there (`pad="constant"`).
    """
    b, n, T = x_BNT.shape
    groups, nq = heads // kv_heads, count(T, plan.block_q)
    x = jnp.pad(x_BNT, ((0, 0), (0, 0), (0, nq * plan.block_q - T)), mode=pad)
    if n == 1:
        x = jnp.broadcast_to(x[:, :, None], (b, 1, groups, x.shape[-1]))
    x = x.reshape(b, kv_heads if n > 1 else 1, groups, nq, plan.block_q).transpose(3, 0, 1, 2, 4)
    return x.reshape(nq, b, x.shape[2], groups * plan.block_q)


def from_row_blocks(plan: Plan, x: Array, q_len: int, groups: int) -> Array:
    """[nq, B, K, R] -> [B, N, T]."""
    nq, B, K, _ = x.shape
    x = x.reshape(nq, B, K, groups, plan.block_q).transpose(1, 2, 3, 0, 4)
    return x.reshape(B, K * groups, nq * plan.block_q)[..., :q_len]


def keys_first(plan: Plan, x_BSKH: Array) -> Array:
    """[B, S, K, H] -> [B, K, S, H], zeros up to whole tiles."""
    S = x_BSKH.shape[1]
    pad = count(S, plan.block_k) * plan.block_k - S
    return jnp.pad(x_BSKH, ((0, 0), (0, pad), (0, 0), (0, 0))).swapaxes(1, 2)


def visible(
    plan: Plan, i: Array, start: Array, lo_rows: Array, hi_rows: Array, dense: Array | None
) -> Array:
    """The mask of query block i and the keys from `start` on: bool (1|B, 1|K, block_k, R); `dense` as padded."""
    key = lax.broadcasted_iota(jnp.int32, (1, 1, plan.block_k, 1), 2) + start
    ok = (key >= lo_rows[:, :, None]) & (key < hi_rows[:, :, None])
    if dense is None:
        return ok
    b, n = dense.shape[:2]
    corner = (jnp.int32(0), jnp.int32(0), i * plan.block_q, start)
    tile = lax.dynamic_slice(dense, corner, (b, n, plan.block_q, plan.block_k))
    return ok & fold_heads(tile, ok.shape[-1] // plan.block_q)


def fold_heads(tile: Array, groups: int) -> Array:
    """(1|B, 1|N, block_q, keys) -> (1|B, 1|K, keys, R)."""
    b, n, bq, keys = tile.shape
    if n == 1:
        tile = jnp.broadcast_to(tile, (b, groups, bq, keys))
    tile = tile.reshape(b, tile.shape[1] // groups, groups, bq, keys).transpose(0, 1, 4, 2, 3)
    return tile.reshape(b, tile.shape[1], keys, groups * bq)


def logits(
    plan: Plan, i: Array, start: Array, q_rows: Array, k_tile: Array, bias: PositionBias | None
) -> tuple[Array, Array | None]:
    """Scaled, biased and capped logits [B, K, keys, R] in float32, and the slope of the cap (None: no cap).

    Of query block i and the keys from `start` on.
    """
    wide = jnp.promote_types(q_rows.dtype, jnp.float32)
    s = jnp.einsum("bksh,bkrh->bksr", k_tile, q_rows, preferred_element_type=wide)
    if plan.logit_scale != 1:
        s *= plan.logit_scale
    if bias is not None:
        s += bias_tile(plan, bias, i, start, k_tile.shape[2], q_rows.shape[2])
    if plan.softcap is None:
        return s, None
    t = jnp.tanh(s / plan.softcap)
    return plan.softcap * t, 1 - t * t


def bias_tile(
    plan: Plan, bias: PositionBias, i: Array, start: Array, keys: int, rows: int
) -> Array:
    """The bias of `keys` keys from `start` on, towards query block i: (1|B, K, keys, R)."""
    tile = bias.rows(i * plan.block_q, plan.block_q).keys(start, keys).value()
    return fold_heads(tile, rows // plan.block_q)


def take(x: Array, start: Array, size: int, axis: int) -> Array:
    """`size` entries of `axis` from `start` on."""
    return lax.dynamic_slice_in_dim(x, start, size, axis)


def add_at(x: Array, update: Array, start: Array, axis: int) -> Array:
    """x with `update` added from `start` on along `axis`; in place inside a loop."""
    size = update.shape[axis]
    return lax.dynamic_update_slice_in_dim(x, take(x, start, size, axis) + update, start, axis)
