"""Norms against their definitions in float64, and the gates that turn one into another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from attnlab import norms, positions

EPS = 1e-6
RNG = np.random.default_rng(0)
X = RNG.normal(2.0, 3.0, (2, 3, 16)).astype(np.float32)  # off centre, so that centring matters


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with tiny.quick_compilation():
        yield


def layernorm(x):
    x = np.asarray(x, np.float64)
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPS)


def rmsnorm(x):
    x = np.asarray(x, np.float64)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS)


def l2(x):
    x = np.asarray(x, np.float64)
    return x / np.sqrt((x**2).sum(-1, keepdims=True) + EPS)


normalize = jax.jit(norms.normalize)
DEFINITIONS = {"layernorm": layernorm, "rmsnorm": rmsnorm, "l2": l2}


@pytest.mark.parametrize(("center", "definition"), [(1.0, layernorm), (0.0, rmsnorm)])
def test_normalize_equals_its_definition(center, definition):
    np.testing.assert_allclose(normalize(X, center=center), definition(X), atol=2e-6)


def test_the_centring_gate_may_be_traced_and_then_one_program_serves_both_norms():
    traces = 0

    @jax.jit
    def normalized(x, center):
        nonlocal traces
        traces += 1
        return norms.normalize(x, center=center)

    np.testing.assert_allclose(normalized(X, jnp.float32(1.0)), layernorm(X), atol=2e-6)
    np.testing.assert_allclose(normalized(X, jnp.float32(0.0)), rmsnorm(X), atol=2e-6)
    assert traces == 1


def test_layernorm_ignores_a_common_shift_and_rmsnorm_does_not():
    shifted = X + 5.0
    unmoved = normalize(X, center=1.0)
    np.testing.assert_allclose(normalize(shifted, center=1.0), unmoved, atol=1e-5)
    assert np.abs(normalize(shifted, center=0.0) - normalize(X, center=0.0)).max() > 0.1


@pytest.mark.parametrize("center", [0.0, 1.0])
def test_norms_are_scale_invariant(center):
    twice = normalize(2.0 * X, center=center)
    np.testing.assert_allclose(twice, normalize(X, center=center), atol=1e-5)


def test_l2_gives_unit_vectors():
    np.testing.assert_allclose(norms.l2_normalize(X), l2(X), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(norms.l2_normalize(X), axis=-1), 1.0, rtol=1e-5)


def test_statistics_are_float32_for_bfloat16_vectors():
    # 256 + small: bfloat16 has steps of 2 there, so a mean or a square taken in it is far off.
    x = jnp.asarray(256 + 8 * np.arange(16.0), jnp.bfloat16)
    out = normalize(x, center=1.0)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(out, np.float64), layernorm(x), atol=2**-7)
    assert norms.l2_normalize(x).dtype == jnp.bfloat16


@pytest.mark.parametrize("center", [0.0, 1.0])
def test_a_constant_vector_has_finite_output_and_gradient(center):
    for value in (0.0, 3.0):
        x = jnp.full((4,), value)
        summed = jax.jit(jax.value_and_grad(lambda x: norms.normalize(x, center=center).sum()))
        out, gradient = summed(x)
        assert np.isfinite(out), value
        assert np.isfinite(gradient).all(), value


# QK-norm

qk_norm = jax.jit(norms.qk_norm)
Q = RNG.normal(1.0, 2.0, (2, 3, 2, 8)).astype(np.float32)
GAIN = RNG.normal(1.0, 0.3, 8).astype(np.float32)


def gates(on=None):
    return {kind: jnp.bool_(kind == on) for kind in norms.QK_NORMS}


@jax.jit
def gain_gradient(gain, gates):
    return jax.grad(lambda gain: jnp.sum(norms.qk_norm(Q, gain, gates) ** 2))(gain)


@pytest.mark.parametrize("kind", norms.QK_NORMS)
def test_each_qk_norm_normalizes_every_head_and_multiplies_by_the_gain(kind):
    out = qk_norm(Q, GAIN, gates(kind))
    np.testing.assert_allclose(out, DEFINITIONS[kind](Q) * GAIN, atol=5e-6)


@pytest.mark.parametrize("kind", norms.QK_NORMS)
def test_a_kind_alone_in_the_program_gives_the_same_bits_as_among_the_others(kind):
    alone = norms.qk_norm(Q, GAIN, {kind: jnp.bool_(True)})
    np.testing.assert_array_equal(alone, norms.qk_norm(Q, GAIN, gates(kind)))


def test_qk_norm_spans_one_head_and_not_the_whole_projection():
    q = np.array([1.0, 1.0, 3.0, 3.0], np.float32).reshape(1, 1, 2, 2)
    out = norms.qk_norm(q, jnp.ones(2), {"rmsnorm": jnp.bool_(True)})
    np.testing.assert_allclose(out, np.ones((1, 1, 2, 2)), atol=1e-6)


def test_qk_norm_off_changes_no_bit_and_its_gain_gets_no_gradient():
    out = np.asarray(norms.qk_norm(Q, GAIN, gates(None)))
    np.testing.assert_array_equal(out.view(np.uint32), Q.view(np.uint32))
    np.testing.assert_array_equal(gain_gradient(GAIN, gates(None)), np.zeros(8))


@pytest.mark.parametrize("kind", norms.QK_NORMS)
def test_qk_norm_on_uses_its_gain(kind):
    assert (np.abs(gain_gradient(GAIN, gates(kind))) > 1e-3).all()
    doubled = qk_norm(Q, 2 * GAIN, gates(kind))
    np.testing.assert_allclose(doubled, 2 * qk_norm(Q, GAIN, gates(kind)), rtol=1e-6)


def test_gradients_are_finite_for_a_zero_query_whatever_the_gates():
    zero = jnp.zeros((1, 1, 1, 8))
    gradient_of = jax.jit(jax.grad(lambda q, gates: norms.qk_norm(q, GAIN, gates).sum()))
    for kind in (None, *norms.QK_NORMS):
        gradient = gradient_of(zero, gates(kind))
        assert np.isfinite(gradient).all(), kind


def test_norm_and_rope_commute_only_without_a_gain():
    """karpathy/nanochat#743: a rotation keeps the RMS, but moves what a gain would scale."""

    @jax.jit
    def difference(gain):
        rotation = positions.rope_rotation(positions.by_index(3), positions.rope_frequencies(8))
        on = {"rmsnorm": jnp.bool_(True)}
        first = positions.rope(norms.qk_norm(Q, gain, on), rotation)
        last = norms.qk_norm(positions.rope(Q, rotation), gain, on)
        return jnp.abs(first - last).max()

    assert difference(jnp.ones(8)) < 1e-5
    assert difference(jnp.arange(1.0, 9.0)) > 0.1
