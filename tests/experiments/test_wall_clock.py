"""Claims about time: skipping and rnn. Made-up times go in, the right number and verdict come out."""

from dataclasses import replace

import numpy as np
import pytest
from fake_runs import fake_run, runs_ending_at

from attnlab import cli
from attnlab.claims import Claim
from attnlab.claims.rules import Verdict
from attnlab.measurements.times import AttentionTime, UpdateTime
from attnlab.results import Results
from experiments import rnn, skipping


def with_times(tmp_path, finals, kind, seconds, sequences, length_of):
    """Finished runs of some arms, three seeds each, with the seconds that `seconds(arm, seed)` says."""
    runs = [replace(run, path=tmp_path / run.id) for run in runs_ending_at(finals)]
    for run in runs:
        run.path.mkdir()
        arm, seed = run.config["arm"], run.config["seed"]["init"]
        times = np.full(5, seconds(arm, seed))
        times[0] *= 10  # one slow turn moves no median
        kind(times, sequences, length_of(arm), "cpu").write(run.path)
    return runs


def judged(claim: Claim, runs):
    return {j.subclaim.id: j for j in claim.judge(Results(runs)).judgements}


def length(arm: str) -> int:
    return int(arm.rpartition("T")[2])


# Computing all and masking, against skipping


def skipping_runs(tmp_path, seconds, losses=4.6):
    finals = {arm: [losses, losses + 0.1, losses - 0.1] for arm in skipping.ARMS}
    return with_times(tmp_path, finals, AttentionTime, seconds, 1, length)


def crossing_at(crossover: int):
    """All: T^2. Skipping: half of that, and as much more as makes them equal at the crossover."""

    def seconds(arm: str, seed: int) -> float:
        square = length(arm) ** 2 * (1 + 0.001 * seed)
        return square if arm.startswith("all") else 0.5 * square + 0.5 * crossover**2

    return seconds


def test_crossover_refutes_always_and_leaves_both_ends_standing(tmp_path):
    found = judged(skipping.CLAIM, skipping_runs(tmp_path, crossing_at(700)))
    assert found["T20a"].verdict is Verdict.NOT_REPRODUCED
    assert found["T20b"].verdict is Verdict.REPRODUCED
    assert found["T20c"].verdict is Verdict.REPRODUCED
    assert found["T20b"].values[0] == pytest.approx(0.5 + 0.5 * (700 / 128) ** 2)
    assert found["T20c"].values[0] == pytest.approx(1 / (0.5 + 0.5 * (700 / 4096) ** 2))


def test_always_needs_every_length(tmp_path):
    found = judged(skipping.CLAIM, skipping_runs(tmp_path, crossing_at(5000)))
    assert found["T20a"].verdict is Verdict.REPRODUCED
    assert found["T20c"].verdict is Verdict.NOT_REPRODUCED


def test_ways_that_compute_different_numbers_are_not_compared(tmp_path):
    runs = skipping_runs(tmp_path, crossing_at(700))
    other = [r for r in runs if r.id != "skipping-T4096-s1"]
    wrong = fake_run("skipping-T4096", 1, [4.7, 4.7, 4.71])
    found = judged(skipping.CLAIM, [*other, wrong])
    assert found["T20c"].verdict is Verdict.INVALID
    assert "same-numbers-4096 failed" in found["T20c"].reason
    assert found["T20b"].verdict is Verdict.REPRODUCED


# Attention and a GRU


def rnn_runs(tmp_path, seconds, attention=2.2, gru=2.2):
    ends = {
        arm: attention if arm.startswith("attention") else gru
        for arm in rnn.arms(rnn.LENGTHS[:5], 500)
    }
    finals = {arm: [end, end + 0.01, end - 0.01] for arm, end in ends.items()}
    return with_times(tmp_path, finals, UpdateTime, seconds, 4, length)


def proportional(arm: str, seed: int) -> float:
    """The GRU as T, attention as (T + T^2 / 4096) at a third of the price."""
    T, noise = length(arm), 1 + 0.001 * seed
    return noise * (T if arm.startswith("gru") else (T + T**2 / 4096) / 3) * 1e-3


def test_faster_attention_and_a_proportional_gru_are_found(tmp_path):
    found = judged(rnn.CLAIM, rnn_runs(tmp_path, proportional))
    assert found["T12a"].verdict is Verdict.REPRODUCED
    assert found["T12a"].values[0] == pytest.approx(3 / (1 + 1024 / 4096))
    assert found["T12b"].verdict is Verdict.REPRODUCED
    assert found["T12b"].values[2] == pytest.approx(1.0)
    # Equal losses after equally many updates: a third of the way there for the GRU by then.
    assert found["T12c"].verdict is Verdict.REPRODUCED


def test_faster_gru_refutes_it(tmp_path):
    def seconds(arm: str, seed: int) -> float:
        other = arm.replace("gru", "x").replace("attention", "gru").replace("x", "attention")
        return proportional(other, seed)

    found = judged(rnn.CLAIM, rnn_runs(tmp_path, seconds))
    assert found["T12a"].verdict is Verdict.NOT_REPRODUCED
    assert found["T12c"].verdict is Verdict.NOT_REPRODUCED


def test_race_between_models_that_learned_nothing_is_invalid(tmp_path):
    found = judged(rnn.CLAIM, rnn_runs(tmp_path, proportional, gru=2.6))
    assert found["T12c"].verdict is Verdict.INVALID
    assert "gru-T256-learns failed" in found["T12c"].reason


def test_loss_by_the_clock_is_read_off_between_validations(tmp_path):
    runs = []
    for arm, values, speed in (
        ("attention-T256", [4.0, 3.0, 2.0], 4),
        ("gru-T256", [4.0, 3.5, 3.0], 2),
    ):
        for seed in range(2):
            run = replace(fake_run(arm, seed, values), path=tmp_path / f"{arm}-{seed}")
            run.path.mkdir()
            UpdateTime(np.array([1 / speed]), 1, 1, "cpu").write(run.path)
            runs.append(run)
    # Validated after 2000, 4000 and 6000 tokens. Attention is through when the GRU has seen 3000.
    assert rnn.behind_by_the_clock(Results(runs)) == pytest.approx({0: 1.75, 1: 1.75})


# Both


@pytest.mark.parametrize("claim", [skipping.CLAIM, rnn.CLAIM], ids=lambda claim: claim.name)
def test_every_preset_is_planned_with_a_program_for_each_shape(claim):
    for preset in ("smoke", "quick"):
        planned = cli._plan_of(
            f"{cli.CHECKOUT / 'configs' / claim.name}.py:{preset}", [], claim.name, 2
        )
        assert len(planned.groups) == len({m.arm for m in planned.members})
        assert len(planned.members) == 2 * len(planned.groups)
        for group in planned.groups:
            for member in group.members:
                expected = {k: v for k, v in claim.arms[member.arm].items() if k != "steps"}
                assert {k: dict(_flat(member.config))[k] for k in expected} == expected


def _flat(config):
    from attnlab import knobs

    return knobs.flatten(config)
