"""Position families by hand, and what each must keep invariant."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from attnlab import positions


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with tiny.quick_compilation():
        yield


@jax.jit
def rope(x_BTNH, position_BT, gate=1.0):
    frequencies = positions.rope_frequencies(x_BTNH.shape[-1]) * gate
    return positions.rope(x_BTNH, positions.rope_rotation(position_BT, frequencies))


sinusoidal = jax.jit(positions.sinusoidal, static_argnums=1)


def rotated(x_H, position):
    """One head's vector at one position."""
    x_BTNH = np.asarray(x_H)[None, None, None]
    return np.asarray(rope(x_BTNH, np.array([[position]], np.int32)))[0, 0, 0]


@pytest.mark.parametrize(
    ("text", "families"),
    [
        ("none", set()),
        ("rope", {"rope"}),
        ("learned+rope", {"learned", "rope"}),
        (" alibi + sinusoidal ", {"alibi", "sinusoidal"}),
    ],
)
def test_text_names_the_families(text, families):
    assert positions.parse(text) == families


@pytest.mark.parametrize("text", ["", "rotary", "none+rope", "rope+rope", "rope,learned", "rope+"])
def test_text_that_names_no_families_is_refused(text):
    with pytest.raises(ValueError, match="positions") as error:
        positions.parse(text)
    assert repr(text) in str(error.value)
    assert "alibi, learned, rope, sinusoidal" in str(error.value)


def test_rope_turns_pairs_of_the_two_halves():
    # head_dim 4: the pairs are (0, 2) at 1 radian a position and (1, 3) at 0.01.
    c, s = np.cos(3.0), np.sin(3.0)
    np.testing.assert_allclose(rotated([1.0, 0, 0, 0], 3), [c, 0, s, 0], atol=1e-6)
    np.testing.assert_allclose(rotated([0, 0, 1.0, 0], 3), [-s, 0, c, 0], atol=1e-6)
    c, s = np.cos(0.03), np.sin(0.03)
    np.testing.assert_allclose(rotated([0, 1.0, 0, 0], 3), [0, c, 0, s], atol=1e-6)
    np.testing.assert_allclose(rotated([0, 0, 0, 1.0], 3), [0, -s, 0, c], atol=1e-6)


def test_rope_frequencies_are_spaced_by_the_dimension_that_is_rotated():
    np.testing.assert_allclose(positions.rope_frequencies(8), [1, 0.1, 0.01, 0.001], rtol=1e-6)
    np.testing.assert_allclose(positions.rope_frequencies(4, theta=100.0), [1, 0.1], rtol=1e-6)


def test_rope_logits_depend_on_the_difference_of_positions_only():
    q, k = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)
    near = rotated(q, 5) @ rotated(k, 3)
    assert near == pytest.approx(rotated(q, 9) @ rotated(k, 7), abs=1e-5)
    assert near == pytest.approx(rotated(q, 2) @ rotated(k, 0), abs=1e-5)
    assert abs(near - rotated(q, 5) @ rotated(k, 4)) > 1e-2


def test_mixing_the_two_rope_conventions_would_be_noticed():
    """The interleaved angle table under the half-split rotation, a fault found in many public codebases."""
    q, k = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)

    def mixed(x, position):
        angles = np.repeat(position * np.asarray(positions.rope_frequencies(8)), 2)
        first, second = np.split(x, 2)
        return x * np.cos(angles) + np.concatenate([-second, first]) * np.sin(angles)

    assert abs(mixed(q, 5) @ mixed(k, 3) - mixed(q, 9) @ mixed(k, 7)) > 1e-2


def test_rope_keeps_lengths():
    x = np.random.default_rng(1).normal(size=8).astype(np.float32)
    assert np.linalg.norm(rotated(x, 11)) == pytest.approx(np.linalg.norm(x), rel=1e-6)


