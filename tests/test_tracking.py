"""Run directories: what is logged is there, whatever happens to the process or the disk."""

import json
import math
import os
import platform
import random
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tracked import ROOT, lines, log, loss, members, python, start

from attnlab.tracking import (
    MemberRecord,
    Mirror,
    SweepDirectory,
    Tracker,
    TrackingError,
    environment_record,
    read_runs,
    run_id,
)
from attnlab.tracking.environment import git_state
from attnlab.tracking.files import write_json

# Identity


def test_run_id_depends_on_values_and_not_on_their_order() -> None:
    config = {"lr": 0.1, "seed": {"init": 1, "data": 2}}
    same = {"seed": {"data": 2, "init": 1}, "lr": np.float64(0.1)}
    assert run_id("nope", config) == run_id("nope", same)
    assert run_id("nope", config) != run_id("nope", {**config, "lr": 0.2})
    assert run_id("nope", {}) == "nope-44136fa355"  # SHA-256 of "{}"


@pytest.mark.parametrize("name", ["", "../up", "a/b", "a b", "-a", "a:b", "x" * 65, "é"])
def test_sweep_name_that_is_no_slug_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be 1 to 64 letters"):
        run_id(name, {})
    with pytest.raises(ValueError, match="must be 1 to 64 letters"):
        SweepDirectory(tmp_path, name)


def test_config_without_a_json_form_has_no_id() -> None:
    with pytest.raises(TypeError, match="ndarray"):
        run_id("sw", {"mask": np.zeros(3)})
    with pytest.raises(ValueError, match="JSON"):
        run_id("sw", {"lr": math.nan})


# The door


def test_two_equal_members_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    one = members(1)[0]
    twin = MemberRecord(one.id, "the twin", "causal", 5, one.config)
    with pytest.raises(ValueError, match=r"'causal s0' and 'the twin'; members must differ"):
        SweepDirectory(tmp_path / "w", "sw").create([one, twin])
    assert not (tmp_path / "w").exists()


def test_looking_at_a_new_workdir_writes_nothing(tmp_path: Path) -> None:
    SweepDirectory(tmp_path / "a" / "b", "sw")
    assert list(tmp_path.iterdir()) == []


def _file(path: Path) -> None:
    path.write_text("")


def _other_sweep(path: Path) -> None:
    with SweepDirectory(path, "other") as sweep:
        sweep.create(members(1, "other"))


def _foreign_runs(path: Path) -> None:
    (path / "runs").mkdir(parents=True)


def _damaged(path: Path) -> None:
    path.mkdir()
    (path / "sweep.json").write_text("{")


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (_file, "is a file"),
        (_other_sweep, "holds the sweep 'other'"),
        (_foreign_runs, "no sweep.json"),
        (_damaged, "unreadable sweep.json"),
    ],
)
def test_workdir_with_something_else_in_it_is_refused(prepare, message, tmp_path: Path) -> None:
    prepare(tmp_path / "w")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=rf"^workdir='.*w'.*{message}"):
        SweepDirectory(tmp_path / "w", "sw")
    assert sorted(tmp_path.rglob("*")) == before


def test_started_sweep_is_not_started_again_by_accident(tmp_path: Path) -> None:
    tracker = start(tmp_path)
    log(tracker, 1)
    tracker.close()
    tracker.sweep.close()
    with pytest.raises(ValueError, match="2 of 3 members were already started; must be resumed"):
        SweepDirectory(tmp_path, "sw").create(members(3))
    with SweepDirectory(tmp_path, "sw") as sweep:
        sweep.create(members(3), resume=True)
    assert [run.status for run in read_runs(tmp_path)] == ["interrupted", "interrupted", "waiting"]


def test_other_configuration_under_the_same_id_is_refused(tmp_path: Path) -> None:
    one = members(1)[0]
    with SweepDirectory(tmp_path, "sw") as sweep:
        sweep.create([one])
        with pytest.raises(ValueError, match="holds another configuration"):
            sweep.create([MemberRecord(one.id, one.name, one.arm, 0, {"lr": 9})], resume=True)


