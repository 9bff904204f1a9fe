"""The statistics of every implementation equal those of the oracle's weights, and cost what they say."""

import functools

import attention_oracle as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_attention_oracle import IMPLEMENTATIONS, inputs

from attnlab import masks
from attnlab.attention import Alibi, attend
from attnlab.attention.stats import distance_edges

T, S = 9, 12
MASKS = ["causal_bottom_right", "band", "graph", "nothing", "per_batch_and_head"]


@pytest.fixture(params=sorted(IMPLEMENTATIONS))
def impl(request):
    return IMPLEMENTATIONS[request.param]


@functools.cache
def compiled(**options):
    @jax.jit
    def call(q, k, v, mask, slopes):
        bias = Alibi(slopes, jnp.arange(T), jnp.arange(S))
        return attend(q, k, v, mask, scale=0.7, bias=bias, stats=True, **options)[1]

    return call


@pytest.mark.parametrize("name", MASKS)
def test_statistics_are_those_of_the_oracles_weights(name, impl):
    mask, allowed = oracle.named_masks(T, S)[name]
    q, k, v, _ = inputs(T, S, seed=6)
    slopes = np.array([0.1, 0.3], np.float32)
    distance = np.abs(np.arange(T)[:, None] - np.arange(S)[None, :])
    bias = -slopes[None, :, None, None] * distance[None, None]
    answer = oracle.attention(
        q, k, v, allowed, scale=0.7, softcap=3.0, bias=np.broadcast_to(bias, (2, 2, T, S))
    )
    stats = compiled(softcap=3.0, **impl)(q, k, v, mask.canonical(2, 2), jnp.asarray(slopes))
    p = answer.weights
    np.testing.assert_allclose(stats.lse, answer.lse, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(stats.max_logit, answer.max_logit, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(stats.entropy, answer.entropy, atol=1e-5)
    np.testing.assert_allclose(stats.first_key_mass, p[..., 0], atol=1e-6)
    np.testing.assert_allclose(stats.diagonal_mass, (p * (distance == 0)).sum(-1), atol=1e-6)
    assert stats.distance_mass.shape == (2, 2, T, 5)
    for r, (low, high) in enumerate([(0, 1), (1, 2), (2, 4), (4, 8), (8, 16)]):
        want = (p * ((distance >= low) & (distance < high))).sum(-1)
        np.testing.assert_allclose(stats.distance_mass[..., r], want, atol=1e-6)
    visible = np.zeros((2, 2, T), int)
    for b, n, i in np.ndindex(2, 2, T):
        visible[b, n, i] = sum(allowed(b, n, i, j) for j in range(S))
    np.testing.assert_array_equal(stats.visible_keys, visible)
    want = np.where(visible >= 2, answer.entropy / np.log(np.maximum(visible, 2)), 0)
    np.testing.assert_allclose(stats.normalized_entropy, want, atol=1e-5)
    assert {x.dtype.name for x in jax.tree.leaves(stats)} == {"float32", "int32"}


@pytest.mark.parametrize("blocks", [(4, 3), (8, 16), (5, 2)])
@pytest.mark.parametrize(
    "mask", [masks.full(70, 90), masks.causal(70), masks.window(70, left=40, right=9)]
)
def test_mass_by_distance_where_tiles_are_far_from_the_diagonal(blocks, mask):
    """Tiles that contain no edge of a bucket, one, or several take ways of their own."""
    q, k, v, _ = inputs(70, mask.kv_len, seed=3)
    block_q, block_k = blocks
    sizes = {"impl": "blockwise", "block_q": block_q, "block_k": block_k}
    want, got = (
        jax.jit(functools.partial(attend, scale=1.0, stats=True, **how))(q, k, v, mask)[1]
        for how in ({"impl": "dense"}, sizes)
    )
    assert got.distance_mass.shape[-1] == 8
    np.testing.assert_allclose(got.distance_mass, want.distance_mass, atol=2e-6)
    np.testing.assert_allclose(got.diagonal_mass, want.diagonal_mass, atol=1e-6)


def test_reductions_per_head_skip_queries_that_cannot_choose(impl):
    """Rows with one visible key have entropy 0 by force: averaging them in would hide a collapse."""
    q = jnp.zeros((1, 3, 2, 4))  # uniform attention
    mask = masks.Mask.at_heads([masks.causal(3), masks.causal(3, offset=-1)])
    _, stats = attend(q, q, q, mask, scale=1.0, stats=True, **impl)
    heads = stats.per_head()
    np.testing.assert_allclose(heads["normalized_entropy"], [1, 1], rtol=1e-6)
    np.testing.assert_allclose(heads["entropy"], [np.log(6) / 2, np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(heads["max_logit"], [0, 0])
    np.testing.assert_allclose(heads["diagonal_mass"], [(1 + 1 / 2 + 1 / 3) / 3, 0], rtol=1e-6)
    np.testing.assert_allclose(heads["first_key_mass"], [(1 + 1 / 2 + 1 / 3) / 3, 3 / 4], rtol=1e-6)


def test_entropy_keeps_its_digits_where_logits_are_large(impl):
    """lse - sum p s subtracts two numbers near 10^5, of which float32 keeps two decimals."""
    q = jnp.full((1, 2, 1, 1), 1e5)
    k = jnp.ones((1, 2, 1, 1)).at[0, 1].add(1.2e-5)  # logits differ by about 1.2
    _, stats = attend(q, k, k, masks.full(2), scale=1.0, stats=True, **impl)
    gap = float(1e5 * (np.float64(k[0, 1, 0, 0]) - 1))
    p = 1 / (1 + np.exp(-np.float32(gap)))
    want = -(p * np.log(p) + (1 - p) * np.log(1 - p))
    np.testing.assert_allclose(stats.entropy[0, 0], [want, want], rtol=2e-2)


def test_statistics_carry_no_gradient_and_do_not_change_the_output(impl):
    q, k, v, _ = inputs(6, 6, seed=7)
    mask = masks.causal(6)

    def loss(q, weight):
        out, stats = attend(q, k, v, mask, scale=0.7, stats=True, **impl)
        return jnp.sum(out**2) + weight * sum(jnp.sum(x) for x in jax.tree.leaves(stats))

    def plain(q):
        return jnp.sum(attend(q, k, v, mask, scale=0.7, **impl) ** 2)

    value, gradient = jax.value_and_grad(plain)(q)
    np.testing.assert_array_equal(loss(q, 0.0), value)
    np.testing.assert_allclose(jax.grad(loss)(q, 1.0), gradient, rtol=1e-6, atol=1e-6)


def test_only_the_statistics_can_be_asked_for(impl):
    q, k, v, _ = inputs(6, 6, seed=7)

    def entropy(q):
        return jnp.sum(attend(q, k, v, masks.causal(6), scale=0.7, stats=True, **impl)[1].entropy)

    np.testing.assert_array_equal(jax.grad(entropy)(q), jnp.zeros_like(q))


def test_distance_buckets_double_until_they_cover_every_pair():
    assert distance_edges(1, 1) == (1,)
    assert distance_edges(9, 12) == (1, 2, 4, 8, 16)
    assert distance_edges(16, 3) == (1, 2, 4, 8, 16)
    assert distance_edges(17, 3)[-1] == 32
