"""What a sweep would take on a mesh of accelerators, found out without one: `attnlab plan --mesh member=8,data=32`.

The real train step is lowered for so many virtual devices of a CPU, and compiled where that is affordable: then XLA's
own plan of memory and the collectives it inserted are read off. What cannot be read off is counted from the shapes:
operations, the bytes that devices which share a member exchange, and memory (`costs.memory`). Time follows from the
makers' figures and one assumption, `EFFICIENCY`; nothing of it was measured on an accelerator.
"""

import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from attnlab import costs, sharding, training
from attnlab.data import feed
from attnlab.perf import BFLOAT16_PEAK
from attnlab.plan import Group
from attnlab.population import Program

EFFICIENCY = 0.4
"""Share of the peak that large matrix products in a transformer reach; published runs lie between 0.3 and 0.6."""

COMPILES_TO = 30_000_000
"""Parameters times devices / 16 up to which compiling here takes minutes at most."""

GB = 1e9


@dataclass(frozen=True)
class Chip:
    """`memory`: bytes. `link`: bytes a second, one way, to the other chips of its slice or NVLink domain."""

    kind: str
    memory: float
    link: float

    @property
    def peak(self) -> float:
        return BFLOAT16_PEAK[self.kind]


# Memory and bandwidth as the makers state them; the links are half of the bidirectional figures. NVIDIA's data sheets of
# the A100, L4 (PCIe), H100 SXM and H200; docs.cloud.google.com/tpu/docs, pages v4, v5e, v5p and v6e.
CHIPS: Mapping[str, Chip] = {
    "l4": Chip("NVIDIA L4", 24 * GB, 32 * GB),
    "a100": Chip("NVIDIA A100-SXM4-80GB", 80 * GB, 300 * GB),
    "h100": Chip("NVIDIA H100 80GB HBM3", 80 * GB, 450 * GB),
    "h200": Chip("NVIDIA H200", 141 * GB, 450 * GB),
    "v4": Chip("TPU v4", 32 * GB, 150 * GB),
    "v5e": Chip("TPU v5 lite", 16 * GB, 200 * GB),
    "v5p": Chip("TPU v5p", 95 * GB, 300 * GB),
    "v6e": Chip("TPU v6 lite", 32 * GB, 224 * GB),
}

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")


