"""Objectives by hand: labels shifted twice or a mean of means are silent, and only worked examples find them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from attnlab import masks, objectives
from attnlab.objectives import Batch, Inputs, Objective

MASK_ID, BOS_ID = 99, 98
INPUTS = Inputs(MASK_ID, BOS_ID, shuffles=True)
WINDOW_BW = np.array([[5, 6, 7, 8, 9, 10], [20, 21, 22, 23, 24, 25]], np.uint8)
KEY = jax.random.key(0)


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with tiny.quick_compilation():
        yield


@jax.jit
def make(objective, window_BW, key):
    T = window_BW.shape[1] - objectives.MAX_OFFSET
    return objectives.make_batch(objective, window_BW, masks.causal(T), key=key, inputs=INPUTS)


loss = jax.jit(objectives.loss)
loss_by_position = jax.jit(objectives.loss_by_position)


def batch(targets_BT, weights_BT):
    targets_BT = jnp.asarray(targets_BT, jnp.int32)
    mask = masks.causal(targets_BT.shape[1])
    return Batch(targets_BT, targets_BT, jnp.asarray(weights_BT, jnp.float32), mask)


@pytest.mark.parametrize(
    ("offset", "targets"),
    [
        (0, [[5, 6, 7, 8], [20, 21, 22, 23]]),
        (1, [[6, 7, 8, 9], [21, 22, 23, 24]]),  # shifted once, not twice
        (2, [[7, 8, 9, 10], [22, 23, 24, 25]]),
    ],
)
def test_next_token_targets_stand_offset_places_on(offset, targets):
    made = make(Objective.next_token(offset), WINDOW_BW, KEY)
    np.testing.assert_array_equal(made.inputs, [[5, 6, 7, 8], [20, 21, 22, 23]])
    np.testing.assert_array_equal(made.targets, targets)
    np.testing.assert_array_equal(made.weights, np.ones((2, 4)))
    assert made.inputs.dtype == made.targets.dtype == jnp.int32
    assert made.weights.dtype == jnp.float32


def test_a_model_that_repeats_its_input_is_right_at_offset_0_only():
    """A copier has nothing to gain from next-token: if it does, labels were not shifted."""
    window_BW = np.array([[1, 2, 3, 4, 5, 6]], np.uint8)
    for offset, expected in ((0, 0.0), (1, 30.0), (2, 30.0)):
        made = make(Objective.next_token(offset), window_BW, KEY)
        total, count = loss(30.0 * jax.nn.one_hot(made.inputs, 8), made)
        assert float(total / count) == pytest.approx(expected, abs=1e-4), offset


def test_masked_lm_hides_exactly_the_places_it_asks_for():
    window_BW = np.random.default_rng(0).integers(0, 50, (64, 34)).astype(np.uint8)
    made = make(Objective.masked_lm(0.25), window_BW, KEY)
    hidden_BT = np.asarray(made.weights) == 1.0
    np.testing.assert_array_equal(np.asarray(made.weights)[~hidden_BT], 0.0)
    np.testing.assert_array_equal(np.asarray(made.inputs)[hidden_BT], MASK_ID)
    np.testing.assert_array_equal(made.targets, window_BW[:, :32])
    np.testing.assert_array_equal(
        np.asarray(made.inputs)[~hidden_BT], window_BW[:, :32][~hidden_BT]
    )
    # 2048 independent draws: 4 standard errors are 0.038.
    assert hidden_BT.mean() == pytest.approx(0.25, abs=0.038)
    assert len(np.unique(hidden_BT, axis=0)) > 60, "examples share their hidden places"
    assert len(np.unique(hidden_BT, axis=1).T) > 30, "places are hidden together"


def test_hidden_places_change_with_the_key_and_with_nothing_else():
    objective = Objective.masked_lm(0.5)
    first, again = make(objective, WINDOW_BW, KEY), make(objective, WINDOW_BW, KEY)
    np.testing.assert_array_equal(first.weights, again.weights)
    np.testing.assert_array_equal(first.weights, make(objective, WINDOW_BW[::-1], KEY).weights)
    other = make(objective, WINDOW_BW, jax.random.key(1))
    assert (np.asarray(first.weights) != np.asarray(other.weights)).any()


def test_next_token_does_not_depend_on_the_key():
    a, b = (make(Objective.next_token(), WINDOW_BW, jax.random.key(k)) for k in (0, 1))
    np.testing.assert_array_equal(a.inputs, b.inputs)
    np.testing.assert_array_equal(a.weights, b.weights)


def test_every_objective_runs_in_one_program_on_equal_windows():
    traces = 0

    @jax.jit
    def traced(objective):
        nonlocal traces
        traces += 1
        return objectives.make_batch(objective, WINDOW_BW, masks.full(4), key=KEY, inputs=INPUTS)

    texts = (
        "next_token",
        "next_token(0)",
        "next_token(2)",
        "prefix_lm(2)",
        "masked_lm",
        "masked_lm(0.5)",
    )
    for order in objectives.ORDERS:
        traced(Objective.next_token().on(bos=True, order=order))
    for text in texts:
        made = traced(Objective.parse(text))
        seen = np.asarray(made.inputs) != MASK_ID
        np.testing.assert_array_equal(np.asarray(made.inputs)[seen], WINDOW_BW[:, :4][seen])
    assert traces == 1


def test_prefix_lm_asks_for_the_last_of_its_prefix_and_what_follows():
    """prefix_lm(10, 6): the first trained target is t6, predicted at position 5 (Megatron-DeepSpeed#167, #179)."""
    window_BW = np.arange(12, dtype=np.uint8)[None]
    made = make(Objective.prefix_lm(6), window_BW, KEY)
    np.testing.assert_array_equal(made.targets[0], np.arange(1, 11))
    np.testing.assert_array_equal(made.weights[0], [0, 0, 0, 0, 0, 1, 1, 1, 1, 1])
    whole, plain = (
        make(o, window_BW, KEY) for o in (Objective.prefix_lm(1), Objective.next_token())
    )
    np.testing.assert_array_equal(whole.weights, plain.weights)


@pytest.mark.parametrize(
    ("objective", "targets", "weights"),
    [
        (Objective.next_token(), [5, 6, 7, 8], [1, 1, 1, 1]),
        (Objective.next_token(2), [6, 7, 8, 9], [1, 1, 1, 1]),
        (Objective.prefix_lm(2), [5, 6, 7, 8], [0, 1, 1, 1]),
    ],
)
def test_bos_stands_before_the_text_and_is_no_target(objective, targets, weights):
    made = make(objective.on(bos=True), WINDOW_BW, KEY)
    np.testing.assert_array_equal(made.inputs[0], [BOS_ID, 5, 6, 7])
    np.testing.assert_array_equal(made.targets[0], targets)
    np.testing.assert_array_equal(made.weights[0], weights)


def test_masked_lm_never_hides_bos():
    window_BW = np.full((64, 6), 7, np.uint8)
    made = make(Objective.masked_lm(0.9).on(bos=True), window_BW, KEY)
    np.testing.assert_array_equal(made.inputs[:, 0], np.full(64, BOS_ID))
    np.testing.assert_array_equal(made.weights[:, 0], np.zeros(64))
    assert float(jnp.mean(made.weights[:, 1:])) > 0.8


def test_shuffled_windows_hold_the_same_tokens_in_an_order_of_their_own():
    window_BW = np.tile(np.arange(34, dtype=np.uint8), (64, 1))
    objective = Objective.next_token().on(order="shuffled")
    made = make(objective, window_BW, KEY)
    again, other = (make(objective, window_BW, jax.random.key(s)) for s in (0, 1))
    inputs_BT = np.asarray(made.inputs)
    np.testing.assert_array_equal(made.targets[:, :-1], inputs_BT[:, 1:])
    assert all(len(set(row)) == 32 for row in inputs_BT.tolist()), "a token came twice"
    assert len(np.unique(inputs_BT, axis=0)) == 64, "examples share their order"
    np.testing.assert_array_equal(again.inputs, inputs_BT)
    assert (np.asarray(other.inputs) != inputs_BT).mean() > 0.9
    # Every place sees every token alike: 64 examples, mean 16.5, and 5 standard errors are 6.1.
    assert np.abs(inputs_BT.mean(axis=0) - 16.5).max() < 6.1


def test_constant_windows_repeat_their_first_token():
    made = make(Objective.next_token().on(order="constant"), WINDOW_BW, KEY)
    np.testing.assert_array_equal(made.inputs, [[5] * 4, [20] * 4])
    np.testing.assert_array_equal(made.targets, [[5] * 4, [20] * 4])


def test_a_program_without_shuffled_members_sorts_nothing():
    def sorts(shuffles):
        inputs = Inputs(MASK_ID, BOS_ID, shuffles)
        f = functools.partial(objectives.make_batch, inputs=inputs)
        return " sort[" in str(
            jax.make_jaxpr(f)(Objective.next_token(), WINDOW_BW, masks.causal(4), key=KEY)
        )

    assert sorts(True)
    assert not sorts(False)


def test_an_unknown_order_is_refused():
    with pytest.raises(
        ValueError, match=r"^order: got 'random'; allowed: natural, shuffled, constant$"
    ):
        Objective.next_token().on(order="random")


def test_a_window_holds_a_target_for_every_offset():
    assert objectives.window_length(4) == WINDOW_BW.shape[1] == 4 + objectives.MAX_OFFSET


@pytest.mark.parametrize(
    ("text", "offset", "rate"),
    [
        ("next_token", 1, 0.0),
        ("next_token(0)", 0, 0.0),
        (" next_token( 2 ) ", 2, 0.0),
        ("masked_lm", 0, 0.15),
        ("masked_lm(0.5)", 0, 0.5),
    ],
)
def test_text_gives_the_objective(text, offset, rate):
    objective = Objective.parse(text)
    assert (objective.offset, objective.mask_rate) == (offset, pytest.approx(rate))
    assert objective.offset.dtype == jnp.int32
    assert objective.mask_rate.dtype == jnp.float32


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("next_tokens", "allowed: next_token"),
        ("", "allowed: next_token"),
        ("next_token(1.5)", "allowed: next_token"),
        ("next_token(-1)", "allowed: next_token"),
        ("next_token()", "allowed: next_token"),
        ("masked_lm(.)", "0 < rate < 1"),
        ("next_token(3)", "must be 0..2, got 3"),
        ("masked_lm(0)", "strictly between 0 and 1, got 0"),
        ("masked_lm(1)", "strictly between 0 and 1, got 1"),
        ("prefix_lm", "prefix_lm(length)"),
        ("prefix_lm(0)", "at least 1, got 0"),
        ("masked_lm(15)", "strictly between 0 and 1, got 15"),
    ],
)
def test_text_that_is_no_objective_is_refused(text, allowed):
    with pytest.raises(ValueError, match=r"^objective") as error:
        Objective.parse(text)
    assert allowed in str(error.value)
    assert "\n" not in str(error.value)


