"""The W&B mirror: what the real client writes offline, and sends to a server on loopback.

Nothing here talks to W&B's own servers, and nothing is shown about them.
"""

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tracked import QUICK, lines, log, members, python, start
from wandb_files import read_offline
from wandb_server import API_KEY, ServerRun, WandbServer, wait_for

from attnlab.claims import Claim
from attnlab.report import Source, build
from attnlab.tracking import (
    Mirror,
    MirrorReport,
    MirrorSettings,
    Tracker,
    read_runs,
    resolve_mode,
    sync,
)

pytestmark = pytest.mark.network


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and no W&B variables from outside."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in list(os.environ):
        if name.startswith("WANDB_") or name == "NETRC":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    return folder


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    return tmp_path / "w"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    with WandbServer() as running:
        for name, value in running.environ.items():
            monkeypatch.setenv(name, value)
        yield running
    assert running.unknown == []


def end(tracker: Tracker, exit_code: int = 0, timeout: float = 180.0) -> MirrorReport:
    """Closes tracker, mirror and directory."""
    tracker.close(exit_code)
    report = tracker.mirror.close(timeout=timeout)  # type: ignore[attr-defined]
    tracker.sweep.close()  # type: ignore[attr-defined]
    return report


def run_of(server: WandbServer, index: int) -> ServerRun:
    return server.runs[members(index + 1)[index].id]


