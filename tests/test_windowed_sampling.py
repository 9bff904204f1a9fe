"""Sampling from windows read anew: what the plain network says of the same tokens, also behind masks that decoding refuses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from attnlab import model, windowed_sampling
from attnlab.masks import mask_text

CONTEXT = 8
apply = jax.jit(model.apply, static_argnums=0)


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with tiny.quick_compilation():
        yield


@functools.cache
def member(sharpness=30.0, **changed):
    """(task, parameters, knobs) with random weights; sharp logits make nearly every draw the likeliest token."""
    group = tiny.group(tiny.config({"positions": "learned"}, **changed))
    (knobs,) = group.knobs()
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: model.init(group.task.architecture, jnp.uint32(0)))
    params = jax.tree.map(lambda x: rng.normal(float(x.ndim == 1), 0.3, x.shape), shapes)
    params = jax.tree.map(np.float32, params)
    return group.task, {**params, "head_kernel": params["head_kernel"] * sharpness}, knobs


@pytest.mark.parametrize(("mask", "bos"), [("full", False), ("causal", True)])
def test_every_token_follows_the_window_before_it_and_nothing_else(mask, bos):
    task, params, knobs = member(mask=mask, bos=bos)
    texts = windowed_sampling.texts(task, params, knobs, np.array([3, 5]), 12, seed=1)
    assert texts.shape == (2, 13)
    assert texts[:, 0].tolist() == [3, 5]
    # The network on exactly as many tokens, so without padding: a full mask must not have read it.
    for place in (2, 12):
        room = CONTEXT - bos
        window = texts[:, max(0, place - room) : place]
        if bos:
            window = np.pad(window, ((0, 0), (1, 0)), constant_values=task.inputs.bos_id)
        there = mask_text.parse(mask, window.shape[1])
        logits, _ = apply(task.architecture, params, jnp.asarray(window), there, knobs.model)
        assert np.argmax(logits[:, -1], axis=-1).tolist() == texts[:, place].tolist()


def test_equal_seeds_give_equal_texts_and_others_do_not():
    first = np.zeros(4, int)
    one, again, other = (
        windowed_sampling.texts(*member(sharpness=1.0), first, 12, seed=s) for s in (0, 0, 1)
    )
    assert (one == again).all()
    assert (one != other).any()
    assert len({tuple(text) for text in one.tolist()}) > 1, "texts differ from one another"


@pytest.mark.parametrize("objective", ["masked_lm(0.5)", "next_token(0)", "next_token(2)"])
def test_what_does_not_predict_the_next_token_is_refused(objective):
    task, params, knobs = member(objective=objective)
    with pytest.raises(ValueError, match="nothing can be sampled; allowed: next_token"):
        windowed_sampling.texts(task, params, knobs, np.zeros(1, int), 4, seed=0)
