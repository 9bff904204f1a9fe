# ruff: noqa: N815  (fields carry their shapes in their names)
"""The two passes of blockwise attention over its tiles: forward, and backward by recomputation.

Shapes: tiles are keys first, [B, K, keys, R], R the rows of a query block (see `tiles`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from attnlab.attention import tiles
from attnlab.attention.bias import PositionBias
from attnlab.attention.distances import mass_below
from attnlab.attention.stats import distance_edges
from attnlab.attention.tiles import MaskArrays, Plan


class Totals(NamedTuple):
    """What the statistics need, per query.

    Attributes:
      max_logit: [B, N, T], -inf on empty rows.
      entropy: [B, N, T], from sums relative to the maximum: lse - sum p s would lose its digits for large logits.
      below: [B, N, T, D] mass closer than each of `stats.distance_edges`.
    """

    max_logit: Array
    entropy: Array
    below: Array


class Result(NamedTuple):
    """Output, log-sum-exp (0 on empty rows; the public one is -inf) and, where asked for, the totals."""

    out_BTNH: Array
    lse_BNT: Array
    totals: Totals | None


class _State(NamedTuple):
    """The online softmax of one query block; sums are relative to exp(max_logit)."""

    acc: Array  # [B, K, Hv, R]
    max_logit: Array  # [B, K, R]
    total: Array  # [B, K, R]
    shifted: Array | None  # [B, K, R], of p (s - max)
    below: Array | None  # [B, K, D, R]


def forward(
    plan: Plan,
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKH: Array,
    mask: MaskArrays,
    bias: PositionBias | None,
) -> Result:
    """Outputs and log-sum-exps, one block of queries at a time."""
    B, q_len, heads, _ = q_BTNH.shape
    kv_len, K = k_BSKH.shape[1:3]
    group = heads // K
    wide = jnp.promote_types(q_BTNH.dtype, jnp.float32)
    k_BKSH = tiles.keys_first(plan, k_BSKH)
    vT_BKHS = tiles.keys_first(plan, v_BSKH).swapaxes(2, 3)
    q_rows, (lo, hi) = tiles.query_blocks(plan, q_BTNH, K), _bounds(plan, mask, K, heads)
    visits = tiles.schedule(plan, lo, hi, mask, kv_len)
    dense, bias = tiles.padded(plan, mask.dense, bias, q_len, kv_len)
    edges = distance_edges(q_len, kv_len)
    nq, _, _, R, _ = q_rows.shape

    def block(_: None, x: tuple[Array, ...]) -> tuple[None, tuple[Array, ...]]:
        i, q_i, lo_i, hi_i, starts, masked, visited = x

        def visit(is_masked: bool, t: Array, state: _State) -> _State:
            start, keys = starts[t], plan.block_k
            k_j, vT_j = tiles.take(k_BKSH, start, keys, 2), tiles.take(vT_BKHS, start, keys, 3)
            s, _ = tiles.logits(plan, i, start, q_i, k_j, bias)
            if is_masked:
                s = jnp.where(tiles.visible(plan, i, start, lo_i, hi_i, dense), s, -jnp.inf)
            state, p, mass = _online_softmax(state, s, vT_j)
            if state.below is None:
                return state
            below = mass_below(plan, edges, i * plan.block_q - start, p, mass)
            return state._replace(below=state.below + below)

        zeros = partial(jnp.zeros, dtype=wide)
        state = _State(
            acc=zeros((B, K, vT_BKHS.shape[2], R)),
            max_logit=jnp.full((B, K, R), -jnp.inf, wide),
            total=zeros((B, K, R)),
            shifted=zeros((B, K, R)) if plan.stats else None,
            below=zeros((B, K, len(edges), R)) if plan.stats else None,
        )
        state = _visit_all(visit, masked, visited, state)
        some = state.total > 0
        total = jnp.where(some, state.total, 1)
        lse = jnp.where(some, state.max_logit + jnp.log(total), 0)
        out = (state.acc / total[:, :, None]).astype(q_BTNH.dtype)
        if state.shifted is None or state.below is None:
            return None, (out, lse)
        entropy = jnp.log(total) - state.shifted / total
        return None, (out, lse, state.max_logit, entropy, state.below / total[:, :, None])

    xs = (jnp.arange(nq, dtype=jnp.int32), q_rows, lo, hi, *visits)
    _, (out, lse, *totals) = lax.scan(block, None, xs)
    per_query = partial(tiles.from_row_blocks, plan, q_len=q_len, groups=group)
    out_BTNH = tiles.from_query_blocks(plan, out, q_len, group)
    if not totals:
        return Result(out_BTNH, per_query(lse), None)
    max_logit, entropy, below = totals
    below_BTND = tiles.from_query_blocks(plan, below, q_len, group)
    return Result(
        out_BTNH,
        per_query(lse),
        Totals(per_query(max_logit), per_query(entropy), below_BTND.swapaxes(1, 2)),
    )


def backward(
    plan: Plan,
    learned: bool,
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKH: Array,
    mask: MaskArrays,
    bias: PositionBias | None,
    out_BTNH: Array,
    lse_BNT: Array,
    dout_BTNH: Array,
) -> tuple[Array, Array, Array, list[Array]]:
    """Cotangents of q, k, v and, if `learned`, of the float leaves of the bias, each of these with the whole batch."""
    B, q_len, heads, _ = q_BTNH.shape
    kv_len, K = k_BSKH.shape[1:3]
    dtype, wide = q_BTNH.dtype, jnp.promote_types(q_BTNH.dtype, jnp.float32)
    delta_BNT = jnp.sum(out_BTNH.astype(wide) * dout_BTNH.astype(wide), axis=-1).swapaxes(1, 2)
    k_BKSH, v_BKSH = tiles.keys_first(plan, k_BSKH), tiles.keys_first(plan, v_BSKH)
    kT_BKHS = k_BKSH.swapaxes(2, 3)
    lo, hi = _bounds(plan, mask, K, heads)
    visits = tiles.schedule(plan, lo, hi, mask, kv_len)
    dense, bias = tiles.padded(plan, mask.dense, bias, q_len, kv_len)
    parameters, rebuild = _float_leaves(bias, B)
    queries = partial(tiles.query_blocks, plan, kv_heads=K)
    rows = partial(tiles.row_blocks, plan, kv_heads=K, heads=heads)

    def block(carry: tuple, x: tuple[Array, ...]) -> tuple[tuple, Array]:
        i, q_i, do_i, lse_i, delta_i, lo_i, hi_i, starts, masked, visited = x

        def visit(is_masked: bool, t: Array, state: tuple) -> tuple:
            dqT, dk, dv, dparameters = state
            start, keys = starts[t], plan.block_k
            k_j, v_j = tiles.take(k_BKSH, start, keys, 2), tiles.take(v_BKSH, start, keys, 2)
            kT_j = tiles.take(kT_BKHS, start, keys, 3)
            s, slope = tiles.logits(plan, i, start, q_i, k_j, bias)
            p = jnp.exp(s - lse_i[:, :, None])
            if is_masked:
                # Not differentiated: the infinity that a forbidden logit may give goes no further.
                p = jnp.where(tiles.visible(plan, i, start, lo_i, hi_i, dense), p, 0)
            dp = _product("bksh,bkrh->bksr", v_j, do_i)
            ds = p * (dp - delta_i[:, :, None])
            if slope is not None:
                ds *= slope
            if learned:
                _, pull = jax.vjp(
                    lambda leaves: tiles.bias_tile(
                        plan, rebuild(leaves), i, start, keys, s.shape[3]
                    ),
                    parameters,
                )
                dparameters = jax.tree.map(jnp.add, dparameters, pull(ds)[0])
            if plan.logit_scale != 1:
                ds *= plan.logit_scale
            ds, p = ds.astype(dtype), p.astype(dtype)
            dqT += _product("bkhs,bksr->bkhr", kT_j, ds)
            dk = tiles.add_at(dk, _product("bksr,bkrh->bksh", ds, q_i), start, 2)
            dv = tiles.add_at(dv, _product("bksr,bkrh->bksh", p, do_i), start, 2)
            return dqT, dk, dv, dparameters

        dqT = jnp.zeros((*q_i.shape[:2], q_i.shape[3], q_i.shape[2]), wide)
        dqT, *sums = _visit_all(visit, masked, visited, (dqT, *carry))
        return tuple(sums), dqT.astype(dtype)

    q_rows, do_rows = queries(q_BTNH), queries(dout_BTNH, pad="constant")
    per_row = (rows(lse_BNT), rows(delta_BNT, pad="constant"), lo, hi)
    xs = (jnp.arange(len(q_rows), dtype=jnp.int32), q_rows, do_rows, *per_row, *visits)
    carry = (
        jnp.zeros(k_BKSH.shape, wide),
        jnp.zeros(v_BKSH.shape, wide),
        [jnp.zeros_like(x) for x in parameters] if learned else [],
    )
    (dk, dv, dparameters), dqT = lax.scan(block, carry, xs)
    dk_BSKH, dv_BSKH = (x[:, :, :kv_len].swapaxes(1, 2).astype(dtype) for x in (dk, dv))
    return (
        tiles.from_query_blocks(plan, dqT, q_len, heads // K),
        dk_BSKH,
        dv_BSKH,
        dparameters,
    )


def _visit_all(visit: Callable, masked: Array, visited: Array, state: Any) -> Any:
    """All visits of one query block. Two loops, not a branch: under vmap a branch runs both of its sides."""
    state = lax.fori_loop(0, masked, partial(visit, True), state)
    return lax.fori_loop(masked, visited, partial(visit, False), state)


def _online_softmax(state: _State, s: Array, vT_j: Array) -> tuple[_State, Array, Array]:
    """One more tile of logits, -inf where forbidden; its unnormalised weights, and their sums [B, K, R]."""
    max_logit = jnp.maximum(state.max_logit, jnp.max(s, axis=2))
    shift = jnp.where(jnp.isneginf(max_logit), 0, max_logit)  # nothing visible so far
    x = s - shift[:, :, None]
    p, decay = jnp.exp(x), jnp.exp(state.max_logit - shift)
    acc = state.acc * decay[:, :, None]
    acc += _product("bkhs,bksr->bkhr", vT_j, p.astype(vT_j.dtype))
    mass = jnp.sum(p, axis=2)
    total = state.total * decay + mass
    if state.shifted is None:
        return _State(acc, max_logit, total, None, None), p, mass
    moved = jnp.where(state.total > 0, state.max_logit - shift, 0) * state.total
    shifted = (state.shifted + moved) * decay + jnp.sum(jnp.where(p > 0, p * x, 0), axis=2)
    assert state.below is not None
    return _State(acc, max_logit, total, shifted, state.below * decay[:, :, None]), p, mass


def _bounds(plan: Plan, mask: MaskArrays, kv_heads: int, heads: int) -> tuple[Array, Array]:
    lo, hi = (tiles.row_blocks(plan, x, kv_heads, heads) for x in (mask.lo, mask.hi))
    return lo, hi


def _product(equation: str, a: Array, b: Array) -> Array:
    """A matrix product accumulated, and returned, in float32 (float64 for float64)."""
    wide = jnp.promote_types(a.dtype, jnp.float32)
    return jnp.einsum(equation, a, b, preferred_element_type=wide)


def _float_leaves(
    bias: PositionBias | None, batch: int
) -> tuple[list[Array], Callable[[list[Array]], PositionBias]]:
    """The leaves of a bias that can be learned, broadcast to the batch, and how to put others in their place."""
    leaves, treedef = jax.tree.flatten(bias)
    learnable = [jnp.issubdtype(x.dtype, jnp.floating) for x in leaves]

    def rebuild(new: list[Array]) -> PositionBias:
        replacement = iter(new)
        merged = [
            next(replacement) if is_float else x
            for x, is_float in zip(leaves, learnable, strict=True)
        ]
        return jax.tree.unflatten(treedef, merged)

    floats = [x for x, is_float in zip(leaves, learnable, strict=True) if is_float]
    return [jnp.broadcast_to(x, (batch, *x.shape[1:])) for x in floats], rebuild
