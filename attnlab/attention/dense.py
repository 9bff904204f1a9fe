"""Attention with all logits in memory: the readable implementation, and the fast one for short sequences."""

import jax
import jax.numpy as jnp
from jax import Array

from attnlab.attention import stats as stats_lib
from attnlab.attention.bias import PositionBias
from attnlab.attention.stats import AttentionStats
from attnlab.masks import Mask


def dense_attention(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKH: Array,
    mask: Mask,
    *,
    scale: Array | float,
    softcap: float | None,
    bias: PositionBias | None,
    stats: bool,
) -> tuple[Array, AttentionStats | None]:
    """logits -> scale -> bias -> cap -> mask -> softmax -> values, as `attend` specifies; arguments already checked.

    Differentiable any number of times, forward and backward, in everything but the mask and the statistics.
    Logits, softmax and all sums are float32 whatever the inputs are.
    """
    batch, q_len, heads, head_dim = q_BTNH.shape
    kv_len, kv_heads = k_BSKH.shape[1:3]
    # One group of queries per kv head, folded into the rows: [B, K, G*T, H]. Keys are never repeated. The products
    # have their batch axes first because XLA's CPU back end would copy into that order for each of them.
    q_BKRH = q_BTNH.swapaxes(1, 2).reshape(batch, kv_heads, heads // kv_heads * q_len, head_dim)
    k_BKSH, v_BKSH = k_BSKH.swapaxes(1, 2), v_BSKH.swapaxes(1, 2)

    logits = jnp.einsum("bkrh,bksh->bkrs", q_BKRH, k_BKSH, preferred_element_type=_wide(q_BTNH))
    logits_BNTS = logits.reshape(batch, heads, q_len, kv_len) * _per_head(scale)
    if bias is not None:
        logits_BNTS += bias.value()
    if softcap is not None:
        logits_BNTS = softcap * jnp.tanh(logits_BNTS / softcap)
    allowed_BNTS = mask.as_array()
    weights_BNTS = _masked_softmax(logits_BNTS, allowed_BNTS)
    weights = weights_BNTS.astype(v_BSKH.dtype).reshape(batch, kv_heads, -1, kv_len)
    out = jnp.einsum("bkrs,bksh->bkrh", weights, v_BKSH, preferred_element_type=_wide(q_BTNH))
    out_BNTH = out.reshape(batch, heads, q_len, -1).astype(q_BTNH.dtype)
    out_BTNH = out_BNTH.swapaxes(1, 2)
    if not stats:
        return out_BTNH, None
    logits_BNTS = jax.lax.stop_gradient(logits_BNTS)
    _, max_BNT1, sum_BNT1 = _exponentials(logits_BNTS, allowed_BNTS)
    return out_BTNH, stats_lib.from_weights(
        weights_BNTS, logits_BNTS, max_BNT1[..., 0], sum_BNT1[..., 0], mask.keys_per_row()
    )


def _exponentials(logits: Array, allowed: Array) -> tuple[Array, Array, Array]:
    """exp(logits - max) with exact zeros where forbidden, the max (-inf on empty rows) and the sum, both [..., 1]."""
    masked = jnp.where(allowed, logits, -jnp.inf)
    row_max = jnp.max(masked, axis=-1, keepdims=True)
    exponentials = jnp.exp(masked - jnp.where(jnp.isneginf(row_max), 0, row_max))
    return exponentials, row_max, jnp.sum(exponentials, axis=-1, keepdims=True)


@jax.custom_jvp
def _masked_softmax(logits: Array, allowed: Array) -> Array:
    """Softmax over the allowed keys; 0 where forbidden, so a row with none is 0 everywhere.

    The rule below is written by hand because differentiating through `where` and `-inf` gives 0 * inf = NaN
    (jax-ml/jax#17117, pytorch/pytorch#41508), and because it saves passes over [T, S].
    """
    exponentials, _, row_sum = _exponentials(logits, allowed)
    return exponentials * jnp.where(row_sum > 0, 1 / row_sum, 0)


@_masked_softmax.defjvp
def _masked_softmax_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    weights, logits_dot = _masked_softmax(*primals), tangents[0]
    # A forbidden weight is exactly 0 and so is its derivative, both ways.
    mean_dot = jnp.sum(weights * logits_dot, axis=-1, keepdims=True)
    return weights, weights * (logits_dot - mean_dot)


def _wide(x: Array) -> jnp.dtype:
    return jnp.promote_types(x.dtype, jnp.float32)


def _per_head(scale: Array | float) -> Array | float:
    return scale if isinstance(scale, float) else scale[..., None, None]
