"""Several processes of one job: the numbers of one process, one writer, and nobody left waiting for the dead."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from cli_runner import Cli

from attnlab import processes
from attnlab.tracking import read_runs

CONFIG = str(Path(__file__).with_name("launch_sweep.py"))
BOUND = 120.0
"""Seconds within which a job must notice that one of its processes is gone; twice what it takes at the most."""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((2, None, None), "--process-id, --coordinator: must be given too"),
        ((None, 0, None), "--processes, --coordinator: must be given too"),
        ((2, 2, "h:1"), "got 2 of 2 processes; allowed: 0 to 1"),
        ((2, -1, "h:1"), "got -1 of 2"),
        ((2, 0, "host"), "--coordinator: got 'host'; allowed: HOST:PORT"),
        ((2, 0, ":80"), "--coordinator: got ':80'"),
    ],
)
def test_half_a_job_is_refused(given: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        processes.start(*given)


def test_an_allocation_without_srun_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[dict] = []
    monkeypatch.setattr(processes, "_join", lambda **where: joined.append(where))
    processes.start(None, None, None, {"SLURM_NTASKS": "2", "SLURM_JOB_ID": "7"})
    processes.start(None, None, None, {"SLURM_STEP_NUM_TASKS": "1"})
    processes.start(1, 0, "localhost:1", {})
    assert joined == []
    processes.start(None, None, None, {"SLURM_STEP_NUM_TASKS": "2"})
    processes.start(2, 1, "localhost:1", {})
    where = {"coordinator_address": "localhost:1", "num_processes": 2, "process_id": 1}
    assert joined == [{}, where]


def test_one_process_asks_nobody() -> None:
    done = []
    processes.by_first(lambda: done.append(1))
    assert done == [1]
    assert processes.from_first(3) == 3
    with pytest.raises(ValueError, match="no"):
        processes.by_first(lambda: (_ for _ in ()).throw(ValueError("no")))


@pytest.fixture(scope="module")
def attnlab(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    root = tmp_path_factory.mktemp("processes")
    runner = Cli(root, root / "xla")
    runner.env["WANDB_MODE"] = "disabled"
    return runner


def job(attnlab: Cli, *words: str) -> list[subprocess.Popen[str]]:
    """Two processes with a device each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = ("sweep", "--config", CONFIG, *words, "--devices", "1", "--processes", "2")
    where = ("--coordinator", f"127.0.0.1:{port}")
    return [attnlab.start(*common, *where, "--process-id", str(i)) for i in range(2)]


def ends(started: list[subprocess.Popen[str]], timeout: float = 400.0) -> list[tuple[int, str]]:
    """Exit code and output of each process."""
    found = []
    for process in started:
        out, err = process.communicate(timeout=timeout)
        found.append((process.returncode, out + err))
    return found


def assert_equal(a: Path, b: Path, rtol: float) -> None:
    left, right = ({run.id: run.history for run in read_runs(w)} for w in (a, b))
    assert len(left) == 4
    assert left.keys() == right.keys()
    for run, columns in left.items():
        assert columns.keys() == right[run].keys()
        for name, values in columns.items():
            np.testing.assert_allclose(
                right[run][name], values, rtol=rtol, atol=rtol, err_msg=f"{run} {name}"
            )


@pytest.mark.slow
def test_members_over_two_processes_have_the_numbers_of_one(attnlab: Cli) -> None:
    steps = ("--config.steps=400", "--config.eval.every=200")
    attnlab("sweep", "--config", CONFIG, *steps, "--devices", "2", "--workdir", "one")
    found = ends(job(attnlab, *steps, "--workdir", "two"))
    assert [code for code, _ in found] == [0, 0], found
    assert "wall time" in found[0][1]
    assert "wall time" not in found[1][1], "only the first process prints"
    assert_equal(attnlab.cwd / "one", attnlab.cwd / "two", rtol=0)
    assert all(run.status == "finished" for run in read_runs(attnlab.cwd / "two"))


@pytest.mark.slow
def test_a_member_over_two_processes_has_the_numbers_of_one_device(attnlab: Cli) -> None:
    steps = ("--config.steps=40", "--config.eval.every=20", "--config.mesh.data=2")
    attnlab("sweep", "--config", CONFIG, *steps[:2], "--devices", "1", "--workdir", "device")
    found = ends(job(attnlab, *steps, "--workdir", "shared"))
    assert [code for code, _ in found] == [0, 0], found
    left, right = (
        {r.name: r.history for r in read_runs(attnlab.cwd / w)} for w in ("device", "shared")
    )
    for name, columns in left.items():
        for column, values in columns.items():
            np.testing.assert_allclose(
                right[name][column], values, rtol=2e-4, err_msg=f"{name} {column}"
            )


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_ends_the_job_which_then_resumes(victim: int, attnlab: Cli) -> None:
    work = attnlab.cwd / f"killed{victim}"
    words = (
        "--config.steps=3000",
        "--config.eval.every=1500",
        "--checkpoint-steps",
        "200",
        "--workdir",
        work.name,
    )
    started = job(attnlab, *words)
    end = time.monotonic() + 900
    while len(list(work.glob("checkpoints/*/*/_CHECKPOINT_METADATA"))) == 0:
        assert time.monotonic() < end
        assert all(process.poll() is None for process in started), ends(started)
        time.sleep(0.1)
    started[victim].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    (code, output) = ends([started[1 - victim]], timeout=BOUND)[0]
    assert code not in (0, None), output
    print(
        f"process {1 - victim} ended with {code}, {time.monotonic() - killed:.0f} s after the other was killed"
    )
    started[victim].communicate()
    short = ("--config.steps=3000", *words[1:])
    found = ends(job(attnlab, *short, "--resume"))
    assert [code for code, _ in found] == [0, 0], found
    for run in read_runs(work):
        steps = run.history["step"].tolist()
        assert steps == sorted(set(steps))
        assert steps[-1] == 3000


@pytest.mark.slow
def test_what_one_process_refuses_ends_all(attnlab: Cli) -> None:
    (attnlab.cwd / "file").write_text("")
    for words in (("--workdir", "file"), ("--workdir", "new", "--config.mesh.data=3")):
        found = ends(job(attnlab, *words), timeout=BOUND)
        codes = [code for code, _ in found]
        assert 0 not in codes, found
        assert 2 in codes, "who refuses says so; who still waits for it is ended by its absence"
    assert not (attnlab.cwd / "new").exists()
    assert os.path.getsize(attnlab.cwd / "file") == 0