# Losses


def logits_of_loss(nats, classes=3):
    """Logits whose cross-entropy for target 0 is `nats`."""
    p = np.exp(-nats)
    return np.log(np.array([p] + [(1 - p) / (classes - 1)] * (classes - 1)))


def test_the_loss_is_a_mean_over_targets_and_not_a_mean_of_means():
    """11 targets at 2 nats and 101 at 4 are 426 / 112 = 3.8036, not 3.0 (huggingface/transformers#24725)."""
    parts = []
    for count, nats in ((11, 2.0), (101, 4.0)):
        logits = jnp.broadcast_to(jnp.asarray(logits_of_loss(nats), jnp.float32), (1, count, 3))
        parts.append(loss(logits, batch(np.zeros((1, count)), np.ones((1, count)))))
    total, count = (sum(x) for x in zip(*parts, strict=True))
    assert float(count) == 112
    assert float(total / count) == pytest.approx(3.8036, abs=1e-4)


@pytest.fixture(scope="module")
def random_batch():
    rng = np.random.default_rng(1)
    logits = jnp.asarray(rng.normal(0, 3, (4, 8, 11)), jnp.float32)
    weights = rng.random((4, 8)) < 0.4
    return logits, batch(rng.integers(0, 11, (4, 8)), weights)


def cross_entropy(logits_BTV, targets_BT):
    logits = np.asarray(logits_BTV, np.float64)
    log_z = np.log(np.exp(logits).sum(-1))
    return log_z - np.take_along_axis(logits, np.asarray(targets_BT)[..., None], -1)[..., 0]


