"""Whether a group fits in memory, said before anything compiles: an estimate from the shapes against what is free."""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax

from attnlab import costs, sharding
from attnlab import plan as plan_lib
from attnlab.plan import Group
from attnlab.training import Task

GB = 1e9
MARGIN = 1.5


@dataclass(frozen=True)
class Need:
    """Bytes of one pool of memory while a group trains: a device's, or the host's, which its host devices share.

    `successor`: the states that updates return, beside those they got, once the activations are gone.
    """

    state: int  # parameters and moments of the members there
    gradients: int
    activations: int
    successor: int

    @property
    def total(self) -> int:
        return self.state + self.gradients + max(self.activations, self.successor)


def need(task: Task, members: int) -> Need:
    """What a group of so many members takes of each pool."""
    on_cpu = jax.default_backend() == "cpu"
    each = costs.memory(task)
    rows, data = sharding.make_mesh(members, task.budget.data_devices).devices.shape
    here = -(-members // rows)  # members of one row of devices
    if on_cpu:  # one after another on a row, all rows at once, in one memory
        state = rows * data * here * each.state
        return Need(
            state, rows * data * each.gradients, rows * data * each.activations, successor=state
        )
    # At once, and each state in its own place.
    return Need(here * each.state, here * each.gradients, here * each.activations, successor=0)


def available() -> int | None:
    """Free bytes of that pool: the device's own count, else the host's; None where neither can be asked."""
    statistics = jax.devices()[0].memory_stats() if jax.default_backend() != "cpu" else None
    if statistics and "bytes_limit" in statistics:
        return int(statistics["bytes_limit"]) - int(statistics.get("bytes_in_use", 0))
    return _host_bytes() if jax.default_backend() == "cpu" else None


def _host_bytes() -> int | None:
    """Memory that new programs may take: the kernel's estimate, and no more than a container's limit leaves."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(line for line in lines if line.startswith("MemAvailable"))
        found.append(1024 * int(free.split()[1]))
    except (OSError, StopIteration):
        names = getattr(os, "sysconf_names", {})
        if "SC_PHYS_PAGES" in names and "SC_PAGE_SIZE" in names:
            found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / f"memory.{name}").read_text() for name in ("max", "current"))
        found.append(int(limit) - int(used))
    except (OSError, ValueError):
        pass  # no such limit
    return min(found) if found else None


def in_waves(groups: Sequence[Group], started: Collection[str] = ()) -> list[Group]:
    """The groups, those that are too large for the devices cut into as few equal ones as fit, to train one after another.

    Only on accelerators, where all members of a device train at once. `started`: ids of groups that stay whole, because
    they have a checkpoint. The estimate may be off by `MARGIN`, so it is asked to fit that often.
    """
    free = available()
    if free is None or jax.default_backend() == "cpu":
        return list(groups)
    made: list[Group] = []
    for group in groups:
        members = group.members
        sizes = (-(-len(members) // waves) for waves in range(1, len(members) + 1))
        size = next((n for n in sizes if MARGIN * need(group.task, n).total <= free), len(members))
        if size == len(members) or group.id in started:
            made.append(group)
            continue
        for first in range(0, len(members), size):
            made += plan_lib.group(members[first : first + size], {group.corpus.key: group.corpus})
    return made


def refuse_too_large(groups: Sequence[Group]) -> None:
    """Refuses the first group that cannot fit.

    Raises:
      ValueError: naming the field that takes most, the estimate, what is free, and the ways out.
    """
    free = available()
    for index, group in enumerate(groups):
        wanted = need(group.task, len(group.members))
        if free is not None and wanted.total > free:
            raise ValueError(_refusal(index, group, wanted, free))


def _refusal(index: int, group: Group, wanted: Need, free: int) -> str:
    budget, arch = group.task.budget, group.task.architecture
    by_batch = wanted.activations > wanted.state + wanted.gradients
    field = (
        f"config.batch_size: {budget.batch_size}"
        if by_batch
        else f"config.model.width: {arch.width}"
    )
    return (
        f"{field} does not fit: group {index} ({len(group.members)} members of {costs.parameter_count(arch):,} "
        f"parameters) needs about {wanted.total / GB:.1f} GB (parameters and moments {wanted.state / GB:.1f}, gradients "
        f"{wanted.gradients / GB:.1f}, activations {wanted.activations / GB:.1f}, afterwards new parameters and "
        f"moments {wanted.successor / GB:.1f}), {free / GB:.1f} GB are free; "
        f"allowed: {', '.join(_ways_out(group, free)) or 'a smaller model'}"
    )


def _ways_out(group: Group, free: int) -> list[str]:
    """Changes of one field that make the group fit, with their estimate."""
    task, members = group.task, len(group.members)
    budget, arch = task.budget, task.architecture
    micro = budget.batch_size // budget.accumulation // budget.data_devices
    changes = {
        f"accumulation={budget.accumulation * micro}": replace(
            task, budget=replace(budget, accumulation=budget.accumulation * micro)
        ),
        "model.remat='block'": replace(task, architecture=replace(arch, remat="block")),
        "model.activations='bfloat16'": replace(
            task, architecture=replace(arch, activations="bfloat16")
        ),
    }
    if budget.data_devices > 1:
        split = replace(budget, sharding="fsdp")
        changes["mesh.sharding='fsdp'"] = replace(task, budget=split)
    found = [
        f"{name} ({total / GB:.1f} GB)"
        for name, changed in changes.items()
        if (total := need(changed, members).total) <= free
    ]
    if members > 1 and need(task, 1).total <= free:
        found.append("fewer members at once")
    return found
