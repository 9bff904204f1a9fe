"""How a member's training is doing, carried in its state: the last good numbers, and loss spikes."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

HORIZON = 100.0  # updates over which the running mean and variance forget
SPIKE_DEVIATIONS = 6.0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Health:
    """Scalars, float32 unless said otherwise.

    `last_loss`: nats per target, of the last update that was finite. `last_grad_norm`: the same, before clipping.
    `spikes`: int32, updates whose loss lay more than 6 running standard deviations above the running mean (both
    exponential over 100 updates), not counted in the first 100. `mean`, `variance`: those two numbers.
    """

    last_loss: Array
    last_grad_norm: Array
    spikes: Array
    mean: Array
    variance: Array


def init() -> Health:
    """Before the first update."""
    nan, zero = jnp.float32(jnp.nan), jnp.float32(0.0)
    return Health(nan, nan, jnp.int32(0), zero, zero)


def after_update(health: Health, loss: Array, grad_norm: Array, step: Array) -> Health:
    """The health after update number `step` (0-based) with this mean loss and gradient norm."""
    first = step == 0
    mean = jnp.where(first, loss, health.mean)
    excess = loss - mean
    # Decays by 1/n at first, so that the running numbers are plain averages until the horizon is reached.
    rate = 1.0 / jnp.minimum(step.astype(jnp.float32) + 1.0, HORIZON)
    spike = (step >= HORIZON) & (excess > SPIKE_DEVIATIONS * jnp.sqrt(health.variance))
    return Health(
        last_loss=loss,
        last_grad_norm=grad_norm,
        spikes=health.spikes + spike.astype(jnp.int32),
        mean=mean + rate * excess,
        variance=(1.0 - rate) * (health.variance + rate * jnp.square(excess)),
    )
