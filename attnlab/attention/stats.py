"""What a fused kernel throws away: statistics of the attention weights, O(T) memory, no gradient."""

from dataclasses import dataclass
from itertools import pairwise

import jax
import jax.numpy as jnp
from jax import Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AttentionStats:
    """Statistics of one attention call, one number per query unless said otherwise; float32, in nats.

    `s` are the logits after scale, bias and cap, `p` the weights. A query that may read nothing has lse = max_logit =
    -inf and 0 elsewhere. Query i is compared with key i by index, counted from the start of both sequences. None of it
    carries a gradient.

    Attributes:
      lse: [B, N, T] log sum_k exp(s_k).
      max_logit: [B, N, T] max over the visible keys of s.
      entropy: [B, N, T] -sum p log p = lse - sum p s.
      normalized_entropy: [B, N, T] entropy / ln(visible keys) in [0, 1]; 0 where fewer than 2 keys are visible.
      visible_keys: [B, N, T] int32, how many keys the mask lets the query read.
      diagonal_mass: [B, N, T] weight on the key of the same index.
      first_key_mass: [B, N, T] weight on key 0, the usual attention sink.
      distance_mass: [B, N, T, R] weight by |i - k|: bucket 0 is distance 0, bucket r is [2^(r-1), 2^r).
    """

    lse: Array
    max_logit: Array
    entropy: Array
    normalized_entropy: Array
    visible_keys: Array
    diagonal_mass: Array
    first_key_mass: Array
    distance_mass: Array

    def per_head(self) -> dict[str, Array]:
        """Per head, float32 [N] each: the numbers to log.

        `max_logit` is the largest logit anywhere; `entropy` and `normalized_entropy` average over the queries with at
        least 2 visible keys, the masses over the queries with at least 1. A head without such a query gives 0
        (`max_logit`: -inf).
        """
        one, two = self.visible_keys >= 1, self.visible_keys >= 2

        def mean(x: Array, where: Array) -> Array:
            count = jnp.maximum(jnp.sum(where, axis=(0, 2)), 1)
            return jnp.sum(jnp.where(where, x, 0), axis=(0, 2)) / count

        return {
            "max_logit": jnp.max(self.max_logit, axis=(0, 2)),
            "entropy": mean(self.entropy, two),
            "normalized_entropy": mean(self.normalized_entropy, two),
            "diagonal_mass": mean(self.diagonal_mass, one),
            "first_key_mass": mean(self.first_key_mass, one),
        }


def distance_edges(q_len: int, kv_len: int) -> tuple[int, ...]:
    """Upper ends (exclusive) of the distance buckets: 1, 2, 4, ... until every |i - k| is covered."""
    edges = [1]
    while edges[-1] < max(q_len, kv_len):
        edges.append(2 * edges[-1])
    return tuple(edges)


def normalize_entropy(entropy: Array, visible_keys: Array) -> Array:
    """entropy / ln(visible keys); 0 where fewer than 2 keys are visible."""
    several = visible_keys >= 2
    return jnp.where(several, entropy / jnp.log(jnp.where(several, visible_keys, 2)), 0)


def from_weights(
    weights_BNTS: Array, logits_BNTS: Array, max_BNT: Array, sum_BNT: Array, visible_keys: Array
) -> AttentionStats:
    """The statistics from weights that are all in memory, the row maxima (-inf on empty rows) and sums of exp(s - max).

    Logits where the weight is 0 may hold anything.
    """
    p = jax.lax.stop_gradient(weights_BNTS)
    _, _, q_len, kv_len = p.shape
    some = sum_BNT > 0
    max_BNT1 = jnp.where(some, max_BNT, 0)[..., None]
    log_sum = jnp.log(jnp.where(some, sum_BNT, 1))
    # Relative to the maximum: lse - sum p s would lose its digits where the logits are large.
    entropy = log_sum - jnp.sum(jnp.where(p > 0, p * (logits_BNTS - max_BNT1), 0), axis=-1)
    visible_keys = jnp.broadcast_to(visible_keys, entropy.shape)
    distance_TS = jnp.abs(jnp.arange(q_len)[:, None] - jnp.arange(kv_len)[None, :])
    below = [
        jnp.sum(jnp.where((distance_TS < edge)[None, None], p, 0), axis=-1)
        for edge in distance_edges(q_len, kv_len)
    ]
    return AttentionStats(
        lse=max_BNT + log_sum,
        max_logit=max_BNT,
        entropy=entropy,
        normalized_entropy=normalize_entropy(entropy, visible_keys),
        visible_keys=visible_keys,
        diagonal_mass=below[0],
        first_key_mass=p[..., 0],
        distance_mass=jnp.stack([below[0], *(b - a for a, b in pairwise(below))], axis=-1),
    )
