"""What a run was made with: enough to explain a difference, nothing that names a person or a host."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "attnlab",
    "flax",
    "jax",
    "jaxlib",
    "ml_collections",
    "numpy",
    "optax",
    "orbax-checkpoint",
    "scipy",
    "wandb",
)


def environment_record(
    command: Sequence[str] | None,
    data: Mapping[str, Any],
    *,
    device: str | None = None,
    attention: str | None = None,
) -> dict[str, Any]:
    """Return a JSON-ready record of the software, machine kind and command behind a run.

    Args:
      command: the argument vector that started the process, or None when there was none.
      data: what identifies the training data, such as its name and SHA-256.
      device: kind and number of accelerators as jax reports them; the caller asks jax, so that
        this module never starts it.
      attention: the implementation of attention that was used, where the configuration says "auto".

    Paths below the home directory are shortened to `~`; the host name is not recorded.
    """
    home = os.path.expanduser("~")
    variables = {
        name: value
        for name, value in sorted(os.environ.items())
        if name == "XLA_FLAGS" or name.startswith("JAX_")
    }
    record = {
        "command": None if command is None else list(command),
        "data": dict(data),
        "device": device,
        "attention": attention,
        "packages": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": {
            "system": platform.system(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
        },
        "variables": variables,
        "git": git_state(Path(__file__).resolve().parent),
    }
    return _without_home(record, home)


def git_state(package: Path) -> dict[str, Any]:
    """Return `commit` and `dirty` of the checkout that tracks `package`, or None for both.

    A package installed into an environment that happens to lie inside some other repository is
    not tracked there, and gets None rather than that repository's commit.
    """

    def git(*arguments: str) -> str:
        # Variables such as GIT_DIR (set inside hooks) would redirect the question elsewhere.
        environ = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        done = subprocess.run(
            ["git", "-C", str(package), *arguments],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
            env=environ,
        )
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        top = git("rev-parse", "--show-toplevel")
        commit = git("rev-parse", "HEAD")
        dirty = bool(git("status", "--porcelain", "--", top))
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}
    return {"commit": commit, "dirty": dirty}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _without_home(value: Any, home: str) -> Any:
    if isinstance(value, str):
        if home in ("", "/", "~"):
            return value
        # Only whole path components: the home of ann is no part of the home of anna.
        return re.sub(re.escape(home.rstrip("/")) + r"(?=$|[/\\:,;\s'\"])", "~", value)
    if isinstance(value, Mapping):
        return {key: _without_home(item, home) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_home(item, home) for item in value]
    return value


def current_command() -> list[str]:
    """Return the command of this process, with the program by name instead of by path."""
    return [Path(sys.argv[0]).name, *sys.argv[1:]]
