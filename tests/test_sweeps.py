"""A sweep from start to end, with the training left out: one mirror a session, and exit codes that tell the truth."""

import errno
import os
import signal
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pytest
import tiny

from attnlab import checkpoints, processes, sweeps
from attnlab.population import GroupReport
from attnlab.sweeps import Plan, Settings
from attnlab.tracking import MirrorReport, read_runs, writer

GROUPS = [tiny.config(), tiny.config({"seed.init": 1}), tiny.config({"model.width": 8})]


class FakeMirror:
    """What happened to the mirrors of a session, in `events`."""

    events: ClassVar[list[str]] = []

    def __init__(self, workdir: Path, mode: str, *, part: object = None) -> None:
        self.events.append(f"opened {mode}")

    def __enter__(self) -> "FakeMirror":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.events.append("left" if error else "passed")

    def stopped(self) -> frozenset[str]:
        return frozenset()

    def close(self, *, timeout: float) -> MirrorReport:
        self.events.append("waited for")
        return MirrorReport("offline", 3, 3, {}, (), None, Path("w"))


@pytest.fixture
def events(monkeypatch) -> list[str]:
    monkeypatch.setattr(FakeMirror, "events", [])
    monkeypatch.setattr(sweeps, "Mirror", FakeMirror)
    return FakeMirror.events


def opened(workdir: Path, **settings: Any) -> sweeps.Session:
    plan = Plan("tiny", tuple(tiny.plan(GROUPS)))
    return sweeps.open_session(plan, Settings(workdir, **{"wandb": "offline", **settings}))


def trained(events: list[str], then=lambda: None):
    """Stands in for `run_group`: one row and a good end for every member, after `then`."""

    def run_group(group, log, *, should_stop, **_: Any) -> GroupReport:
        events.append(f"group of {len(group.members)}")
        everyone = np.ones(len(group.members), bool)
        log.log(8, {"tokens": np.full(len(everyone), 256)}, everyone)
        then()
        if not should_stop():
            for index in range(len(everyone)):
                log.finish(index, "finished", {"val/loss": 1.0})
        return GroupReport(len(everyone), {"train": 1}, should_stop(), 0.0, 0.0, 0)

    return run_group


def test_the_mirror_goes_on_between_groups_and_is_waited_for_once(
    tmp_path: Path, events: list[str], monkeypatch
) -> None:
    monkeypatch.setattr(sweeps, "run_group", trained(events))
    assert sweeps.train(opened(tmp_path / "w")) == 0
    assert events == ["opened offline", "group of 2", "group of 1", "waited for", "passed"]
    assert {run.status for run in read_runs(tmp_path / "w")} == {"finished"}
    assert all("references" in run.summary for run in read_runs(tmp_path / "w"))


def test_a_signal_ends_the_session_behind_its_group(tmp_path: Path, events, monkeypatch) -> None:
    stop = trained(events, lambda: os.kill(os.getpid(), signal.SIGTERM))
    monkeypatch.setattr(sweeps, "run_group", stop)
    assert sweeps.train(opened(tmp_path / "w")) == 143
    assert events == ["opened offline", "group of 2", "waited for", "passed"]
    statuses = [run.status for run in read_runs(tmp_path / "w")]
    assert statuses == ["interrupted", "interrupted", "waiting"]


def test_a_signal_that_comes_too_late_to_interrupt_anything_is_no_failure(
    tmp_path: Path, events, monkeypatch
) -> None:
    class Late(FakeMirror):
        def close(self, *, timeout: float) -> MirrorReport:
            os.kill(os.getpid(), signal.SIGTERM)
            return super().close(timeout=timeout)

    monkeypatch.setattr(sweeps, "Mirror", Late)
    monkeypatch.setattr(sweeps, "run_group", trained(events))
    assert sweeps.train(opened(tmp_path / "w")) == 0


def test_who_insists_does_not_wait_for_the_mirror_and_keeps_the_rows(
    tmp_path: Path, events, monkeypatch
) -> None:
    def twice() -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(sweeps, "run_group", trained(events, twice))
    with pytest.raises(KeyboardInterrupt):
        sweeps.train(opened(tmp_path / "w"))
    assert events == ["opened offline", "group of 2", "left"]
    first, second, third = read_runs(tmp_path / "w")
    assert [run.status for run in (first, second, third)] == [
        "interrupted",
        "interrupted",
        "waiting",
    ]
    assert first.last_step == second.last_step == 8


def test_rows_the_disk_refused_to_the_end_are_said_and_are_a_failure(
    tmp_path: Path, events, monkeypatch, capsys
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    full = trained(events, lambda: monkeypatch.setattr(writer.RunWriter, "_append", refuse))
    monkeypatch.setattr(sweeps, "run_group", full)
    assert sweeps.train(opened(tmp_path / "w")) == 1
    output = capsys.readouterr().out
    assert "NOT WRITTEN: 2 rows of 2 members" in output
    assert "No space left" in output
    assert "--resume" in output


def test_a_job_of_several_processes_stops_where_orbax_says(
    tmp_path: Path, events, monkeypatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(processes, "from_first", np.asarray)  # the other process does not exist
    monkeypatch.setattr(sweeps, "reached_preemption", lambda n: asked.append(n) or n == 3)
    monkeypatch.setattr(sweeps, "run_group", trained(events))
    assert sweeps.reached_preemption is not checkpoints.reached_preemption
    code = sweeps.train(opened(tmp_path / "w", wandb="disabled"))
    # Before the first group, in it, and at its end: there they had agreed to stop.
    assert asked == [1, 2, 3]
    assert code == 143
    assert events == ["group of 2"]
