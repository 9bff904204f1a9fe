"""The seed exercises: what they show, on the smallest runs that show it."""

import math

import numpy as np
import pytest
from tiny import quick_compilation

from attnlab import masks
from attnlab.knobs import Architecture, ModelKnobs
from experiments import exercises
from experiments.exact import lab

# Fresh uniform tokens: nothing can be learned, so a loss below ln V is a leak and nothing else.
TINY = {
    "context": 8,
    "model.layers": 1,
    "batch_size": 16,
    "log_every": 50,
    "optimizer.learning_rate": 1e-2,
    "eval.every": 50,
    "eval.windows": 64,
    "eval.final_windows": 64,
}


@pytest.fixture(scope="module")
def runs() -> dict[str, exercises.MaskRun]:
    with quick_compilation():
        return exercises.break_the_mask("random:17", steps=200, overrides=TINY)


def test_without_the_mask_validation_falls_far_below_chance(runs) -> None:
    assert runs["no mask"].validation_loss < 0.5 * math.log(17)


def test_without_the_mask_the_last_position_stays_honest(runs) -> None:
    assert runs["no mask"].by_position[-1] > math.log(17) - 0.1
    assert runs["no mask"].by_position[:-1].max() < 0.5


@pytest.mark.parametrize("arm", ["causal", "causal, two ahead"])
def test_with_the_mask_nothing_leaks(runs, arm: str) -> None:
    assert runs[arm].by_position.min() > math.log(17) - 0.1


def test_300_tokens_are_sampled_from_every_arm(runs) -> None:
    assert all(len(run.sample.split()) == 300 for run in runs.values())


def test_samples_of_one_seed_are_equal_and_of_two_seeds_are_not() -> None:
    arch = Architecture(7, 9, 4, 1, 8, 2, 2, 16)
    gates = ModelKnobs({}, {}, np.float32(1), np.float32(0.5))
    params = lab.random_params(arch, np.random.default_rng(0))
    drawn = [
        np.asarray(exercises.generate(arch, params, gates, masks.causal(4), seed=seed, count=20))
        for seed in (0, 0, 1)
    ]
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])


def test_the_head_reads_another_stream_with_the_shapes_of_the_exercise() -> None:
    shapes = exercises.cross_attention()
    assert shapes == {"self": (2, 5, 5), "cross": (2, 5, 9), "output": (2, 5, 8)}


def test_loss_by_position_is_drawn_for_every_arm(runs) -> None:
    (axis,) = exercises.loss_by_position_figure(runs).axes
    assert len(axis.get_lines()) == len(exercises.ARMS)