def test_directory_in_use_by_another_process_is_refused(tmp_path: Path) -> None:
    code = f"""
        from tracked import *
        tracker = start(Path({str(tmp_path)!r}))
        print("open"); input()
    """
    other = python(code)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(ValueError, match="another process is training in it"):
            SweepDirectory(tmp_path, "sw").create(members(2))
        other.kill()
        other.wait()
        with SweepDirectory(tmp_path, "sw") as sweep:
            sweep.create(members(2))
    finally:
        other.kill()
        other.communicate()


def test_workdir_that_cannot_be_made_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be written"):
        SweepDirectory("/proc/attnlab", "sw").create(members(1))


def test_member_that_was_not_created_is_refused(tmp_path: Path) -> None:
    with SweepDirectory(tmp_path, "sw") as sweep:
        sweep.create(members(1))
        with pytest.raises(ValueError, match="has no directory"):
            Tracker(sweep, members(2), environment={})
        with pytest.raises(ValueError, match="must be online or offline"):
            Mirror(sweep.path, "on")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"a": np.zeros(3)}, r"'a' has shape \(3,\); must be \(2,\)"),
        ({"a": np.zeros((2, 1))}, "shape"),
        ({"a": 0.5}, "shape"),
        ({"a": np.array(["x", "y"])}, "must be a number"),
        ({"a": np.zeros(2, complex)}, "must be a number"),
        ({"step": np.zeros(2)}, "other than 'step'"),
        ({"_step": np.zeros(2)}, "not starting with '_'"),
        ({"": np.zeros(2)}, "column ''"),
    ],
)
def test_row_of_the_wrong_form_is_refused(rows, message, tmp_path: Path) -> None:
    tracker = start(tmp_path)
    with pytest.raises(ValueError, match=message):
        tracker.log(1, rows)
    with pytest.raises(ValueError, match="step=-1"):
        tracker.log(-1, {"a": np.zeros(2)})
    with pytest.raises(ValueError, match="where: has shape"):
        tracker.log(1, {"a": np.zeros(2)}, np.array([True]))
    assert tracker.close().rows == 0


def test_finished_member_takes_no_more_rows(tmp_path: Path) -> None:
    tracker = start(tmp_path)
    log(tracker, 1)
    tracker.finish(0, "diverged", {"diverged_at": 1})
    with pytest.raises(ValueError, match="already finished"):
        log(tracker, 2)
    with pytest.raises(ValueError, match="already finished"):
        tracker.finish(0, "finished")
    with pytest.raises(ValueError, match="status='running'"):
        tracker.finish(1, "running")
    with pytest.raises(ValueError, match="'status' is reserved"):
        tracker.finish(1, "finished", {"status": "x"})
    tracker.close()
    with pytest.raises(ValueError, match="after close"):
        tracker.log(2, {"a": np.zeros(2)})


# What is logged is what is read


