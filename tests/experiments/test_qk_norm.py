"""QK-norm over learning rates: the definitions by hand, what would reproduce or refute the claim, and what voids it."""

from dataclasses import replace

import numpy as np
import pytest
from fake_runs import fake_run
from planned import groups

from attnlab.claims.rules import Verdict
from attnlab.results import Results
from experiments import learning_rates, qk_norm
from experiments.qk_norm import RATES, grid, label

START = 4.3
# By rate: a norm that still trains at 0.1, and no norm, which fails from 0.03 on.
NORM = (2.6, 2.3, 2.05, 1.98, 1.99, 2.05, 2.5)
NONE = (2.6, 2.3, 2.05, 1.985, 2.4, 2.7, START)
LOGITS = (3.0, 4.0, 5.0, 8.0, 60.0, 2e3, 4e4)


def runs(none=NONE, norm=NORM, *, logits=LOGITS, size="98k", **fates):
    """Runs of both grids, three seeds a hundredth apart; what ends at the start's loss diverged; `fates`: by run id."""
    made = []
    for name, ends in (("none", none), ("layernorm", norm)):
        for rate, end, logit in zip(RATES, ends, logits, strict=True):
            for seed in range(3):
                arm = label(name, size, rate)
                fate = fates.get(
                    f"{name}_{rate:g}_{seed}", "diverged" if end == START else "finished"
                )
                losses = [3.0, end + seed / 100]
                run = fake_run(arm, seed, losses, initial=START, status=fate)
                column = np.full(len(run.history["step"]), np.nan)
                column[[0, -1]] = 1.0, logit
                columns = {f"attn/max_logit_l{i:02d}": column / (1 + i) for i in range(4)}
                made.append(replace(run, history=run.history | columns))
    return made


def judged(*args, **kwargs):
    outcome = qk_norm.CLAIM.judge(Results(runs(*args, **kwargs)))
    return {j.subclaim.id.split("-")[0]: j for j in outcome.judgements}


def test_a_norm_that_trains_at_larger_rates_reproduces_all_four():
    found = judged()
    assert {id: j.verdict for id, j in found.items()} == dict.fromkeys(found, Verdict.REPRODUCED)
    assert set(found) == {"V1", "V2", "V3", "V4"}
    # By hand, seed 0: the mean over the rates above the best one.
    none, norm = np.array(NONE), np.array(NORM)
    wanted = (none.mean() - none.min()) - (norm.mean() - norm.min())
    assert found["V1"].values[0] == pytest.approx(wanted)
    assert found["V2"].values[0] == pytest.approx(np.log10(0.1 / 0.01))
    assert found["V3"].values[0] == pytest.approx(1.98 - 1.985)
    assert "3 diverged runs count as the loss before training" in found["V1"].reason


def test_curves_that_agree_refute_and_a_better_norm_is_no_parity():
    found = judged(none=(2.6, 2.3, 2.05, 2.1, 2.15, 2.2, 2.7), norm=(2.6, 2.3, 2.0, 2.05, 2.1, 2.15, 2.65))  # fmt: skip
    assert found["V1"].verdict is Verdict.NOT_REPRODUCED
    assert found["V2"].verdict is Verdict.NOT_REPRODUCED
    assert found["V3"].verdict is Verdict.NOT_REPRODUCED


def test_logits_that_do_not_grow_with_the_loss_refute_v4():
    assert judged(logits=LOGITS[::-1])["V4"].verdict is Verdict.NOT_REPRODUCED


@pytest.mark.parametrize(
    ("none", "control", "void"),
    [
        ((2.6, 2.3, 2.05, 1.98, 1.98, 1.99, 2.0), "largest-rate-fails", {"V1", "V2", "V4"}),
        ((2.6, 2.5, 2.45, 2.45, 2.5, 2.7, START), "best-rate-learns", {"V1", "V2", "V3", "V4"}),
    ],
)
def test_grid_without_a_failing_rate_and_model_that_is_stuck_answer_nothing(none, control, void):
    found = judged(none=none)
    assert {id for id, j in found.items() if j.verdict is Verdict.INVALID} == void
    assert all(f"control {control}-98k failed" in found[id].reason for id in void)


def test_run_that_has_not_ended_voids_and_one_that_diverged_does_not():
    found = judged(**{"none_0.03_1": "interrupted"})
    assert {j.verdict for j in found.values()} == {Verdict.INVALID}
    assert "none-98k-0.03 seed 1 is interrupted" in found["V1"].reason


def test_rates_multiplied_by_a_constant_shift_the_curve_and_do_not_flatten_it():
    wide = (*NONE, START)
    grids = [{rate: f"r{i}" for i, rate in enumerate(RATES)}]
    grids.append({3 * rate: arm for rate, arm in grids[0].items()})
    made = [fake_run(f"r{i}", s, [3.0, x], initial=START) for s in (0, 1) for i, x in enumerate(wide)]  # fmt: skip
    first, second = (
        (learning_rates.sensitivity(g)(Results(made)), learning_rates.critical_decade(g)(Results(made)))
        for g in grids
    )  # fmt: skip
    assert first[0] == second[0]
    assert second[1][0] - first[1][0] == pytest.approx(np.log10(3))


def test_logit_without_a_finite_value_is_the_largest():
    made = [replace(r, history=dict(r.history)) for r in runs()]
    for run in made:
        if run.config["arm"] == label("none", "98k", 0.3):
            for layer in range(4):
                run.history[f"attn/max_logit_l{layer:02d}"] = np.full(
                    len(run.history["step"]), np.inf
                )
    value = learning_rates.logit_correlation(grid("none", "98k"), 4)(Results(made))[0]
    assert value == pytest.approx(1.0), "of rates 0.01, 0.03, 0.1 and 0.3"


def test_arms_differ_in_norm_size_and_rate_and_in_nothing_else():
    of_norm = {"model.qk_norm", "model.logit_scale", "model.learn_logit_scale", "model.softcap"}
    of_size = {"model.layers", "model.width", "model.heads", "model.kv_heads"}
    for arm, overrides in qk_norm.CLAIM.arms.items():
        assert arm.endswith(f"-{overrides['optimizer.learning_rate']:g}")
        assert set(overrides) - of_norm == of_size | {"optimizer.learning_rate"}
        assert overrides["model.width"] == 32 * overrides["model.heads"]
    assert grid("none", "98k")[3e-3] == "none-98k-0.003"
    # Henry et al. 2020: log2(L^2 - L).
    assert qk_norm.norms(64)["l2"]["model.logit_scale"] == f"{np.log2(64 * 63):.3f}"


def test_thresholds_are_those_of_the_ledger():
    rules = {s.id: (s.rule.low, s.rule.high) for s in qk_norm.CLAIM.subclaims}
    inf = np.inf
    for size in qk_norm.SIZES:
        assert rules[f"V1-{size}"] == (0.05, inf)
        assert rules[f"V2-{size}"] == (0.46, inf), "one step of the grid: a ratio of 3"
        assert rules[f"V3-{size}"] == (-0.02, 0.02)
        assert rules[f"V4-{size}"] == (0.6, inf)
    assert RATES == (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
    assert learning_rates.TRAINS == 0.1


def test_a_size_is_one_program_for_all_norms_and_rates_but_the_cap():
    planned = groups("qk_norm", "quick")
    assert [len(g.members) for g in planned] == [28, 7, 14]
    kinds = [g.task.architecture.qk_norms for g in planned]
    assert kinds == [("l2", "layernorm", "rmsnorm"), (), ("layernorm",)]