def test_rope_turns_by_the_token_axis_and_not_by_the_head_axis():
    x_H = np.random.default_rng(2).normal(size=8).astype(np.float32)
    x_BTNH = np.broadcast_to(x_H, (1, 4, 4, 8))  # as many tokens as heads, so that a mix-up fits
    out_BTNH = np.asarray(rope(x_BTNH, np.arange(4)[None]))
    for head in range(4):
        np.testing.assert_array_equal(out_BTNH[:, :, head], out_BTNH[:, :, 0])
    for token in range(1, 4):
        assert np.abs(out_BTNH[:, token] - out_BTNH[:, token - 1]).max() > 1e-2
    np.testing.assert_allclose(out_BTNH[0, 0, 0], x_H, rtol=1e-6)


def test_rope_positions_may_differ_by_example():
    x_BTNH = np.random.default_rng(3).normal(size=(2, 3, 1, 4)).astype(np.float32)
    position_BT = np.array([[0, 1, 2], [0, 0, 1]])
    out = rope(x_BTNH, position_BT)
    for b, t in np.ndindex(2, 3):
        expected = rotated(x_BTNH[b, t, 0], position_BT[b, t])
        np.testing.assert_allclose(out[b, t, 0], expected, atol=1e-6)


def test_rope_angles_stay_accurate_far_out_for_bfloat16_activations():
    out = rotated(np.array([1.0, 0.0], jnp.bfloat16), 10_001)
    assert out.dtype == jnp.bfloat16
    # bfloat16 would call this position 9984 or 10048: off by several turns.
    expected = [np.cos(10_001.0), np.sin(10_001.0)]
    np.testing.assert_allclose(out.astype(np.float64), expected, atol=5e-3)


def test_rope_with_frequencies_of_zero_changes_no_bit():
    x = np.random.default_rng(4).normal(size=8).astype(np.float32)
    frequencies = positions.rope_frequencies(8) * 0.0
    rotation = positions.rope_rotation(jnp.array([[7]]), frequencies)
    out = np.asarray(positions.rope(jnp.asarray(x)[None, None, None], rotation))[0, 0, 0]
    np.testing.assert_array_equal(out.view(np.uint32), x.view(np.uint32))


def test_an_odd_dimension_has_no_pairs():
    with pytest.raises(ValueError, match=r"head_dim.*even.*5"):
        positions.rope_frequencies(5)
    with pytest.raises(ValueError, match=r"width.*even.*7"):
        positions.sinusoidal(positions.by_index(3), 7)


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [
        (1, [8]),
        (2, [4, 8]),
        (4, [2, 4, 6, 8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (16, [0.5 * (h + 1) for h in range(16)]),
        # The published construction: the power of two below, then every second slope of the one above.
        (6, [2, 4, 6, 8, 1, 3]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_alibi_slopes(heads, exponents):
    slopes_N = np.asarray(positions.alibi_slopes(heads))
    np.testing.assert_allclose(slopes_N, 2.0 ** -np.array(exponents, np.float64), rtol=1e-6)


def test_sinusoid_by_hand():
    wave = np.asarray(sinusoidal(jnp.array([[0, 1, 50]]), 4))[0]
    np.testing.assert_allclose(wave[0], [0, 0, 1, 1])
    for row, p in ((1, 1.0), (2, 50.0)):
        expected = [np.sin(p), np.sin(p / 100), np.cos(p), np.cos(p / 100)]
        np.testing.assert_allclose(wave[row], expected, atol=1e-5)


def test_sinusoid_has_rms_of_root_half_at_every_position():
    wave = np.asarray(sinusoidal(np.arange(64)[None], 32))
    np.testing.assert_allclose(np.sqrt((wave**2).mean(-1)), np.sqrt(0.5), rtol=1e-5)


def test_indices_continue_behind_cached_tokens():
    np.testing.assert_array_equal(positions.by_index(3, offset=6), [[6, 7, 8]])
    traced = jax.jit(lambda offset: positions.by_index(3, offset=offset))(jnp.int32(6))
    np.testing.assert_array_equal(traced, [[6, 7, 8]])
    assert traced.dtype == jnp.int32
