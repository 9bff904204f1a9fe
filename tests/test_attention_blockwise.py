"""What only the blockwise implementation promises: memory, skipped tiles, one trace, vmap, every dtype."""

import functools
import math
from itertools import pairwise

import attention_oracle as oracle
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab import masks
from attnlab.attention import Alibi, attend, tiles
from attnlab.masks import Mask

SMALL = {"impl": "blockwise", "block_q": 4, "block_k": 3}


def inputs(T, S=None, N=2, K=2, H=4, B=2, seed=0, dtype=jnp.float32):
    rng = np.random.default_rng(seed)
    S = S or T
    shapes = (B, T, N, H), (B, S, K, H), (B, S, K, H), (B, T, N, H)
    return [jnp.asarray(rng.normal(size=s), dtype) for s in shapes]


def out_and_gradients(q, k, v, mask, dout, scale=0.5, **options):
    out, pull = jax.vjp(lambda q, k, v: attend(q, k, v, mask, scale=scale, **options), q, k, v)
    return out, *pull(dout)


@functools.cache
def jitted(**options):
    return jax.jit(functools.partial(out_and_gradients, **options))


def assert_close(a, b, tol=1e-5):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=tol, atol=tol)


# Shapes


@pytest.mark.parametrize(("T", "S"), [(1, 9), (8, 8), (9, 1), (21, 17)])
def test_any_length_against_blocks_of_8_equals_dense(T, S):
    q, k, v, dout = inputs(T, S, N=4, K=2, H=3, B=1)
    mask = masks.causal(T, S, align="bottom_right")
    got = jitted(block_q=8, block_k=8)(q, k, v, mask, dout)
    assert_close(got, jitted(impl="dense")(q, k, v, mask, dout))


def test_default_blocks_equal_dense():
    T = 1100  # several tiles, some of them visible to all, and a ragged end
    q, k, v, dout = inputs(T, N=2, K=1, H=8, B=1)
    for mask in (masks.full(T), masks.causal(T), masks.window(T, left=700, right=100)):
        got = jitted(impl="blockwise")(q, k, v, mask, dout)
        assert_close(got, jitted(impl="dense")(q, k, v, mask, dout), tol=2e-5)


# Which tiles are visited


@functools.partial(jax.jit, static_argnums=1)
def schedule(mask, plan):
    arrays = tiles.MaskArrays(mask.lo, mask.hi, mask.dense)
    lo, hi = (tiles.row_blocks(plan, x, 1, x.shape[1]) for x in (mask.lo, mask.hi))
    return tiles.schedule(plan, lo, hi, arrays, mask.kv_len)


def visits(mask, bq, bk):
    """First keys of the tiles visited (with the mask, without) for every query block."""
    found = schedule(mask, tiles.Plan(bq, bk, None, 1.0, False))
    for keys, masked, visited in zip(*map(np.asarray, found), strict=True):
        yield list(keys[:masked]), list(keys[masked:visited])


ROWS, KEYS = 11, 13
bounds = st.lists(st.integers(0, KEYS), min_size=2 * ROWS, max_size=2 * ROWS)


