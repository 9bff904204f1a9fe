"""`attnlab bench step` and `attnlab bench population`: an update of training, against what else could run it here.

`step`: one model by itself. `population`: members in one program against ordinary single runs, in milliseconds per
update of one member. The contenders of a size take turns and the table gives medians; the ceiling is a large float32
matrix product measured in the same turns. Operations are counted from the shapes (attention as the whole T x T
rectangle), the same number for every contender. Quote ratios of one run, with its command. `--peer` times a nanoGPT
checkout beside it: one process with every core, and for a population also one process a core, all at once.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from attnlab import costs
from attnlab.bench import peer, turns, workloads
from attnlab.bench.turns import Contender, Timing
from attnlab.bench.workloads import Size

# The first is nanoGPT's configuration for a CPU.
STEP_SIZES = ("4,128,4,64,12", "1,32,1,8,32", "2,64,4,32,16", "4,64,4,32,32", "4,512,8,128,8")
POPULATION_SIZES = ("1,32,1,8,32", "2,64,4,32,16", "4,64,4,32,32", "4,128,4,64,12")


@dataclass(frozen=True)
class Row:
    """One contender at one size.

    Attributes:
      milliseconds: per update of one member, median; None where it could not run (`why`).
      spread: (smallest, largest) over the turns, milliseconds.
      tokens_per_second, gflops: of all members together.
      of_matmul: `gflops` over the rate of a large float32 matrix product in the same turns.
      times_attnlab: `milliseconds` over those of the first contender.
    """

    size: str
    contender: str
    milliseconds: float | None
    spread: tuple[float, float] | None
    tokens_per_second: float | None
    gflops: float | None
    of_matmul: float | None
    times_attnlab: float | None
    why: str | None


def add_arguments(parser: argparse.ArgumentParser, what: str) -> None:
    """The flags of `attnlab bench step` and `attnlab bench population`."""
    sizes = STEP_SIZES if what == "step" else POPULATION_SIZES
    parser.add_argument("--sizes", nargs="+", default=sizes, metavar="L,D,N,T,B",
                        help=f"layers, width, heads, context, batch ({' '.join(sizes)})")  # fmt: skip
    if what == "population":
        parser.add_argument("--members", type=int, default=4, help="of the population (4)")
    parser.add_argument("--chunk", type=int, default=20, help="updates a call (20)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=5.0,
        help="per size and contender (5); three turns at least",
    )
    parser.add_argument(
        "--peer", type=Path, default=None, metavar="PATH", help="a nanoGPT checkout"
    )
    parser.add_argument("--torch-python", default=sys.executable, metavar="PATH",
                        help="a Python that can import torch, where this one cannot")  # fmt: skip
    parser.add_argument("--out", type=Path, default=None, metavar="DIR", help="for the JSON")


def run(args: argparse.Namespace, what: str, base: Mapping[str, Any]) -> int:
    """Measures, prints the table, writes `step.json` or `population.json`; returns the exit code.

    `base`: the configuration that holds every knob.

    Raises:
      ValueError: a flag out of range, a size that is none, a checkout that is none.
    """
    sizes = [Size.parse(text) for text in args.sizes]
    members = 1 if what == "step" else args.members
    _check(args, members)
    machine = turns.machine()
    rows: list[Row] = []
    with peer.peers(args.peer, args.torch_python, parts=what == "population") as others:
        for size in sizes:
            group = workloads.group(size, base, members, args.chunk)
            contenders = workloads.contenders(group)
            if others is not None:
                vocab_size = group.task.architecture.vocab_size
                contenders += others.contenders(size, vocab_size, args.chunk)
            flops = costs.flops_per_update(group.task)
            rows += _measure(size, contenders, flops, args.seconds)
    _print_table(what, machine, rows)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        record = {"machine": machine, "members": members, "rows": [asdict(row) for row in rows]}
        (args.out / f"{what}.json").write_text(json.dumps(record, indent=1) + "\n")
        print(f"written: {args.out}/{what}.json")
    return 0


def _measure(size: Size, contenders: Sequence[Contender], flops: int, seconds: float) -> list[Row]:
    ceiling = turns.matmul()
    found = turns.take_turns([*contenders, ceiling], seconds)
    product = found.pop(ceiling.name).median
    assert product is not None
    rate = 2 * turns.MATMUL_SIZE**3 / product
    first = found[contenders[0].name].median
    rows = [_row(size, name, timing, flops, rate, first) for name, timing in found.items()]
    rows.append(Row(str(size), "matmul", None, None, None, rate / 1e9, 1.0, None, None))
    said = [f"{r.contender} {r.milliseconds:.2f}" for r in rows if r.milliseconds is not None]
    print(f"{size}: {', '.join(said)} ms", file=sys.stderr, flush=True)
    return rows


def _row(
    size: Size, name: str, timing: Timing, flops: int, rate: float, first: float | None
) -> Row:
    if timing.median is None or timing.low is None or timing.high is None:
        return Row(str(size), name, None, None, None, None, None, None, timing.why)
    seconds = timing.median
    return Row(
        str(size), name, 1e3 * seconds, (1e3 * timing.low, 1e3 * timing.high),
        size.batch * size.context / seconds, flops / seconds / 1e9, flops / seconds / rate,
        seconds / first if first else None, None,
    )  # fmt: skip


def _print_table(what: str, machine: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """A row a size and contender."""
    unit = "update" if what == "step" else "update of one member"
    table = Table(title=f"{what}: time per {unit}, medians", title_justify="left")
    for name in ("layers,width,heads,T,batch", "contender"):
        table.add_column(name)
    for name in ("ms", "lowest", "tokens/s", "GFLOP/s", "of matmul", "x attnlab"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.size, row.contender,
            _number(row.milliseconds, ".2f"), _number(row.spread and row.spread[0], ".2f"),
            _number(row.tokens_per_second, ",.0f"), _number(row.gflops, ".1f"),
            _number(row.of_matmul and 100 * row.of_matmul, ".0f", " %"),
            _number(row.times_attnlab, ".2f"), end_section=row.contender == "matmul",
        )  # fmt: skip
    console = Console(highlight=False)
    (console if console.is_terminal else Console(highlight=False, width=160)).print(table)
    for name, why in sorted({(r.contender, r.why) for r in rows if r.why}):
        console.print(f"  {name}: not run: {why}", markup=False)
    print(
        f"{machine['devices']} x {machine['device']}, {machine['cpus']} cpus, load {machine['load_at_start']} "
        f"at the start; jax {machine['jax']}; {machine['command']}"
    )


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"


def _check(args: argparse.Namespace, members: int) -> None:
    for name, value in (("members", members), ("chunk", args.chunk)):
        if value < 1:
            raise ValueError(f"--{name}: got {value}; allowed: >= 1")
    if not args.seconds > 0:
        raise ValueError(f"--seconds: got {args.seconds}; allowed: > 0")
    if shutil.which(args.torch_python) is None:
        raise ValueError(
            f"--torch-python: no program {args.torch_python!r}; allowed: a Python that can import torch"
        )
