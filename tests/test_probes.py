"""The position probe on states of which the answer is known, and what it reads."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from attnlab import model, probes
from attnlab.masks import Mask
from attnlab.probes import Settings

N, D, Q, R = 12, 12, 48, 24
FAST = Settings(hidden=2, steps=250, batch=8)
QUARTER, THIRD = probes.blind_guess(N), probes.uniform_guess(N)


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with tiny.quick_compilation():
        yield


def noise(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def one_hot(sequences):
    """Says the position, under noise that does not hide it."""
    return np.eye(N, D, dtype=np.float32)[None] + 0.05 * noise(sequences, N, D, seed=sequences)


@pytest.fixture(scope="module")
def known():
    """Four kinds of states in one program: the position itself, only its parity, noise, nothing at all."""
    kinds = []
    for sequences in (Q, R):
        parity = np.where(np.arange(N) % 2, 1.0, -1.0).astype(np.float32)[None, :, None]
        kinds.append(
            np.stack(
                [
                    one_hot(sequences),
                    parity + 0.05 * noise(sequences, N, D, seed=sequences + 1),
                    noise(sequences, N, D, seed=sequences + 2),
                    np.full((sequences, N, D), 3.0, np.float32),
                ]
            )
        )
    return kinds, probes.position_errors(*kinds, FAST, seeds=3)


def test_a_state_that_says_the_position_is_read_without_error(known):
    _, errors = known
    np.testing.assert_array_equal(errors.median_PX[:, 0], 0.0)
    np.testing.assert_array_equal(errors.argmax_PX[:, 0], 0.0)
    np.testing.assert_array_equal(errors.median_PXN[:, 0], 0.0)


def test_without_information_the_median_gives_the_blind_guess(known):
    _, errors = known
    np.testing.assert_allclose(errors.median_PX[:, 3], QUARTER, rtol=0.05)
    # On noise the probe overfits its training sequences, which costs it up to a guess.
    assert (errors.median_PX[:, 2] >= 0.95 * QUARTER).all()
    assert (errors.median_PX[:, 2] <= 1.05 * THIRD).all()


def test_the_likeliest_class_is_worse_than_the_median_where_nothing_is_known(known):
    """Why the median is the first number: its line without information is known, this one's is not."""
    _, errors = known
    assert (errors.argmax_PX[:, 3] > 1.05 * QUARTER).any()


