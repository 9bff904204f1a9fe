"""AdamW with every number traced: a sweep over learning rates is one program.

Adam's moments are optax's; the learning rate multiplies afterwards, because `optax.adamw(lr)` bakes a new
number into a new program (optax#577) and `inject_hyperparams` moves the trajectory a little (optax#1532).
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

Params = Any  # a nested dict of float32 arrays, as flax makes it
ADAM_EPS = 1e-8


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OptimizerKnobs:
    """float32 scalars (steps are int32).

    `learning_rate`: the peak. `warmup_steps`: linear rise from 0. `total_steps`: end of the cosine.
    `final_fraction`: the learning rate at the end as a fraction of the peak. `weight_decay`: decoupled,
    multiplied by the learning rate as in AdamW (Loshchilov & Hutter 2019). `clip_norm`: largest global
    gradient norm. `b1`, `b2`: Adam's decay rates.
    """

    learning_rate: Array
    warmup_steps: Array
    total_steps: Array
    final_fraction: Array
    weight_decay: Array
    clip_norm: Array
    b1: Array
    b2: Array


def learning_rate(knobs: OptimizerKnobs, step: Array) -> Array:
    """Linear warm-up then cosine, at update number `step` (0-based): float32 scalar.

    The first update already moves: it uses peak / warmup_steps.
    """
    done = step.astype(jnp.float32)
    warmup = knobs.warmup_steps.astype(jnp.float32)
    total = knobs.total_steps.astype(jnp.float32)
    rise = jnp.minimum(1.0, (done + 1.0) / jnp.maximum(warmup, 1.0))
    progress = jnp.clip((done - warmup) / jnp.maximum(total - warmup, 1.0), 0.0, 1.0)
    cosine = 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
    return (
        knobs.learning_rate * rise * (knobs.final_fraction + (1.0 - knobs.final_fraction) * cosine)
    )


def is_decayed(path: tuple[Any, ...]) -> bool:
    """Weight decay is for matrices that multiply activations, by name: embeddings, tables and gains are free."""
    return str(path[-1].key).endswith("kernel")


def init(params: Params) -> optax.ScaleByAdamState:
    """Zero moments, shaped like `params`."""
    state = optax.scale_by_adam().init(params)
    assert isinstance(state, optax.ScaleByAdamState)
    return state


def update(
    grads: Params, state: optax.ScaleByAdamState, params: Params, knobs: OptimizerKnobs, step: Array
) -> tuple[Params, optax.ScaleByAdamState, Array]:
    """One AdamW update: (new params, new moments, gradient norm before clipping as a float32 scalar)."""
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)))
    shrink = jnp.minimum(1.0, knobs.clip_norm / jnp.maximum(norm, 1e-12))
    grads = jax.tree.map(lambda g: g * shrink, grads)
    adam = optax.scale_by_adam(b1=knobs.b1, b2=knobs.b2, eps=ADAM_EPS)
    directions, new_state = adam.update(grads, state)
    rate = learning_rate(knobs, step)

    def move(path: tuple[Any, ...], p: Array, d: Array) -> Array:
        decay = knobs.weight_decay if is_decayed(path) else 0.0
        return p - rate * (d + decay * p)

    return jax.tree_util.tree_map_with_path(move, params, directions), new_state, norm
