"""The GRU that attention is compared with is the field's, and reads nothing that comes later."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import recurrence


@pytest.fixture
def problem():
    """Flax's cell with random parameters, as (inputs x [B, T, D], its parameters, its states [B, T, G])."""
    x = jax.random.normal(jax.random.key(0), (3, 7, 5))
    layer = nn.RNN(nn.GRUCell(features=4, bias_init=nn.initializers.normal(1.0)))
    params = layer.init(jax.random.key(1), x)
    return x, params["params"]["cell"], layer.apply(params, x)


def arguments(x, cell):
    kernels = [
        jnp.concatenate([cell[f"{side}{gate}"]["kernel"] for gate in "rzn"], axis=1)
        for side in "ih"
    ]
    biases = jnp.concatenate([cell[f"i{gate}"]["bias"] for gate in "rzn"])
    return x @ kernels[0] + biases[None, None, :], kernels[1], cell["hn"]["bias"]


def test_it_is_the_gru_of_flax(problem):
    x, cell, expected = problem
    np.testing.assert_allclose(recurrence.gru(*arguments(x, cell)), expected, atol=1e-6)


def test_later_tokens_change_nothing_before_them(problem):
    x, cell, _ = problem
    changed = x.at[:, 4].add(10.0)
    before, after = (np.asarray(recurrence.gru(*arguments(v, cell))) for v in (x, changed))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert np.all(np.any(before[:, 4:] != after[:, 4:], axis=-1))


def test_it_goes_on_from_a_state(problem):
    x, cell, expected = problem
    inputs, recurrent, bias = arguments(x, cell)
    first = recurrence.gru(inputs[:, :3], recurrent, bias)
    rest = recurrence.gru(inputs[:, 3:], recurrent, bias, start_BG=first[:, -1])
    np.testing.assert_allclose(jnp.concatenate([first, rest], axis=1), expected, atol=1e-6)


def test_dtype_is_that_of_the_inputs(problem):
    x, cell, expected = problem
    inputs, recurrent, bias = arguments(x, cell)
    states = recurrence.gru(inputs.astype(jnp.bfloat16), recurrent, bias)
    assert states.dtype == jnp.bfloat16
    np.testing.assert_allclose(states.astype(jnp.float32), expected, atol=0.05)


def test_shapes_that_do_not_fit_are_refused(problem):
    x, cell, _ = problem
    inputs, recurrent, bias = arguments(x, cell)
    with pytest.raises(
        ValueError, match=r"recurrent_G3G: got \(4, 12\) with inputs of 8 and a bias of 4"
    ):
        recurrence.gru(inputs[..., :8], recurrent, bias)
