"""Attention tile by tile: O(T) memory, and tiles that no query may read are not computed.

The online softmax of Milakov & Gimelshein 2018 and Rabe & Staats 2021, with the recomputing backward pass of
FlashAttention (Dao et al. 2022), as plain XLA: a `scan` over blocks of queries, and for each a `fori_loop` over the
tiles its mask lets through. The bounds of that loop are data, computed from the mask jointly over batch and heads, so
one compiled program serves every mask and skips what each of them allows it to skip. Tiles that every query of the
block reads whole skip the arithmetic of the mask too.

Under `vmap` the mapped axis is folded into the batch, because a loop whose bounds were mapped would gather its keys
and run every lane to the end of the longest; the joint bounds mean that lanes with different masks visit the union of
their tiles. Differentiable once, in reverse mode: a loop with traced bounds has no other derivative.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap

from attnlab.attention import passes, tiles
from attnlab.attention.bias import PositionBias
from attnlab.attention.passes import Result, Totals
from attnlab.attention.stats import AttentionStats, normalize_entropy
from attnlab.attention.tiles import MaskArrays, Plan
from attnlab.masks import Mask


def blockwise_attention(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKH: Array,
    mask: Mask,
    *,
    scale: Array | float,
    softcap: float | None,
    bias: PositionBias | None,
    stats: bool,
    block_q: int | None = None,
    block_k: int | None = None,
) -> tuple[Array, AttentionStats | None]:
    """What `attend` specifies, in O(T) memory; arguments already checked.

    A static scale multiplies the float32 logits where rounding scale * q to 16 bits would lose something; a traced
    one multiplies q, so that autodiff gives its gradient.
    """
    q_BTNH, logit_scale = fold_scale(q_BTNH, scale)
    bq, bk = block_sizes(q_BTNH.shape[1], k_BSKH.shape[1], block_q, block_k)
    plan = Plan(bq, bk, softcap, logit_scale, stats)
    arrays = MaskArrays(mask.lo, mask.hi, mask.dense)
    result = _attention(plan, q_BTNH, k_BSKH, v_BSKH, arrays, bias)
    out_BTNH = result.out_BTNH
    if result.totals is None:
        return out_BTNH, None
    q, k, result, bias = jax.tree.map(jax.lax.stop_gradient, (q_BTNH, k_BSKH, result, bias))
    return out_BTNH, _statistics(plan, q, k, result, bias, mask)


def block_sizes(
    q_len: int, kv_len: int, block_q: int | None, block_k: int | None
) -> tuple[int, int]:
    """(block_q, block_k) for these lengths: chosen on a CPU by `attnlab bench attention`.

    A visit of a tile costs about as much as computing half a tile of 256 x 256, so tiles are wide; with 512 queries
    as well they leave the cache.
    """
    return min(block_q or 256, q_len), min(block_k or 512, kv_len)


def fold_scale(q_BTNH: Array, scale: Array | float) -> tuple[Array, float]:
    """(q times what can be multiplied into it, the factor that is left for the logits)."""
    if isinstance(scale, float):
        is_power_of_two = abs(math.frexp(scale)[0]) == 0.5
        if q_BTNH.dtype.itemsize < 4 and not is_power_of_two:
            return q_BTNH, scale
        return q_BTNH * jnp.asarray(scale, q_BTNH.dtype), 1.0
    wide = jnp.promote_types(q_BTNH.dtype, jnp.float32)
    return (q_BTNH.astype(wide) * scale[:, None, :, None]).astype(q_BTNH.dtype), 1.0


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(
    plan: Plan, q: Array, k: Array, v: Array, mask: MaskArrays, bias: PositionBias | None
) -> Result:
    return _foldable(partial(passes.forward, plan))(q, k, v, mask, bias)


def _attention_fwd(plan: Plan, *arguments: Any) -> tuple[Result, tuple[Any, ...]]:
    def is_primal(x: Any) -> bool:
        return hasattr(x, "perturbed")

    values = jax.tree.map(lambda x: x.value, arguments, is_leaf=is_primal)
    result = _attention(plan, *values)
    # A static flag, made of structure because residuals are arrays: a bias that is not being differentiated costs the
    # backward pass nothing.
    is_learned = any(x.perturbed for x in jax.tree.leaves(arguments[4], is_leaf=is_primal))
    return result, (*values, result.out_BTNH, result.lse_BNT, () if is_learned else None)


def _attention_bwd(
    plan: Plan, residuals: tuple[Any, ...], cotangents: Result
) -> tuple[Array | PositionBias | None, ...]:
    *operands, learned = residuals
    bias, dout = operands[4], cotangents.out_BTNH
    if not isinstance(
        dout, Array
    ):  # a symbolic zero: only the statistics were used, and they carry no gradient
        dout = jnp.zeros(dout.shape, dout.dtype)
    backward = _foldable(partial(passes.backward, plan, learned is not None))
    dq, dk, dv, dparameters = backward(*operands, dout)
    if learned is None:
        return dq, dk, dv, None, None
    gradients = iter(dparameters)

    def cotangent(leaf: Array) -> Array | None:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return None
        d_B = next(gradients)
        return d_B if leaf.shape[0] > 1 else jnp.sum(d_B, axis=0, keepdims=True)

    return dq, dk, dv, None, jax.tree.map(cotangent, bias)


_attention.defvjp(_attention_fwd, _attention_bwd, symbolic_zeros=True)


def _foldable(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function(q, k, v, mask, bias, ...)` such that `vmap` folds the mapped axis into the batch.

    Every array leads with the batch, those of the mask and the bias perhaps with 1 instead; all outputs lead with it.
    """
    foldable = custom_vmap(function)

    @foldable.def_vmap
    def fold(axis_size: int, is_mapped: Any, *arguments: Any) -> tuple[Any, Any]:
        batch = arguments[0].shape[1 if is_mapped[0] else 0]

        def into_batch(may_broadcast: bool, x: Array, mapped: bool) -> Array:
            if may_broadcast and not mapped and x.shape[0] == 1:
                return x  # for the mapped axis as for the batch
            if not mapped:
                x = jnp.broadcast_to(x[None], (axis_size, *x.shape))
            x = jnp.broadcast_to(x, (axis_size, batch, *x.shape[2:]))
            return x.reshape(axis_size * batch, *x.shape[2:])

        whole = [
            jax.tree.map(partial(into_batch, place in (3, 4)), argument, mapped)
            for place, (argument, mapped) in enumerate(zip(arguments, is_mapped, strict=True))
        ]
        out = foldable(*whole)
        out = jax.tree.map(lambda x: x.reshape(axis_size, batch, *x.shape[1:]), out)
        return out, jax.tree.map(lambda _: True, out)

    return foldable


