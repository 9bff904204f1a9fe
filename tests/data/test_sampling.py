import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.data import sampling

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 65, 5000, dtype=np.uint8))


_compiled = jax.jit(sampling.windows, static_argnames=("batch_size", "length"))


def _windows(seed, step, tokens=TOKENS, batch_size=4, length=9):
    return _compiled(tokens, seed, step, batch_size=batch_size, length=length)


def test_windows_are_consecutive_tokens():
    tokens = jnp.arange(100, dtype=jnp.uint8)
    windows_BW = _windows(3, 7, tokens, batch_size=50, length=9)
    assert windows_BW.dtype == jnp.int32
    assert windows_BW.shape == (50, 9)
    starts_B = sampling.window_starts(3, 7, batch_size=50, length=9, n_tokens=100)
    np.testing.assert_array_equal(windows_BW, starts_B[:, None] + jnp.arange(9)[None, :])


def test_a_batch_is_a_function_of_seed_and_step():
    again = _windows(1, 2)
    np.testing.assert_array_equal(_windows(1, 2), again)
    for seed, step in ((1, 3), (2, 2), (2, 1), (0, 0)):
        assert not np.array_equal(_windows(seed, step), again)


def test_the_data_of_past_runs_has_not_changed():
    # Every run on record read these windows: if this fails, no past run can be replayed.
    starts = sampling.window_starts(42, 1234, batch_size=4, length=65, n_tokens=1003854)
    assert starts.tolist() == [164451, 48309, 95799, 252294]


def test_integer_types_of_seed_and_step_do_not_matter():
    expected = _windows(5, 6)
    for kind in (jnp.int32, jnp.uint32):
        np.testing.assert_array_equal(_windows(kind(5), kind(6)), expected)
    uncompiled = sampling.windows(TOKENS, 5, 6, batch_size=4, length=9)
    np.testing.assert_array_equal(uncompiled, expected)


def test_the_default_generator_of_jax_does_not_matter():
    expected = _windows(5, 6)
    with jax.default_prng_impl("rbg"):
        under_another = sampling.windows(TOKENS, 5, 6, batch_size=4, length=9)
    np.testing.assert_array_equal(under_another, expected)


def test_windows_are_equal_whatever_loop_they_are_cut_in():
    seeds, steps = jnp.arange(3, dtype=jnp.uint32), jnp.arange(5)
    one_by_one = np.stack([[_windows(seed, step) for step in range(5)] for seed in range(3)])

    def scanned(seed):
        return jax.lax.scan(lambda carry, step: (carry, _windows(seed, step)), 0, steps)[1]

    np.testing.assert_array_equal(jax.jit(jax.vmap(scanned))(seeds), one_by_one)
    np.testing.assert_array_equal(jax.jit(lambda s: jax.lax.map(scanned, s))(seeds), one_by_one)


def test_every_start_is_equally_likely_the_first_and_the_last_included():
    draw = jax.vmap(
        lambda step: sampling.window_starts(0, step, batch_size=8, length=5, n_tokens=20)
    )
    counts = np.bincount(np.ravel(draw(jnp.arange(1000))), minlength=16)
    assert len(counts) == 16
    chi2 = ((counts - 500) ** 2 / 500).sum()
    assert 2 < chi2 < 45  # 15 degrees of freedom: mean 15, standard deviation 5.5


def test_a_window_may_be_the_whole_text():
    tokens = jnp.arange(7, dtype=jnp.uint8)
    windows_BW = _windows(0, 0, tokens, batch_size=3, length=7)
    np.testing.assert_array_equal(windows_BW, np.tile(np.arange(7), (3, 1)))


def test_other_randomness_of_the_batch_does_not_repeat_the_windows():
    starts = sampling.window_starts(0, 0, batch_size=64, length=1, n_tokens=1000)
    other = jax.random.fold_in(sampling.batch_key(0, 0), 1)
    assert not np.array_equal(starts, jax.random.randint(other, (64,), 0, 1000))


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 40))
def test_evaluation_windows_do_not_overlap_where_they_need_not(n, count, length):
    tokens = np.arange(n, dtype=np.uint16)
    if length > n or count > n - length + 1:
        with pytest.raises(ValueError, match=r"^(length|count): "):
            sampling.evaluation_windows(tokens, count=count, length=length)
        return
    windows_CW = np.asarray(sampling.evaluation_windows(tokens, count=count, length=length))
    starts = windows_CW[:, 0]
    np.testing.assert_array_equal(windows_CW, starts[:, None] + np.arange(length))
    assert starts[0] == 0
    gaps = np.diff(starts)
    if count > 1:
        assert windows_CW[-1, -1] == n - 1
        assert gaps.min() >= 1
        assert gaps.max() - gaps.min() <= 1
    if count * length <= n:
        assert (gaps >= length).all()


def test_evaluation_windows_of_a_large_corpus_reach_its_end():
    tokens = np.arange(4_500_000, dtype=np.int32)  # count * n passes 2^31
    windows_CW = sampling.evaluation_windows(tokens, count=2000, length=65)
    assert windows_CW.dtype == jnp.int32
    assert int(windows_CW[-1, -1]) == 4_499_999
    assert (np.diff(windows_CW[:, 0]) >= 65).all()


def test_evaluation_windows_are_equal_on_host_on_device_and_compiled():
    expected = sampling.evaluation_windows(np.asarray(TOKENS), count=11, length=9)
    for cut in (
        sampling.evaluation_windows,
        jax.jit(sampling.evaluation_windows, static_argnames=("count", "length")),
    ):
        np.testing.assert_array_equal(cut(TOKENS, count=11, length=9), expected)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"length": 5001}, ValueError, "length: a window of 5001 is longer than the 5000 tokens"),
        ({"length": 0}, ValueError, "length: must be at least 1, got 0"),
        ({"batch_size": 0}, ValueError, "batch_size: must be at least 1, got 0"),
        ({"tokens": TOKENS[None]}, ValueError, r"tokens: must be one-dim.*\(1, 5000\)"),
        ({"tokens": TOKENS.astype(jnp.float32)}, TypeError, "tokens: must be integers"),
    ],
)
def test_impossible_windows_are_refused(change, error, words):
    with pytest.raises(error, match=words):
        _windows(0, 0, **change)


def test_starts_beyond_int32_are_refused():
    with pytest.raises(ValueError, match="do not fit int32"):
        sampling.window_starts(0, 0, batch_size=1, length=1, n_tokens=2**31)


def test_evaluation_windows_refuse_a_count_below_one():
    with pytest.raises(ValueError, match="count: must be at least 1"):
        sampling.evaluation_windows(TOKENS, count=0, length=9)
