"""Jobs on SLURM, by submitit: one array, each task a shard, requeued when preempted or out of time."""

import difflib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.jobs import Job

SHORT_MINUTES = 10.0
LOCAL_FILE_SYSTEMS = ("tmpfs", "ramfs", "overlay", "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs")
MISSING = "launch: submitit is not installed; pip install 'attnlab[slurm]'"


@dataclass(frozen=True)
class Request:
    """What is asked of SLURM for each job; the names are those of sbatch.

    `time`: minutes. `signal_seconds`: how long before the end of its time a job is told. `at_once`: jobs of the array
    that run at the same time. `requeues`: how often a job that ran out of time is started again.
    """

    name: str
    time: int
    partition: str | None = None
    cpus_per_task: int | None = None
    gpus_per_node: int | None = None
    nodes: int = 1
    ntasks_per_node: int = 1
    mem_gb: float | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    signal_seconds: int = 90
    at_once: int = 256
    requeues: int = 1000

    def parameters(self, code: Path) -> dict[str, Any]:
        """Keyword arguments of submitit's `SlurmExecutor.update_parameters`."""
        fields = (
            "time", "partition", "cpus_per_task", "gpus_per_node", "nodes", "ntasks_per_node", "account", "qos",
            "constraint",
        )  # fmt: skip
        given = {name: value for name in fields if (value := getattr(self, name)) is not None}
        memory = {} if self.mem_gb is None else {"mem": f"{self.mem_gb * 1024:.0f}M"}
        return {
            "job_name": self.name,
            **given,
            "signal_delay_s": self.signal_seconds,
            "array_parallelism": self.at_once,
            "setup": [f"export PYTHONPATH={_quoted(code)}"],
            "additional_parameters": {"requeue": True, **memory},
        }


def available() -> bool:
    """Whether this machine can talk to a SLURM."""
    return all(shutil.which(name) for name in ("sbatch", "srun", "sinfo", "squeue"))


def check(request: Request, workdir: Path, checkpoint_minutes: float, *, shared: bool) -> list[str]:
    """Refuses what could not run as it is asked; returns warnings.

    `shared`: the user says that every node sees the workdir.

    Raises:
      ValueError: no SLURM, one that does not answer, an unknown partition, a time limit longer than the partition's or
        shorter than a checkpoint interval, a workdir that other nodes do not see, or jobs of it that wait or run.
    """
    if not available():
        raise ValueError(
            "launch slurm: this machine has no SLURM (sbatch, srun, sinfo and squeue are not on the path); allowed: a "
            "login node of a cluster, or `attnlab launch local`"
        )
    check_times(request, checkpoint_minutes)
    limits = _partitions()
    if request.partition is not None and request.partition not in limits:
        close = difflib.get_close_matches(request.partition, limits, 1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(
            f"--partition: got {request.partition!r}; {hint}allowed: {', '.join(sorted(limits))}"
        )
    most = limits.get(request.partition) if request.partition is not None else None
    if most is not None and request.time > most:
        raise ValueError(
            f"--time: got {request.time} minutes, but partition {request.partition!r} gives at most {most:.0f}"
        )
    if not shared:
        _check_shared(workdir)
    if waiting := _run("squeue", "--noheader", "--name", request.name, "--format", "%i").split():
        raise ValueError(
            f"launch slurm: jobs of this sweep are waiting or running already ({', '.join(waiting)}); allowed: to wait, "
            f"or `scancel --name {request.name}` first"
        )
    if request.time <= SHORT_MINUTES:
        return [
            f"with a limit of {request.time} minutes submitit counts a preemption as a time-out"
        ]
    return []


def check_times(request: Request, checkpoint_minutes: float) -> None:
    """Refuses a time limit in which no periodic checkpoint is written: a job that is killed would make no progress.

    Raises:
      ValueError: naming both times.
    """
    if request.time <= checkpoint_minutes:
        raise ValueError(
            f"--time: got {request.time} minutes, which is no longer than the interval of checkpoints, "
            f"{checkpoint_minutes:g} minutes; allowed: a longer one, or a smaller --checkpoint-minutes"
        )


def script(request: Request, folder: Path, code: Path, jobs: int) -> str:
    """The file that `sbatch` gets, word for word.

    Raises:
      ValueError: submitit is not installed.
    """
    try:
        from submitit.slurm.slurm import _make_sbatch_string
    except ImportError as error:
        raise ValueError(MISSING) from error
    command = (
        f"{_quoted(Path(sys.executable))} -u -m submitit.core._submit {_quoted(folder / '%j')}"
    )
    array: dict[str, Any] = {"map_count": jobs} if jobs > 1 else {}
    return _make_sbatch_string(command, folder / "%j", **request.parameters(code), **array)


def submit(request: Request, folder: Path, code: Path, jobs: Sequence[Job]) -> list[str]:
    """Submits all jobs by one call of `sbatch`, so all or none; returns their ids.

    Raises:
      ValueError: SLURM refused; nothing was submitted.
    """
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    executor = submitit.SlurmExecutor(folder / "%j", max_num_timeout=request.requeues)
    executor.update_parameters(**request.parameters(code))
    try:
        submitted = executor.submit_array(jobs) if len(jobs) > 1 else [executor.submit(jobs[0])]
    except (FailedJobError, FailedSubmissionError) as error:
        reason = " ".join(str(error).split("subprocess")[0].split())
        raise ValueError(f"launch slurm: refused by sbatch ({reason})") from error
    return [job.job_id for job in submitted]


def _partitions() -> dict[str, float | None]:
    """Name -> longest time in minutes, None without a limit."""
    lines = _run("sinfo", "--noheader", "--format", "%R %l").splitlines()
    return {
        name: _minutes(limit) for name, limit in (line.split() for line in lines if line.strip())
    }


def _minutes(limit: str) -> float | None:
    """SLURM writes times as [days-][hours:]minutes:seconds."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return (days * 24 + hours) * 60 + minutes + seconds / 60


def _check_shared(workdir: Path) -> None:
    nodes = {name for name in _run("sinfo", "--noheader", "-N", "--format", "%N").split() if name}
    here = os.uname().nodename.partition(".")[0]
    kind = file_system(workdir)
    if kind in LOCAL_FILE_SYSTEMS and nodes != {here}:
        raise ValueError(
            f"workdir={str(workdir)!r}: lies on a {kind} of this machine, which the nodes of the cluster may not see; "
            "allowed: a directory that all of them share, or --shared if this one is"
        )


def file_system(path: Path) -> str:
    """The kind of file system a path lies on, of its nearest parent that exists; "" where the system cannot say."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return ""
    above = [(where, kind) for where, kind in mounts if path.resolve().is_relative_to(where)]
    return max(above, key=lambda mount: len(mount[0]), default=("", ""))[1]


def _run(*words: str) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as error:
        reason = " ".join(str(getattr(error, "stderr", None) or error).split())
        raise ValueError(
            f"launch slurm: {words[0]} does not answer ({reason}); is the cluster up?"
        ) from error
    return done.stdout


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
