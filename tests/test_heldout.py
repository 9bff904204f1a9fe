"""Held-out losses: every target once, in the block and at the position where it stands."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from attnlab import heldout, model, objectives

T, V = 8, 17


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with tiny.quick_compilation():
        yield


@pytest.fixture(scope="module")
def group():
    return tiny.group(tiny.config(), tiny.config(objective="masked_lm(0.4)", mask="full"))


@pytest.fixture(scope="module")
def params(group):
    return jax.jit(model.init, static_argnums=0)(group.task.architecture, np.uint32(0))


@pytest.mark.parametrize("n_tokens", [10, 17, 18, 100, 1000])
def test_all_windows_ask_for_each_target_once(n_tokens):
    starts = heldout.window_starts(n_tokens, T)
    targets = (starts[:, None] + 1 + np.arange(T)).ravel()
    assert targets.tolist() == list(range(1, 1 + len(targets)))
    # The window that would follow has no room.
    assert n_tokens - objectives.window_length(T) < starts[-1] + T <= n_tokens - 2 + T


@pytest.mark.parametrize("count", [1, 2, 7, 50, 123])
def test_fewer_windows_are_spread_evenly_and_never_overlap(count):
    starts = heldout.window_starts(1000, T, count)
    steps = np.diff(starts)
    assert len(starts) == count
    assert starts[0] == 0
    assert (starts % T == 0).all()
    if count > 1:
        assert steps.min() >= T
        assert steps.max() - steps.min() <= T


@pytest.mark.parametrize(("n_tokens", "count"), [(9, None), (1000, 0), (1000, 125)])
def test_windows_that_do_not_exist_are_refused(n_tokens, count):
    with pytest.raises(ValueError, match="allowed"):
        heldout.window_starts(n_tokens, T, count)


def test_blocks_hold_the_losses_of_their_own_windows(group, params):
    """Against one forward pass over all windows; 11 windows in batches of 4 and 3 blocks."""
    made, tokens = group.knobs()[0], group.corpus.test
    starts = heldout.window_starts(len(tokens), T, 11)
    found = heldout.block_losses(group.task, params, made, tokens, starts, 3)
    windows = tokens[starts[:, None] + np.arange(T + 2)].astype(np.int32)

    @jax.jit
    def losses_of(params, windows_BW):
        inputs_BT, targets_BT = windows_BW[:, :T], windows_BW[:, 1 : T + 1]
        logits, _ = model.apply(group.task.architecture, params, inputs_BT, made.mask, made.model)
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), targets_BT[..., None], axis=-1)
        return -picked[..., 0]

    losses_BT = np.asarray(losses_of(params, windows))
    for block, (first, stop) in enumerate([(0, 4), (4, 8), (8, 11)]):
        expected_T = losses_BT[first:stop].sum(axis=0)
        np.testing.assert_allclose(found.losses_KT[block], expected_T, rtol=1e-5)
        assert found.counts_KT[block].tolist() == [stop - first] * T
    assert found.loss == pytest.approx(losses_BT.mean(), rel=1e-5)
    np.testing.assert_allclose(found.by_position, losses_BT.mean(axis=0), rtol=1e-5)
    nats_K, targets_K = found.segment(2, 5)
    np.testing.assert_allclose(nats_K[0], losses_BT[:4, 2:5].sum(), rtol=1e-5)
    assert targets_K.tolist() == [12, 12, 9]


def test_masked_lm_counts_hidden_places_only_and_the_same_ones_again(group, params):
    made, tokens = group.knobs()[1], group.corpus.test
    starts = heldout.window_starts(len(tokens), T, 200)
    found = heldout.block_losses(group.task, params, made, tokens, starts, 4)
    share = found.counts_KT.sum() / (200 * T)
    assert abs(share - 0.4) < 4 * np.sqrt(0.24 / (200 * T))
    again = heldout.block_losses(group.task, params, made, tokens, starts, 1)
    np.testing.assert_array_equal(found.counts_KT.sum(axis=0), again.counts_KT.sum(axis=0))


def test_a_position_without_targets_has_no_loss():
    nothing = heldout.BlockLosses(np.array([[2.0, 0.0], [4.0, 0.0]]), np.array([[1.0, 0], [2, 0]]))
    assert nothing.loss == 2.0
    np.testing.assert_array_equal(nothing.by_position, [2.0, np.nan])


@pytest.mark.parametrize("blocks", [0, 12])
def test_more_blocks_than_windows_are_refused(group, params, blocks):
    starts = heldout.window_starts(1000, T, 11)
    with pytest.raises(ValueError, match=f"blocks: got {blocks}"):
        heldout.block_losses(
            group.task, params, group.knobs()[0], group.corpus.test, starts, blocks
        )
