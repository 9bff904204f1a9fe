"""What runs: one command a job, and what the job does when it is told to go."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SAVE_SECONDS = 60.0
"""How long a job that must go waits for its sweep to save; after that the last checkpoint counts."""

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Sweep:
    """One configuration file to train in `shards` jobs below one workdir.

    `config`: FILE or FILE:PRESET. `flags`: further words of `attnlab sweep`.
    """

    name: str
    config: str
    workdir: Path
    shards: int
    flags: tuple[str, ...] = ()

    def command(self, index: int, code: Path) -> tuple[str, ...]:
        """`attnlab sweep --shard index/shards --resume` with the code and the configuration below `code`."""
        file, colon, preset = self.config.partition(":")
        # -P: the directory that a job stands in must not provide another attnlab.
        return (
            sys.executable, "-P", "-m", "attnlab", "sweep", "--config", f"{code / file}{colon}{preset}",
            *self.flags, "--workdir", str(self.workdir), "--shard", f"{index}/{self.shards}", "--resume",
        )  # fmt: skip


@dataclass
class Job:
    """Runs one command, and has it started again when the scheduler takes the machine away.

    `code`: the directory that `attnlab` is imported from. submitit pickles a job when it is submitted and each time it
    is requeued, so it holds words and paths only: where training stood is read from its directory, never from here.
    """

    command: tuple[str, ...]
    code: str
    cwd: str
    environ: Mapping[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = field(default=None, init=False, repr=False)

    def __call__(self) -> int:
        """Returns 0 once every member of the shard has ended.

        Raises:
          RuntimeError: the command failed, or was stopped by somebody who does not want it to go on.
        """
        environ = {**os.environ, **self.environ, "PYTHONPATH": self.code}
        print(f"attnlab: {shlex.join(self.command)}", flush=True)
        self.process = subprocess.Popen(self.command, cwd=self.cwd, env=environ)
        # Not `wait`: it holds a lock that `checkpoint`, called by a signal in this very thread, would need.
        while (code := self.process.poll()) is None:
            time.sleep(POLL_SECONDS)
        if code > 128 and _still_allocated():
            # A preemption that was announced by SIGTERM: the sweep has saved, and submitit knows how to go on.
            os.kill(os.getpid(), signal.SIGUSR2)
            time.sleep(SAVE_SECONDS)
        if code != 0:
            raise RuntimeError(f"exit code {code} from: {shlex.join(self.command)}")
        return 0

    def checkpoint(self) -> Any:
        """For submitit, which calls it in a signal handler before it requeues: lets the sweep save itself.

        The sweep is a process of its own that gets the same signal; nothing of it is touched here.
        """
        from submitit.helpers import DelayedSubmission

        end = time.monotonic() + SAVE_SECONDS
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR2)
            while self.process.poll() is None and time.monotonic() < end:
                time.sleep(POLL_SECONDS)
        return DelayedSubmission(Job(self.command, self.code, self.cwd, self.environ))


def _still_allocated() -> bool:
    """Whether SLURM still counts this job as running: neither cancelled by a person nor requeued already."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return False
    array, task = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
    name = job if array is None else f"{array}_{task}"
    try:
        asked = subprocess.run(
            ["squeue", "--noheader", "--jobs", name, "--format", "%T"],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.stdout.strip() == "RUNNING"
