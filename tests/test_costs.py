"""Costs against counting by hand and against the shapes of a state."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
import tiny

from attnlab import costs, model, optimizer, training
from attnlab.knobs import Architecture, Budget
from attnlab.objectives import Inputs
from attnlab.training import Task

ARCH = Architecture(
    vocab_size=17, input_size=19, context=8, layers=2, width=16, heads=4, kv_heads=2, mlp_width=48
)
BUDGET = Budget("random:17", 4, 4, 4, 8, 16)


def test_parameters_by_hand():
    D, F, H = 16, 48, 4
    layer = D * (4 + 2 + 2) * H + (4 * H) * D + 2 * D * F + 2 * D  # qkv, out, mlp, two gains
    assert costs.parameter_count(ARCH) == 19 * D + 2 * layer + D + D * 17


@pytest.mark.parametrize(
    ("families", "extra"),
    [
        ({"position_families": ("alibi", "rope", "sinusoidal")}, 0),
        ({"position_families": ("learned",)}, 8 * 16),
        ({"qk_norms": ("l2", "rmsnorm")}, 2 * 2 * 4),  # two gains a layer, shared by the kinds
    ],
)
def test_parameters_that_a_family_adds(families, extra):
    more = costs.parameter_count(dataclasses.replace(ARCH, **families))
    assert more - costs.parameter_count(ARCH) == extra


def test_state_bytes_equal_those_of_parameters_and_moments():
    def state():
        params = model.init(ARCH, jnp.uint32(0))
        moments = optimizer.init(params)
        return params, moments.mu, moments.nu

    leaves = jax.tree.leaves(jax.eval_shape(state))
    assert costs.state_bytes(ARCH) == sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def test_flops_of_an_update_by_hand():
    D, F, T, V = 16, 48, 8, 17
    token = 2 * (D * 32 + 16 * D + D * F + F * D)  # qkv (4 + 2 + 2 heads of 4), out, up, down
    token += 2 * (2 * T * 16)  # q.k and weights.v over all T keys, 4 heads of 4
    token = 2 * token + 2 * D * V  # two layers and the head
    # Backward has two products for each forward one.
    assert costs.flops_per_update(Task(ARCH, BUDGET, Inputs(17, 18))) == 3 * token * 4 * T


def planned_by_xla(task, made, tokens):
    """(bytes of the state, of everything else) in XLA's plan of an update."""
    shapes = training.state_shapes(task)
    step = jax.jit(
        lambda s, k, t: training.train_step(task, s, k, t),
        donate_argnums=0,
        compiler_options=training.compiler_options(task, "cpu"),
    )
    plan = step.lower(shapes, made, tokens).compile().memory_analysis()
    return plan.output_size_in_bytes, plan.temp_size_in_bytes


@pytest.mark.parametrize(
    "change",
    [{}, {"model.attention": "blockwise"}, {"model.remat": "block", "model.layers": 4}],
    ids=str,
)
def test_the_estimate_of_memory_is_within_a_factor_of_two_of_xlas_plan(change):
    """Also where blocks are computed again: XLA must really not keep them."""
    sizes = {"model.layers": 2, "model.width": 32, "context": 64, "batch_size": 8}
    (group,) = tiny.plan([tiny.config({"model.attention": "dense", **sizes, **change})])
    state, rest = planned_by_xla(group.task, group.knobs()[0], group.corpus.train)
    found = costs.memory(group.task)
    assert found.state == pytest.approx(state, rel=0.02)
    assert rest / 2 < found.working < rest * 2


def with_task(arch=None, **budget):
    return Task(
        dataclasses.replace(ARCH, **(arch or {})),
        dataclasses.replace(BUDGET, **budget),
        Inputs(17, 18),
    )


def test_what_saves_memory_is_counted():
    plain = costs.memory(with_task())
    activations = [
        costs.memory(with_task(**change)).activations
        for change in ({}, {"arch": {"remat": "dots", "layers": 8}}, {"arch": {"remat": "block", "layers": 8}})
    ]  # fmt: skip
    eight = costs.memory(with_task({"layers": 8})).activations
    assert eight > activations[1] > activations[2]
    assert costs.memory(with_task(accumulation=4)).activations < plain.activations / 2
    assert costs.memory(with_task({"activations": "bfloat16"})).activations < plain.activations
    split = costs.memory(with_task(data_devices=2, sharding="fsdp"))
    assert split.state * 2 == plain.state
    assert split.activations < plain.activations
    assert costs.memory(with_task(data_devices=2)).state == plain.state