def test_values_come_back_exactly(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    wide = rng.standard_normal(2)
    narrow = rng.standard_normal(2).astype(np.float32)
    half = narrow.astype(ml_dtypes.bfloat16)
    tracker = start(tmp_path)
    columns = {"wide": wide, "narrow": narrow, "half": half, "big": np.array([2**53 + 1, -1])}
    tracker.log(7, {**columns, "flag": np.array([True, False])})
    tracker.close()
    for index, run in enumerate(read_runs(tmp_path)):
        assert run.history["wide"][0] == wide[index]
        assert np.float32(run.history["narrow"][0]) == narrow[index]
        assert run.history["half"][0] == float(half[index])
        assert run.history["big"].dtype == np.int64
        assert run.history["big"][0] == columns["big"][index]
        assert run.history["flag"][0] == (index == 0)
        assert run.history["step"].tolist() == [7]


def test_nan_and_infinity_survive_in_a_file_any_json_reader_accepts(tmp_path: Path) -> None:
    tracker = start(tmp_path)
    tracker.log(1, {"x": np.array([np.nan, 1.0]), "y": np.array([-np.inf, np.inf])})
    tracker.finish(0, "diverged", {"x": math.nan, "steps": [1, math.inf]})
    tracker.close()
    assert lines(tmp_path) == [{"step": 1, "x": "NaN", "y": "-Infinity"}]
    first, second = read_runs(tmp_path)
    assert math.isnan(first.history["x"][0])
    assert first.history["y"][0] == -math.inf
    assert second.history["y"][0] == math.inf
    assert math.isnan(first.summary["x"])
    assert first.summary["steps"] == [1, math.inf]


def test_later_value_of_a_step_counts_and_columns_of_a_step_join(tmp_path: Path) -> None:
    tracker = start(tmp_path, 1)
    tracker.log(20, {"train/loss": np.array([2.0]), "tokens": np.array([200])})
    tracker.log(20, {"val/loss": np.array([3.0]), "tokens": np.array([200])})
    tracker.log(10, {"train/loss": np.array([9.0]), "tokens": np.array([100])})
    tracker.log(20, {"train/loss": np.array([1.0])})
    tracker.close()
    (run,) = read_runs(tmp_path)
    assert run.history["step"].tolist() == [10, 20]
    assert run.history["tokens"].tolist() == [100, 200]
    assert run.history["train/loss"].tolist() == [9.0, 1.0]
    steps, values = run.series("val/loss")
    assert steps.tolist() == [20]
    assert values.tolist() == [3.0]
    with pytest.raises(KeyError, match="val/los'"):
        run.series("val/los")


def test_rows_go_to_the_members_they_are_for(tmp_path: Path) -> None:
    tracker = start(tmp_path, 3)
    tracker.log(1, {"x": np.arange(3)}, np.array([True, False, True]))
    tracker.close()
    assert [run.history.get("x", np.array([])).tolist() for run in read_runs(tmp_path)] == [
        [0],
        [],
        [2],
    ]


def test_arrays_may_be_reused_after_logging(tmp_path: Path) -> None:
    tracker = start(tmp_path, 1)
    values, where = np.zeros(1), np.array([True])
    for step in range(50):
        values[0], where[0] = step, True
        tracker.log(step, {"x": values}, where)
        values[0], where[0] = -1, False
    tracker.close()
    assert [row["x"] for row in lines(tmp_path)] == list(range(50))


def test_member_is_recorded_with_everything_needed_to_understand_it(tmp_path: Path) -> None:
    tracker = start(tmp_path)
    tracker.finish(0, "finished", {"val/loss": 1.5})
    assert tracker.flush()
    tracker.close()
    first, second = read_runs(tmp_path)
    one = members(1)[0]
    assert (first.id, first.name, first.arm, first.seed) == (one.id, "causal s0", "causal", 0)
    assert first.config == one.config
    assert first.summary == {"val/loss": 1.5}
    assert (first.status, second.status) == ("finished", "waiting")
    (session,) = json.loads((first.path / "environment.json").read_text())
    assert session["packages"]["jax"]


@pytest.mark.parametrize(
    ("code", "status"),
    [(0, "interrupted"), (1, "failed"), (130, "interrupted"), (143, "interrupted")],
)
def test_unfinished_members_end_as_the_process_does(code, status, tmp_path: Path) -> None:
    tracker = start(tmp_path, 3)
    tracker.log(1, {"x": np.zeros(3)}, np.array([True, True, False]))
    tracker.finish(0, "finished")
    tracker.close(code)
    assert [run.status for run in read_runs(tmp_path)] == ["finished", status, "waiting"]


def test_exception_in_training_marks_what_was_training(tmp_path: Path) -> None:
    tracker = start(tmp_path, 1)
    log(tracker, 1)
    with pytest.raises(ZeroDivisionError), tracker:
        raise ZeroDivisionError
    assert [run.status for run in read_runs(tmp_path)] == ["failed"]
    assert len(lines(tmp_path)) == 1


def test_program_that_never_closes_keeps_its_rows(tmp_path: Path) -> None:
    code = f"""
        from tracked import *
        log(start(Path({str(tmp_path)!r}), 1), 1, 2, 3)
        raise SystemExit("done")
    """
    process = python(code)
    output, _ = process.communicate(timeout=60)
    assert output == "done\n"
    assert [row["step"] for row in lines(tmp_path)] == [1, 2, 3]
    assert read_runs(tmp_path)[0].status == "failed"


def test_summary_of_a_run_that_never_ended_is_its_last_values(tmp_path: Path) -> None:
    tracker = start(tmp_path, 1)
    tracker.log(1, {"train/loss": np.array([3.0]), "val/loss": np.array([4.0])})
    tracker.log(2, {"train/loss": np.array([2.0])})
    assert tracker.flush()
    (run,) = read_runs(tmp_path)
    assert run.status == "running"
    assert run.summary == {"train/loss": 2.0, "val/loss": 4.0}
    assert run.last_step == 2
    tracker.close()


# Crashes


@pytest.mark.parametrize("seed", range(3))
def test_kill_loses_no_row_that_was_reported_as_written(seed: int, tmp_path: Path) -> None:
    code = f"""
        from tracked import *
        tracker = start(Path({str(tmp_path)!r}), 8)
        for step in range(1, 100_000):
            log(tracker, step)
            if step % 3 == 0 and tracker.flush():
                print(step)
    """
    process = python(code)
    assert process.stdout is not None
    process.stdout.readline()
    threading.Timer(random.Random(seed).uniform(0.05, 0.6), process.kill).start()
    reported = [int(line) for line in process.stdout if line.endswith("\n")]
    process.wait()
    runs = read_runs(tmp_path)
    assert {run.status for run in runs} == {"interrupted"}
    for run in runs:
        last = run.last_step
        assert last is not None
        assert last >= max(reported, default=3)
        assert run.history["step"].tolist() == list(range(1, last + 1))


def test_run_is_running_only_while_its_process_lives(tmp_path: Path) -> None:
    code = f"""
        from tracked import *
        tracker = start(Path({str(tmp_path)!r}), 1)
        log(tracker, 1); tracker.flush(); print("written"); input()
    """
    process = python(code)
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    assert read_runs(tmp_path)[0].status == "running"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert read_runs(tmp_path)[0].status == "interrupted"


def test_run_with_rows_is_not_waiting_whatever_its_summary_says(tmp_path: Path) -> None:
    tracker = start(tmp_path, 1)
    log(tracker, 1)
    tracker.close()
    (run,) = read_runs(tmp_path)
    write_json(run.path / "summary.json", {"status": "waiting"})
    assert read_runs(tmp_path)[0].status == "running"  # the directory is still open
    tracker.sweep.close()
    assert read_runs(tmp_path)[0].status == "interrupted"


@pytest.mark.parametrize(
    "tail",
    [b'{"step":3,"train/lo', b"\0" * 100, b'{"step":3}\0\n', b'{"st', b"[1]\n", b"\xff\n"],
)
def test_torn_tail_is_passed_over_by_readers_and_cut_on_resume(tail, tmp_path: Path) -> None:
    tracker = start(tmp_path, 1)
    log(tracker, 1, 2)
    tracker.close()
    tracker.sweep.close()
    file = read_runs(tmp_path)[0].path / "metrics.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + tail)
    with pytest.warns(UserWarning, match="line 3") if b"\n" in tail else _no_warning():
        assert read_runs(tmp_path)[0].history["step"].tolist() == [1, 2]
    tracker = start(tmp_path, 1, resume=True)
    log(tracker, 3)
    tracker.close()
    assert file.read_bytes().startswith(whole)
    assert [row["step"] for row in lines(tmp_path)] == [1, 2, 3]


class _no_warning:  # noqa: N801 - reads as a statement
    def __enter__(self) -> None:
        import warnings

        self.catcher = warnings.catch_warnings()
        self.catcher.__enter__()
        warnings.simplefilter("error")

    def __exit__(self, *exc: object) -> None:
        self.catcher.__exit__(*exc)


def test_damaged_row_in_the_middle_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    tracker = start(tmp_path, 1)
    log(tracker, 1, 2, 3)
    tracker.close()
    file = read_runs(tmp_path)[0].path / "metrics.jsonl"
    rows = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(rows[0] + b"\0" * (len(rows[1]) - 1) + b"\n" + rows[2])
    with pytest.warns(UserWarning, match=r"metrics.jsonl: line 2 is unreadable"):
        (run,) = read_runs(tmp_path)
    assert run.history["step"].tolist() == [1, 3]


# Resume


def test_repeated_steps_are_not_written_twice(tmp_path: Path) -> None:
    tracker = start(tmp_path)
    log(tracker, *range(1, 8))
    tracker.close(143)
    tracker.sweep.close()
    tracker = start(tmp_path, resume=True)  # from a checkpoint at step 4; perf/ differs
    log(tracker, *range(5, 11))
    report = tracker.close()
    assert (report.repeated, report.changed, report.rows) == (6, 0, 6)
    assert [row["step"] for row in lines(tmp_path)] == list(range(1, 11))


def test_repeated_step_with_another_value_is_kept_and_counts(tmp_path: Path) -> None:
    tracker = start(tmp_path, 1)
    log(tracker, 1, 2, 3)
    tracker.close(143)
    tracker.sweep.close()
    tracker = start(tmp_path, 1, resume=True)
    tracker.log(2, {"tokens": np.array([200]), "train/loss": np.array([9.0])})
    log(tracker, 3, 4)
    report = tracker.close()
    assert (report.repeated, report.changed) == (1, 1)
    assert any("other values" in line for line in report.lines())
    (run,) = read_runs(tmp_path)
    assert run.history["step"].tolist() == [1, 2, 3, 4]
    assert run.history["train/loss"][1] == 9.0


def test_row_of_other_columns_at_a_known_step_is_new(tmp_path: Path) -> None:
    tracker = start(tmp_path, 1)
    log(tracker, 1, 2)
    tracker.close(143)
    tracker.sweep.close()
    tracker = start(tmp_path, 1, resume=True)
    tracker.log(2, {"val/loss": np.array([5.0])})
    assert tracker.close().changed == 0
    assert read_runs(tmp_path)[0].history["val/loss"][1] == 5.0


def test_finished_member_stays_finished_until_it_trains_on(tmp_path: Path) -> None:
    tracker = start(tmp_path, 2)
    log(tracker, 1)
    tracker.finish(0, "diverged", {"diverged_at": 1})
    tracker.close(143)
    tracker.sweep.close()
    tracker = start(tmp_path, 2, resume=True)
    assert [run.status for run in read_runs(tmp_path)] == ["diverged", "running"]
    tracker.close(143)
    assert [run.status for run in read_runs(tmp_path)] == ["diverged", "interrupted"]
    assert read_runs(tmp_path)[0].summary == {"diverged_at": 1}


def test_every_session_with_another_environment_is_recorded_once(tmp_path: Path) -> None:
    for flags in ("a", "a", "b"):
        with SweepDirectory(tmp_path, "sw") as sweep:
            sweep.create(members(1), resume=True)
            Tracker(sweep, members(1), environment={"flags": flags}).close()
    sessions = json.loads((read_runs(tmp_path)[0].path / "environment.json").read_text())
    assert sessions == [{"flags": "a"}, {"flags": "b"}]


# The disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def _fill(disk: Path) -> None:
    with open(disk / "filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 1024)
        except OSError:
            pass


def _free(disk: Path) -> None:
    (disk / "filler").unlink()


def _remount(disk: Path, how: str) -> None:
    """Needs that no file on it is open for writing."""
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


@pytest.mark.skipif(platform.system() != "Linux", reason="mounts a file system")
@pytest.mark.parametrize(
    ("fail", "mend", "message"),
    [
        (_fill, _free, "No space left"),
        (lambda d: _remount(d, "ro"), lambda d: _remount(d, "rw"), "Read-only"),
    ],
    ids=["full", "read-only"],
)
def test_rows_the_disk_refuses_are_written_when_it_lets_them(
    fail, mend, message, small_disk: Path
) -> None:
    tracker = start(small_disk, 2)
    log(tracker, 1, 2)
    assert tracker.flush()
    tracker.sweep.close()
    fail(small_disk)
    log(tracker, *range(3, 40))
    tracker.finish(1, "finished", {"val/loss": 1.0})
    assert not tracker.flush()
    assert tracker.disk_error is not None
    assert message in tracker.disk_error
    for index, run in enumerate(read_runs(small_disk)):  # what is there is whole
        assert run.history["step"].tolist() == list(range(1, len(run.history["step"]) + 1)), index
    mend(small_disk)
    tracker.log(40, {"tokens": np.array([4000, 0])}, np.array([True, False]))
    report = tracker.close()
    assert report.complete
    first, second = read_runs(small_disk)
    assert first.history["step"].tolist() == list(range(1, 41))
    assert second.history["step"].tolist() == list(range(1, 40))
    assert second.summary == {"val/loss": 1.0}
    assert len(lines(small_disk)) == 40  # and nothing twice


@pytest.mark.skipif(platform.system() != "Linux", reason="mounts a file system")
def test_rows_that_were_never_written_are_counted_at_the_end(small_disk: Path) -> None:
    tracker = start(small_disk, 2)
    log(tracker, 1)
    assert tracker.flush()
    _fill(small_disk)
    log(tracker, *range(2, 500))
    with pytest.raises(
        TrackingError, match=r"NOT WRITTEN: .* rows of 2 members .*No space left"
    ) as error:
        tracker.close()
    written = [len(lines(small_disk, index)) for index in range(2)]
    assert error.value.report.lost == {
        member.id: 499 - count for member, count in zip(members(2), written, strict=True)
    }
    assert tracker.close() is error.value.report


def test_write_that_fails_half_way_leaves_no_half_row(tmp_path: Path, monkeypatch) -> None:
    pwrite, state = os.pwrite, {"failures": 3}

    def unreliable(descriptor: int, data: bytes, offset: int) -> int:
        if state["failures"]:
            state["failures"] -= 1
            pwrite(descriptor, bytes(data)[: len(data) // 2], offset)
            raise OSError(28, "No space left on device")
        return pwrite(descriptor, bytes(data)[: max(1, len(data) // 2)], offset)  # short writes

    monkeypatch.setattr(os, "pwrite", unreliable)
    tracker = start(tmp_path, 1)
    for step in range(1, 6):
        log(tracker, step)
        tracker.flush()
        assert read_runs(tmp_path)[0].history["step"].size <= step
    tracker.close()
    assert [row["step"] for row in lines(tmp_path)] == [1, 2, 3, 4, 5]


def test_row_is_written_again_after_a_failed_fsync(tmp_path: Path, monkeypatch) -> None:
    tracker = start(tmp_path, 1)
    fsync, failures = os.fsync, [OSError(5, "Input/output error")]

    def unreliable(descriptor: int) -> None:
        if failures:
            raise failures.pop()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", unreliable)
    log(tracker, 1)
    assert not tracker.flush()
    assert tracker.disk_error is not None
    log(tracker, 2)
    assert tracker.flush()
    tracker.close()
    assert [row["step"] for row in lines(tmp_path)] == [1, 2]


def test_limit_on_file_size_is_an_error_like_any_other(tmp_path: Path) -> None:
    code = f"""
        import resource
        from tracked import *
        from attnlab.tracking import TrackingError
        tracker = start(Path({str(tmp_path)!r}), 1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        for step in range(1, 400):
            log(tracker, step)
        assert not tracker.flush()
        try: tracker.close()
        except TrackingError as error: print(sum(error.report.lost.values()))
    """
    process = python(code)
    output, _ = process.communicate(timeout=60)
    assert int(output) + len(lines(tmp_path)) == 399
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 4096


def test_file_that_something_else_cut_is_reported(tmp_path: Path) -> None:
    tracker = start(tmp_path, 1)
    log(tracker, 1, 2)
    assert tracker.flush()
    file = read_runs(tmp_path)[0].path / "metrics.jsonl"
    size = file.stat().st_size
    os.truncate(file, size - 3)
    log(tracker, 3)
    with pytest.raises(TrackingError, match="lost 3 bytes that had been written"):
        tracker.close()
    assert [row["step"] for row in lines(tmp_path)] == [1, 3]


def test_interrupted_write_of_a_summary_leaves_the_old_one(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "summary.json"
    write_json(file, {"status": "running"})

    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="No space"):
        write_json(file, {"status": "finished"})
    assert json.loads(file.read_text()) == {"status": "running"}
    assert list(tmp_path.iterdir()) == [file]


def test_many_members_hold_no_descriptors(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    tracker = start(tmp_path, 50)
    tracker.log(1, {"x": np.zeros(50)})
    assert tracker.flush()
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    tracker.close()


def test_clock_that_jumps_changes_nothing(tmp_path: Path, monkeypatch) -> None:
    tracker = start(tmp_path, 1)
    clock = iter([4e9, 0.0, -1.0] * 1000)
    monkeypatch.setattr(time, "time", lambda: next(clock))
    log(tracker, 1, 2, 3)
    tracker.finish(0, "finished")
    tracker.close()
    assert read_runs(tmp_path)[0].history["step"].tolist() == [1, 2, 3]


def test_same_run_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        tracker = start(tmp_path / name, 2)
        for step in range(1, 6):
            tracker.log(step, {"train/loss": loss(step, 2)})
        tracker.close()
    for member in members(2):
        first, second = (tmp_path / n / "runs" / member.id / "metrics.jsonl" for n in ("a", "b"))
        assert first.read_bytes() == second.read_bytes()


# The environment record


def test_environment_names_no_host_and_no_home(monkeypatch) -> None:
    home = os.path.expanduser("~")
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to={home}/dump")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", f"{home}er/cache")
    record = environment_record(
        ["attnlab", f"--workdir={home}/w"], {"corpus": f"text:{home}/t.txt"}, device="cpu"
    )
    text = json.dumps(record)
    assert platform.node() not in text or not platform.node()
    assert f"{home}/" not in text
    assert record["command"] == ["attnlab", "--workdir=~/w"]
    assert record["data"] == {"corpus": "text:~/t.txt"}
    assert record["variables"]["XLA_FLAGS"] == "--xla_dump_to=~/dump"
    assert record["variables"]["JAX_COMPILATION_CACHE_DIR"] == f"{home}er/cache"
    assert record["device"] == "cpu"
    assert record["packages"]["numpy"] == np.__version__
    assert record["python"] == platform.python_version()


def _git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_commit_and_dirty_flag_are_those_of_the_checkout(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(ROOT / ".git"))  # as inside a hook
    package = tmp_path / "attnlab"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.delenv("GIT_DIR")
    _git(tmp_path, "init", "-q")
    assert git_state(package) == {"commit": None, "dirty": None}  # not tracked by this repository
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-qm", "first")
    commit = _git(tmp_path, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(ROOT / ".git"))
    assert git_state(package) == {"commit": commit, "dirty": False}
    (package / "new.py").write_text("")
    assert git_state(package) == {"commit": commit, "dirty": True}


def test_reading_a_directory_without_a_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no sweep.json"):
        read_runs(tmp_path)
