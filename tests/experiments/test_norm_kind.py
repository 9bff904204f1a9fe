"""BatchNorm against LayerNorm: verdicts on what was measured, both ways, and what voids them."""

from dataclasses import replace

import numpy as np
import pytest
from fake_runs import runs_ending_at
from planned import groups

from attnlab import norms
from attnlab.claims.rules import Verdict
from attnlab.measurements.norms import Mode, NormModes
from attnlab.results import Results
from experiments import norm_kind
from experiments.norm_kind import KINDS

ENDS = {kind: [2.0, 2.01, 2.02] for kind in KINDS}
SIZES = np.array([1, 4, 32])
STILL = Mode(2.0, 0.0, 0.0)
MODES = {
    "batchnorm": NormModes(SIZES, np.array([2.9, 2.1, 2.0]), Mode(2.0, 0.4, 0.3), Mode(2.2, 0.0, 0.0)),
    "batchnorm_by_position": NormModes(SIZES, np.array([4.1, 2.3, 2.0]), Mode(2.0, 0.5, 0.0), STILL),
} | {k: NormModes(SIZES, np.array([2.0, 2.0, 2.0]), STILL, STILL) for k in ("layernorm", "rmsnorm", "none")}  # fmt: skip


@pytest.fixture
def judged(tmp_path):
    def judge(ends=ENDS, **modes):
        runs = [replace(run, path=tmp_path / run.id) for run in runs_ending_at(ends)]
        for run in runs:
            run.path.mkdir(exist_ok=True)
            (MODES | modes)[run.config["arm"]].write(run.path)
        outcome = norm_kind.CLAIM.judge(Results(runs))
        return {j.subclaim.id: j for j in outcome.judgements}

    return judge


def test_batchnorm_as_the_exact_claims_have_it_reproduces_everything(judged):
    found = judged()
    assert {id: j.verdict for id, j in found.items()} == dict.fromkeys(found, Verdict.REPRODUCED)
    assert len(found) == len(norm_kind.SUBCLAIMS)
    assert found["T8b"].values[0] == pytest.approx(0.1)
    assert found["T8e"].values[0] == pytest.approx(4.1 - 2.0)
    assert found["T8f"].values[2] == pytest.approx(0.2)


def test_norm_that_reads_nothing_refutes_what_is_said_of_batchnorm(judged):
    found = judged(batchnorm=MODES["layernorm"], batchnorm_by_position=MODES["layernorm"])
    refuted = {id for id, j in found.items() if j.verdict is Verdict.NOT_REPRODUCED}
    assert refuted == {"T8a", "T8b", "T8c", "T8e", "T8f"}


@pytest.mark.parametrize("mode", [Mode(2.0, 0.1, 0.0), Mode(2.0, 0.0, 0.1)])
def test_what_moves_layernorm_or_running_statistics_refutes_the_rest(judged, mode):
    moved = NormModes(SIZES, np.array([2.0, 2.0, 2.0]), mode, mode)
    found = judged(layernorm=moved, batchnorm=replace(MODES["batchnorm"], running=mode))
    refuted = {id for id, j in found.items() if j.verdict is Verdict.NOT_REPRODUCED}
    assert {"T8g", "T8h-layernorm"} <= refuted


def test_model_that_did_not_learn_says_nothing_about_its_norm(judged):
    found = judged(ENDS | {"batchnorm": [2.6, 2.6, 2.6]})
    void = {id for id, j in found.items() if j.verdict is Verdict.INVALID}
    assert void == {"T8a", "T8b", "T8c", "T8f", "T8g"}
    assert "control batchnorm-learns failed" in found["T8a"].reason


def test_arms_are_the_norms_there_are_and_train_in_one_program():
    assert set(KINDS) == set(norms.NORMS)
    assert [len(g.members) for g in groups("norm_kind", "quick")] == [5]
