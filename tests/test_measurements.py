"""Files of what was measured: read back as written, refused with their name where they cannot be understood."""

from dataclasses import replace

import numpy as np
import pytest
from fake_runs import fake_run

from attnlab import measurements
from attnlab.measurements import LossByLength, Probes, ShuffledPrefix
from attnlab.measurements.context import PositionShare, Reach, Samples, TruncatedContext
from attnlab.results import Results

STORED = {
    "probes": Probes(32, {"trained": [[8.0, 4.0, 3.0], [8.0, 4.5, 3.5]], "bag of prefix": [[7.0]]}),
    "shuffled": ShuffledPrefix([2.0, 1.5], [3.0, 3.5]),
    "length": LossByLength(32, [32, 48, 64], [1.9, 2.0, 2.6]),
    "truncated": TruncatedContext([1.2, 0.4], [1.2, 2.9]),
    "share": PositionShare([[0.5, np.nan], [1.0, 0.0]]),
    "reach": Reach([0.5, 0.25, 0.0]),
    "samples": Samples("thou", score=2.5, filling=3.0, full=2.4, real=1.9),
}


@pytest.fixture
def run(tmp_path):
    return replace(fake_run("a", 0, [2.0]), path=tmp_path)


@pytest.mark.parametrize("name", STORED)
def test_what_is_written_is_read_back(name, run, tmp_path):
    stored = STORED[name]
    assert type(stored).read(run) is None, "a run without the file takes no part"
    stored.write(tmp_path)
    found = type(stored).read(run)
    assert found.FILE in {p.name for p in tmp_path.iterdir()}
    for field, value in vars(stored).items():
        if isinstance(value, dict):
            assert value.keys() == getattr(found, field).keys()
            for key in value:
                np.testing.assert_array_equal(value[key], getattr(found, field)[key])
        else:
            np.testing.assert_array_equal(value, getattr(found, field))
    assert len(list(tmp_path.iterdir())) == 1, "no half-written file stays behind"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Probes(1, {"trained": [[1.0]]}), "positions: must be at least 2, got 1"),
        (lambda: Probes(8, {"trained": [1.0, 2.0]}), r"curves\['trained'\].*2 axes"),
        (lambda: Probes(8, {"trained": [[np.nan]]}), r"curves\['trained'\].*finite"),
        (lambda: Probes(8, {"trained": [[-1.0]]}), "must not be negative, got -1"),
        (lambda: ShuffledPrefix([1.0], [1.0, 2.0]), "got 1 and 2"),
        (lambda: ShuffledPrefix([], []), "intact"),
        (lambda: LossByLength(8, [8, 8], [1.0, 1.0]), "ascending"),
        (lambda: LossByLength(8, [8, 16], [1.0]), "one per loss"),
        (lambda: TruncatedContext([1.0], [1.0, 2.0]), "got 1 and 2"),
        (lambda: Reach([0.0, 0.0]), "0 everywhere"),
        (lambda: PositionShare([0.5]), "two axes"),
        (lambda: PositionShare([[1.5]]), "between 0 and 1"),
        (
            lambda: Samples("", score=np.nan, filling=1.0, full=1.0, real=1.0),
            "score: must be finite",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "format 1"),
        ('{"format": 2, "positions": 8, "curves": {}}', "format 1"),
        ('{"format": 1, "positions": 8}', "curves"),
        ('{"format": 1, "positions": 8, "curves": {"a": "b"}}', "probes.json"),
    ],
)
def test_file_that_cannot_be_understood_is_named(content, message, run, tmp_path):
    (tmp_path / "probes.json").write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        Probes.read(run)
    assert str(tmp_path / "probes.json") in str(error.value)


def test_position_without_a_target_has_no_loss(run):
    assert measurements.loss_by_position(run) is None
    run.summary["val/loss_by_position"] = [2.0, 0.0, 1.5]
    np.testing.assert_array_equal(measurements.loss_by_position(run), [2.0, np.nan, 1.5])


def test_entropy_is_the_last_that_was_logged_in_each_head(run):
    assert measurements.attention_entropy(run) is None
    run.history["attn/entropy_l00h01"] = np.array([0.9, np.nan])
    run.history["attn/entropy_l01h00"] = np.array([0.8, 0.5])
    run.history["attn/max_logit_l01"] = np.array([8.0, 9.0])
    np.testing.assert_array_equal(
        measurements.attention_entropy(run), [[np.nan, 0.9], [0.5, np.nan]]
    )


def test_results_collect_a_measurement_by_seed(tmp_path):
    runs = [replace(fake_run("a", seed, [2.0]), path=tmp_path / str(seed)) for seed in (0, 1)]
    (tmp_path / "1").mkdir()
    STORED["shuffled"].write(tmp_path / "1")
    assert list(Results(runs).measured(ShuffledPrefix.read, "a")) == [1]


def test_reach_counts_tokens_from_the_last_one():
    found = Reach([5.0, 3.0, 1.0, 0.0, 1.0, 0.0])
    assert [found.tokens_holding(share) for share in (0.5, 0.8, 0.85, 0.9, 1.0)] == [1, 2, 3, 3, 5]
    assert found.farthest == 5
