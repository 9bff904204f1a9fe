"""`attnlab bench checkpoints` and `attnlab bench tracking`: what it costs a sweep to be stoppable and to be recorded.

`checkpoints`: the state of a population (parameters and both moments, filled with noise, which compresses as little as
real ones do) on this machine's devices: how long a save keeps the trainer, how long until it is complete on disk, its
size, and how long it takes to read back, check and put on the devices.

`tracking`: a trainer that sleeps for the time of a step and logs a row for every member: what a call to the tracker
costs it, and the processor time of its writing thread and of the W&B mirror (offline; a process of its own that also
takes seconds to start and to end), each as a share of the time between two rows.
"""

import argparse
import json
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from attnlab import console, training
from attnlab.bench import workloads
from attnlab.bench.workloads import Size
from attnlab.checkpoints import Checkpoints
from attnlab.tracking import MemberRecord, Mirror, SweepDirectory, Tracker, run_id

COLUMNS = 10
"""Metrics in a row."""


def add_arguments(parser: argparse.ArgumentParser, what: str) -> None:
    """The flags of `attnlab bench checkpoints` and `attnlab bench tracking`."""
    parser.add_argument("--members", type=int, default=64, help="of the population (64)")
    if what == "checkpoints":
        parser.add_argument("--size", default="4,64,4,32,32", metavar="L,D,N,T,B",
                            help="layers, width, heads, context, batch (4,64,4,32,32)")  # fmt: skip
        parser.add_argument("--repeat", type=int, default=5, help="saves and reads (5)")
        parser.add_argument("--directory", type=Path, default=None, metavar="DIR",
                            help="a disk to measure (the one of temporary files)")  # fmt: skip
    else:
        parser.add_argument("--step-ms", type=float, default=30.0, help="time of a step (30)")
        parser.add_argument("--rows", type=int, default=50, help="rows of each member (50)")
        parser.add_argument("--every", type=int, nargs="+", default=(1, 20), metavar="K",
                            help="steps between two rows (1 20)")  # fmt: skip
    parser.add_argument("--out", type=Path, default=None, metavar="DIR", help="for the JSON")


def run(args: argparse.Namespace, what: str, base: Mapping[str, Any]) -> int:
    """Measures, prints the table, writes `checkpoints.json` or `tracking.json`; returns the exit code.

    Raises:
      ValueError: a number that is not positive.
    """
    for name, value in vars(args).items():
        for number in value if isinstance(value, list | tuple) else (value,):
            if isinstance(number, int | float) and number <= 0:
                raise ValueError(f"--{name.replace('_', '-')}: must be positive, got {number}")
    found = _checkpoints(args, base) if what == "checkpoints" else _tracking(args)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"{what}.json").write_text(json.dumps(found, indent=1) + "\n")
        print(f"written: {args.out}/{what}.json")
    return 0


def _checkpoints(args: argparse.Namespace, base: Mapping[str, Any]) -> dict[str, Any]:
    group = workloads.group(Size.parse(args.size), base, args.members, chunk=20)
    state = _noise(
        jax.eval_shape(lambda k: training.init_state(group.task, k), group.knobs()[0]),
        args.members,
    )
    folder = Path(tempfile.mkdtemp(prefix="attnlab-bench-", dir=args.directory))
    times: dict[str, list[float]] = {"blocking": [], "complete": [], "restored": []}
    try:
        with Checkpoints(folder / "c", keep=1) as saved:
            saved.save(0, state, wait=True)  # imports and compiles
            for step in range(1, args.repeat + 1):
                start = time.perf_counter()
                saved.save(step, state)
                times["blocking"].append(time.perf_counter() - start)
                saved.save(step, state, wait=True)
                times["complete"].append(time.perf_counter() - start)
            size = sum(f.stat().st_size for f in (folder / "c").rglob("*") if f.is_file())
        for _ in range(args.repeat):
            with Checkpoints(folder / "c") as there:
                start = time.perf_counter()
                restored = there.restore(state)
                assert restored is not None
                jax.block_until_ready(jax.device_put(restored[1], _placement(args.members)))
                times["restored"].append(time.perf_counter() - start)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    held = sum(x.nbytes for x in jax.tree.leaves(state))
    result = {
        "members": args.members,
        "size": args.size,
        "devices": len(jax.devices()),
        "state_mb": held / 1e6,
        "on_disk_mb": size / 1e6,
        "seconds": {name: statistics.median(values) for name, values in times.items()},
        "spread": {name: (min(values), max(values)) for name, values in times.items()},
    }
    rows = [
        ("state in memory", f"{held / 1e6:.1f} MB", ""),
        ("checkpoint on disk", f"{size / 1e6:.1f} MB", ""),
        *(
            (label, f"{statistics.median(times[name]):.3f} s", _spread(times[name]))
            for name, label in (
                ("blocking", "save: the trainer waits"),
                ("complete", "save: complete on disk after"),
                ("restored", "resume: read, checked, on the devices"),
            )
        ),
    ]
    title = f"checkpoint of {args.members} members, {args.size} (L,D,N,T,B), median of {args.repeat}"  # fmt: skip
    console.print_table(title, ("what", "median", "smallest to largest"), rows)
    return result


