"""A copy of the code that goes with a job: what is edited while the job waits in a queue does not reach it."""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Snapshot:
    """The tracked files of a checkout as they are now, and what Python files git does not track yet (nor ignore).

    `place`: where the copy lies once `write` was called; equal code has an equal place.
    """

    checkout: Path
    place: Path
    files: tuple[str, ...]
    commit: str
    changed: tuple[str, ...]
    untracked: tuple[str, ...]

    def lines(self) -> list[str]:
        """What a person must know of the code that will run."""
        changes = {"changed": self.changed, "untracked": self.untracked}
        said = [
            f"{len(names)} {what} files ({_few(names)})" for what, names in changes.items() if names
        ]
        state = f" with {' and '.join(said)}" if said else ""
        return [f"code: commit {self.commit[:12]}{state}, copied to {self.place}"]

    def write(self) -> None:
        """Copies the files, all or none; a copy that is there already is left alone."""
        if self.place.exists():
            return
        half = self.place.with_name(f".{self.place.name}.{os.getpid()}")
        for name in self.files:
            (half / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.checkout / name, half / name)
        facts = {"commit": self.commit, "changed": self.changed, "untracked": self.untracked}
        (half / "snapshot.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        try:
            half.rename(self.place)
        except OSError:  # another launch of the same code was first
            shutil.rmtree(half)


def take(checkout: Path, configs: Sequence[Path], below: Path) -> tuple[Snapshot, list[str]]:
    """The snapshot of a checkout, to lie below a directory, and each configuration's path in it; writes nothing.

    Raises:
      ValueError: no git checkout, or a configuration file that is not in it.
    """
    tracked = _names(checkout, "ls-files", "-z")
    changed = tuple(_names(checkout, "diff", "HEAD", "--name-only", "-z"))
    others = _names(checkout, "ls-files", "--others", "--exclude-standard", "-z")
    untracked = tuple(name for name in others if name.endswith(".py"))
    names = [_inside(checkout, config) for config in configs]
    files = tuple(sorted({*tracked, *untracked, *names}))
    digest = hashlib.sha256()
    for name in files:
        content = (checkout / name).read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    place = below / f"code-{digest.hexdigest()[:12]}"
    commit = _git(checkout, "rev-parse", "HEAD").strip()
    return Snapshot(checkout, place, files, commit, changed, untracked), names


def _inside(checkout: Path, config: Path) -> str:
    path = config.resolve()
    if not path.is_relative_to(checkout.resolve()):
        raise ValueError(
            f"--config: {str(config)!r} is not in the checkout {str(checkout)!r}, so it cannot go with the code; "
            "allowed: a file of configs/"
        )
    return str(path.relative_to(checkout.resolve()))


def _names(checkout: Path, *words: str) -> list[str]:
    """Files that git lists and that are there."""
    listed = _git(checkout, *words).split("\0")
    return [name for name in listed if name and (checkout / name).is_file()]


def _git(checkout: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), *words], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or str(error)
        raise ValueError(
            f"launch: {str(checkout)!r} is no git checkout, from which the code of a job is copied "
            f"({' '.join(reason.split())})"
        ) from error
    return done.stdout


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
