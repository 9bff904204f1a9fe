"""Sweeps of a few members, small enough to write in a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.tracking import (
    MemberRecord,
    Mirror,
    MirrorSettings,
    SweepDirectory,
    Tracker,
    environment_record,
    run_id,
)

ROOT = Path(__file__).resolve().parents[1]
QUICK = MirrorSettings(poll_seconds=0.1, transmit_seconds=1, niceness=0)


def members(count: int, sweep: str = "sw") -> list[MemberRecord]:
    configs = [{"arm": "causal", "lr": 0.1 * i, "seed": {"init": i}} for i in range(count)]
    return [
        MemberRecord(run_id(sweep, config), f"causal s{i}", "causal", i, config)
        for i, config in enumerate(configs)
    ]


def start(
    workdir: Path,
    count: int = 2,
    mode: str = "disabled",
    *,
    resume: bool = False,
    mirror: MirrorSettings = QUICK,
) -> Tracker:
    """A tracker on a new or resumed sweep, whose directory is closed with the process, and `.mirror` with it."""
    sweep = SweepDirectory(workdir, "sw")
    sweep.create(members(count), resume=resume)
    environment = environment_record(None, {"corpus": "none"})
    followed = None if mode == "disabled" else Mirror(sweep.path, mode, mirror)
    tracker = Tracker(sweep, members(count), followed, environment=environment)
    tracker.mirror = followed  # type: ignore[attr-defined]
    tracker.sweep = sweep  # type: ignore[attr-defined]  # kept alive, and with it the lock
    return tracker


def loss(step: int, count: int) -> np.ndarray:
    """[M] float32 values that no two members or steps share."""
    return (1.0 / (step + 1) + np.arange(count) / 7.0).astype(np.float32)


def log(tracker: Tracker, *steps: int) -> None:
    """One row for every member at each step: tokens, train/loss, perf/tokens_per_s."""
    count = len(tracker.members)
    for step in steps:
        rows = {
            "tokens": np.full(count, 100 * step),
            "train/loss": loss(step, count),
            "perf/tokens_per_s": np.random.default_rng().random(count),
        }
        tracker.log(step, rows)


def lines(workdir: Path, index: int = 0) -> list[dict[str, Any]]:
    """The rows of a member's file by a strict JSON reader."""
    file = workdir / "runs" / members(index + 1)[index].id / "metrics.jsonl"

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in file.read_text().splitlines()]


def python(code: str, *, start_new_session: bool = False) -> subprocess.Popen[str]:
    """Starts a program that can import the tests' helpers; its output is read by the caller."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    return subprocess.Popen(
        [sys.executable, "-u", "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=start_new_session,
    )
