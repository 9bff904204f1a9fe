"""Pre- against post-norm: the largest rate that trains by hand, verdicts both ways, and what voids them."""

from dataclasses import replace

import numpy as np
import pytest
from fake_runs import fake_run
from planned import groups

from attnlab.claims.rules import Verdict
from attnlab.plots import metric_plots
from attnlab.results import Results
from experiments import norm_placement
from experiments.norm_placement import RATES, grid, label

START = 4.3
GOOD, BAD = 2.2, 2.9
# Number of rates, from the smallest, that end below the bigram model (2.4875), by place, depth and warm-up.
TRAINS = {
    ("pre", 2, "w0"): 2, ("post", 2, "w0"): 2,
    ("pre", 6, "w0"): 2, ("post", 6, "w0"): 0, ("pre", 6, "w10"): 2, ("post", 6, "w10"): 2,
}  # fmt: skip


def runs(trains=TRAINS, *, tilt=(1.0, 10.0)):
    made = []
    for (place, depth, warmup), count in trains.items():
        for i, rate in enumerate(RATES):
            for seed in range(3):
                ended = GOOD if i < count else BAD
                fate = "diverged" if i == len(RATES) - 1 and ended == BAD else "finished"
                arm = label(place, depth, warmup, rate)
                run = fake_run(arm, seed, [3.0, ended], initial=START, status=fate)
                nan = [np.nan]
                last = tilt[place == "post"] * (1 + seed / 10)
                columns = {f"opt/grad_norm_l{layer:02d}": np.array(nan + [1.0] + 3 * [7.0])
                           for layer in range(depth - 1)}  # fmt: skip
                columns[f"opt/grad_norm_l{depth - 1:02d}"] = np.array(nan + [last] + 3 * [7.0])
                made.append(replace(run, history=run.history | columns))
    return made


def judged(**changed):
    cells = {(p, int(d), w): n for key, n in changed.items() for p, d, w in [key.split("_")]}
    return by_id(runs(TRAINS | cells))


def by_id(made):
    return {j.subclaim.id: j for j in norm_placement.CLAIM.judge(Results(made)).judgements}


def test_post_norm_that_needs_its_warm_up_reproduces_the_claim():
    found = judged()
    assert {id: j.verdict for id, j in found.items()} == dict.fromkeys(found, Verdict.REPRODUCED)
    assert set(found) == {"T7a-6", "T7b-6", "M8-6"}
    # Two rates against none: 1e-2 and a step below 3e-3; with warm-up both reach 1e-2.
    assert found["T7a-6"].values[0] == pytest.approx(np.log10(1e-2 / 3e-3) + 0.5)
    assert found["T7b-6"].values[0] == found["T7a-6"].values[0]
    assert found["M8-6"].values[1] == pytest.approx(1.0)
    assert "diverged runs count as the loss before training" in found["T7a-6"].reason


def test_post_norm_that_trains_as_well_refutes_it():
    found = judged(post_6_w0=2)
    assert found["T7a-6"].verdict is Verdict.NOT_REPRODUCED
    assert found["T7b-6"].verdict is Verdict.NOT_REPRODUCED
    assert by_id(runs(tilt=(10.0, 1.0)))["M8-6"].verdict is Verdict.NOT_REPRODUCED


def test_warm_up_that_does_not_help_refutes_the_second_part_alone():
    found = judged(post_6_w10=0)
    assert found["T7a-6"].verdict is Verdict.REPRODUCED
    assert found["T7b-6"].verdict is Verdict.NOT_REPRODUCED


@pytest.mark.parametrize(
    ("changed", "control"),
    [
        ({"pre_6_w0": 0}, "pre-norm-trains-6"),
        ({"post_2_w0": 0}, "shallow-hardly-differs"),
    ],
)
def test_each_control_voids_both_parts(changed, control):
    found = judged(**changed)
    for id in ("T7a-6", "T7b-6"):
        assert found[id].verdict is Verdict.INVALID
        assert f"control {control} failed" in found[id].reason


def test_place_that_trains_at_no_rate_counts_as_one_step_below_the_grid():
    value = norm_placement.critical(grid("post", 6, "w0"))(
        Results(runs(TRAINS | {("post", 6, "w0"): 0}))
    )[0]
    assert 10**value == pytest.approx(min(RATES) / 10**0.5)


def test_gradient_is_that_of_the_first_row_by_layer():
    lines = {"post": label("post", 6, "w10", 3e-3)}
    figure = metric_plots.first_by_layer(
        Results(runs()), {"6": lines}, "opt/grad_norm", ylabel="gradient"
    )
    (line,) = figure.axes[0].lines
    np.testing.assert_allclose(line.get_ydata(), [*[1.0] * 5, 11.0])


def test_arms_are_what_they_say():
    made = norm_placement.arms(300)
    assert made[label("post", 6, "w10", 3e-3)] == {
        "model.norm_placement": "post", "model.layers": 6, "optimizer.warmup_steps": 30,
        "optimizer.learning_rate": 3e-3,
    }  # fmt: skip
    assert made[label("pre", 2, "w0", 3e-2)]["optimizer.warmup_steps"] == 0
    assert made[label("none", 2, "w0", 3e-2)]["model.norm"] == "none"


def test_a_depth_is_one_program_and_nothing_is_clipped():
    planned = groups("norm_placement", "quick")
    assert [(g.task.architecture.layers, len(g.members)) for g in planned] == [(2, 6), (6, 12)]
    assert {m.config["optimizer"]["clip_norm"] for g in planned for m in g.members} == {1e9}
