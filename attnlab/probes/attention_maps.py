"""Attention weights of a trained network, and how much of them position alone explains.

Training and evaluation never hold the weights; these are worked out again from the residual stream, for few and short
sequences: [L, B, N, T, S] numbers are kept.
"""

import jax.numpy as jnp
from jax import Array

from attnlab import model, norms, positions
from attnlab.attention import attend
from attnlab.knobs import Architecture, ModelKnobs
from attnlab.masks import Mask


def weights(
    arch: Architecture, params: model.Params, knobs: ModelKnobs, mask: Mask, tokens_BT: Array
) -> Array:
    """How much query i of each head takes from key j: float32 [L, B, N, T, S], 0 where the mask forbids.

    Raises:
      ValueError: blocks that read anything but their own norm of the stream, before the sublayer.
    """
    batch_norms = [norm for norm in arch.norms if norm != "none"]
    if arch.placements or batch_norms:
        raise ValueError(
            f"weights: got norms {(*arch.placements, *batch_norms)}; allowed: pre-norm with LayerNorm, RMSNorm or none"
        )
    T = tokens_BT.shape[1]
    _, aux = model.apply(arch, params, tokens_BT, mask, knobs)
    placement = model.place(arch, knobs, positions.by_index(T))
    found = []
    for layer in range(arch.layers):
        block = params[f"block_{layer:02d}"]
        before = "after embedding" if layer == 0 else f"after block_{layer - 1:02d}"
        x_BTD = aux["residual"][before]
        read_BTD = norms.normalize(x_BTD, center=knobs.norm_center)
        if "none" in knobs.norm:
            read_BTD = jnp.where(knobs.norm["none"], x_BTD, read_BTD)
        read_BTD = read_BTD * block["attention_norm_gain"][None, None]
        found.append(_of_block(arch, block["attention"], knobs, mask, placement, read_BTD))
    return jnp.stack(found)


def _of_block(
    arch: Architecture,
    attention: model.Params,
    knobs: ModelKnobs,
    mask: Mask,
    placement: model.Placement,
    read_BTD: Array,
) -> Array:
    B, T, _ = read_BTD.shape
    N, K, H = arch.heads, arch.kv_heads, arch.head_dim
    projected = (read_BTD @ attention["qkv_kernel"]).reshape(B, T, N + 2 * K, H)
    q_BTNH, k_BTKH = projected[:, :, :N], projected[:, :, N : N + K]
    if arch.qk_norms:
        gains = attention["qk_norm"]
        q_BTNH = norms.qk_norm(q_BTNH, gains["query_gain"], knobs.qk_norm)
        k_BTKH = norms.qk_norm(k_BTKH, gains["key_gain"], knobs.qk_norm)
    if placement.rotation is not None:
        q_BTNH = positions.rope(q_BTNH, placement.rotation)
        k_BTKH = positions.rope(k_BTKH, placement.rotation)
    scale = knobs.logit_scale
    if arch.learned_scale:
        log_scale = attention["scale"]["log_scale"]
        scale = scale * jnp.exp(knobs.learned_scale["learned"] * log_scale)
    # Attention to values that are the unit vectors gives the weights.
    unit = jnp.broadcast_to(jnp.eye(T, dtype=q_BTNH.dtype)[None, :, None], (B, T, K, T))
    weights_BTNS = attend(
        q_BTNH, k_BTKH, unit, mask, scale=scale, softcap=arch.softcap, bias=placement.bias
    )
    return jnp.moveaxis(weights_BTNS, 2, 1)


def position_share(weights_LBNTS: Array, mask: Mask) -> Array:
    """R^2 of a head's weights on the pair (query, key): the share of their variance that position explains, float32 [L, N].

    1: a head that weighs by position alone, whatever the text, such as a uniform average. 0: the mean weight is the same
    at all pairs. Over queries that may read at least two keys; nan where all their weights are equal.
    """
    allowed_11NTS = (mask.as_array() & (mask.keys_per_row() >= 2)[..., None])[None]
    p_LBNTS = weights_LBNTS.astype(jnp.float32)
    seen_LBNTS = jnp.broadcast_to(allowed_11NTS, p_LBNTS.shape)
    axes = (1, 3, 4)
    count_LN = jnp.sum(seen_LBNTS, axis=axes)

    def variance(center: Array) -> Array:
        off = jnp.where(seen_LBNTS, p_LBNTS - center, 0.0)
        return jnp.sum(jnp.square(off), axis=axes)

    mean_LN = jnp.sum(jnp.where(seen_LBNTS, p_LBNTS, 0.0), axis=axes) / jnp.maximum(count_LN, 1)
    total_LN = variance(mean_LN[:, None, :, None, None])
    within_LN = variance(jnp.mean(p_LBNTS, axis=1, keepdims=True))
    return jnp.where(total_LN > 0, 1 - within_LN / jnp.where(total_LN > 0, total_LN, 1), jnp.nan)