@settings(max_examples=150, deadline=None)
@given(bounds, bounds, st.sampled_from([(4, 3), (1, 2), (11, 5)]), st.booleans())
def test_visited_tiles_cover_the_mask_and_unmasked_ones_lie_inside_it(lo, hi, blocks, is_dense):
    lo, hi = (np.array(x, np.int32).reshape(2, 1, ROWS) for x in (lo, hi))
    some = lo < hi
    mask = Mask(*(jnp.asarray(np.where(some, x, 0)) for x in (lo, hi)), None, KEYS)
    key = np.arange(KEYS)
    allowed = ((lo[..., None] <= key) & (key < hi[..., None]))[:, 0]
    if is_dense:
        mask = Mask(mask.lo, mask.hi, jnp.asarray(allowed[:, None]), KEYS)
    bq, bk = blocks
    rows = np.arange(tiles.count(ROWS, bq) * bq).reshape(-1, bq).clip(max=ROWS - 1)
    for i, (with_mask, without) in enumerate(visits(mask, bq, bk)):
        seen = sorted(with_mask + without)
        for start in without:
            assert start + bk <= KEYS
            assert allowed[:, rows[i], start : start + bk].all(), "the mask was needed"
        assert all(0 <= start <= (tiles.count(KEYS, bk) - 1) * bk for start in seen), (
            "it would move"
        )
        assert all((b - a) % bk == 0 and a < b for a, b in pairwise(seen)), "tiles overlap"
        reach = np.flatnonzero(allowed[:, rows[i]].any((0, 1)))
        if is_dense:
            assert {k // bk * bk for k in reach} == set(seen), "an empty tile, or a full one missed"
        elif len(reach):
            begin = reach[0] - reach[0] % math.gcd(bk, 16)  # whole cache lines
            assert len(seen) == tiles.count(reach[-1] + 1 - begin, bk), "too many tiles"
            assert seen[0] <= reach[0]
            assert reach[-1] < seen[-1] + bk
        else:
            assert not seen


def test_a_window_visits_a_number_of_tiles_that_does_not_grow_with_the_length():
    for T in (64, 256):
        counts = [len(a) + len(b) for a, b in visits(masks.sliding_window(T, 8), 8, 8)]
        assert max(counts) == 2


def test_a_window_as_wide_as_a_tile_is_one_visit():
    counts = [len(a) + len(b) for a, b in visits(masks.sliding_window(256, 17), 16, 32)]
    assert counts == [1] * 16


# Memory and compilation


def shapes_in(jaxpr):
    for eqn in jaxpr.eqns:
        for var in eqn.outvars:
            yield var.aval.shape
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            yield from shapes_in(inner)


def largest(jaxpr):
    return max(int(np.prod(s)) for s in shapes_in(jaxpr))


def test_no_value_as_large_as_T_times_S_is_in_the_gradient_on_the_interval_path():
    """The precedent of sparse forward, dense backward: marin-community/marin#5658."""
    T, bq, bk = 4096, 64, 64
    q, k, v = (jnp.zeros((1, T, 2, 4)) for _ in range(3))
    positions = jnp.arange(T)

    def call(q, k, v, slopes, impl):
        blocks = {"block_q": bq, "block_k": bk} if impl == "blockwise" else {}
        bias = Alibi(slopes, positions, positions)
        mask = masks.sliding_window(T, 100)
        out, stats = attend(
            q, k, v, mask, scale=0.5, bias=bias, softcap=9.0, stats=True, impl=impl, **blocks
        )
        return jnp.sum(out), stats

    grad = jax.grad(call, argnums=(0, 1, 2, 3), has_aux=True)
    slopes = jnp.ones(2)
    linear = largest(
        jax.make_jaxpr(functools.partial(grad, impl="blockwise"))(q, k, v, slopes).jaxpr
    )
    assert linear <= T * 2 * 16  # the statistics' T x N x 13 distance edges
    quadratic = largest(
        jax.make_jaxpr(functools.partial(grad, impl="dense"))(q, k, v, slopes).jaxpr
    )
    assert quadratic >= T * T  # the test can see one


def test_temporary_memory_of_the_gradient_is_linear_in_the_length():
    def temporary(T):
        x = jax.ShapeDtypeStruct((1, T, 1, 8), jnp.float32)
        mask = jax.eval_shape(lambda: masks.causal(T))
        call = jax.jit(functools.partial(out_and_gradients, block_q=64, block_k=64))
        return call.lower(x, x, x, mask, x).compile().memory_analysis().temp_size_in_bytes

    assert temporary(16384) < 4.5 * temporary(4096)


def test_one_trace_serves_every_mask_of_a_structure():
    T = 10
    q, k, v, _ = inputs(T)
    traces = []

    @jax.jit
    def call(q, k, v, mask):
        traces.append(mask)
        return attend(q, k, v, mask, scale=0.5, **SMALL)

    members = [m for m, _ in oracle.named_masks(T, T).values()]
    for mask in members:
        call(q, k, v, mask.canonical(2, 2)).block_until_ready()
    weak = Mask(*jax.tree.map(jnp.asarray, (members[0].lo, members[0].hi)), None, T)
    call(q, k, v, weak.canonical(2, 2))
    structures = {jax.tree.structure(m) for m in members}
    assert len(structures) == 2
    assert len(traces) == 2


# vmap


def test_mapping_over_masks_and_arrays_equals_a_loop_forward_and_backward():
    T = 10
    members = [masks.causal(T), masks.full(T), masks.sliding_window(T, 2)]
    sets = [inputs(T, seed=s) for s in range(3)]
    one = jitted(**SMALL)

    def stacked(results):
        return [jnp.stack(x) for x in zip(*results, strict=True)]

    qs, ks, vs, douts = stacked(sets)
    looped = [one(q, k, v, m, dout) for (q, k, v, dout), m in zip(sets, members, strict=True)]
    assert_close(jax.jit(jax.vmap(one))(qs, ks, vs, Mask.stack(members), douts), stacked(looped))
    q, k, v, dout = sets[0]
    shared = jax.jit(jax.vmap(one, in_axes=(None, None, None, 0, None)))
    looped = [one(q, k, v, m, dout) for m in members]
    assert_close(shared(q, k, v, Mask.stack(members), dout), stacked(looped))


def test_mapping_inside_and_outside_the_derivative_and_twice_gives_the_same():
    """Members x scales; slopes are mapped by member only, so their gradient keeps its own axis."""
    T = 6
    q, k, v, _ = inputs(T, B=1)
    positions = jnp.arange(T)
    scales, slopes = jnp.array([0.3, 0.7, 1.1]), jnp.array([[0.1, 0.2], [0.0, 0.5]])

    def loss(scale, slopes, q, impl):
        bias = Alibi(slopes, positions, positions)
        out = attend(q, k, v, masks.causal(T), scale=scale, bias=bias, **impl)
        return jnp.sum(out**2)

    def grid(impl):
        grad = jax.grad(functools.partial(loss, impl=impl), argnums=(0, 1, 2))
        inner = jax.vmap(grad, in_axes=(0, None, None))
        return jax.jit(jax.vmap(inner, in_axes=(None, 0, None)))(scales, slopes, q)

    def outside(slopes, impl):
        mapped = jax.vmap(functools.partial(loss, impl=impl), in_axes=(0, None, None))
        return jnp.sum(mapped(scales, slopes, q))

    assert_close(grid(SMALL), grid({"impl": "dense"}), tol=1e-4)
    total = jax.grad(functools.partial(outside, impl=SMALL))(slopes[1])
    np.testing.assert_allclose(total, grid(SMALL)[1][1].sum(0), rtol=1e-4, atol=1e-5)


def test_a_mapped_call_keeps_its_loops_and_gathers_nothing():
    """What folding buys: mapped loop bounds would turn slices of the keys into gathers."""
    T = 8
    q, k, v, dout = (jnp.zeros((3, 1, T, 2, 4)) for _ in range(4))
    mask = Mask.stack([masks.causal(T), masks.full(T), masks.sliding_window(T, 2)])
    one = functools.partial(out_and_gradients, **SMALL)
    jaxpr = jax.make_jaxpr(jax.vmap(one))(q, k, v, mask, dout)
    assert "while" in str(jaxpr)
    assert "gather" not in str(jaxpr)


# Numerics


@pytest.mark.parametrize("impl", [{"impl": "dense"}, SMALL], ids=["dense", "blocks"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("scale", [0.25, 0.3])
def test_16_bit_inputs_are_accumulated_in_float32(dtype, scale, impl):
    """Against the oracle on the rounded inputs: only rounding of weights and of results is left."""
    T = 64
    q, k, v, dout = inputs(T, B=1, N=1, K=1, H=32, dtype=dtype)
    answer = oracle.attention(q, k, v, lambda b, n, i, j: j <= i, scale=scale, dout=dout)
    blocks = impl | ({"block_q": 16, "block_k": 16} if "block_q" in impl else {})
    call = jitted(scale=scale, **blocks)
    unit = float(jnp.finfo(dtype).eps)
    for got, want in zip(
        call(q, k, v, masks.causal(T), dout),
        (answer.out, answer.dq, answer.dk, answer.dv),
        strict=True,
    ):
        assert got.dtype == dtype
        error = np.abs(np.asarray(got, np.float64) - want).max() / np.abs(want).max()
        assert error < 2 * unit


@pytest.mark.parametrize("impl", [{"impl": "dense"}, SMALL], ids=["dense", "blocks"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_extreme_logits_of_allowed_and_forbidden_keys_stay_finite(dtype, impl):
    T = 10  # not a multiple of the blocks: padded rows meet the extreme log-sum-exps too
    q = jnp.full((1, T, 1, 4), 100, dtype)
    k = jnp.full((1, T, 1, 4), -100, dtype).at[0, T - 1].set(100)  # logits -4e4, the last +4e4
    v = jnp.arange(T, dtype=dtype)[None, :, None, None] * jnp.ones((1, 1, 1, 4), dtype)

    @jax.jit
    def call(mask):
        def f(q, k, v, slopes):
            bias = Alibi(slopes, jnp.arange(T), jnp.arange(T))
            return attend(q, k, v, mask, scale=1.0, bias=bias, **impl)

        out, pull = jax.vjp(f, q, k, v, jnp.zeros(1))
        return out, pull(jnp.ones_like(out))

    for mask in (masks.sliding_window(T, 1), masks.causal(T), masks.causal(T, offset=-1)):
        for x in jax.tree.leaves(call(mask)):
            assert bool(jnp.isfinite(x).all())
    # flashinfer-ai/flashinfer#4401: one allowed key gives its value exactly, however low its logit.
    np.testing.assert_array_equal(call(masks.sliding_window(T, 1))[0], v)


def test_a_forbidden_suffix_changes_no_bit_two_layers_deep():
    T, H = 40, 8
    x = inputs(T, N=1, H=H, B=1)[0]
    w = np.random.default_rng(1).normal(size=(3, H, H)).astype(np.float32)

    @jax.jit
    def model(x):
        for _ in range(2):
            q, k, v = (x @ m for m in w)
            x = x + attend(q, k, v, masks.causal(T), scale=0.3, block_q=8, block_k=16)
        return x

    before = model(x)
    for prefix in (1, 3, 7, 15, 16, 31, 32):
        after = model(
            x.at[:, prefix:].set(jax.random.normal(jax.random.key(prefix), x[:, prefix:].shape))
        )
        np.testing.assert_array_equal(after[:, :prefix], before[:, :prefix])
        assert not np.array_equal(after[:, prefix:], before[:, prefix:])


def test_derivatives_it_does_not_have_are_refused_by_name():
    q, k, v, _ = inputs(6)

    def f(q):
        return jnp.sum(attend(q, k, v, masks.causal(6), scale=0.5, **SMALL) ** 2)

    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(f, (q,), (q,))
