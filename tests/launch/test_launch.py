"""`attnlab launch` without a cluster: what would be submitted, what goes with it, and everything that is refused."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_runner import Cli

from attnlab import cli
from attnlab.tracking import read_runs
from launch import jobs, local, sky, slurm, snapshot
from launch.jobs import Job, Sweep

CHECKOUT = Path(cli.CHECKOUT)
CONFIG = str(CHECKOUT / "tests" / "launch_sweep.py")


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a refused command prints."""
    assert cli.main(words) == 2
    output = capsys.readouterr()
    assert output.out == ""
    return output.err.strip().splitlines()[-1]


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of the path, apart from git's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    git = subprocess.run(["which", "git"], capture_output=True, text=True, check=True).stdout
    (folder / "git").symlink_to(git.strip())
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"])
    return folder


def pretend(folder: Path, **outputs: str) -> None:
    """Programs that print what they are told to."""
    for name, text in outputs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)


def cluster(folder: Path, nodes: str = "n1 n2", queue: str = "") -> None:
    """SLURM's commands, of a cluster with two partitions."""
    listing = f"""case "$*" in *%N*) printf '%s\\n' {nodes};; *) echo 'gpu 2-00:00:00'; echo 'debug 30:00';; esac"""
    pretend(folder, sinfo=listing, squeue=f"echo {queue}", sbatch="exit 1", srun="exit 1")


LAUNCH = ("launch", "slurm", "--config", CONFIG, "--workdir")


