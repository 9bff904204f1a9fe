"""Runs `attnlab` the way a user does: in a process of its own, with an empty home and a directory to stand in."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent


class Cli:
    """`Cli(tmp_path)("sweep", ...)`; `home` and `cwd` are empty at the start.

    A compile cache shared by the calls of one test session stands in for the time a user has.
    """

    def __init__(self, root: Path, compile_cache: Path):
        self.home, self.cwd = root / "home", root / "cwd"
        self.home.mkdir(parents=True)
        self.cwd.mkdir()
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB_", "XLA_", "JAX_"))}
        self.env = {
            **keep,
            "HOME": str(self.home),
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(compile_cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
            "WANDB_ERROR_REPORTING": "false",
            "PYTHONUNBUFFERED": "1",
        }

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "attnlab", *words],
            cwd=self.cwd, env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def __call__(self, *words: str, code: int = 0) -> str:
        """The output (stdout, then stderr) of a command that must exit with `code`."""
        process = self.start(*words)
        out, err = process.communicate(timeout=300)
        assert process.returncode == code, (
            f"exit code {process.returncode}, not {code}:\n{out}\n{err}"
        )
        return out + err

    def stop_when(
        self, words: Sequence[str], ready: Callable[[], bool], number: signal.Signals
    ) -> tuple[int, str]:
        """Starts a command, sends a signal as soon as `ready()`, and gives its exit code and output."""
        process = self.start(*words)
        deadline = time.monotonic() + 240
        while not ready() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert process.poll() is None, "the command ended before the moment to stop it came"
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
        return process.returncode, out + err
