"""Costs against counting by hand and against the shapes of a state."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from attnlab import costs, model, optimizer
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
