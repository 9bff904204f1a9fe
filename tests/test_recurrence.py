"""The GRU that attention is compared with is the field's, and reads nothing that comes later."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from attnlab import costs, kv_cache, model, objectives, recurrence, training
from attnlab import knobs as knobs_lib


def architecture(config) -> knobs_lib.Architecture:
    return knobs_lib.architecture(config, vocab_size=17, input_size=19)


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


# In the place of attention


GRU = {
    "model.mixer": "gru",
    "model.width": 12,
    "model.heads": 2,
    "model.kv_heads": 2,
    "model.layers": 2,
}


def kernels(params) -> int:
    """Numbers in the matrices of the first block's token mixing."""
    block = params["block_00"]
    mixing = block.get("attention") or block["recurrence"]
    return sum(x.size for name, x in mixing.items() if name.endswith("_kernel"))


@pytest.fixture(scope="module")
def network():
    config = tiny.config(GRU, positions="learned")
    arch = architecture(config)
    params = model.init(arch, jnp.uint32(0))
    knobs = knobs_lib.knobs(config, arch)
    return (
        arch,
        params,
        lambda tokens: model.apply(arch, params, tokens, knobs.mask, knobs.model)[0],
    )


def test_kernels_are_as_many_numbers_as_those_of_attention(network):
    arch, params, _ = network
    attention = model.init(
        architecture(tiny.config(GRU | {"model.mixer": "attention"})), jnp.uint32(0)
    )
    assert kernels(params) == kernels(attention) == 4 * arch.width**2


def test_network_reads_everything_before_a_token_and_nothing_behind_it(network):
    arch, _, run = network
    tokens = jnp.arange(arch.context, dtype=jnp.int32)[None] % arch.vocab_size
    changed = tokens.at[0, 3].set((tokens[0, 3] + 1) % arch.vocab_size)
    before, after = np.asarray(run(tokens))[0], np.asarray(run(changed))[0]
    np.testing.assert_array_equal(before[:3], after[:3])
    assert np.all(np.any(before[3:] != after[3:], axis=-1))


def test_it_trains_and_its_rows_say_nothing_of_attention(network):
    with tiny.quick_compilation():
        log, _ = tiny.train([tiny.config(GRU, positions="learned", steps=40)])
    loss = log.column(0, "val/loss")[:, 1]
    assert loss[-1] < loss[0]
    assert not [name for row in log.rows[0] for name in row if name.startswith("attn/")]


def test_cost_of_an_update_has_no_term_of_length_squared():
    def operations(mixer: str, context: int) -> int:
        config = tiny.config(GRU | {"model.mixer": mixer, "context": context, "batch_size": 1})
        budget = knobs_lib.budget(config)
        inputs = objectives.Inputs(mask_id=0, bos_id=0)
        return costs.flops_per_update(training.Task(architecture(config), budget, inputs))

    assert operations("gru", 64) == 2 * operations("gru", 32)
    assert operations("attention", 64) > 2 * operations("attention", 32)


def test_cache_is_refused(network):
    arch, params, _ = network
    config = tiny.config(GRU, positions="learned")
    knobs = knobs_lib.knobs(config, arch)
    cache = kv_cache.empty(arch, batch=1, slots=4)
    tokens = jnp.zeros((1, 1), jnp.int32)
    with pytest.raises(ValueError, match="cache: holds keys and values, of which a GRU has none"):
        model.apply(arch, params, tokens, knobs.mask, knobs.model, cache=cache)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("mask", "full", "causal"),
        ("mask", "sliding_window(3)", "causal"),
        ("positions", "rope", "none, learned, sinusoidal"),
        ("model.qk_norm", "l2", "none"),
        ("model.softcap", "5", "none"),
        ("model.logit_scale", "none", "inv_sqrt_head_dim"),
        ("model.learn_logit_scale", True, "False"),
        ("model.kv_heads", 1, "2"),
    ],
)
def test_what_a_gru_does_not_know_is_refused(field, value, allowed):
    with pytest.raises(
        ValueError,
        match=re.escape(
            f"config.{field}: got {value!r} with model.mixer = gru; allowed: {allowed}"
        ),
    ):
        knobs_lib.check_values(tiny.config(GRU | {field: value}))


def test_width_that_does_not_match_attention_is_refused():
    with pytest.raises(
        ValueError,
        match=r"config\.model\.width: got 16 with model\.mixer = gru; allowed: multiples of 3",
    ):
        knobs_lib.check_values(tiny.config(GRU | {"model.width": 16}))