def _noise(shapes: training.TrainState, members: int) -> Any:
    """A state of that many members, on the devices."""
    random = np.random.default_rng(0)

    def filled(x: jax.ShapeDtypeStruct) -> np.ndarray:
        shape = (members, *x.shape)
        if jnp.issubdtype(x.dtype, jnp.floating):
            return random.normal(size=shape).astype(x.dtype)
        return np.zeros(shape, x.dtype)

    return jax.device_put(jax.tree.map(filled, shapes), _placement(members))


def _placement(members: int) -> NamedSharding:
    """Members spread over as many devices as divide them."""
    count = next(n for n in range(len(jax.devices()), 0, -1) if members % n == 0)
    mesh = jax.make_mesh(
        (count,), ("member",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count]
    )
    return NamedSharding(mesh, P("member"))


def _tracking(args: argparse.Namespace) -> dict[str, Any]:
    once = _track(args, 1, 1, "offline")["mirror"]
    found = []
    for every in args.every:
        for mode in ("disabled", "offline"):
            costs = _track(args, every, args.rows, mode)
            mirror = max(costs["mirror"] - once, 0.0) if mode == "offline" else 0.0
            parts = {"call": costs["call"], "thread": costs["thread"], "mirror": mirror / args.rows}
            found.append({"every": every, "wandb": mode, "seconds": parts, "worst": costs["worst"]})
    rows = [
        (
            f"every {f['every']} steps",
            f["wandb"],
            *(
                f"{1e3 * s:.2f} ms, {1e3 * s / f['every'] / args.step_ms:.2%}"
                for s in f["seconds"].values()
            ),
        )
        for f in found
    ]
    title = f"tracking {args.members} members, {COLUMNS} metrics a row, steps of {args.step_ms:g} ms: a row of all costs"  # fmt: skip
    columns = ("logged", "W&B", "trainer waits", "writing thread, cpu", "mirror, cpu")
    console.print_table(title, columns, rows)
    console.say(f"the mirror takes {once:.1f} s of cpu to start and to end with one row a member")
    return {
        "members": args.members,
        "columns": COLUMNS,
        "step_ms": args.step_ms,
        "mirror_start_and_end": once,
        "rows": found,
    }


def _track(args: argparse.Namespace, every: int, rows: int, mode: str) -> dict[str, float]:
    """Seconds a row of all members: `call` (median) and `worst` of them, `thread`; and `mirror`, in all."""
    folder = Path(tempfile.mkdtemp(prefix="attnlab-bench-"))
    try:
        return _tracked(args, every, rows, mode, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tracked(
    args: argparse.Namespace, every: int, rows: int, mode: str, folder: Path
) -> dict[str, float]:
    configs = [{"member": index, "arm": "bench"} for index in range(args.members)]
    members = [
        MemberRecord(run_id("bench", config), f"m{index}", "bench", index, config)
        for index, config in enumerate(configs)
    ]
    children = _children()
    with SweepDirectory(folder / "w", "bench") as sweep:
        sweep.create(members)
        mirror = None if mode == "disabled" else Mirror(sweep.path, mode)
        calls, cpu = [], 0.0
        with Tracker(sweep, members, mirror, environment={}) as tracker:
            columns = {
                f"metric/{index}": np.random.default_rng(index).normal(size=args.members)
                for index in range(COLUMNS)
            }
            tracker.log(0, columns)
            tracker.flush()
            started = time.process_time()
            for row in range(1, rows + 1):
                time.sleep(every * args.step_ms / 1e3)
                before = time.perf_counter()
                tracker.log(row * every, columns)
                calls.append(time.perf_counter() - before)
            tracker.flush()
            cpu = time.process_time() - started - sum(calls)
            for index in range(args.members):
                tracker.finish(index, "finished", {})
        if mirror is not None:
            mirror.close(timeout=None)
    return {
        "call": statistics.median(calls),
        "worst": max(calls),
        "thread": cpu / rows,
        "mirror": _children() - children,
    }


def _children() -> float:
    """Processor seconds of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _spread(values: list[float]) -> str:
    return f"{min(values):.3f} to {max(values):.3f} s"