def test_partial_information_is_worth_what_it_says(known):
    """The parity leaves every second position: blind among 6 places that are 2 apart."""
    _, errors = known
    np.testing.assert_allclose(errors.median_PX[:, 1], 2 * probes.blind_guess(N // 2), rtol=0.05)


def test_error_by_position_averages_to_the_error(known):
    _, errors = known
    assert errors.median_PXN.shape == (3, 4, N)
    np.testing.assert_allclose(errors.median_PXN.mean(-1), errors.median_PX, rtol=1e-6)
    # Nothing known: the middle is always said, so the ends are farthest off.
    by_position_N = errors.median_PXN[:, 3].mean(0)
    assert by_position_N[0] > 4 > 1.5 > by_position_N[N // 2]


def test_a_probe_learns_as_it_would_alone(known):
    kinds, errors = known
    alone = probes.position_errors(*(x[2:3] for x in kinds), FAST, seeds=1)
    np.testing.assert_allclose(alone.median_PX[0, 0], errors.median_PX[0, 2], rtol=0.02)


def test_shuffled_labels_cannot_be_learned_from_states_that_say_the_position():
    labels = probes.shuffled_labels(Q, N, 0), probes.shuffled_labels(R, N, 1)
    errors = probes.position_errors(
        one_hot(Q)[None], one_hot(R)[None], FAST, seeds=1,
        train_labels_QN=labels[0], test_labels_RN=labels[1],
    )  # fmt: skip
    assert 0.9 * QUARTER < errors.median_PX[0, 0] < 1.1 * THIRD


def test_the_scale_of_a_layer_does_not_matter():
    big = one_hot(Q)[None] * 1e3 + 5e3, one_hot(R)[None] * 1e3 + 5e3
    assert probes.position_errors(*big, FAST, seeds=1).median_PX[0, 0] < 0.05


@pytest.mark.parametrize(
    ("test_shape", "seeds", "message"),
    [
        ((1, R, N + 1, D), 1, "test_XRND"),
        ((2, R, N, D), 1, "test_XRND"),
        ((1, R, N, D), 0, "seeds"),
    ],
)
def test_states_that_do_not_belong_together_are_refused(test_shape, seeds, message):
    with pytest.raises(ValueError, match=message):
        probes.position_errors(
            np.zeros((1, Q, N, D), np.float32), np.zeros(test_shape, np.float32), FAST, seeds=seeds
        )


@pytest.mark.parametrize(
    "wrong", [{"steps": 1}, {"hidden": 0}, {"batch": 0}, {"learning_rate": 0.0}, {"warmup": 1.0}]
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Settings(**wrong)


@pytest.mark.parametrize("n", [2, 3, 12, 13, 32, 1024])
def test_guesses_are_those_of_enumeration(n):
    place = np.arange(n)
    distance = np.abs(place[:, None] - place[None, :])
    assert probes.uniform_guess(n) == pytest.approx(distance.mean())
    assert probes.blind_guess(n) == pytest.approx(distance.mean(axis=1).min())


# What a probe reads


def drawn(arch, seed):
    """Random parameters, of about the size they start with; nothing is compiled for them."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(lambda: model.init(arch, jnp.uint32(0)))
    return jax.tree.map(
        lambda x: rng.normal(float(x.ndim == 1), 0.3, x.shape).astype(np.float32), shapes
    )


def stack(*trees):
    return jax.tree.map(lambda *xs: np.stack([np.asarray(x) for x in xs]), *trees)


MEMBERS = (
    {"mask": "causal", "positions": "none"},
    {"mask": "full", "positions": "rope"},
    {"mask": "sliding_window(3)", "positions": "learned", "model.norm": "rmsnorm"},
)


def test_states_of_members_are_those_of_each_alone():
    group = tiny.group(*[tiny.config({"model.layers": 2, **m}) for m in MEMBERS])
    arch, made = group.task.architecture, group.knobs()
    params = [drawn(arch, seed) for seed in range(3)]
    tokens = np.random.default_rng(9).integers(0, 17, (5, 8))

    with tiny.quick_compilation():
        found = probes.states_of_members(
            arch,
            stack(*params),
            stack(*[k.model for k in made]),
            stack(*[k.mask for k in made]),
            tokens,
        )
        assert found.shape == (3, 3, 5, 8, 16)
        alone = jax.jit(probes.states, static_argnums=0)
        for i, k in enumerate(made):
            own = alone(arch, params[i], k.model, k.mask, tokens)
            np.testing.assert_allclose(found[i], own, atol=1e-5)
        embedding = params[0]["embedding"][tokens]
        np.testing.assert_allclose(found[0, 0], embedding, atol=1e-6)


def test_the_last_state_is_the_one_that_logits_are_made_of():
    """Layer L is the residual stream behind the last block, not before it."""
    group = tiny.group(tiny.config(positions="none"))
    arch, made = group.task.architecture, group.knobs()[0]
    params, tokens = drawn(arch, 0), np.random.default_rng(0).integers(0, 17, (2, 8))

    @jax.jit
    def both(params):
        last = probes.states(arch, params, made.model, made.mask, tokens)[-1]
        return last, model.apply(arch, params, tokens, made.mask, made.model)[0]

    with tiny.quick_compilation():
        last, logits = both(params)
    centred = last - last.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    by_hand = normed * params["final_norm_gain"][None, None, :] @ params["head_kernel"]
    np.testing.assert_allclose(by_hand, logits, atol=1e-4)


def test_bag_of_prefix_is_the_share_of_each_token_so_far():
    bag = probes.bag_of_prefix(np.array([[2, 0, 2, 2]]), 3)
    np.testing.assert_allclose(
        bag[0], [[0, 0, 1], [1 / 2, 0, 1 / 2], [1 / 3, 0, 2 / 3], [1 / 4, 0, 3 / 4]], rtol=1e-6
    )


def test_shuffled_labels_hold_every_position_once_in_an_order_of_their_own():
    labels = probes.shuffled_labels(50, N, 0)
    assert (np.sort(labels, axis=1) == np.arange(N)).all()
    assert len({tuple(row) for row in labels}) == 50


def test_independent_tokens_keep_frequencies_and_nothing_else():
    tokens = np.tile(np.array([0, 0, 0, 1], np.uint8), 500)  # after a 1 always comes a 0
    drawn = probes.independent_tokens(tokens, 400, 20, seed=0)
    assert abs(drawn.mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / drawn.size)
    followed = drawn[:, 1:][drawn[:, :-1] == 1]
    assert abs(followed.mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / followed.size)


def test_consecutive_tokens_are_windows_of_the_text_none_of_them_twice():
    tokens = np.arange(40, dtype=np.uint8)
    drawn = probes.consecutive_tokens(tokens, 30, 11, seed=0)
    assert (np.diff(drawn, axis=1) == 1).all()
    assert len(set(drawn[:, 0].tolist())) == 30
    assert drawn.max() == 39
    with pytest.raises(ValueError, match="at most 30"):
        probes.consecutive_tokens(tokens, 31, 11, seed=0)


def test_bos_pushes_the_tokens_back_by_one():
    assert probes.behind_bos(np.array([[3, 4, 5]]), 9).tolist() == [[9, 3, 4]]


def test_a_full_mask_without_positions_hides_them_and_a_causal_mask_does_not():
    """The claim itself, on an untrained network with constant tokens behind [BOS]: only the mask tells places apart."""
    configs = [
        tiny.config({"model.layers": 2}, mask=m, positions="none", bos=True)
        for m in ("causal", "full")
    ]
    group = tiny.group(*configs)
    arch, made = group.task.architecture, group.knobs()
    params = drawn(arch, 0)
    tokens = probes.behind_bos(np.full((40, 8), 3), group.task.inputs.bos_id)

    mask = Mask.stack([k.mask for k in made])
    with tiny.quick_compilation():
        found = probes.states_of_members(
            arch, stack(params, params), stack(*[k.model for k in made]), mask, tokens
        )
    last = found[:, -1, :, 1:]  # [BOS] itself is another token, so it is always known
    errors = probes.position_errors(
        last[:, :30], last[:, 30:], dataclasses.replace(FAST, steps=400), seeds=1
    )
    assert errors.median_PX[0, 0] < 0.1
    assert errors.median_PX[0, 1] > 0.9 * probes.blind_guess(7)
