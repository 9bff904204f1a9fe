"""Lengths and cosine of queries and keys, against the definition written as loops."""

import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks
from attnlab.attention import attend
from attnlab.attention.geometry import query_key_geometry

B, T, N, K, H = 2, 5, 4, 2, 3
RNG = np.random.default_rng(0)
Q, KEYS = RNG.normal(size=(B, T, N, H)), 3 * RNG.normal(size=(B, T, K, H)) + 0.5
MASKS = {
    "causal": masks.causal(T),
    "nothing to read at first": masks.causal(T, offset=-1),
    "prefix": masks.prefix_lm(T, 3),
}


def geometry(q, k, mask):
    q, k = (jnp.asarray(x, jnp.float32) for x in (q, k))
    _, stats = attend(q, k, k, mask, scale=1.0, stats=True)
    return {x: float(y) for x, y in query_key_geometry(q, k, mask, stats.visible_keys).items()}


def cosine_by_hand(allowed_TS):
    rows = []
    for b in range(B):
        for n in range(N):
            for t in range(T):
                q, keys = Q[b, t, n], KEYS[b, allowed_TS[t], n // (N // K)]
                if len(keys):
                    lengths = np.linalg.norm(q) * np.linalg.norm(keys, axis=-1)
                    rows.append(np.mean(keys @ q / lengths))
    return np.mean(rows)


@pytest.mark.parametrize("name", MASKS)
def test_numbers_are_those_of_the_definition_over_the_keys_that_may_be_read(name):
    mask = MASKS[name]
    found = geometry(Q, KEYS, mask)
    wanted = {
        "q_norm": np.sqrt(np.mean(np.sum(Q**2, axis=-1))),
        "k_norm": np.sqrt(np.mean(np.sum(KEYS**2, axis=-1))),
        "qk_cosine": cosine_by_hand(np.asarray(mask.as_array()[0, 0])),
    }
    assert found == pytest.approx(wanted, rel=1e-5)


def test_equal_directions_have_cosine_one_and_zeros_have_none():
    same = np.broadcast_to(Q[:, :1, :1], (B, T, N, H))
    assert geometry(same, 7 * same[:, :, :K], MASKS["causal"])["qk_cosine"] == pytest.approx(1.0)
    assert geometry(0 * Q, KEYS, MASKS["causal"])["qk_cosine"] == 0.0
