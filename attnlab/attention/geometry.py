"""How long queries and keys are, and how well they point the same way: the two factors of a logit."""

import jax
import jax.numpy as jnp
from jax import Array

from attnlab.attention.api import attend
from attnlab.masks import Mask

TINY = 1e-12  # of a vector's squared length: one of zeros has no direction, and counts as cosine 0


def query_key_geometry(
    q_BTNH: Array, k_BSKH: Array, mask: Mask, visible_keys_BNT: Array
) -> dict[str, Array]:
    """Lengths of queries and keys and their cosine, over all heads and examples: float32 scalars, without a gradient.

    A logit is scale * |q| |k| cos(q, k), so these say which of the factors grew (Wortsman et al. 2023, arXiv
    2309.14322, appendix E). `q_norm`, `k_norm`: root mean square of |q| over the queries, of |k| over the keys.
    `qk_cosine`: mean over queries that may read something of the mean cosine with the keys that they may read.
    `visible_keys_BNT`: how many these are, as `AttentionStats` has it.
    """
    q_BTNH, k_BSKH = jax.lax.stop_gradient((q_BTNH, k_BSKH))
    unit_q, q_norm = _directions(q_BTNH)
    unit_k, k_norm = _directions(k_BSKH)
    # Attention whose logits are all 0 averages over the readable keys, whatever the mask.
    mean_BTNH = attend(unit_q, unit_k, unit_k, mask, scale=0.0)
    some_BNT = visible_keys_BNT > 0
    cosine_BNT = jnp.swapaxes(jnp.sum(unit_q * mean_BTNH, axis=-1), 1, 2)
    total = jnp.sum(jnp.where(some_BNT, cosine_BNT, 0.0))
    return {
        "q_norm": q_norm,
        "k_norm": k_norm,
        "qk_cosine": total / jnp.maximum(jnp.sum(some_BNT), 1),
    }


def _directions(x: Array) -> tuple[Array, Array]:
    """The unit vectors of x, and the root mean square of their lengths."""
    x32 = x.astype(jnp.float32)
    square = jnp.sum(jnp.square(x32), axis=-1, keepdims=True)
    return x32 * jax.lax.rsqrt(jnp.maximum(square, TINY)), jnp.sqrt(jnp.mean(square))
