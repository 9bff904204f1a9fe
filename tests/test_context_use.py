"""What a model makes of its context, where its mask and depth say what the answer must be."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from attnlab import knobs as knobs_lib
from attnlab import model
from attnlab.masks import mask_text
from attnlab.probes import context_use

T, V, K = 8, 17, 6
SEQUENCES_KW = np.random.default_rng(0).integers(0, V, (K, T + 1)).astype(np.int32)
last_losses = jax.jit(context_use.last_losses, static_argnums=0, static_argnames="last")
receptive_field = jax.jit(context_use.receptive_field, static_argnums=0)


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with tiny.quick_compilation():
        yield


@functools.cache
def network(layers, positions):
    """(architecture, knobs, parameters) of a network with random weights."""
    config = tiny.config({"model.layers": layers}, positions=positions)
    arch = knobs_lib.architecture(config, vocab_size=V, input_size=V + 2)
    rng = np.random.default_rng(layers)
    shapes = jax.eval_shape(lambda: model.init(arch, jnp.uint32(0)))
    params = jax.tree.map(
        lambda x: rng.normal(float(x.ndim == 1), 0.3, x.shape).astype(np.float32), shapes
    )
    return arch, knobs_lib.knobs(config, arch).model, params


def both(layers, positions, mask="causal"):
    """Losses of the last target with the prefix as it stood, and shuffled: [K] each."""
    arch, made, params = network(layers, positions)
    parsed = mask_text.parse(mask, T)
    return [
        np.asarray(last_losses(arch, params, made, parsed, sequences))[:, 0]
        for sequences in (SEQUENCES_KW, context_use.shuffled_prefix(SEQUENCES_KW, 1))
    ]


def test_one_layer_without_positions_cannot_see_order():
    intact, shuffled = both(1, "none")
    assert np.abs(intact - shuffled).max() < 1e-5


@pytest.mark.parametrize(
    ("layers", "positions", "mask"),
    [(2, "none", "causal"), (1, "rope", "causal"), (1, "none", "sliding_window(3)")],
)
def test_depth_positions_or_a_window_let_order_be_seen(layers, positions, mask):
    intact, shuffled = both(layers, positions, mask)
    assert np.abs(intact - shuffled).max() > 1e-3


def test_two_layers_with_a_full_mask_and_no_positions_cannot_see_order():
    """It is the mask: what a causal network sees, a bidirectional one does not."""
    intact, shuffled = both(2, "none", "full")
    assert np.abs(intact - shuffled).max() < 1e-5


def test_shuffling_keeps_the_last_input_the_target_and_what_is_fixed():
    shuffled = context_use.shuffled_prefix(SEQUENCES_KW, 1, fixed=1)
    np.testing.assert_array_equal(shuffled[:, -2:], SEQUENCES_KW[:, -2:])
    np.testing.assert_array_equal(shuffled[:, 0], SEQUENCES_KW[:, 0])
    np.testing.assert_array_equal(np.sort(shuffled), np.sort(SEQUENCES_KW))
    assert (shuffled != SEQUENCES_KW).any(axis=1).sum() > K / 2
    orders = [context_use.shuffled_prefix(np.arange(20)[None], seed).tolist() for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    with pytest.raises(ValueError, match="at least 2 more"):
        context_use.shuffled_prefix(SEQUENCES_KW[:, :4], 0, fixed=1)


def test_last_losses_are_those_of_the_last_targets():
    arch, made, params = network(2, "rope")
    mask = mask_text.parse("causal", T)
    losses = last_losses(arch, params, made, mask, SEQUENCES_KW, last=4)

    @jax.jit
    def by_hand(params):
        logits, _ = model.apply(arch, params, SEQUENCES_KW[:, :-1], mask, made)
        return jax.nn.log_softmax(logits)

    expected = -np.take_along_axis(
        np.asarray(by_hand(params)), SEQUENCES_KW[:, 1:, None].astype(int), axis=-1
    )[:, -4:, 0]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    with pytest.raises(ValueError, match="last: got 9"):
        context_use.last_losses(arch, params, made, mask, SEQUENCES_KW, last=9)


# Length

LONG_KW = np.random.default_rng(5).integers(0, V, (K, 2 * T + 1)).astype(np.int32)


def by_length(layers, positions, mask, lengths=(T, 2 * T), **kwargs):
    arch, made, params = network(layers, positions)
    return context_use.losses_by_length(
        arch, params, made, lambda n: mask_text.parse(mask, n), LONG_KW, lengths, last=4, **kwargs
    )


def test_more_context_than_the_windows_reach_changes_nothing():
    """Two layers of a window of 3 reach 4 tokens back, and the first target has 4 before it at the least length."""
    losses = by_length(2, "rope", "sliding_window(3)")
    assert losses.shape == (2, K)
    np.testing.assert_allclose(losses[1], losses[0], atol=2e-5)


def test_the_same_targets_are_asked_with_longer_contexts():
    losses = by_length(2, "rope", "causal")
    arch, made, params = network(2, "rope")
    for row, length in zip(losses, (T, 2 * T), strict=True):
        window = LONG_KW[:, 2 * T - length :]
        mask = mask_text.parse("causal", length)
        expected = last_losses(arch, params, made, mask, window, last=4)
        np.testing.assert_allclose(row, np.asarray(expected).mean(axis=1), rtol=1e-5)
    assert np.abs(losses[1] - losses[0]).max() > 1e-3


def test_bos_stands_before_every_context():
    with_bos = by_length(2, "rope", "causal", (T,), bos_id=V + 1)
    window = LONG_KW[:, T:].copy()
    window[:, 0] = V + 1
    arch, made, params = network(2, "rope")
    expected = last_losses(arch, params, made, mask_text.parse("causal", T), window, last=4)
    np.testing.assert_allclose(with_bos[0], np.asarray(expected).mean(axis=1), rtol=1e-5)
    assert np.abs(with_bos - by_length(2, "rope", "causal", (T,))).max() > 1e-3


@pytest.mark.parametrize(
    ("positions", "lengths", "message"),
    [
        ("learned", (T, T + 1), "at most 8, the rows of the learned"),
        ("none", (3,), "lengths: got 3"),
        ("none", (17,), "lengths: got 17"),
    ],
)
def test_lengths_that_have_no_answer_are_refused(positions, lengths, message):
    with pytest.raises(ValueError, match=message):
        by_length(1, positions, "causal", lengths)


# Receptive field


@pytest.mark.parametrize(
    ("layers", "mask", "reach"),
    [(2, "sliding_window(2)", 2), (2, "sliding_window(3)", 4), (2, "sliding_window(1)", 0),
     (2, "causal", 7), (2, "chunked(4)", 3)],
)  # fmt: skip
def test_influence_ends_exactly_where_layers_of_windows_end(layers, mask, reach):
    arch, made, params = network(layers, "none")
    field_T = np.asarray(
        receptive_field(arch, params, made, mask_text.parse(mask, T), SEQUENCES_KW)
    )
    assert (field_T[: reach + 1] > 0).all()
    np.testing.assert_array_equal(field_T[reach + 1 :], 0.0)


def test_influence_is_the_gradient_of_the_last_loss():
    """Against the gradient of the embedding itself, where no token comes twice."""
    arch, made, params = network(2, "none")
    mask = mask_text.parse("causal", T)
    sequence = np.arange(T + 1)[None].astype(
        np.int32
    )  # each token once: its embedding is its place
    field_T = np.asarray(receptive_field(arch, params, made, mask, sequence))
    gradient = jax.jit(
        jax.grad(
            lambda table: context_use.last_losses(
                arch, {**params, "embedding": table}, made, mask, sequence
            )[0, 0]
        )
    )(params["embedding"])
    np.testing.assert_allclose(field_T, np.linalg.norm(gradient, axis=1)[:T][::-1], rtol=1e-4)


# Without the future


@pytest.mark.parametrize("mask", ["causal", "full", "causal(offset=1)", "sliding_window(3)"])
def test_without_the_future_the_loss_is_that_of_the_shorter_text(mask):
    arch, made, params = network(2, "learned")
    inputs, targets = SEQUENCES_KW[:, :-1], SEQUENCES_KW[:, 1:]
    loss_KT = jax.jit(context_use.losses_without_future, static_argnums=0)(
        arch, params, made, mask_text.parse(mask, T), inputs, targets
    )
    for length in (1, 3, T):
        shorter = mask_text.parse(mask, length)
        alone = last_losses(arch, params, made, shorter, SEQUENCES_KW[:, : length + 1])
        np.testing.assert_allclose(loss_KT[:, length - 1], alone[:, 0], rtol=1e-5, atol=1e-5)
    whole = last_losses(arch, params, made, mask_text.parse(mask, T), SEQUENCES_KW, last=T)
    gap = np.abs(np.asarray(whole) - np.asarray(loss_KT)).max()
    assert gap < 1e-5 if mask in ("causal", "sliding_window(3)") else gap > 1e-3


@pytest.mark.parametrize(
    ("text", "layers", "reach"),
    [
        ("sliding_window(3)", 1, 3),
        ("sliding_window(3)", 4, 9),
        ("sliding_window(3)", 9, 16),
        ("sliding_window(1)", 4, 1),
        ("causal", 1, 16),
        ("full", 1, 16),
        ("causal & chunked(4)", 3, 4),
    ],
)
def test_reach_of_the_first_token_is_that_of_the_mask(text, layers, reach):
    assert context_use.reach_of_first(mask_text.parse(text, 16), layers) == reach