def _statistics(
    plan: Plan, q_BTNH: Array, k_BSKH: Array, result: Result, bias: PositionBias | None, mask: Mask
) -> AttentionStats:
    """The public statistics; q is the scaled one."""
    assert isinstance(result.totals, Totals)
    totals, visible_keys = result.totals, mask.keys_per_row()
    some, entropy = ~jnp.isneginf(totals.max_logit), totals.entropy
    visible_keys = jnp.broadcast_to(visible_keys, entropy.shape)
    below = totals.below
    return AttentionStats(
        lse=jnp.where(some, result.lse_BNT, -jnp.inf),
        max_logit=totals.max_logit,
        entropy=entropy,
        normalized_entropy=normalize_entropy(entropy, visible_keys),
        visible_keys=visible_keys,
        diagonal_mass=below[..., 0],
        first_key_mass=_first_key_mass(plan, q_BTNH, k_BSKH, result.lse_BNT, bias, mask),
        distance_mass=jnp.diff(below, axis=-1, prepend=jnp.zeros_like(below[..., :1])),
    )


def _first_key_mass(
    plan: Plan,
    q_BTNH: Array,
    k_BSKH: Array,
    lse_BNT: Array,
    bias: PositionBias | None,
    mask: Mask,
) -> Array:
    """exp(s - lse) of key 0 where it is visible: one more product per query, outside the loops."""
    batch, q_len, heads, _ = q_BTNH.shape
    one = Plan(q_len, 1, plan.softcap, plan.logit_scale, False)
    first = jnp.int32(0)
    key = tiles.keys_first(one, k_BSKH[:, :1])
    rows = tiles.query_blocks(one, q_BTNH, k_BSKH.shape[2])[0]
    if bias is not None:
        bias = bias.rows(0, q_len).keys(0, 1)
    s, _ = tiles.logits(one, first, first, rows, key, bias)
    s_BNT = s.reshape(batch, heads, q_len)
    is_visible = (mask.lo <= 0) & (mask.hi > 0)
    if mask.dense is not None:
        is_visible &= mask.dense[..., 0]
    return jnp.where(is_visible, jnp.exp(s_BNT - lse_BNT), 0)
