"""The families: one program, prefix and causal on the same targets, and windows judged by loss and by reach."""

from dataclasses import replace

import numpy as np
import pytest
from fake_runs import runs_ending_at

from attnlab.claims.rules import Verdict
from attnlab.cli import CHECKOUT, _plan_of
from attnlab.masks import mask_text
from attnlab.measurements.context import Reach
from attnlab.objectives import Objective
from attnlab.results import Results
from experiments import families
from experiments.families import ARMS, NARROW, PARITY

T = 32
FINALS = {
    "causal": [1.95, 1.96, 1.97], "window-half": [1.96, 1.97, 1.98], "window-quarter": [2.0, 2.01, 2.02],
    "window-eighth": [2.1, 2.11, 2.12], "causal-depth2": [2.08, 2.09, 2.1], "window-half-depth2": [2.1, 2.11, 2.12],
    "window-quarter-depth2": [2.2, 2.2, 2.2], "window-eighth-depth2": [2.3, 2.3, 2.31],
    "prefix": [1.94, 1.95, 1.96], "causal-behind-prefix": [1.942, 1.951, 1.964], "encoder": [2.6, 2.62, 2.7],
}  # fmt: skip


@pytest.fixture
def judge(tmp_path):
    def judged(hold=1.0, beyond=0, other=None, **changed):
        finals = FINALS | {arm.replace("_", "-"): ends for arm, ends in changed.items()}
        runs = []
        for run in runs_ending_at(finals):
            arm = run.config["arm"]
            overrides = ARMS[arm] | (other or {}).get(arm, {})
            model = {"layers": overrides["model.layers"], "width": overrides.get("model.width", 64)}
            config = run.config | {k: v for k, v in overrides.items() if "." not in k}
            config |= {"model": model, "context": T}
            run = replace(run, path=tmp_path / run.id, config=config)
            run.path.mkdir(exist_ok=True)
            if arm in NARROW:
                width = int(np.asarray(mask_text.parse(config["mask"], T).keys_per_row()).max())
                reached = min(T, model["layers"] * (width - 1) + 1)
                influence = np.zeros(T)
                influence[: reached + beyond] = 1e-4
                influence[: max(1, int(hold * reached / 2))] = 1.0
                Reach(influence).write(run.path)
            runs.append(run)
        outcome = families.CLAIM.judge(Results(runs))
        return {j.subclaim.id: j for j in outcome.judgements}

    return judged


def test_results_as_expected_reproduce_everything(judge):
    found = judge()
    assert {id: j.verdict for id, j in found.items()} == dict.fromkeys(
        ("T9a", "T9b", "T10a", "T10b", "T10c"), Verdict.REPRODUCED
    )
    assert found["T9a"].values[2] == pytest.approx(-0.004)
    assert found["T9b"].values[1] == pytest.approx(1.97 - 2.4875)
    assert found["T10b"].values[1] == pytest.approx(-0.02), "from half of the context to all of it"
    assert 0 < found["T10c"].values[0] <= 0.5


@pytest.mark.parametrize(
    ("changed", "refuted"),
    [
        ({"prefix": [1.8, 1.81, 1.82]}, {"T9a"}),
        ({"encoder": [3.3, 3.3, 3.31]}, {"T9b"}),
        ({"window_quarter": [2.2, 2.21, 2.22]}, {"T10a"}),
        ({"window_half_depth2": [2.3, 2.3, 2.3]}, {"T10b"}),
        ({"hold": 2.0}, {"T10c"}),
    ],
)
def test_each_part_can_be_refuted_alone(judge, changed, refuted):
    found = judge(**changed)
    assert {id for id, j in found.items() if j.verdict is Verdict.NOT_REPRODUCED} == refuted


def test_a_reach_that_is_not_the_masks_voids_what_rests_on_it(judge):
    found = judge(beyond=1)
    void = {id for id, j in found.items() if j.verdict is Verdict.INVALID}
    assert void == {"T10a", "T10b", "T10c"}
    assert "window-eighth seed 0 14 of 13" in found["T10a"].reason


def test_families_of_different_networks_are_no_families(judge):
    found = judge(other={"encoder": {"model.width": 128}})
    assert found["T9b"].verdict is Verdict.INVALID
    assert "model.width" in found["T9b"].reason


def test_each_depth_is_one_program_with_one_parameter_tree():
    plan = _plan_of(f"{CHECKOUT / 'configs' / 'families.py'}:quick", [], "families", None)
    assert [{m.config["model"]["layers"] for m in group.members} for group in plan.groups] == [
        {4},
        {2},
    ]
    four = {m.arm for m in plan.groups[0].members}
    assert set(families.FAMILIES) | set(PARITY) <= four
    seeds = {arm: sum(m.arm == arm for m in plan.members) for arm in ARMS}
    assert {arm for arm, n in seeds.items() if n == 6} == set(PARITY)
    assert set(seeds.values()) == {3, 6}


@pytest.mark.parametrize("context", [8, 32, 512])
def test_prefix_and_causal_answer_for_the_same_targets(context):
    arms = families.arms(context)
    one, other = (Objective.parse(arms[arm]["objective"]) for arm in PARITY)
    assert int(one.prefix) == int(other.prefix) == context // 4
    assert arms["prefix"]["mask"] == arms["prefix"]["objective"]
    widths = [arms[w]["mask"] for w in families.WINDOWS]
    assert widths == [f"sliding_window({context // n})" for n in (8, 4, 2)]
