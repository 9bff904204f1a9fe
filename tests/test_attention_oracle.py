"""Every implementation of attention equals the float64 set oracle: outputs, gradients, statistics."""

import functools

import attention_oracle as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks
from attnlab.attention import Alibi, RelativeBuckets, attend
from attnlab.masks import Mask

IMPLEMENTATIONS = {
    "dense": {"impl": "dense"},
    "blocks 4x3": {"impl": "blockwise", "block_q": 4, "block_k": 3},
}
MASKS = sorted(oracle.named_masks(6, 6))
RECTANGLES = sorted(oracle.named_masks(5, 8))


@pytest.fixture(params=sorted(IMPLEMENTATIONS))
def impl(request):
    return IMPLEMENTATIONS[request.param]


def inputs(T, S, N=2, K=2, H=4, B=2, seed=0):
    rng = np.random.default_rng(seed)
    shapes = (B, T, N, H), (B, S, K, H), (B, S, K, H), (B, T, N, H)
    return [jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes]


@functools.cache
def compiled(**options):
    """One jitted call for every mask of a structure: that masks are data keeps this file fast."""

    @jax.jit
    def out_and_cotangents(q, k, v, scale, bias, mask, dout):
        def f(q, k, v, scale, bias):
            return attend(q, k, v, mask, scale=scale, bias=bias, **options)

        out, pull = jax.vjp(f, q, k, v, scale, bias)
        return out, pull(dout)

    return out_and_cotangents


def check(answer, q, k, v, mask, dout, *, scale, bias=None, tol=2e-5, **options):
    """Asserts outputs and gradients, and returns the cotangent of the bias."""
    mask, scale = mask.canonical(q.shape[0], q.shape[2]), jnp.asarray(scale, jnp.float32)
    out, (dq, dk, dv, dscale, dbias) = compiled(**options)(q, k, v, scale, bias, mask, dout)
    np.testing.assert_allclose(out, answer.out, rtol=tol, atol=tol)
    np.testing.assert_allclose(dq, answer.dq, rtol=tol, atol=tol)
    np.testing.assert_allclose(dk, answer.dk, rtol=tol, atol=tol)
    np.testing.assert_allclose(dv, answer.dv, rtol=tol, atol=tol)
    want = answer.dscale if scale.ndim else answer.dscale.sum()
    np.testing.assert_allclose(dscale, want, rtol=10 * tol, atol=10 * tol)
    return dbias


@pytest.mark.parametrize("name", MASKS)
def test_square_masks_give_the_oracles_outputs_and_gradients(name, impl):
    mask, allowed = oracle.named_masks(6, 6)[name]
    q, k, v, dout = inputs(6, 6)
    answer = oracle.attention(q, k, v, allowed, scale=0.7, dout=dout)
    check(answer, q, k, v, mask, dout, scale=0.7, **impl)


@pytest.mark.parametrize("name", RECTANGLES)
@pytest.mark.parametrize(("T", "S"), [(5, 8), (8, 5)])
def test_rectangular_masks_give_the_oracles_outputs_and_gradients(name, T, S, impl):
    mask, allowed = oracle.named_masks(T, S)[name]
    q, k, v, dout = inputs(T, S, seed=1)
    answer = oracle.attention(q, k, v, allowed, scale=0.7, dout=dout)
    check(answer, q, k, v, mask, dout, scale=0.7, **impl)


@pytest.mark.parametrize(("N", "K", "softcap"), [(4, 1, None), (6, 2, 1.5)])
def test_grouped_heads_read_their_own_kv_head_under_a_scale_per_head(N, K, softcap, impl):
    q, k, v, dout = inputs(7, 9, N=N, K=K, seed=2)
    scale = np.linspace(-0.4, 1.1, N).astype(np.float32)
    mask = Mask.at_heads(
        [
            masks.causal(7, 9, align="bottom_right"),
            *[masks.sliding_window(7, 3 + n, 9, offset=2) for n in range(1, N)],
        ]
    )

    def allowed(b, n, i, j):
        return j <= i + 2 and (n == 0 or j > i + 2 - (3 + n))

    answer = oracle.attention(q, k, v, allowed, scale=scale, softcap=softcap, dout=dout)
    check(answer, q, k, v, mask, dout, scale=scale, softcap=softcap, **impl)


