"""Measuring trained members: the right numbers in the right files, once, on the same text for every arm."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import tiny

from attnlab import measuring, probes
from attnlab.claims import Measurement
from attnlab.measurements import LossByLength, Probes, ProbesBeyondReach, ShuffledPrefix
from attnlab.measurements.context import PositionShare, Reach, Samples, TruncatedContext
from attnlab.tracking import read_runs

ARMS = ("learned", "window", "encoder")


def finished(work):
    """The runs of `trained_run`, whose states were made and not trained, as if they had been."""
    return [replace(run, status="finished") for run in read_runs(work)]


@pytest.fixture(scope="module")
def measured(trained_workdir, tmp_path_factory):
    work = shutil.copytree(trained_workdir, tmp_path_factory.mktemp("measured") / "work")
    with pytest.MonkeyPatch.context() as patch, tiny.quick_compilation():
        patch.setattr(measuring, "SEQUENCES", 16)
        patch.setattr(measuring, "PROBE", probes.Settings(hidden=1, steps=5, batch=4))
        patch.setattr(measuring, "PROBE_SEEDS", 2)
        patch.setattr(measuring, "PROBE_TRAIN", 16)
        patch.setattr(measuring, "PROBE_TEST", 8)
        patch.setattr(measuring, "TEXTS", 3)
        patch.setattr(measuring, "SAMPLED", 10)
        wanted = (
            Measurement("shuffled_prefix", ("learned",)),
            Measurement("loss_by_length", ("learned", "window")),
            Measurement("probes", ("window",)),
            Measurement("probes_beyond_reach", ("window",)),
            Measurement("truncated_context", ("learned",)),
            Measurement("samples", ("window",)),
            Measurement("reach", ("window",)),
            Measurement("position_share", ("window",)),
        )
        said = []
        assert measuring.measure(work, finished(work), wanted, tiny.BASE, say=said.append)
        yield work, wanted, said


def by_arm(work, kind):
    found = {run.config["arm"]: kind.read(run) for run in read_runs(work)}
    return {arm: x for arm, x in found.items() if x is not None}


def test_each_arm_is_measured_as_asked_and_no_other(measured):
    work, _, said = measured
    assert set(by_arm(work, ShuffledPrefix)) == {"learned"}
    assert set(by_arm(work, LossByLength)) == {"learned", "window"}
    assert set(by_arm(work, Probes)) == {"window"}
    assert set(by_arm(work, Samples)) == {"window"}
    assert len(said) == 9


def test_lengths_go_beyond_training_where_no_table_ends(measured):
    lengths = {arm: x.lengths.tolist() for arm, x in by_arm(measured[0], LossByLength).items()}
    assert lengths == {"learned": [8], "window": [8, 12, 16]}


def test_probes_beyond_the_reach_are_of_the_positions_there(measured):
    work, _, _ = measured
    config = next(r.config for r in read_runs(work) if r.config["arm"] == "window")
    layers, context = config["model"]["layers"], config["context"]
    assert (config["mask"], layers, context) == ("sliding_window(3)", 1, 8)
    found = by_arm(work, ProbesBeyondReach)["window"]
    assert found.positions == 8 - 3
    assert found.curves["trained"].shape == (2, 2)


def test_probe_beyond_the_reach_of_a_mask_that_sees_all_is_refused(measured, tmp_path):
    work, _, _ = measured
    wanted = (Measurement("probes_beyond_reach", ("learned",)),)
    with pytest.raises(ValueError, match="see the first of 8 tokens from 8 positions"):
        measuring.measure(work, finished(work), wanted, tiny.BASE, say=lambda _: None)


def test_probes_have_every_curve_and_a_column_per_layer(measured):
    found = by_arm(measured[0], Probes)["window"]
    assert found.positions == 8
    shapes = {label: curve.shape for label, curve in found.curves.items()}
    layers = shapes["trained"][1]
    assert layers >= 2
    assert shapes == {
        "trained": (2, layers), "random init": (2, layers), "trained, i.i.d. tokens": (2, layers),
        "bag of prefix": (2, 1), "labels shuffled": (2, 1),
    }  # fmt: skip


def test_a_member_is_not_measured_twice(measured):
    work, wanted, _ = measured
    said = []
    assert measuring.measure(work, finished(work), wanted, tiny.BASE, say=said.append)
    assert said == []


def test_a_stop_leaves_the_rest_for_another_time(trained_workdir, tmp_path):
    work = shutil.copytree(trained_workdir, tmp_path / "work")
    wanted = [Measurement("shuffled_prefix", ARMS[:2])]
    done = measuring.measure(
        work, finished(work), wanted, tiny.BASE, say=lambda _: None, should_stop=lambda: True
    )
    assert not done
    assert by_arm(work, ShuffledPrefix) == {}


def test_an_unknown_kind_is_refused(trained_workdir):
    wanted = [Measurement("heat", ("learned",))]
    with pytest.raises(ValueError, match=r"^measurement: got 'heat'; allowed: shuffled_prefix, "):
        measuring.measure(trained_workdir, finished(trained_workdir), wanted, tiny.BASE, say=print)


def test_shuffling_changes_the_loss_of_a_member_that_uses_order(measured):
    found = by_arm(measured[0], ShuffledPrefix)["learned"]
    assert len(found.intact) == 16
    assert (found.intact != found.shuffled).all()


def test_a_causal_member_loses_nothing_with_the_future_cut_off(measured):
    found = by_arm(measured[0], TruncatedContext)["learned"]
    np.testing.assert_allclose(found.whole, found.truncated, rtol=1e-5)


def test_reach_ends_where_the_window_does(measured):
    found = by_arm(measured[0], Reach)["window"]
    assert len(found.influence) == 8
    assert found.farthest == 3, "one layer, a window of 3"


def test_share_of_position_is_one_number_a_head(measured):
    share = by_arm(measured[0], PositionShare)["window"].share
    assert share.shape == (1, 2)
    assert ((share > 0) & (share < 1)).all()


def test_the_future_of_masked_tokens_cannot_be_cut_off(trained_workdir):
    wanted = [Measurement("truncated_context", ("encoder",))]
    with pytest.raises(ValueError, match="masked_lm asks for hidden tokens from both sides"):
        measuring.measure(trained_workdir, finished(trained_workdir), wanted, tiny.BASE, say=print)


def test_samples_are_scored_beside_real_text(measured):
    found = by_arm(measured[0], Samples)["window"]
    # Random weights write noise; the text is made by a rule that 5-grams know.
    assert found.score > found.real + 0.5
    # Of 10 tokens the window of 8 is filling for 6 draws: [BOS] stands before them.
    assert found.score == pytest.approx((6 * found.filling + 4 * found.full) / 10)
    assert len(found.text) == 11
