"""AdamW with traced numbers: equal to optax's, one program for every value."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attnlab import optimizer
from attnlab.optimizer import OptimizerKnobs

NUMBERS = {
    "learning_rate": 0.1, "warmup_steps": 2, "total_steps": 10, "final_fraction": 0.1,
    "weight_decay": 0.3, "clip_norm": 1.0, "b1": 0.9, "b2": 0.95,
}  # fmt: skip


def knobs(**changes):
    made = {**NUMBERS, **changes}
    return OptimizerKnobs(
        **{k: (jnp.int32 if k.endswith("_steps") else jnp.float32)(v) for k, v in made.items()}
    )


def tree(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return {
        "block": {"up_kernel": scale * rng.normal(size=(3, 4)), "norm_gain": rng.normal(size=4)},
        "embedding": scale * rng.normal(size=(5, 3)),
        "positions": {"table": rng.normal(size=(2, 3))},
    }


def as_float32(pytree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), pytree)


@pytest.fixture(scope="module")
def update():
    """The jitted update, and how often it was traced."""

    def traced(grads, state, params, numbers, step):
        traced.count += 1
        return optimizer.update(grads, state, params, numbers, step)

    traced.count = 0
    return jax.jit(traced), traced


def run(update, numbers, steps=5, gradient_scale=1.0):
    params = as_float32(tree(0))
    state, norms = optimizer.init(params), []
    for step in range(steps):
        grads = as_float32(tree(100 + step, gradient_scale))
        params, state, norm = update[0](grads, state, params, numbers, jnp.int32(step))
        norms.append(float(norm))
    return params, norms


def run_optax(numbers, steps=5, gradient_scale=1.0):
    def rate(step):
        return optimizer.learning_rate(knobs(**numbers), step)

    n = {**NUMBERS, **numbers}
    adamw = optax.adamw(
        rate, b1=n["b1"], b2=n["b2"], eps=optimizer.ADAM_EPS, weight_decay=n["weight_decay"],
        mask=lambda p: jax.tree_util.tree_map_with_path(lambda path, _: "kernel" in str(path), p),
    )  # fmt: skip
    clipped = optax.chain(optax.clip_by_global_norm(n["clip_norm"]), adamw)
    params = as_float32(tree(0))
    state = clipped.init(params)

    @jax.jit
    def one(grads, state, params):
        updates, state = clipped.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for step in range(steps):
        params, state = one(as_float32(tree(100 + step, gradient_scale)), state, params)
    return params


@pytest.mark.parametrize(
    ("numbers", "gradient_scale"),
    [
        ({}, 1.0),  # clipped: the gradient norm is about 6
        ({"clip_norm": 1e9}, 1.0),
        ({"clip_norm": 1e3, "b1": 0.5, "b2": 0.7, "weight_decay": 0.0}, 1.0),
        ({"warmup_steps": 0, "learning_rate": 1e-3}, 1e-3),
    ],
)
def test_five_updates_equal_optax_adamw(update, numbers, gradient_scale):
    ours, _ = run(update, knobs(**numbers), gradient_scale=gradient_scale)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        ours,
        run_optax(numbers, gradient_scale=gradient_scale),
    )


def test_every_number_is_data(update):
    """One trace for all values, and each value matters."""
    jitted, traced = update
    before, _ = run(update, knobs())
    seen = traced.count
    for name, value in [
        ("learning_rate", 0.2), ("warmup_steps", 5), ("total_steps", 4), ("final_fraction", 0.5),
        ("weight_decay", 0.0), ("clip_norm", 0.01), ("b1", 0.5), ("b2", 0.5),
    ]:  # fmt: skip
        # b1, b2 and a clip cancel in Adam's first update, so five are needed.
        after, _ = run(update, knobs(**{name: value}))
        moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), before, after)
        assert max(jax.tree.leaves(moved)) > 1e-5, name
    assert traced.count == seen == 1
    del jitted


def test_only_kernels_decay(update):
    params = as_float32(tree(0))
    zero = jax.tree.map(jnp.zeros_like, params)
    numbers = knobs(warmup_steps=0)
    moved, _, _ = update[0](zero, optimizer.init(params), params, numbers, jnp.int32(0))
    kernel = params["block"]["up_kernel"]
    # Decoupled: multiplied by the learning rate and not by Adam's denominator.
    np.testing.assert_allclose(moved["block"]["up_kernel"], kernel * (1 - 0.1 * 0.3), rtol=1e-6)
    moved["block"]["up_kernel"] = kernel
    jax.tree.map(np.testing.assert_array_equal, moved, params)


def test_the_norm_is_of_all_gradients_before_clipping(update):
    _, norms = run(update, knobs(clip_norm=0.01), steps=2)
    for step, norm in enumerate(norms):
        leaves = jax.tree.leaves(tree(100 + step))
        assert norm == pytest.approx(np.sqrt(sum((x**2).sum() for x in leaves)), rel=1e-6)


def test_clipping_keeps_directions_and_leaves_small_gradients_alone(update):
    """With b1 = 0 the first moment is the gradient Adam was given."""
    params, grads = as_float32(tree(0)), as_float32(tree(1))
    norm = np.sqrt(sum((x**2).sum() for x in jax.tree.leaves(tree(1))))
    for clip, factor in ((1.0, 1.0 / norm), (2 * norm, 1.0), (1e9, 1.0)):
        numbers = knobs(b1=0.0, clip_norm=clip)
        _, state, _ = update[0](grads, optimizer.init(params), params, numbers, jnp.int32(0))
        jax.tree.map(
            lambda m, g, f=factor: np.testing.assert_allclose(m, f * g, rtol=1e-5), state.mu, grads
        )


def test_zero_gradients_do_not_make_nan(update):
    params = as_float32(tree(0))
    zero = jax.tree.map(jnp.zeros_like, params)
    for clip in (1.0, 1e9):
        moved, _, norm = update[0](
            zero, optimizer.init(params), params, knobs(clip_norm=clip), jnp.int32(0)
        )
        assert float(norm) == 0.0
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(moved))


def test_warmup_then_cosine_by_hand():
    numbers = knobs(learning_rate=2.0, warmup_steps=4, total_steps=12, final_fraction=0.1)
    rate = jax.jit(optimizer.learning_rate)
    expected = {
        0: 0.5, 1: 1.0, 2: 1.5, 3: 2.0,  # the first update moves, the fourth is at the peak
        4: 2.0, 6: 2 * (0.1 + 0.9 * 0.5 * (1 + np.sqrt(0.5))), 8: 2 * 0.55,
        12: 0.2, 1000: 0.2,  # past the end it stays
    }  # fmt: skip
    for step, value in expected.items():
        assert float(rate(numbers, jnp.int32(step))) == pytest.approx(value, rel=1e-5), step


@pytest.mark.parametrize("warmup", [0, 1])
def test_without_warmup_the_first_update_is_at_the_peak(warmup):
    assert float(optimizer.learning_rate(knobs(warmup_steps=warmup), jnp.int32(0))) == (
        pytest.approx(0.1)
    )


def test_a_warmup_longer_than_the_run_rises_to_its_end():
    rates = [
        float(optimizer.learning_rate(knobs(warmup_steps=20, total_steps=10), jnp.int32(step)))
        for step in (0, 4, 9)
    ]
    np.testing.assert_allclose(rates, [0.1 / 20, 0.1 * 5 / 20, 0.1 * 10 / 20], rtol=1e-5)


def test_moments_start_at_zero_and_count_updates(update):
    params = as_float32(tree(0))
    state = optimizer.init(params)
    assert all((np.asarray(x) == 0).all() for x in jax.tree.leaves(state))
    _, state, _ = update[0](params, state, params, knobs(), jnp.int32(0))
    assert int(state.count) == 1


def test_knobs_are_a_pytree_of_scalars():
    leaves = jax.tree.leaves(knobs())
    assert len(leaves) == len(dataclasses.fields(OptimizerKnobs))
    assert all(leaf.shape == () for leaf in leaves)
