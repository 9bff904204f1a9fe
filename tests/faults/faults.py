"""What is done to a sweep at its points, and what must become of it: the rows of the fault matrix.

A fault happens while the command line is held at a point (`held_cli.py`). It is real: signals, a full disk and a
read-only one (mounts; as root), bytes of files, a server that refuses or is gone. Only the clock is wrong by a patch of
`time.time`.
"""

import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from wandb_server import WandbServer, wait_for

POINTS = ("compile", "training", "evaluation", "checkpoint")
NO_CHECKPOINT = "no checkpoint is there before the program is compiled"


@dataclass
class Scene:
    """The held process, its directory, and the W&B server it talks to, if it does."""

    process: subprocess.Popen[str]
    work: Path
    server: WandbServer | None


def nothing(scene: Scene) -> None:
    pass


@dataclass(frozen=True)
class Fault:
    """`strike` at the point; `mend` when the process has ended, before it is resumed.

    Attributes:
      exit_code: of the command that was struck.
      says: what its output must tell.
      resumed_says: what the output of resuming must tell.
      online: it talks to the W&B server, which must have every row once in the end.
      environ: variables of the held process.
      disk: what the work directory lies on: "" any, "small" a small file system of its own.
      impossible: point -> why there is nothing to test.
    """

    name: str
    strike: Callable[[Scene], None]
    exit_code: int
    mend: Callable[[Scene], None] = nothing
    says: str = ""
    resumed_says: str = ""
    online: bool = False
    environ: dict[str, str] = field(default_factory=dict)
    disk: str = ""
    impossible: dict[str, str] = field(default_factory=dict)


def signalled(number: signal.Signals) -> Callable[[Scene], None]:
    return lambda scene: scene.process.send_signal(number)


def killed(scene: Scene) -> None:
    scene.process.kill()
    scene.process.wait()


def core_killed(scene: Scene) -> None:
    """What the kernel does when memory is short, to the process that holds the most of it."""
    found: list[int] = []

    def core() -> bool:
        found[:] = [p for p in _descendants(scene.process.pid) if "wandb-core" in _command(p)]
        return bool(found)

    assert wait_for(core), "wandb started no helper"
    assert scene.server is not None
    # The member that goes on has been opened, so that there is something to lose.
    assert wait_for(lambda: len(scene.server.runs) == 3)
    os.kill(found[0], signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    """Also those that another thread than the first one started."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            direct = [int(child) for child in children.read_text().split()]
        except OSError:
            continue
        found += [d for child in direct for d in (child, *_descendants(child))]
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def disk_full(scene: Scene) -> None:
    with open(scene.work.parent / "filler", "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass


def disk_freed(scene: Scene) -> None:
    (scene.work.parent / "filler").unlink()


def read_only(scene: Scene) -> None:
    """A mount over the directory; root may write through permissions."""
    work = str(scene.work)
    subprocess.run(["mount", "--bind", work, work], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", work], check=True)


def writable(scene: Scene) -> None:
    subprocess.run(["umount", "-l", str(scene.work)], check=True)


def torn(scene: Scene) -> None:
    """Dead in the middle of a write: the row of the next step, half of it."""
    killed(scene)
    for file in scene.work.glob("runs/*/metrics.jsonl"):
        if '"arm": "long"' in (file.parent / "config.json").read_text():
            row = file.read_bytes().splitlines()[-1]
            file.write_bytes(file.read_bytes() + row[: len(row) // 2])


def newest_checkpoint(work: Path) -> Path:
    complete = [p for p in work.glob("checkpoints/*/*") if p.name.isdigit()]
    return max(complete, key=lambda p: int(p.name))


def _dead_with(damage: Callable[[bytes], bytes], largest: int) -> Callable[[Scene], None]:
    def strike(scene: Scene) -> None:
        killed(scene)
        files = [p for p in newest_checkpoint(scene.work).rglob("*") if p.is_file()]
        for file in sorted(files, key=lambda p: -p.stat().st_size)[:largest]:
            file.write_bytes(damage(file.read_bytes()))

    return strike


def _flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 16]) + content[middle + 1 :]


def storm(scene: Scene) -> None:
    assert scene.server is not None
    scene.server.fail("file_stream", 429, times=4)
    scene.server.fail("file_stream", 500, times=4)
    scene.server.fail("graphql UpsertBucket", 500, times=2)


def server_gone(scene: Scene) -> None:
    assert scene.server is not None
    scene.server.down()


KILLED = -int(signal.SIGKILL)
UNUSABLE = "cannot be used"
FAULTS = (
    Fault("SIGTERM", signalled(signal.SIGTERM), 128 + signal.SIGTERM),
    Fault("SIGINT", signalled(signal.SIGINT), 128 + signal.SIGINT),
    Fault("SIGKILL", killed, KILLED),
    Fault("wandb-core killed", core_killed, 0, online=True),
    Fault("disk full", disk_full, 1, disk_freed, says="NOT WRITTEN", disk="small"),
    Fault("read-only workdir", read_only, 1, writable, says="NOT WRITTEN"),
    Fault("torn metrics line", torn, KILLED),
    Fault("corrupt newest checkpoint", _dead_with(_flipped, 1), KILLED,
          resumed_says=UNUSABLE, impossible={"compile": NO_CHECKPOINT}),
    Fault("half-written checkpoint", _dead_with(lambda b: b[: len(b) // 2], 99), KILLED,
          resumed_says=UNUSABLE, impossible={"compile": NO_CHECKPOINT}),
    Fault("429 and 500 storm", storm, 0, online=True),
    Fault("W&B server gone", server_gone, 0, says="NOT confirmed", online=True),
    Fault("clock jumps a day back", nothing, 0, environ={"ATTNLAB_TEST_CLOCK": "-86400"}),
)  # fmt: skip
