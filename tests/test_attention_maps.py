"""Weights worked out again are those that the network used, and the share of position is a share."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from attnlab import knobs as knobs_lib
from attnlab import masks, model
from attnlab.masks import mask_text
from attnlab.probes import attention_maps

T, V, B = 8, 17, 6
TOKENS_BT = np.random.default_rng(0).integers(0, V, (B, T)).astype(np.int32)
LOUD = {"model.layers": 2, "model.softcap": "5", "model.kv_heads": 1}


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with tiny.quick_compilation():
        yield


@functools.cache
def network(*changes):
    """(architecture, knobs, parameters): random weights, kernels three times as large as at the start."""
    config = tiny.config(dict(changes))
    arch = knobs_lib.architecture(config, vocab_size=V, input_size=V + 2)
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(lambda: model.init(arch, jnp.uint32(0)))
    params = jax.tree.map(
        lambda x: rng.normal(float(x.ndim == 1), 0.5, x.shape).astype(np.float32), shapes
    )
    return arch, knobs_lib.knobs(config, arch).model, params


@pytest.mark.parametrize(
    "change",
    [
        {"positions": "learned+rope+alibi", "model.qk_norm": "rmsnorm", "model.learn_logit_scale": True},
        {"positions": "none", "model.norm": "none", "model.residual": 0.0},
        {"positions": "learned", "model.norm": "rmsnorm", "mask": "sliding_window(3)"},
    ],
    ids=str,
)  # fmt: skip
def test_weights_have_the_statistics_of_the_attention_that_was_computed(change):
    arch, knobs, params = network(*(LOUD | change).items())
    mask = mask_text.parse(change.get("mask", "causal"), T).canonical()

    @jax.jit
    def both(params):
        _, aux = model.apply(arch, params, TOKENS_BT, mask, knobs, stats=True)
        return attention_maps.weights(arch, params, knobs, mask, TOKENS_BT), aux["attention"]

    weights_LBNTS, statistics = both(params)
    for p_BNTS, used in zip(np.asarray(weights_LBNTS, np.float64), statistics, strict=True):
        np.testing.assert_allclose(p_BNTS.sum(-1), 1.0, rtol=1e-5)
        entropy = -np.sum(p_BNTS * np.log(np.where(p_BNTS > 0, p_BNTS, 1.0)), axis=-1)
        np.testing.assert_allclose(entropy, used.entropy, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(p_BNTS[..., 0], used.first_key_mass, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("change", [{"model.norm": "batchnorm"}, {"model.norm_placement": "post"}])
def test_blocks_that_read_something_else_are_refused(change):
    arch, knobs, params = network(*change.items())
    with pytest.raises(ValueError, match=r"^weights: got norms .* allowed: pre-norm"):
        attention_maps.weights(arch, params, knobs, masks.causal(T), TOKENS_BT)


def test_share_of_position_is_that_of_a_regression_on_pairs():
    rng = np.random.default_rng(2)
    allowed = np.tri(T, dtype=bool)
    by_position = np.where(allowed, np.exp(rng.normal(size=(T, T))), 0)
    by_text = np.where(allowed, np.exp(rng.normal(size=(B, T, T))), 0)
    logits_mixed = np.where(allowed, by_position[None] * by_text, 0)
    heads = [np.broadcast_to(by_position, (B, T, T)), by_text, logits_mixed]
    p_BNTS = np.stack([w / w.sum(-1, keepdims=True) for w in heads], axis=1)
    found = attention_maps.position_share(jnp.asarray(p_BNTS)[None], masks.causal(T))
    assert found.shape == (1, 3)
    for head, share in enumerate(np.asarray(found[0])):
        # A regression of the weights on one indicator per pair, rows of one key aside.
        pairs = [(i, j) for i in range(1, T) for j in range(i + 1)]
        values = np.array([[p_BNTS[b, head, i, j] for i, j in pairs] for b in range(B)])
        residual = values - values.mean(axis=0)
        expected = 1 - np.square(residual).sum() / np.square(values - values.mean()).sum()
        assert share == pytest.approx(expected, abs=1e-5)
    assert found[0, 0] == pytest.approx(1.0)
    assert found[0, 1] < found[0, 2] < 1


def test_uniform_average_is_position_alone():
    tri = np.tri(T) / np.arange(1, T + 1)[:, None]
    same = np.broadcast_to(tri, (2, B, 3, T, T))
    shares = attention_maps.position_share(jnp.asarray(same), masks.causal(T))
    np.testing.assert_allclose(shares, 1.0, atol=1e-6)
    full = np.full((1, B, 1, T, T), 1 / T)
    assert np.isnan(attention_maps.position_share(jnp.asarray(full), masks.full(T))).all()
