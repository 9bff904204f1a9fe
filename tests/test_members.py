"""Trained members read back: the right one, as it was trained, or one line that says what is wrong."""

import json
import shutil

import jax
import numpy as np
import pytest
import tiny
import trained_run

from attnlab import members, model
from attnlab.masks import mask_text
from attnlab.tracking import read_runs


def load(path, member=None):
    return members.load(path, member, tiny.BASE)


@pytest.fixture
def copy(trained_workdir, tmp_path):
    return shutil.copytree(trained_workdir, tmp_path / "work")


def refused(path, member=None):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the callers look at the message
        load(path, member)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_a_member_is_the_one_of_its_name(trained_workdir):
    """Its own parameters out of those of the group, its own mask and objective."""
    saved = trained_run.states(trained_run.group(trained_workdir.parent))
    for index, (arm, overrides) in enumerate(trained_run.MEMBERS.items()):
        trained = load(trained_workdir, f"{arm} s0")
        assert trained.step == trained_run.STEPS
        assert trained.config["mask"] == overrides["mask"]
        expected = saved.params["block_00"]["mlp"]["up_kernel"][index]
        np.testing.assert_array_equal(trained.params["block_00"]["mlp"]["up_kernel"], expected)
        mask = mask_text.parse(overrides["mask"], 8)
        np.testing.assert_array_equal(trained.knobs.mask.lo, mask.lo)
        assert float(trained.knobs.objective.mask_rate) == pytest.approx(0.4 * (arm == "encoder"))
        assert bool(trained.knobs.objective.bos) == (arm == "window")
        assert trained.vocabulary.decode(trained.corpus.train[:9]) == trained_run.TEXT[:9]


def test_a_member_has_its_own_families_only(trained_workdir):
    arms = {arm: load(trained_workdir, f"{arm} s0") for arm in trained_run.MEMBERS}
    assert arms["learned"].architecture.position_families == ("learned",)
    assert arms["learned"].architecture.qk_norms == ("rmsnorm",)
    assert arms["window"].architecture.position_families == ("rope",)
    assert arms["encoder"].architecture.qk_norms == ()
    for trained in arms.values():
        wanted = jax.eval_shape(lambda t=trained: model.init(t.architecture, np.uint32(0)))
        assert jax.tree.map(np.shape, trained.params) == jax.tree.map(lambda x: x.shape, wanted)


def test_a_run_directory_a_name_and_an_id_say_the_same(trained_workdir):
    run = read_runs(trained_workdir)[1]
    for path, member in ((run.path, None), (trained_workdir, run.name), (trained_workdir, run.id)):
        assert members.find(path, member)[1] == run.id


def test_what_is_no_run_is_refused(trained_workdir, tmp_path):
    run = read_runs(trained_workdir)[0].path
    assert "no directory" in refused(tmp_path / "nothing")
    assert "not a run directory" in refused(tmp_path)
    assert "not a run directory" in refused(trained_workdir / "runs")
    assert "learned s0, window s0, encoder s0" in refused(trained_workdir)
    assert "'learnt s0' is no member" in refused(trained_workdir, "learnt s0")
    assert "directory of one member" in refused(run, "learned s0")


def test_a_member_without_a_checkpoint_is_refused(copy):
    shutil.rmtree(copy / "checkpoints")
    assert "has no checkpoint yet" in refused(copy, "learned s0")
    (copy / "groups.json").unlink()
    assert "has no checkpoint yet" in refused(copy, "learned s0")


def test_a_text_that_changed_since_is_refused(trained_workdir, copy):
    text = trained_workdir.parent / "text.txt"
    before = text.read_text(encoding="utf-8")
    try:
        text.write_text(before.replace("a", "z"), encoding="utf-8")
        assert "has changed since the run" in refused(copy, "learned s0")
        text.unlink()
        assert "cannot be read" in refused(copy, "learned s0")
    finally:
        text.write_text(before, encoding="utf-8")


def test_a_knob_added_since_takes_its_default_and_one_removed_is_named(copy):
    for run in read_runs(copy):
        config = dict(run.config)
        del config["accumulation"]
        (run.path / "config.json").write_text(json.dumps(config))
    assert load(copy, "learned s0").task.budget.accumulation == 1
    for run in read_runs(copy):
        (run.path / "config.json").write_text(json.dumps({**run.config, "gone": 1}))
    assert "config.gone: unknown key" in refused(copy, "learned s0")


def test_reading_leaves_a_checkpoint_under_way_alone(copy, monkeypatch):
    from orbax.checkpoint import v1 as ocp

    asked = []
    whole = ocp.training.Checkpointer.__init__

    def init(self, *args, **kwargs):
        asked.append(kwargs["cleanup_tmp_directories"])
        whole(self, *args, **kwargs)

    monkeypatch.setattr(ocp.training.Checkpointer, "__init__", init)
    (group,) = (copy / "checkpoints").iterdir()
    half_written = group / "12.orbax-checkpoint-tmp"
    half_written.mkdir()
    assert load(copy, "learned s0").step == trained_run.STEPS
    assert asked == [False]
    assert half_written.exists()


def test_damaged_checkpoints_are_said_to_be_so(copy):
    for file in (copy / "checkpoints").rglob("*"):
        if file.is_file() and file.stat().st_size > 2000:
            file.write_bytes(file.read_bytes()[:100])
    with pytest.warns(UserWarning, match="checkpoint 8"):
        message = refused(copy, "learned s0")
    assert "none of the checkpoints" in message