def test_values_may_have_another_width_than_keys(impl):
    q, k, v, dout = inputs(6, 6, seed=3)
    v, dout = v[..., :3], dout[..., :3]
    answer = oracle.attention(q, k, v, lambda b, n, i, j: j <= i, scale=0.7, dout=dout)
    check(answer, q, k, v, masks.causal(6), dout, scale=0.7, **impl)


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_alibi_is_added_after_the_scale_and_its_slopes_get_gradients(softcap, impl):
    T, S, N = 6, 9, 4
    q, k, v, dout = inputs(T, S, N=N, K=2, seed=3)
    q_positions = np.arange(3, 3 + T)
    kv_positions = np.stack([np.arange(S), np.arange(S)[::-1]])  # differs by example
    slopes = np.array([0.5, 0.25, 0.0, -0.1], np.float32)
    distance = np.abs(q_positions[None, :, None] - kv_positions[:, None, :])[:, None]
    answer = oracle.attention(
        q,
        k,
        v,
        lambda b, n, i, j: j <= i + 1,
        scale=0.6,
        softcap=softcap,
        bias=-slopes[None, :, None, None] * distance,
        dout=dout,
    )
    bias = Alibi(jnp.asarray(slopes), jnp.asarray(q_positions), jnp.asarray(kv_positions))
    mask = masks.causal(T, S, offset=1)
    dbias = check(answer, q, k, v, mask, dout, scale=0.6, bias=bias, softcap=softcap, **impl)
    want = -(answer.dbias * distance).sum((0, 2, 3))
    np.testing.assert_allclose(dbias.slopes_N, want, rtol=1e-4, atol=1e-4)


def test_relative_buckets_are_added_and_their_table_gets_gradients(impl):
    T, N = 20, 2
    q, k, v, dout = inputs(T, T, N=N, K=1, seed=4, B=1)
    table = np.random.default_rng(5).normal(size=(N, 8)).astype(np.float32)
    positions = jnp.arange(T)
    bias = RelativeBuckets(jnp.asarray(table), positions, positions, True, 16)
    bucket = np.asarray(bias.canonical(1, N).bucket())[0]
    answer = oracle.attention(
        q, k, v, lambda b, n, i, j: True, scale=0.6, bias=table[:, bucket][None], dout=dout
    )
    dbias = check(answer, q, k, v, masks.full(T), dout, scale=0.6, bias=bias, **impl)
    want = [[answer.dbias[0, n][bucket == r].sum() for r in range(8)] for n in range(N)]
    np.testing.assert_allclose(dbias.table_NR, want, rtol=1e-4, atol=1e-4)


@functools.cache
def jacobian_of_values(**options):
    def out(v, q, k, mask):
        return attend(q, k, v, mask, scale=0.5, **options)[..., 0]

    return jax.jit(lambda q, k, v, mask: jax.jacrev(out)(v, q, k, mask))


@pytest.mark.parametrize("name", MASKS)
def test_an_output_depends_on_exactly_the_values_its_query_may_read(name, impl):
    mask, allowed = oracle.named_masks(6, 6)[name]
    q, k, v, _ = inputs(6, 6, H=2, seed=7)
    jacobian = np.asarray(jacobian_of_values(**impl)(q, k, v, mask.canonical(2, 2)))[..., 0]
    for b, n, i, j in np.ndindex(2, 2, 6, 6):
        assert (jacobian[b, i, n, b, j, n] != 0) == allowed(b, n, i, j), (b, n, i, j)
    assert not jacobian[0, :, :, 1].any(), "examples of a batch are mixed"
    assert not jacobian[:, :, 0, :, :, 1].any(), "heads are mixed"


@pytest.mark.parametrize("S", [1, 5, 9])
def test_every_interval_a_row_can_hold_equals_the_oracle(S, impl):
    """All lo <= hi <= S as rows of one mask, in random order: every window, prefix and offset."""
    intervals = [(lo, hi) for lo in range(S) for hi in range(lo + 1, S + 1)] + [(0, 0)]
    intervals = np.random.default_rng(S).permutation(intervals).astype(np.int32)
    lo, hi = jnp.asarray(intervals.T[:, None, None, :])
    T = len(intervals)
    q, k, v, dout = inputs(T, S, N=1, K=1, H=2, B=1, seed=8)
    answer = oracle.attention(
        q, k, v, lambda b, n, i, j: intervals[i][0] <= j < intervals[i][1], scale=0.5, dout=dout
    )
    check(answer, q, k, v, Mask(lo, hi, None, S), dout, scale=0.5, **impl)


def test_windows_and_offsets_mapped_over_equal_the_oracle(impl):
    T, S = 4, 5
    q, k, v, _ = inputs(T, S, N=1, K=1, H=2, B=1, seed=9)
    settings = [(left, offset) for left in range(6) for offset in range(-3, 4)]
    left, offset = jnp.asarray(settings).T

    @jax.jit
    @jax.vmap
    def out(left, offset):
        mask = masks.window(T, S, left=left, right=1, offset=offset)
        return attend(q, k, v, mask, scale=0.5, **impl)

    for (w, c), got in zip(settings, out(left, offset), strict=True):
        want = oracle.attention(
            q, k, v, lambda b, n, i, j, w=w, c=c: i + c - w <= j <= i + c + 1, scale=0.5
        )
        np.testing.assert_allclose(got, want.out, atol=1e-5, err_msg=f"left={w} offset={c}")
