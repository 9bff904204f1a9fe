"""`attnlab bench attention`: time and memory of attention against what else runs on the same machine, in one run.

Forward, and forward + backward. The contenders of a cell take turns, so whatever else the machine is doing hits all of
them, and the table gives medians; still, quote ratios of one run, with its command. Memory of jax programs is what XLA
plans for (arguments, outputs and temporaries of the compiled program); memory of torch is the growth of the peak
resident set of its process, plus its arguments.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax

from attnlab import perf
from attnlab.bench import contenders
from attnlab.bench.contenders import Case, Contender, UnavailableError

MASKS = ("full", "causal", "window 256", "prefix", "packed")
LENGTHS = (256, 1024, 4096, 8192)


@dataclass(frozen=True)
class Cell:
    """One contender on one case.

    Attributes:
      length, mask, direction, contender: what was run; direction is "forward" or "forward + backward".
      milliseconds: median, None where it could not be run.
      spread: (smallest, largest) of the measurements, milliseconds.
      megabytes: peak memory, by the rule of the module docstring.
      why: the reason where there is no time.
    """

    length: int
    mask: str
    direction: str
    contender: str
    milliseconds: float | None
    spread: tuple[float, float] | None
    megabytes: float | None
    why: str | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `attnlab bench attention`."""
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, metavar="T")
    parser.add_argument("--masks", nargs="+", default=MASKS, choices=MASKS, metavar="MASK")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=None, help="default: as --heads")
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--seconds", type=float, default=3.0, help="per cell and contender")
    parser.add_argument("--dense-gigabytes", type=float, default=1.0,
                        help="logits larger than this are not asked of implementations that keep them all")  # fmt: skip
    parser.add_argument("--torch-python", default=sys.executable, metavar="PATH",
                        help="a Python that can import torch, where this one cannot")  # fmt: skip
    parser.add_argument(
        "--flex", action="store_true", help="also FlexAttention (compiles for minutes)"
    )
    parser.add_argument("--out", type=Path, default=None, metavar="DIR", help="for JSON and PNG")


def run(args: argparse.Namespace) -> int:
    """Measures, prints the table, writes `attention.json`, `time.png` and `memory.png`; returns the exit code."""
    _check(args)
    machine = _machine(args)
    _say(machine)
    cells: list[Cell] = []
    with contenders.torch_worker(args.torch_python) as torch:
        names = list(contenders.names(torch, args.flex))
        for length in args.lengths:
            for mask in args.masks:
                for backward in (False, True):
                    case = Case(mask, args.batch, length, args.heads, args.kv_heads or args.heads,
                                args.head_dim, args.dtype, backward)  # fmt: skip
                    cells += _measure(case, contenders.build(case, names, torch, args.dense_gigabytes),
                                      args.seconds)  # fmt: skip
                _progress(cells[-2 * len(names) :])
    machine["traces"] = contenders.traces()
    from attnlab.bench import report

    report.print_table(cells)
    print(
        f"\ntraces of blockwise, whatever the mask: {sorted(set(machine['traces'].values()))} per length and direction"
    )
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        record = {"machine": machine, "cells": [asdict(c) for c in cells]}
        (args.out / "attention.json").write_text(json.dumps(record, indent=1) + "\n")
        for name, figure in report.figures(cells).items():
            figure.savefig(args.out / f"{name}.png", dpi=160)
        print(f"written: {args.out}/attention.json, time.png, memory.png")
    return 0


def _measure(case: Case, members: Sequence[Contender], seconds: float) -> list[Cell]:
    """Medians of all contenders of a case, taking turns until each has had its time, three turns at least."""
    runs: dict[str, Callable[[], float]] = {}
    why: dict[str, str] = {}
    memory: dict[str, float] = {}
    for member in members:
        try:
            runs[member.name], memory[member.name] = member.prepare()
            runs[member.name]()
        except UnavailableError as error:
            why[member.name] = str(error)
            runs.pop(member.name, None)
    times: dict[str, list[float]] = {name: [] for name in runs}
    while any(len(t) < 3 or (sum(t) < seconds and len(t) < 100) for t in times.values()):
        for name, once in runs.items():
            if len(times[name]) < 3 or sum(times[name]) < seconds:
                times[name].append(once())
    direction = "forward + backward" if case.backward else "forward"
    return [
        Cell(
            case.length, case.mask, direction, m.name,
            1e3 * statistics.median(times[m.name]) if m.name in runs else None,
            (1e3 * min(times[m.name]), 1e3 * max(times[m.name])) if m.name in runs else None,
            memory[m.name] / 2**20 if m.name in runs else None,
            why.get(m.name),
        )
        for m in members
    ]  # fmt: skip


def _machine(args: argparse.Namespace) -> dict[str, Any]:
    """Where and how this was measured; the matrix-product rate is the ceiling to compare with."""
    return {
        "command": " ".join(sys.argv),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "platform": jax.default_backend(),
        "cpus": os.cpu_count(),
        "load_at_start": round(os.getloadavg()[0], 2),
        "float32_matmul_gflops": round(perf.measured_matmul() / 1e9, 1),
        "shape": f"batch {args.batch}, {args.heads} heads of {args.head_dim}, {args.dtype}",
    }


def _say(machine: dict[str, Any]) -> None:
    print(
        f"{machine['shape']}; {machine['platform']}, {machine['cpus']} cpus, load "
        f"{machine['load_at_start']}; float32 matrix products of 1024: "
        f"{machine['float32_matmul_gflops']} GFLOP/s; jax {machine['jax']}"
    )


def _progress(cells: Sequence[Cell]) -> None:
    first = cells[0]
    parts = [f"{c.contender} {c.milliseconds:.1f}" for c in cells if c.milliseconds is not None]
    print(f"T {first.length} {first.mask}: {', '.join(parts)} ms", file=sys.stderr, flush=True)


def _check(args: argparse.Namespace) -> None:
    for name in ("heads", "head_dim", "batch"):
        if getattr(args, name) < 1:
            raise ValueError(
                f"--{name.replace('_', '-')}: got {getattr(args, name)}; allowed: >= 1"
            )
    if min(args.lengths) < 1:
        raise ValueError(f"--lengths: got {min(args.lengths)}; allowed: >= 1")
    if args.heads % (args.kv_heads or args.heads):
        raise ValueError(f"--kv-heads: got {args.kv_heads}; allowed: a divisor of {args.heads}")
    if not args.seconds > 0:
        raise ValueError(f"--seconds: got {args.seconds}; allowed: > 0")
    if not args.dense_gigabytes >= 0:
        raise ValueError(f"--dense-gigabytes: got {args.dense_gigabytes}; allowed: >= 0")
    if shutil.which(args.torch_python) is None:
        raise ValueError(f"--torch-python: no program {args.torch_python!r}; allowed: a Python")