@dataclass(frozen=True)
class Forecast:
    """One group on one mesh. Bytes are those of one device; operations and exchanged bytes those of one member's update.

    `compiled_memory`: XLA's plan for a CPU, None where it was only lowered. `collectives`: name -> how many the compiled
    program holds. `lines`: of the lowered program.
    """

    members: int
    rows: int
    data: int
    parameters: int
    flops: int
    state: int
    working: int
    exchanged: float
    updates: int
    tokens: int
    lines: int
    seconds: float
    compiled_memory: int | None
    collectives: Mapping[str, int]

    @property
    def here(self) -> int:
        """Members that a row of devices trains."""
        return -(-self.members // self.rows)

    @property
    def memory(self) -> int:
        """Vmapped, as on accelerators: all members of a row at once."""
        return self.here * (self.state + self.working)

    def update_seconds(self, chip: Chip) -> tuple[float, float]:
        """(computing, exchanging) for one update of all members; a chip does both at once where it can."""
        computing = self.here * self.flops / (self.data * chip.peak * EFFICIENCY)
        return computing, self.here * self.exchanged / chip.link

    def chip_hours(self, chip: Chip) -> float:
        """Of the whole training, validations aside."""
        return max(self.update_seconds(chip)) * self.updates * self.rows * self.data / 3600


def of_group(group: Group, rows: int, *, compiles: bool | None = None) -> Forecast:
    """Lowers the train step of a group on a mesh of `rows` times its `data` axis of this process's devices.

    `compiles`: also compile; None where that is affordable.

    Raises:
      ValueError: fewer members than rows, or the devices cannot be cut so.
    """
    task, data = group.task, group.task.budget.data_devices
    members = len(group.members)
    if rows > members:
        raise ValueError(
            f"--mesh: got member={rows} for a group of {members} members; allowed: at most {members}"
        )
    started = time.monotonic()
    mesh = sharding.make_mesh(rows, data)
    lowered = _lower(group, Program(task, mesh), rows)
    parameters = costs.parameter_count(task.architecture)
    if compiles is None:
        compiles = parameters * mesh.size / 16 <= COMPILES_TO
    compiled = lowered.compile() if compiles else None
    need = costs.memory(task)
    return Forecast(
        members=members, rows=rows, data=data, parameters=parameters, flops=costs.flops_per_update(task),
        state=need.state, working=need.working,
        exchanged=exchanged_bytes(parameters, data, task.budget.sharding),
        updates=group.steps,
        tokens=sum(m.steps for m in group.members) * task.budget.batch_size * task.architecture.context,
        lines=lowered.as_text().count("\n"),
        seconds=time.monotonic() - started,
        compiled_memory=None if compiled is None else _planned_bytes(compiled),
        collectives={} if compiled is None else count_collectives(compiled.as_text()),
    )  # fmt: skip


def exchanged_bytes(parameters: int, data: int, kind: str) -> float:
    """Bytes that each device sends for one update of a member that `data` devices share, float32, in rings.

    Data parallel: gradients are reduced and the sums spread. FSDP: parameters are gathered forward and backward, and
    gradients reduced to where they are kept.
    """
    passes = 3 if kind == "fsdp" else 2
    return passes * 4.0 * parameters * (data - 1) / data


def count_collectives(text: str) -> dict[str, int]:
    """Collectives in a compiled program's text; those within a loop count once."""
    pattern = rf"= [^=\n]*? ({'|'.join(COLLECTIVES)})(?:-start)?\("
    return dict(Counter(re.findall(pattern, text)))


def rows_of(forecast: Forecast) -> list[tuple[str, ...]]:
    """A row a chip for a table: `CHIP_COLUMNS`."""
    made: list[tuple[str, ...]] = []
    for name, chip in CHIPS.items():
        computing, exchanging = forecast.update_seconds(chip)
        share = forecast.memory / chip.memory
        made.append(
            (
                name,
                f"{chip.peak / 1e12:.0f}",
                f"{chip.memory / GB:.0f}",
                f"{share:.0%}" + ("" if share <= 1 else ", too large"),
                f"{1e3 * computing:.3g}",
                f"{1e3 * exchanging:.3g}",
                f"{1e3 * max(computing, exchanging):.3g}",
                f"{forecast.chip_hours(chip):,.3g}",
            )
        )
    return made


CHIP_COLUMNS = (
    "chip", "bf16 TFLOP/s", "memory GB", "used", "computing ms", "exchanging ms", "update ms", "chip-hours",
)  # fmt: skip


def lines_of(forecast: Forecast) -> list[str]:
    """What was found out, and how."""
    f, compiled = forecast, forecast.compiled_memory is not None
    how = (
        "compiled"
        if compiled
        else "only lowered, because compiling so large a program here would take too long"
    )
    lines = [
        f"mesh member={f.rows}, data={f.data}: {f.rows * f.data} devices, {f.members} members, {f.here} a row",
        f"the train step was {how} ({f.lines:,} lines, {f.seconds:.0f} s)",
        f"one member: {f.parameters:,} parameters, {f.flops / 1e12:.3g} TFLOP an update",
        f"memory of a device, estimated: {f.memory / GB:.2f} GB (state {f.here * f.state / GB:.2f}, gradients and "
        f"activations {f.here * f.working / GB:.2f})",
        f"each device sends {f.here * f.exchanged / GB:.3f} GB an update, counted",
    ]
    if f.compiled_memory is not None:
        found = ", ".join(f"{count} {name}" for name, count in sorted(f.collectives.items()))
        lines += [
            f"memory of a device, as XLA planned it for a CPU: {f.compiled_memory / GB:.3f} GB, its members in turn",
            f"collectives in the program: {found or 'none'}",
        ]
    lines += [
        f"{f.updates:,} updates, {f.tokens:,} tokens of all members; times assume {EFFICIENCY:.0%} of the maker's "
        "bfloat16 peak, and that exchanging goes on behind computing",
    ]
    return lines


def _lower(group: Group, program: Program, rows: int) -> Any:
    """The train step on shapes alone: nothing is allocated."""
    count = -(-len(group.members) // rows) * rows

    def shaped(x: Any, where: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((count, *np.shape(x)), x.dtype, sharding=where)

    states = jax.tree.map(shaped, training.state_shapes(group.task), program.layout)
    one = jax.tree.map(np.asarray, group.knobs()[0])
    knobs = jax.tree.map(lambda x: shaped(x, program.members), one)
    tokens = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=program.everywhere),
        feed.device_tokens(group.corpus, documents=group.task.budget.packed),
    )
    step: Any = program.train
    return step.lower(states, knobs, tokens)


def _planned_bytes(compiled: Any) -> int:
    plan = compiled.memory_analysis()
    inside = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
    return int(inside - plan.alias_size_in_bytes)
