"""What norms read of a batch: the batch's statistics move losses, running ones and LayerNorm do not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from attnlab import model, norm_modes
from attnlab.measurements.norms import Mode, NormModes
from attnlab.members import Trained


def member(norm, **overrides):
    """A member as it is before training, in its own architecture."""
    group = tiny.group(tiny.config({"model.norm": norm, "positions": "none"} | overrides))
    (knobs,), (one,) = group.knobs(), group.members
    params = jax.jit(model.init, static_argnums=0)(group.task.architecture, jnp.uint32(0))
    return Trained(one.id, one.name, one.config, 0, group.task, knobs, params, group.corpus)


@pytest.fixture(scope="module")
def modes():
    kinds = ("layernorm", "batchnorm", "batchnorm_by_position")
    with pytest.MonkeyPatch.context() as patch, tiny.quick_compilation():
        patch.setattr(norm_modes, "BATCH_SIZES", (1, 4))
        patch.setattr(norm_modes, "SEQUENCES", 8)
        patch.setattr(norm_modes, "GATHERED", 2)  # as many batches as sequences make: one program
        return {kind: norm_modes.norm_modes(member(kind)) for kind in kinds}


def test_layernorm_depends_on_nothing_but_its_own_sequence(modes):
    found = modes["layernorm"]
    np.testing.assert_allclose(found.losses, found.losses[-1], rtol=1e-6)
    assert found.batch == found.running
    assert (found.batch.coupling, found.batch.leak) == (0.0, 0.0)


@pytest.mark.parametrize(("kind", "leaks"), [("batchnorm", True), ("batchnorm_by_position", False)])
def test_batchnorm_is_moved_by_its_batch_and_over_positions_by_the_future(modes, kind, leaks):
    found = modes[kind]
    assert found.batch.coupling > 1e-2
    assert (found.batch.leak > 1e-3) == leaks
    assert np.abs(found.losses[0] - found.losses[1]) > 1e-3
    assert found.losses[-1] == pytest.approx(found.batch.loss)


@pytest.mark.parametrize("kind", ["batchnorm", "batchnorm_by_position"])
def test_running_statistics_end_both(modes, kind):
    found = modes[kind].running
    assert (found.coupling, found.leak) == (0.0, 0.0)
    assert found.loss != modes[kind].batch.loss


def test_a_batch_of_one_at_each_position_leaves_a_network_that_knows_nothing(modes):
    # The final norm gives zeros, so that all of the 17 tokens are as likely.
    assert modes["batchnorm_by_position"].losses[0] == pytest.approx(np.log(17), abs=1e-4)


def test_another_objective_is_refused():
    with pytest.raises(ValueError, match=r"got objective 'masked_lm\(0.3\)'; allowed: next_token"):
        norm_modes.norm_modes(member("layernorm", objective="masked_lm(0.3)", mask="full"))


def test_file_comes_back_and_nonsense_is_refused(tmp_path):
    mode = Mode(2.0, 0.3, 0.2)
    made = NormModes(np.array([1, 4]), np.array([3.0, 2.0]), mode, Mode(2.5, 0.0, 0.0))
    made.write(tmp_path)
    (run,) = [type("Run", (), {"path": tmp_path})]
    back = NormModes.read(run)
    assert (back.batch, back.running) == (made.batch, made.running)
    np.testing.assert_array_equal(back.losses, made.losses)
    with pytest.raises(ValueError, match="batch_sizes: need one per loss, ascending"):
        NormModes(np.array([4, 1]), np.array([3.0, 2.0]), mode, mode)
    with pytest.raises(ValueError, match="running: must be finite"):
        NormModes(np.array([1, 4]), np.array([3.0, 2.0]), mode, Mode(np.nan, 0.0, 0.0))