def test_the_loss_equals_its_definition(random_batch):
    logits, made = random_batch
    expected = cross_entropy(logits, made.targets) * np.asarray(made.weights)
    total, count = loss(logits, made)
    assert float(total) == pytest.approx(expected.sum(), rel=1e-6)
    assert float(count) == np.asarray(made.weights).sum()
    sums_T, counts_T = loss_by_position(logits, made)
    np.testing.assert_allclose(sums_T, expected.sum(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(counts_T, np.asarray(made.weights).sum(0))


def test_accumulating_sums_and_counts_equals_one_batch(random_batch):
    """Loss and gradient; the micro-batches hold different numbers of targets (unslothai/unsloth-zoo#1023)."""
    logits, made = random_batch

    @jax.jit
    def sums(logits, made):
        (total, count), pull = jax.vjp(lambda x: objectives.loss(x, made), logits)
        return total, count, pull((jnp.float32(1), jnp.float32(0)))[0]

    logits, made = jax.device_get((logits, made))
    total, count, gradient = jax.device_get(sums(logits, made))
    parts = [
        jax.device_get(sums(logits[rows], batch(made.targets[rows], made.weights[rows])))
        for rows in (slice(0, 1), slice(1, 4))
    ]
    assert parts[0][1] != parts[1][1]
    summed, counted = sum(p[0] for p in parts), sum(p[1] for p in parts)
    assert float(summed / counted) == pytest.approx(float(total / count), rel=1e-6)
    accumulated = np.concatenate([p[2] for p in parts]) / counted
    np.testing.assert_allclose(accumulated, gradient / count, atol=1e-6)


def test_unweighted_targets_receive_no_gradient(random_batch):
    logits, made = random_batch
    gradient = jax.jit(jax.grad(lambda x: objectives.loss(x, made)[0]))(logits)
    silent = np.asarray(made.weights) == 0
    np.testing.assert_array_equal(np.asarray(gradient)[silent], 0.0)
    assert (np.abs(np.asarray(gradient)[~silent]).max(-1) > 0).all()


def test_the_loss_of_bfloat16_logits_is_computed_in_float32():
    """In bfloat16 a loss near 4.7 comes in steps of 0.03 (google-deepmind/optax#1020)."""
    logits = jnp.asarray(np.random.default_rng(2).normal(size=(1, 16, 128)), jnp.bfloat16)
    made = batch(np.arange(16)[None], np.ones((1, 16)))
    total, count = loss(logits, made)
    assert total.dtype == count.dtype == jnp.float32
    expected = cross_entropy(logits.astype(jnp.float32), made.targets).sum()
    assert float(total) == pytest.approx(expected, rel=1e-6)


def test_no_target_at_all_is_a_sum_and_a_count_of_zero(random_batch):
    logits, made = random_batch
    assert loss(logits, batch(made.targets, np.zeros((4, 8)))) == (0.0, 0.0)