def test_a_dry_run_on_a_laptop_shows_the_script_and_writes_nothing(
    bin_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("submitit")
    work = tmp_path / "work"
    words = (
        "--shards",
        "2",
        "--partition",
        "gpu",
        "--gpus",
        "1",
        "--time",
        "120",
        "--mem-gb",
        "1.5",
    )
    assert cli.main([*LAUNCH, str(work), *words, "--dry-run", "--config.steps=400"]) == 0
    out = capsys.readouterr().out
    assert not work.exists()
    for line in (
        "#SBATCH --partition=gpu", "#SBATCH --time=120", "#SBATCH --gpus-per-node=1", "#SBATCH --array=0-1%2",
        "#SBATCH --mem=1536M", "#SBATCH --requeue", "#SBATCH --signal=USR2@90", "not checked: partition",
    ):  # fmt: skip
        assert line in out
    for index in range(2):
        assert (
            f"--config.steps=400 --checkpoint-minutes 10 --workdir {work} --shard {index}/2 --resume"
            in out
        )


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--partition", "gup"), ("--partition", "'gup'", "did you mean 'gpu'", "debug, gpu")),
        (("--partition", "debug", "--time", "60"), ("--time", "60", "'debug'", "at most 30")),
        (("--time", "10"), ("--time", "10 minutes", "--checkpoint-minutes")),
        (("--shards", "5"), ("shards", "5", "4 members", "1 to 4")),
        (("--shards", "0"), ("--shards", "at least 1", "0")),
        ((), ("other nodes", "--shared")),
        (("--shared", "--config.steps=3"), ("steps", "3", "log_every")),
    ],
)
def test_what_a_cluster_could_not_run_is_refused(
    words: tuple[str, ...],
    parts: tuple[str, ...],
    bin_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("submitit")
    cluster(bin_folder)
    monkeypatch.setattr(slurm, "file_system", lambda _: "ext4")
    line = refused(capsys, *LAUNCH, str(tmp_path / "work"), *words)
    for part in parts:
        assert part.replace("other nodes", "nodes of the cluster may not see") in line
    assert not (tmp_path / "work").exists()


def test_a_sweep_that_is_queued_is_not_submitted_again(
    bin_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("submitit")
    cluster(bin_folder, queue="7_0 7_1")
    line = refused(capsys, *LAUNCH, str(tmp_path / "work"), "--shared")
    assert "7_0, 7_1" in line
    assert "scancel --name attnlab-launch_sweep-" in line


def test_a_machine_without_slurm_says_where_to_go(
    bin_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("submitit")
    line = refused(capsys, *LAUNCH, str(tmp_path / "work"))
    assert "no SLURM" in line
    assert "attnlab launch local" in line


def test_a_file_for_a_workdir_and_a_missing_extra(
    bin_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_text("")
    line = refused(capsys, *LAUNCH, str(tmp_path / "file" / "work"))
    assert "cannot be written" in line
    monkeypatch.setitem(sys.modules, "submitit.slurm.slurm", None)
    assert "attnlab[slurm]" in refused(capsys, *LAUNCH, str(tmp_path / "work"))
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("limit", "minutes"),
    [("1-00:00:00", 1440), ("2:30:00", 150), ("30:00", 30), ("0:30", 0.5), ("infinite", None)],
)
def test_limits_are_read_as_slurm_writes_them(limit: str, minutes: float | None) -> None:
    assert slurm._minutes(limit) == minutes


def test_the_only_node_sees_its_own_disk(
    bin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster(bin_folder, nodes=os.uname().nodename.partition(".")[0])
    monkeypatch.setattr(slurm, "file_system", lambda _: "ext4")
    slurm._check_shared(tmp_path)


def test_the_file_system_is_that_of_the_nearest_parent() -> None:
    assert slurm.file_system(Path("/proc/none/such")) == "proc"


def repository(root: Path) -> Path:
    root.mkdir()
    files = {"attnlab/a.py": "1", "configs/base.py": "2", ".gitignore": "runs/\n", "data.bin": "3"}
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    who = ("-c", "user.name=n", "-c", "user.email=e@x")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-q", "-m", "m")):
        subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True)
    return root


def test_a_snapshot_is_the_code_as_it_is_now_and_stays_so(tmp_path: Path) -> None:
    checkout = repository(tmp_path / "checkout")
    clean, (path,) = snapshot.take(checkout, [checkout / "configs" / "base.py"], tmp_path / "out")
    assert path == "configs/base.py"
    assert clean.files == (".gitignore", "attnlab/a.py", "configs/base.py", "data.bin")
    assert not any("changed" in line for line in clean.lines())
    (checkout / "attnlab" / "a.py").write_text("changed")
    (checkout / "attnlab" / "new.py").write_text("new")
    (checkout / "notes.txt").write_text("mine")
    (checkout / "runs").mkdir()
    (checkout / "runs" / "x.py").write_text("a result")
    dirty, _ = snapshot.take(checkout, [], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert dirty.place != clean.place
    (line,) = dirty.lines()
    assert "1 changed files (attnlab/a.py) and 1 untracked files (attnlab/new.py)" in line
    dirty.write()
    (checkout / "attnlab" / "a.py").write_text("edited while the job waits")
    dirty.write()
    copied = {str(p.relative_to(dirty.place)) for p in dirty.place.rglob("*") if p.is_file()}
    assert copied == {*dirty.files, "snapshot.json"}
    assert (dirty.place / "attnlab" / "a.py").read_text() == "changed"
    assert [p.name for p in (tmp_path / "out").iterdir()] == [dirty.place.name]


def test_code_that_cannot_go_with_a_job_is_refused(tmp_path: Path) -> None:
    checkout = repository(tmp_path / "checkout")
    (tmp_path / "mine.py").write_text("")
    with pytest.raises(ValueError, match="is not in the checkout"):
        snapshot.take(checkout, [tmp_path / "mine.py"], tmp_path)
    (tmp_path / "plain").mkdir()
    with pytest.raises(ValueError, match="is no git checkout"):
        snapshot.take(tmp_path / "plain", [], tmp_path)


SAVES = """
import pathlib, signal, sys, time
def save(*_):
    pathlib.Path("saved").write_text("")
    sys.exit(140)
signal.signal(signal.SIGUSR2, save)
pathlib.Path("ready").write_text("")
time.sleep(60)
"""


def test_a_job_that_must_go_lets_its_sweep_save_and_comes_back_the_same(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    job = Job((sys.executable, "-c", SAVES), str(tmp_path), str(tmp_path), {"A": "1"})
    raised: list[BaseException] = []

    def run() -> None:
        try:
            job()
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while not (tmp_path / "ready").exists():
        time.sleep(0.05)
    again = job.checkpoint()
    assert (tmp_path / "saved").exists()
    thread.join(20)
    assert "exit code 140" in str(raised[0])
    assert again.function == Job(job.command, job.code, job.cwd, job.environ)


def test_a_job_ends_as_its_command_ends(tmp_path: Path) -> None:
    code = "import os, sys; sys.exit(os.environ['PYTHONPATH'] != 'here')"
    assert Job((sys.executable, "-c", code), "here", str(tmp_path))() == 0
    with pytest.raises(RuntimeError, match="exit code 1 from"):
        Job((sys.executable, "-c", code), "elsewhere", str(tmp_path))()


def test_only_a_job_that_slurm_still_runs_is_requeued(
    bin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert not jobs._still_allocated()
    monkeypatch.setenv("SLURM_JOB_ID", "9")
    assert not jobs._still_allocated(), "no squeue to ask"
    for state, expected in (("RUNNING", True), ("CANCELLED", False), ("", False)):
        pretend(bin_folder, squeue=f"echo {state}")
        assert jobs._still_allocated() is expected


def test_gpus_of_a_machine_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    eight = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
    given = [local.visible_devices(4, i, eight)["CUDA_VISIBLE_DEVICES"] for i in range(4)]
    assert given == ["0,4", "1,5", "2,6", "3,7"]
    few = {"CUDA_VISIBLE_DEVICES": "2"}
    assert local.visible_devices(4, 3, few) == few
    monkeypatch.setattr(local, "_gpus", list)
    assert local.visible_devices(2, 0, {}) == {}


def test_local_dry_run_prints_the_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"])
    work = tmp_path / "work"
    words = (
        "--config",
        CONFIG,
        f"{CONFIG}:long",
        "--workdir",
        str(work),
        "--shards",
        "2",
        "--dry-run",
    )
    assert cli.main(["launch", "local", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[1:]] == [
        f"{name} {i}/2" for name in ("launch_sweep", "launch_sweep-long") for i in range(2)
    ]
    assert f"--workdir {work / 'launch_sweep-long'} --shard 1/2 --resume" in lines[-1]
    assert not work.exists()


@pytest.mark.slow
def test_local_jobs_train_what_was_launched(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    attnlab = Cli(tmp_path, tmp_path / "xla")
    words = ("--config", CONFIG, "--shards", "2", "--workdir", "work", "--wandb", "disabled")
    out = attnlab("launch", "local", *words, "--config.steps=200", "--config.eval.every=200")
    assert out.count(": done") == 2
    runs = read_runs(attnlab.cwd / "work")
    assert [(run.status, run.last_step) for run in runs] == [("finished", 200)] * 4
    (code,) = (attnlab.cwd / "work" / "launch").glob("code-*")
    assert (code / "attnlab" / "cli.py").exists()
    logs = "".join(p.read_text() for p in (attnlab.cwd / "work" / "launch" / "logs").rglob("*.out"))
    assert str(code) in logs


KEYS: dict[str, type | tuple[type, ...]] = {
    "name": str, "workdir": str, "resources": dict, "envs": dict, "file_mounts": dict, "setup": str, "run": str,
}  # fmt: skip
RESOURCES: dict[str, type | tuple[type, ...]] = {
    "infra": str, "accelerators": (str, dict), "accelerator_args": dict, "use_spot": bool, "disk_size": int,
    "job_recovery": dict,
}  # fmt: skip


@pytest.mark.parametrize("name", ["gpu", "gpus8", "spot", "tpu"])
def test_a_cloud_file_has_the_keys_that_skypilot_knows(name: str) -> None:
    assert sky.templates() == ["gpu", "gpus8", "spot", "tpu"]
    task: dict[str, Any] = yaml.safe_load((sky.FOLDER / f"{name}.yaml").read_text())
    for given, known in ((task, KEYS), (task["resources"], RESOURCES)):
        assert all(isinstance(value, known[key]) for key, value in given.items())
    assert KEYS.keys() == task.keys()
    assert task["envs"].keys() == {"CONFIG", "FLAGS", "SHARD", "NAME", "BUCKET"}
    assert task["envs"]["BUCKET"] is None, "must be asked for"
    assert task["file_mounts"] == {"/runs": {"source": "${BUCKET}", "mode": "MOUNT_CACHED"}}
    run = task["run"]
    assert '--shard "$SHARD" --resume' in run
    assert '--workdir "/runs/$NAME"' in run
    words = ["bash", "-n", "-c"]
    for script in (task["setup"], run):
        subprocess.run([*words, script], check=True)
    wanted = {"gpu": {1}, "spot": {1}, "gpus8": {8}, "tpu": {"tpu-v6e-8"}}[name]
    devices = task["resources"]["accelerators"]
    assert set(devices.values() if isinstance(devices, dict) else [devices]) == wanted
    assert task["resources"].get("use_spot", False) is (name in ("spot", "tpu"))
    extra = "tpu" if name == "tpu" else "cuda"
    assert f"-e '.[{extra}," in task["setup"]


@pytest.mark.parametrize("name", ["gpu", "gpus8", "spot", "tpu"])
def test_skypilot_itself_reads_a_cloud_file(name: str) -> None:
    module = pytest.importorskip("sky", reason="SkyPilot is not installed (460 MB)")
    if not hasattr(module, "Task"):
        pytest.skip("SkyPilot is not installed")
    task = module.Task.from_yaml(str(sky.FOLDER / f"{name}.yaml"), {"BUCKET": "gs://b"})
    assert task.resources


def test_sky_commands_name_shard_and_bucket(
    bin_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("launch", "sky", "--config", CONFIG, "--shards", "2")
    assert "--bucket" in refused(capsys, *words)
    assert "spot, tpu" in refused(capsys, *words, "--bucket", "gs://b", "--template", "gpus")
    assert "SkyPilot is not installed" in refused(capsys, *words, "--bucket", "gs://b")
    spaced = refused(capsys, *words, "--bucket", "gs://b", "--config.mask=causal & full")
    assert "no spaces" in spaced
    told = tmp_path / "told"
    pretend(bin_folder, sky=f'echo "$@" >> {told}')
    assert cli.main([*words, "--bucket", "gs://b", "--template", "spot"]) == 0
    lines = told.read_text().splitlines()
    assert len(lines) == 2
    assert "--name launch-sweep-1-of-2" in lines[1]
    assert "--env SHARD=1/2" in lines[1]
    assert "launch/sky/spot.yaml" in lines[1]


def test_a_job_is_exactly_a_shard_that_resumes() -> None:
    sweep = Sweep("n", "configs/c.py:big", Path("/w"), 8, ("--seeds", "3"))
    command = sweep.command(2, Path("/code"))
    assert command[0] == sys.executable
    assert command[1:] == (
        "-P", "-m", "attnlab", "sweep", "--config", "/code/configs/c.py:big", "--seeds", "3", "--workdir", "/w",
        "--shard", "2/8", "--resume",
    )  # fmt: skip
