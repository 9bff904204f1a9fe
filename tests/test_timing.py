"""What is timed is what was trained, and times are read back as they were written."""

from dataclasses import replace

import numpy as np
import pytest
import tiny
from fake_runs import fake_run

from attnlab import attention, members, timing
from attnlab.measurements.times import AttentionTime, UpdateTime
from attnlab.tracking import read_runs


@pytest.fixture(scope="module")
def trained(trained_workdir):
    (run,) = [r for r in read_runs(trained_workdir) if r.config["arm"] == "learned"]
    return members.load(run.path, None, tiny.BASE)


@pytest.mark.parametrize("asked", ["dense", "blockwise"])
def test_attention_is_timed_as_the_member_asks_for_it(trained, asked, monkeypatch):
    used: list[str] = []

    def attend(*args, impl, **kwargs):
        used.append(impl)
        return attention.attend(*args, impl=impl, **kwargs)

    timing._attention_gradients.clear_cache()
    monkeypatch.setattr(timing, "attend", attend)
    monkeypatch.setattr(timing, "LEAST_SECONDS", 1e-9)
    model = {**trained.config["model"], "attention": asked}
    with tiny.quick_compilation():
        found = timing.attention_time(replace(trained, config={**trained.config, "model": model}))
    assert used == [asked], "traced once"
    assert (found.length, found.sequences) == (8, trained.task.budget.batch_size)
    assert len(found.seconds) == timing.TURNS


def test_updates_are_timed_with_the_attention_that_the_member_asks_for(trained):
    model = {**trained.config["model"], "attention": "blockwise"}
    other = replace(trained, config={**trained.config, "model": model})
    assert timing._as_trained(other).architecture.attention == "blockwise"
    assert timing._as_trained(trained).architecture.attention == "auto"


def test_an_update_is_that_of_one_update(trained, monkeypatch):
    clock = iter(np.arange(0.0, 100.0, 2.0))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    with tiny.quick_compilation():
        found = timing.update_time(trained)
    assert found.seconds == pytest.approx(2.0 / trained.task.budget.log_every)
    assert found.median == found.seconds[0]
    assert found.tokens_per_second == pytest.approx(found.sequences * found.length / found.median)


@pytest.mark.parametrize("kind", [UpdateTime, AttentionTime])
def test_times_come_back_as_they_were_written(kind, tmp_path):
    run = replace(fake_run("a", 0, [1.0]), path=tmp_path)
    assert kind.read(run) is None
    kind(np.array([0.3, 0.1, 0.2]), 4, 32, "cpu").write(tmp_path)
    found = kind.read(run)
    assert (found.median, found.per_sequence, found.length) == (0.2, 0.05, 32)
    assert found.tokens_per_second == pytest.approx(640)


@pytest.mark.parametrize(
    ("seconds", "sequences", "told"),
    [
        ([], 1, "seconds"),
        ([0.0], 1, "seconds: must be positive, got 0"),
        ([1.0], 0, "sequences: must be at least 1, got 0"),
    ],
)
def test_impossible_times_are_refused(seconds, sequences, told):
    with pytest.raises(ValueError, match=told):
        UpdateTime(np.array(seconds), sequences, 8, "cpu")
