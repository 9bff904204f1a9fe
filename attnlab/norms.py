"""Normalization: LayerNorm and RMSNorm as one function with a centring gate, QK-norm, and BatchNorm for contrast.

Statistics are float32 whatever the input; the result has the input's dtype. Only BatchNorm mixes positions or
examples.
"""

import jax
import jax.numpy as jnp
from jax import Array

NORMS = ("layernorm", "rmsnorm", "batchnorm", "batchnorm_by_position", "none")
# Those that are a gate of their own; the first two are one function.
GATED_NORMS = NORMS[2:]
# Pre: x + f(norm(x)), and once more before the head (GPT-2). Post: norm(x + f(x)) (Vaswani et al. 2017).
# Sandwich: x + norm(f(norm(x))) (Gemma 2).
PLACEMENTS = ("pre", "post", "sandwich")
QK_NORMS = ("l2", "layernorm", "rmsnorm")


def normalize(x: Array, *, center: Array | float, eps: float = 1e-6) -> Array:
    """(x - center * mean) / sqrt(mean square of that + eps) over the last axis; shape and dtype of `x`.

    `center` = 1 is LayerNorm without its gain (Ba et al. 2016), 0 is RMSNorm (Zhang & Sennrich 2019): the
    gate may be a traced scalar, so that both train in one program.
    """
    x32 = x.astype(jnp.float32)
    x32 = x32 - center * jnp.mean(x32, axis=-1, keepdims=True)
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return (x32 * scale).astype(x.dtype)


def batch_statistics(x_BTD: Array, *, by_position: bool) -> tuple[Array, Array]:
    """Mean and variance of each channel over all vectors of a batch, or over those at one position.

    float32 [1, 1, D] each, or [1, T, D]. A causal model that normalizes with the former reads its future: token t is
    moved by the tokens after it.
    """
    axes = (0,) if by_position else (0, 1)
    x32 = x_BTD.astype(jnp.float32)
    return jnp.mean(x32, axes, keepdims=True), jnp.var(x32, axes, keepdims=True)


def batch_normalize(x_BTD: Array, statistics: tuple[Array, Array], *, eps: float = 1e-5) -> Array:
    """(x - mean) / sqrt(variance + eps) by channel (Ioffe & Szegedy 2015, without gain and bias); as `x`."""
    mean, variance = statistics
    out = (x_BTD.astype(jnp.float32) - mean) * jax.lax.rsqrt(variance + eps)
    return out.astype(x_BTD.dtype)


def l2_normalize(x: Array, *, eps: float = 1e-6) -> Array:
    """x / sqrt(|x|^2 + eps) over the last axis: unit vectors, as in Henry et al. 2020."""
    x32 = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.sum(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return (x32 * scale).astype(x.dtype)


def qk_norm(x_BTNH: Array, gain_H: Array, gates: dict[str, Array]) -> Array:
    """Normalizes each head's query (or key) vector and multiplies by a gain shared by all heads: [B, T, N, H].

    `gates` holds a boolean scalar per kind that the program contains ("layernorm" without bias as in ViT-22B,
    "rmsnorm" as in Qwen3, "l2"); at most one is true. With none true the result is `x` itself, bit for bit, and
    the gain receives no gradient.
    """
    kinds = {
        "layernorm": lambda: normalize(x_BTNH, center=1.0),
        "rmsnorm": lambda: normalize(x_BTNH, center=0.0),
        "l2": lambda: l2_normalize(x_BTNH),
    }
    gain = gain_H.astype(x_BTNH.dtype)[None, None, None, :]
    out = x_BTNH
    for kind, gate in sorted(gates.items()):
        out = jnp.where(gate, kinds[kind]() * gain, out)
    return out
