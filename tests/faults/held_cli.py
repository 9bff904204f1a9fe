"""The command line, held at one point so that a test can break something there: `held_cli.py WORD...`.

    ATTNLAB_TEST_POINT   compile | training | evaluation | checkpoint: where to wait
    ATTNLAB_TEST_HOLD    a directory: `reached` appears in it there, and the process goes on when `go` does
    ATTNLAB_TEST_CLOCK   seconds by which the clock is wrong from that point on

The points are names of the library, replaced here; the library knows nothing of them.
"""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from attnlab import cli

POINT = os.environ["ATTNLAB_TEST_POINT"]
HOLD = Path(os.environ["ATTNLAB_TEST_HOLD"])
CLOCK = float(os.environ.get("ATTNLAB_TEST_CLOCK", "0"))

# Of tests/faults/tiny_sweep.py: rows every 10 updates, validations and checkpoints every 20.
TRAINING_STEP, EVALUATION_STEP, CHECKPOINT_STEP = 50, 60, 60

once = threading.Lock()
real_time, real_time_ns = time.time, time.time_ns


def hold(point: str) -> None:
    """Says that the point is reached, the first time, and waits for the test."""
    if point != POINT or not once.acquire(blocking=False):
        return
    (HOLD / "reached").touch()
    while not (HOLD / "go").exists():
        time.sleep(0.01)
    if CLOCK:
        time.time = lambda: real_time() + CLOCK
        time.time_ns = lambda: real_time_ns() + int(CLOCK * 1e9)


def main() -> int:
    # As the command line does it: XLA reads its flags when jax starts.
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    from orbax.checkpoint._src.path import async_path

    from attnlab import population, tracking, training
    from attnlab.tracking import wandb_mirror

    chunk, rename, log = training.train_chunk, async_path.rename, tracking.Tracker.log
    validate = population._Run._validation

    def train_chunk(*args: Any) -> Any:
        hold("compile")  # it is traced once, to be compiled
        return chunk(*args)

    def logged(self: Any, step: int, rows: Any, where: Any = None) -> None:
        if step == TRAINING_STEP and "train/loss" in rows:
            hold("training")
        log(self, step, rows, where)

    def validation(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (self.pending is None) and int(max(self._fetch(self.states.step))) == EVALUATION_STEP:
            hold("evaluation")
        return validate(self, *args, **kwargs)

    async def renamed(source: Any, target: Any) -> None:
        if Path(target).name == str(CHECKPOINT_STEP):
            hold("checkpoint")  # all of it is written and none of it counts
        await rename(source, target)

    training.train_chunk = train_chunk
    tracking.Tracker.log = logged  # type: ignore[method-assign]
    population._Run._validation = validation  # type: ignore[method-assign]
    async_path.rename = renamed
    # An outage is over, or not, in seconds instead of minutes.
    quick = wandb_mirror.MirrorSettings(
        poll_seconds=0.2, transmit_seconds=1, init_timeout=5.0, finish_timeout=5.0, niceness=0
    )
    made = wandb_mirror.Mirror.__init__
    wandb_mirror.Mirror.__init__ = (  # type: ignore[method-assign]
        lambda self, workdir, mode, settings=None, **more: made(self, workdir, mode, quick, **more)
    )
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