def logged(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without what W&B adds to them; NaN spelled as in metrics.jsonl."""
    kept = [{k: v for k, v in row.items() if not k.startswith("_")} for row in history]
    return [{k: "NaN" if v != v else v for k, v in row.items()} for row in kept]


def assert_mirrored(server: WandbServer, workdir: Path, count: int) -> None:
    """Every line of every file is one row there, in its place, once."""
    assert set(server.runs) == {member.id for member in members(count)}
    for index in range(count):
        run, rows = run_of(server, index), lines(workdir, index)
        assert logged(run.history) == rows, index
        steps = [row["_step"] for row in run.history]
        assert steps == sorted(set(steps)), index


def follower(tracker: Tracker) -> int:
    """Process id of the mirror's child, once it is at work."""
    mirror = tracker.mirror  # type: ignore[attr-defined]
    assert wait_for(lambda: mirror._child is not None)
    return mirror._child.pid


def helper(pid: int) -> int:
    """Process id of wandb-core, the helper that wandb starts."""

    def children() -> list[str]:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    assert wait_for(lambda: any("wandb-core" in _name(child) for child in children()))
    return next(int(child) for child in children() if "wandb-core" in _name(child))


def _name(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


# Online or offline


@pytest.mark.parametrize(
    ("flag", "environ", "mode", "reason"),
    [
        ("offline", {"WANDB_MODE": "online", "WANDB_API_KEY": "k"}, "offline", "as asked"),
        (None, {"WANDB_MODE": "disabled", "WANDB_API_KEY": "k"}, "disabled", "WANDB_MODE"),
        (None, {"WANDB_MODE": "dryrun"}, "offline", "WANDB_MODE"),
        (None, {"WANDB_API_KEY": "k"}, "online", "WANDB_API_KEY"),
        (None, {"WANDB_IDENTITY_TOKEN_FILE": "f"}, "online", "WANDB_IDENTITY_TOKEN_FILE"),
        (None, {"WANDB_API_KEY": ""}, "offline", "no key"),
        (None, {}, "offline", "no key"),
    ],
)
def test_mode_is_the_flag_or_the_variable_or_whether_a_key_is_there(
    flag, environ, mode, reason, home: Path
) -> None:
    found = resolve_mode(flag, {"HOME": str(home), **environ})
    assert found.mode == mode
    assert reason in found.reason


@pytest.mark.parametrize(
    ("machine", "base_url", "mode"),
    [
        ("api.wandb.ai", None, "online"),
        ("api.forge.coreweave.com", None, "online"),
        ("example.com", None, "offline"),
        ("api.wandb.ai", "https://wandb.example.com", "offline"),
        ("wandb.example.com", "https://wandb.example.com", "online"),
        ("127.0.0.1:8080", "http://127.0.0.1:8080", "online"),
    ],
)
@pytest.mark.parametrize("where", ["variable", "settings"])
def test_netrc_counts_when_it_has_the_server(machine, base_url, mode, where, home: Path) -> None:
    (home / ".netrc").write_text(f"machine {machine} login user password {API_KEY}\n")
    (home / ".netrc").chmod(0o600)
    environ = {"HOME": str(home)}
    if base_url and where == "variable":
        environ["WANDB_BASE_URL"] = base_url
    elif base_url:
        (home / ".config" / "wandb").mkdir(parents=True)
        (home / ".config" / "wandb" / "settings").write_text(f"[default]\nbase_url = {base_url}\n")
    assert resolve_mode(None, environ).mode == mode


@pytest.mark.parametrize(("flag", "environ"), [("on", {}), (None, {"WANDB_MODE": "shared"})])
def test_unknown_mode_is_refused_with_what_is_allowed(flag, environ) -> None:
    with pytest.raises(ValueError, match="must be online, offline, disabled"):
        resolve_mode(flag, environ)


def test_impossible_mirror_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="project='a/b'"):
        MirrorSettings(project="a/b")
    with pytest.raises(ValueError, match="poll_seconds=0"):
        MirrorSettings(poll_seconds=0)
    with pytest.raises(ValueError, match=r"transmit_seconds=0.5: must be at least 1"):
        MirrorSettings(transmit_seconds=0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="niceness=20"):
        MirrorSettings(niceness=20)


def test_wandb_still_has_the_private_settings_the_mirror_relies_on() -> None:
    code = "import wandb; print(*sorted(k for k in wandb.Settings.model_fields if k[:2] == 'x_'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"x_transaction_log_flush_interval", "x_disable_meta"} <= set(done.stdout.split())


# Offline


def test_offline_files_hold_what_the_run_directories_hold(workdir: Path, home: Path) -> None:
    tracker = start(workdir, 3, "offline")
    log(tracker, 10, 20)
    tokens = np.full(3, 2000)
    tracker.log(20, {"tokens": tokens, "val/loss": np.array([np.nan, 1.0, 2.0])})
    tracker.finish(0, "diverged", {"diverged_at": 20, "val/loss": np.nan})
    tracker.finish(1, "finished", {"val/loss": 1.0, "references": {"bigram": 2.5}})
    report = end(tracker, 143)
    assert (report.runs, report.rows, report.missing) == (3, 9, {})
    assert f"attnlab sync {workdir}" in report.lines()[-1]

    files = read_offline(workdir)
    for index, member in enumerate(members(3)):
        (run,) = files[member.id]
        assert logged(run.history) == lines(workdir, index)
        assert [row["_step"] for row in run.history] == [0, 1, 2]
        assert (run.group, run.job_type, run.name) == ("sw", "member", member.name)
        assert run.tags == ("causal", f"seed{index}")
        config = {k: v for k, v in run.config.items() if k not in ("_wandb", "environment")}
        assert config == {**member.config, "sweep": "sw"}
        assert run.metrics["*"] == "tokens"
    assert [files[member.id][0].exit_code for member in members(3)] == [1, 0, 255]
    assert files[members(1)[0].id][0].summary["diverged_at"] == 20
    assert files[members(2)[1].id][0].summary["status"] == "finished"

    # Nothing outside the workdir, and nothing about the machine or its user inside.
    assert [p for p in home.rglob("*") if p.is_file()] == []
    private = [str(home), str(workdir)] + ([platform.node()] if len(platform.node()) > 3 else [])
    for file in workdir.glob("wandb/offline-run-*/*.wandb"):
        assert not [text for text in private if text.encode() in file.read_bytes()]


def test_offline_rows_are_in_the_file_while_training_goes_on(workdir: Path) -> None:
    tracker = start(workdir, 1, "offline")
    log(tracker, 1, 2, 3)
    (member,) = members(1)

    def rows() -> int:
        files = read_offline(workdir).get(member.id, [])
        return len(files[0].history) if files else 0

    assert wait_for(lambda: rows() >= 3)
    end(tracker)


@pytest.mark.slow
def test_resumed_run_is_one_offline_file_with_every_row_once(workdir: Path) -> None:
    tracker = start(workdir, 1, "offline")
    log(tracker, 1, 2, 3)
    end(tracker, 143)
    tracker = start(workdir, 1, "offline", resume=True)
    log(tracker, 2, 3, 4)
    tracker.finish(0, "finished")
    end(tracker)
    (file,) = read_offline(workdir)[members(1)[0].id]
    assert [row["step"] for row in file.history] == [1, 2, 3, 4]
    assert file.exit_code == 0


# Online: what the server is told


def test_every_member_is_its_own_run(workdir: Path, server: WandbServer, home: Path) -> None:
    tracker = start(workdir, 4, "online")
    log(tracker, *range(1, 6))
    tokens = np.full(4, 500)
    tracker.log(5, {"tokens": tokens, "val/loss": np.array([np.nan, 1.0, 2.0, 3.0])})
    tracker.finish(0, "diverged", {"diverged_at": 5})
    tracker.finish(1, "finished", {"val/loss": 1.0})
    tracker.finish(2, "stopped")
    report = end(tracker, 143)
    assert (report.runs, report.rows, report.missing) == (4, 24, {})
    assert report.problems == ()
    assert report.url == f"{server.url}/loopback/attnlab"
    assert_mirrored(server, workdir, 4)
    for index, member in enumerate(members(4)):
        run = run_of(server, index)
        assert (run.project, run.group, run.job_type) == ("attnlab", "sw", "member")
        assert (run.name, run.tags) == (member.name, ("causal", f"seed{index}"))
        config = {k: v for k, v in run.config.items() if k not in ("_wandb", "environment")}
        assert config == {**member.config, "sweep": "sw"}
        assert run.config["environment"]["packages"]["wandb"]
        assert run.started == 1
        assert run.complete
    assert [run_of(server, i).exit_code for i in range(4)] == [1, 0, 255, 255]
    assert [run_of(server, i).preempting for i in range(4)] == [False, False, False, True]
    assert run_of(server, 0).summary["status"] == "diverged"
    assert run_of(server, 1).summary["val/loss"] == 1.0
    assert [p for p in home.rglob("*") if p.is_file()] == []


def test_member_that_never_trained_has_no_run(workdir: Path, server: WandbServer) -> None:
    tracker = start(workdir, 2, "online")
    tracker.log(1, {"x": np.zeros(2)}, np.array([True, False]))
    tracker.finish(0, "finished")
    assert end(tracker).missing == {}
    assert set(server.runs) == {members(1)[0].id}


@pytest.mark.parametrize("status", [429, pytest.param(500, marks=pytest.mark.slow)])
def test_storm_of_refusals_loses_and_doubles_no_row(
    status, workdir: Path, server: WandbServer
) -> None:
    server.fail("file_stream", status, times=3)
    server.fail("graphql UpsertBucket", 500, times=1)
    tracker = start(workdir, 2, "online")
    log(tracker, *range(1, 20))
    for index in range(2):
        tracker.finish(index, "finished")
    assert end(tracker).missing == {}
    assert_mirrored(server, workdir, 2)


@pytest.mark.slow
def test_outage_is_survived_and_sync_sends_the_rest_once(
    workdir: Path, server: WandbServer
) -> None:
    tracker = start(
        workdir,
        2,
        "online",
        mirror=replace(QUICK, init_timeout=3.0, finish_timeout=3.0),
    )
    log(tracker, 1, 2, 3)
    assert wait_for(lambda: sum(len(run.lines) for run in server.runs.values()) == 6)
    server.down()
    log(tracker, 4, 5)
    for index in range(2):
        tracker.finish(index, "finished", {"val/loss": float(index)})
    report = end(tracker, timeout=20.0)
    assert set(report.missing) == {member.id for member in members(2)}
    assert "NOT confirmed there" in report.lines()[1]
    assert f"attnlab sync {workdir}" in report.lines()[2]
    assert [len(lines(workdir, index)) for index in range(2)] == [5, 5]

    server.up()
    assert sync(workdir, QUICK).missing == {}
    assert_mirrored(server, workdir, 2)
    assert [run_of(server, index).exit_code for index in range(2)] == [0, 0]
    assert run_of(server, 1).summary["val/loss"] == 1.0

    server.requests.clear()
    again = sync(workdir, QUICK)
    assert (again.missing, again.rows) == ({}, 10)
    assert not [request for request in server.requests if "file_stream" in request]


@pytest.mark.slow
def test_member_that_ended_in_an_outage_is_delivered_after_it(
    workdir: Path, server: WandbServer
) -> None:
    mirror = replace(QUICK, init_timeout=3.0, finish_timeout=3.0)
    tracker = start(workdir, 2, "online", mirror=mirror)
    log(tracker, 1, 2)
    assert wait_for(lambda: sum(len(run.lines) for run in server.runs.values()) == 4)
    server.down()
    tracker.finish(0, "finished")
    assert tracker.flush()
    assert wait_for(lambda: "did not take the last rows in time" in str(tracker.mirror._problems))
    tracker.log(3, {"tokens": np.array([0, 300])}, np.array([False, True]))
    server.up()
    tracker.finish(1, "finished")
    assert end(tracker).missing == {}
    assert_mirrored(server, workdir, 2)
    assert [run_of(server, index).exit_code for index in range(2)] == [0, 0]


def test_sync_sends_an_offline_sweep_and_marks_its_files(
    workdir: Path, server: WandbServer
) -> None:
    tracker = start(workdir, 2, "offline")
    log(tracker, 1, 2)
    tracker.finish(0, "finished")
    end(tracker, 143)
    assert server.runs == {}
    assert sync(workdir, QUICK).missing == {}
    assert_mirrored(server, workdir, 2)
    assert [run_of(server, index).exit_code for index in range(2)] == [0, 255]
    files = list(workdir.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2
    assert all(file.with_suffix(".wandb.synced").exists() for file in files)


def test_rows_after_a_resume_go_on_in_the_same_run(workdir: Path, server: WandbServer) -> None:
    tracker = start(workdir, 2, "online")
    log(tracker, *range(1, 8))
    tracker.finish(1, "diverged", {"diverged_at": 7})
    end(tracker, 143)
    assert run_of(server, 0).preempting
    tracker = start(workdir, 2, "online", resume=True)
    tracker.log(
        6,
        {"tokens": np.array([600, 0]), "train/loss": np.array([9.0, 0.0])},
        np.array([True, False]),
    )
    for step in (8, 9):
        tracker.log(step, {"tokens": np.array([100 * step, 0])}, np.array([True, False]))
    tracker.finish(0, "finished")
    assert end(tracker).missing == {}
    assert_mirrored(server, workdir, 2)
    assert [row["step"] for row in run_of(server, 0).history] == [*range(1, 8), 6, 8, 9]
    assert [run_of(server, i).exit_code for i in range(2)] == [0, 1]
    assert [run_of(server, i).started for i in range(2)] == [2, 1]
    assert not run_of(server, 0).preempting


@pytest.mark.slow
def test_killed_helper_of_wandb_costs_no_row(workdir: Path, server: WandbServer) -> None:
    tracker = start(workdir, 2, "online")
    log(tracker, 1, 2, 3)
    first = follower(tracker)
    victim = helper(first)
    assert wait_for(lambda: sum(len(run.lines) for run in server.runs.values()) >= 2)
    os.kill(victim, signal.SIGKILL)
    log(tracker, 4, 5, 6)
    assert tracker.flush()
    for index in range(2):
        tracker.finish(index, "finished")
    report = end(tracker)
    assert report.missing == {}
    assert any("mirror ended with code" in problem for problem in report.problems)
    assert_mirrored(server, workdir, 2)
    assert [run_of(server, index).exit_code for index in range(2)] == [0, 0]


@pytest.mark.slow
def test_killed_mirror_is_started_again_offline(workdir: Path) -> None:
    tracker = start(workdir, 1, "offline")
    log(tracker, 1, 2, 3)
    assert wait_for(lambda: read_offline(workdir) != {})
    os.kill(follower(tracker), signal.SIGKILL)
    log(tracker, 4)
    tracker.finish(0, "finished")
    report = end(tracker)
    assert report.missing == {}
    (file,) = read_offline(workdir)[members(1)[0].id]
    assert [row["step"] for row in file.history] == [1, 2, 3, 4]
    assert file.exit_code == 0


@pytest.mark.slow
def test_killed_trainer_leaves_runs_that_say_so_and_can_go_on(
    workdir: Path, server: WandbServer
) -> None:
    code = f"""
        from tracked import *
        tracker = start(Path({str(workdir)!r}), 2, "online")
        log(tracker, 1, 2, 3); tracker.flush(); print("written"); input()
    """
    process = python(code)
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    process.kill()
    process.communicate()
    assert wait_for(lambda: len(server.runs) == 2 and all(r.complete for r in server.runs.values()))
    assert_mirrored(server, workdir, 2)
    assert [run.exit_code for run in server.runs.values()] == [255, 255]
    assert all(run.preempting for run in server.runs.values())

    tracker = start(workdir, 2, "online", resume=True)
    log(tracker, 2, 3, 4)
    for index in range(2):
        tracker.finish(index, "finished")
    assert end(tracker).missing == {}
    assert_mirrored(server, workdir, 2)
    assert [run.exit_code for run in server.runs.values()] == [0, 0]


@pytest.mark.slow
def test_ctrl_c_reaches_the_trainer_alone_and_the_rows_arrive(
    workdir: Path, server: WandbServer
) -> None:
    code = f"""
        import time
        from tracked import *
        tracker = start(Path({str(workdir)!r}), 2, "online")
        with tracker.mirror, tracker:
            for step in range(1, 10_000):
                log(tracker, step); time.sleep(0.05)
                if step == 1: print("training")
    """
    process = python(code, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "training\n"
    assert wait_for(lambda: len(server.runs) == 2)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does
    output, _ = process.communicate(timeout=180)
    assert "KeyboardInterrupt" in output
    # The mirror is not waited for: it delivers by itself.
    assert wait_for(lambda: all(run.complete for run in server.runs.values()))
    assert_mirrored(server, workdir, 2)
    assert [run.exit_code for run in server.runs.values()] == [255, 255]
    assert {run.status for run in read_runs(workdir)} == {"interrupted"}


@pytest.mark.slow
def test_rows_that_wandb_dropped_in_silence_are_noticed_and_sent(
    workdir: Path, server: WandbServer
) -> None:
    # A refusal that wandb takes as final: it drops the rows, and `finish` reports success.
    server.fail("file_stream", 400, times=1000)
    tracker = start(workdir, 1, "online")
    log(tracker, 1, 2, 3)
    tracker.finish(0, "finished")
    report = end(tracker)
    assert report.missing == {members(1)[0].id: 3}
    assert any("fewer rows" in problem for problem in report.problems)
    server.faults.clear()
    assert sync(workdir, QUICK).missing == {}
    assert_mirrored(server, workdir, 1)


@pytest.mark.slow
def test_server_that_never_answers_does_not_hold_the_end(
    workdir: Path, server: WandbServer
) -> None:
    server.delay = 600.0
    tracker = start(workdir, 1, "online")
    log(tracker, 1)
    tracker.finish(0, "finished")
    before = time.monotonic()
    report = end(tracker, timeout=2.0)
    assert time.monotonic() - before < 30.0
    assert report.missing == {members(1)[0].id: 1}
    assert any("did not finish within 2 s" in problem for problem in report.problems)
    assert read_runs(workdir)[0].status == "finished"
    server.delay = 0.0


def test_key_of_the_wrong_form_is_a_problem_not_a_crash(workdir: Path, server, monkeypatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "short")
    tracker = start(workdir, 1, "online")
    log(tracker, 1)
    tracker.finish(0, "finished")
    report = end(tracker)
    assert report.missing == {members(1)[0].id: 1}
    assert any("API key" in problem for problem in report.problems)


@pytest.mark.slow
def test_variables_of_another_run_do_not_leak_into_ours(workdir: Path, server, monkeypatch) -> None:
    for name in (
        "RUN_ID",
        "RUN_GROUP",
        "NAME",
        "TAGS",
        "SWEEP_ID",
        "RESUME",
        "SERVICE",
        "JOB_TYPE",
    ):
        monkeypatch.setenv(f"WANDB_{name}", "must")
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    tracker = start(workdir, 2, "online")
    log(tracker, 1)
    assert end(tracker).missing == {}
    assert_mirrored(server, workdir, 2)
    assert {(run.project, run.group) for run in server.runs.values()} == {("mine", "sw")}

    monkeypatch.delenv("WANDB_PROJECT")
    server.requests.clear()
    assert sync(workdir).missing == {}  # the project it was logged to, where all of it is
    assert not [request for request in server.requests if "UpsertBucket" in request]


def test_sync_is_refused_where_it_makes_no_sense(workdir: Path, server, monkeypatch) -> None:
    with pytest.raises(ValueError, match=r"no sweep.json"):
        sync(workdir)
    tracker = start(workdir, 1)
    with pytest.raises(ValueError, match="is being trained in"):
        sync(workdir)
    tracker.close()
    tracker.sweep.close()
    monkeypatch.delenv("WANDB_API_KEY")
    with pytest.raises(ValueError, match="no key found"):
        sync(workdir)


@pytest.mark.slow
def test_stop_button_stops_one_member(workdir: Path, server: WandbServer) -> None:
    tracker = start(workdir, 3, "online")
    log(tracker, 1, 2)
    assert wait_for(lambda: len(server.runs) == 3)
    assert tracker.stop_requests() == frozenset()
    run_of(server, 1).stopped = True
    step = 3

    def pressed() -> bool:
        nonlocal step
        log(tracker, step)
        step += 1
        return bool(tracker.stop_requests())

    assert wait_for(pressed, timeout=90.0, every=1.0)
    assert tracker.stop_requests() == frozenset({1})
    tracker.finish(1, "stopped")
    rest = np.array([True, False, True])
    tracker.log(step, {"tokens": np.full(3, 100 * step)}, rest)
    for index in (0, 2):
        tracker.finish(index, "finished")
    assert end(tracker).missing == {}
    assert_mirrored(server, workdir, 3)
    assert [run_of(server, index).exit_code for index in range(3)] == [0, 255, 0]


@pytest.mark.slow
def test_sixty_four_members_online(workdir: Path, server: WandbServer) -> None:
    server.delay = 0.05
    tracker = start(workdir, 64, "online", mirror=replace(QUICK, transmit_seconds=None))
    log(tracker, *range(1, 51))
    for index in range(64):
        tracker.finish(index, "finished")
    assert end(tracker).missing == {}
    assert_mirrored(server, workdir, 64)
    assert json.loads((workdir / "wandb" / "mirror.json").read_text())["targets"]


# The report


def write_report(workdir: Path, claim: Claim | None = None) -> Path:
    """The report of what is on the disk, with one figure."""
    masks = {"causal": np.tri(4, dtype=bool)}
    source = Source("sw", read_runs(workdir), claim, masks=masks)
    return build(source, workdir / "report").page


def media(run: ServerRun) -> set[str]:
    """Kinds of the files that belong to the run's media."""
    return {Path(name).suffix for name in run.files if name.startswith("media/")}


def test_report_is_a_run_of_the_group_with_figures_page_and_verdict(
    server: WandbServer, workdir: Path
) -> None:
    tracker = start(workdir, 2, "online")
    log(tracker, 1, 2)
    assert end(tracker).report is None
    page = write_report(workdir)
    assert sync(workdir, QUICK).report is True
    run = server.runs["sw-report"]
    assert (run.group, run.job_type, run.name) == ("sw", "report", "sw-report")
    assert run.tags == ("report", "causal", "seed0", "seed1")
    assert run.summary["runs/interrupted"] == 2
    assert (run.complete, run.exit_code) == (True, 0)
    (row,) = run.history
    assert row["report"]["_type"] == "html-file"
    assert row["figures/masks"]["_type"] == "image-file"
    assert media(run) == {".png", ".html"}
    (sent,) = [body for name, body in run.files.items() if name.endswith(".html")]
    assert sent.decode() == page.read_text()


def test_report_is_sent_again_when_it_says_something_else_and_when_it_did_not_arrive(
    server: WandbServer, workdir: Path
) -> None:
    tracker = start(workdir, 1, "online")
    log(tracker, 1)
    end(tracker)
    write_report(workdir)
    server.down()
    failed = sync(workdir, replace(QUICK, init_timeout=2.0))
    assert failed.report is False
    assert any("the report is NOT there" in line for line in failed.lines())
    assert any("attnlab sync" in line for line in failed.lines())
    server.up()
    assert sync(workdir, QUICK).report is True
    write_report(workdir)  # says the same
    assert sync(workdir, QUICK).report is True
    assert server.runs["sw-report"].started == 1
    build(Source("sw", read_runs(workdir)), workdir / "report")  # without the figure
    assert sync(workdir, QUICK).report is True
    run = server.runs["sw-report"]
    assert run.started == 2
    assert ["figures/masks" in row for row in run.history] == [True, False]


def test_report_is_written_offline_once_and_newest(workdir: Path) -> None:
    tracker = start(workdir, 1, "offline")
    log(tracker, 1)
    end(tracker)
    for masks in ({}, {"causal": np.tri(4, dtype=bool)}):
        build(Source("sw", read_runs(workdir), masks=masks), workdir / "report")
        assert Mirror(workdir, "offline", QUICK).close(timeout=120.0).report is True
    (run,) = read_offline(workdir)["sw-report"]
    assert (run.group, run.job_type, run.exit_code) == ("sw", "report", 0)
    assert any(key.startswith("figures/masks/") for key in run.history[0])
    assert set(run.tags) == {"report", "causal", "seed0"}
