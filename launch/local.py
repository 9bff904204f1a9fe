"""Jobs on this machine, by submitit: a process a shard, beside each other, and their ends told as they come."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from launch.jobs import Job
from launch.slurm import MISSING

POLL_SECONDS = 0.5
YEAR_MINUTES = 365 * 24 * 60


def run(
    jobs: Sequence[Job], names: Sequence[str], folder: Path, code: Path, say: Callable[[str], None]
) -> int:
    """Starts every job and waits for all; 0 when all of them ended well, else 1. Ctrl-C reaches each of them.

    Raises:
      ValueError: submitit is not installed.
    """
    try:
        from submitit.local.local import LocalExecutor
    except ImportError as error:
        raise ValueError(MISSING) from error
    executor = LocalExecutor(folder / "%j")
    executor.update_parameters(timeout_min=YEAR_MINUTES)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(code)
    try:
        waiting = {executor.submit(job): name for job, name in zip(jobs, names, strict=True)}
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before
    for job, name in waiting.items():
        say(f"{name}: process {job.job_id}, log {job.paths.stdout}")
    failed = 0
    while waiting:
        for job in [job for job in waiting if job.done()]:
            name = waiting.pop(job)
            good = job.exception() is None
            failed += not good
            say(f"{name}: {'done' if good else f'FAILED, see {job.paths.stderr}'}")
        time.sleep(POLL_SECONDS)
    return 1 if failed else 0


def visible_devices(shards: int, index: int, environ: dict[str, str]) -> dict[str, str]:
    """The GPUs of one of several jobs on a machine, shared out evenly; all for each where there are fewer than jobs.

    They are those of CUDA_VISIBLE_DEVICES, or all that the machine has. submitit hides every GPU from a local job, so
    the variable is always set, where the machine has one.
    """
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    gpus = _gpus() if listed is None else [d for d in listed.split(",") if d]
    if not gpus:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus if len(gpus) < shards else gpus[index::shards])}


def _gpus() -> list[str]:
    return [str(i) for i in range(len(list(Path("/proc/driver/nvidia/gpus").glob("*"))))]
