"""The scale of attention logits: arms that are what they say, numbers by hand, verdicts both ways."""

from dataclasses import replace

import numpy as np
import pytest
from fake_runs import fake_run
from planned import groups

from attnlab import norms
from attnlab.claims.rules import Verdict
from attnlab.plots import NothingToDrawError, metric_plots
from attnlab.results import Results
from experiments import scaling
from experiments.scaling import HEAD_DIMS, SMALL, TORCH_GAIN, label

# Nats that no scale costs early, by head size.
COST = {4: 0.02, 16: 0.2, 64: 0.5}


def run(arm, seed, early, end, *, entropy=0.8, q_end=2.0):
    """Validated before training, after a tenth and at the end; lengths of queries and keys by layer."""
    made = fake_run(arm, seed, [early, 3.0, 2.8, 2.6, 2.4, end], initial=4.3)
    steps = np.arange(13) * 10
    there = np.isfinite(made.history["val/loss"])
    columns = {
        "attn/entropy_l00h00": np.where(there, entropy - 0.1, np.nan),
        "attn/entropy_l01h00": np.where(there, entropy + 0.1, np.nan),
    }
    for name, start, last in (("q", 2.0, q_end), ("k", 3.0, 4.5)):
        for layer, factor in enumerate((0.5, 1.5)):
            values = np.where(there, factor * last, np.nan)
            values[0] = factor * start
            columns[f"attn/{name}_norm_l{layer:02d}"] = values
    return replace(made, history=made.history | {"step": steps} | columns)


def runs(cost=COST, *, torch=0.1, width=2.0, width_entropy=0.95, sharp=0.3, q_end=4.0, end=2.0):
    made = []
    for seed in range(3):
        more = seed / 100
        for size in SMALL:
            made.append(run(label("sqrt", size), seed, 3.0 + more, end + more, q_end=q_end))
            entropy = sharp if size == 64 else 0.6
            early = 3.0 + cost[size] * (1 + more)
            made.append(run(label("none", size), seed, early + more, 2.1, entropy=entropy))
            made.append(run(label("sqrt", size, "torch"), seed, 3.1, 2.1))
            made.append(run(label("none", size, "torch"), seed, 3.1 + torch + more, 2.1))
        made.append(run(label("width", 4), seed, 3.0, width + 1.01 * more, entropy=width_entropy))
        made.append(run(label("sqrt", 16, "qknorm"), seed, 3.0, 2.0, q_end=2.0))
    return made


def judged(*args, **kwargs):
    outcome = scaling.CLAIM.judge(Results(runs(*args, **kwargs)))
    return {j.subclaim.id: j for j in outcome.judgements}


def test_cost_that_grows_with_the_head_and_is_learned_away_reproduces_everything():
    found = judged()
    assert {id: j.verdict for id, j in found.items()} == dict.fromkeys(found, Verdict.REPRODUCED)
    assert set(found) == {"C3", "C3-init", "M4a", "M4b", "T21a", "T21b"}, (
        "heads of 256 need a width"
    )
    # By hand, seed 0: costs .02, .2, .5 at 2, 4 and 6 doublings; a slope of (.5 - .02) / 4.
    assert found["C3"].values[0] == pytest.approx((0.5 - 0.02) / 4)
    assert found["C3-init"].values[0] == pytest.approx(0.5 - 0.1)
    assert found["M4b"].values[0] == pytest.approx(0.95 - 0.8)
    assert found["T21a"].values[0] == pytest.approx((4.0 * 4.5) / (2.0 * 3.0))
    assert found["T21b"].values[0] == pytest.approx(3.0 - 1.5)


def test_cost_that_does_not_grow_refutes_c3():
    assert judged(dict.fromkeys(SMALL, 0.2), torch=0.4)["C3"].verdict is not Verdict.REPRODUCED
    found = judged({4: 0.5, 16: 0.2, 64: 0.02}, torch=0.4)
    assert found["C3"].verdict is Verdict.NOT_REPRODUCED
    assert found["C3-init"].verdict is Verdict.NOT_REPRODUCED


def test_width_that_costs_something_and_lengths_that_stay_refute_the_others():
    found = judged(width=2.1, width_entropy=0.7, q_end=1.9)
    refuted = {id for id, j in found.items() if j.verdict is Verdict.NOT_REPRODUCED}
    assert refuted == {"M4a", "M4b", "T21a", "T21b"}


@pytest.mark.parametrize(
    ("changed", "control", "void"),
    [
        ({"sharp": 0.75}, "unscaled-starts-sharp", {"C3", "C3-init"}),
        ({"end": 2.45}, "scaled-learns", {"C3", "C3-init", "M4a", "T21a", "T21b"}),
    ],
)
def test_each_control_voids_what_rests_on_it(changed, control, void):
    found = judged(**changed)
    assert {id for id, j in found.items() if j.verdict is Verdict.INVALID} == void
    assert all(f"control {control} failed" in found[id].reason for id in void)


def test_arms_are_what_they_say_and_differ_in_nothing_else():
    allowed = {"model.heads", "model.kv_heads", "model.logit_scale", "model.learn_logit_scale",
               "model.init_gain", "model.qk_norm", "optimizer.learning_rate"}  # fmt: skip
    made = scaling.arms(256)
    for arm, overrides in made.items():
        assert set(overrides) <= allowed
        assert 256 // overrides["model.heads"] == int(arm.split("-")[1][1:])
    assert made[label("none", 16, "lr0.001")]["optimizer.learning_rate"] == 1e-3
    assert pytest.approx(1 / 3) == TORCH_GAIN**2
    assert made[label("sqrt", 16, "qknorm")]["model.qk_norm"] in norms.QK_NORMS
    assert {int(arm.split("-")[1][1:]) for arm in scaling.arms(64)} == {4, 16, 64}
    quick = scaling.members("quick", 64)
    assert label("none", 64, "lr0.001") in quick
    assert label("none", 16, "lr0.001") not in quick
    needed = {arm for s in scaling.SUBCLAIMS if s.id != "C3-256" for arm in s.arms}
    assert needed <= set(quick)
    assert needed <= set(scaling.members("smoke", 64))


def test_a_head_size_is_one_program():
    planned = groups("scaling", "quick")
    assert [g.task.architecture.head_dim for g in planned] == list(SMALL)
    assert [len(g.members) for g in planned] == [5, 6, 11]
    assert HEAD_DIMS[:3] == SMALL


def test_figure_is_the_mean_of_all_columns_over_the_seeds_that_go_on():
    figure = metric_plots.mean_by_step(
        Results(runs()), {"16": {"sqrt": label("sqrt", 16)}, "256": {"sqrt": label("sqrt", 256)}},
        r"attn/q_norm_l\d+", ylabel="|q|",
    )  # fmt: skip
    (axis,) = figure.axes
    (line,) = axis.lines
    np.testing.assert_allclose(line.get_xydata()[[0, -1]], [[0, 2.0], [120, 4.0]])
    with pytest.raises(NothingToDrawError):
        metric_plots.mean_by_step(
            Results(runs()), {"16": {"x": label("sqrt", 16)}}, "no", ylabel=""
        )
