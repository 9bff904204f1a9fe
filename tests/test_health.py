"""Loss spikes and last good numbers, against the definition written as a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import health


@jax.jit
def after(losses):
    def one(state, item):
        step, loss = item
        state = health.after_update(state, loss, 2 * loss, step)
        return state, state

    steps = jnp.arange(losses.shape[0], dtype=jnp.int32)
    return jax.lax.scan(one, health.init(), (steps, losses))[1]


@pytest.fixture(scope="module")
def history():
    losses = 3 + 0.1 * np.random.default_rng(0).normal(size=300)
    losses[[50, 200, 250]] = 9.0
    return losses, jax.device_get(after(losses.astype(np.float32)))


def test_mean_and_variance_are_plain_ones_up_to_the_horizon(history):
    losses, states = history
    for step in (0, 1, 49, 99):
        assert states.mean[step] == pytest.approx(losses[: step + 1].mean(), rel=1e-4)
        assert states.variance[step] == pytest.approx(losses[: step + 1].var(), rel=1e-3, abs=1e-6)


def test_a_spike_is_counted_once_and_not_within_the_horizon(history):
    _, states = history
    assert states.spikes[[50, 99, 199, 200, 249, 250, 299]].tolist() == [0, 0, 0, 1, 1, 2, 2]


def test_the_last_good_numbers_are_kept(history):
    losses, states = history
    np.testing.assert_allclose(states.last_loss, losses, rtol=1e-6)
    np.testing.assert_allclose(states.last_grad_norm, 2 * losses, rtol=1e-6)
    assert np.isnan(health.init().last_loss)
