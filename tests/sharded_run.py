"""Trains one configuration on the meshes named on the command line, in a process of its own: prints JSON.

A mesh is MEMBERSxDEVICESxKIND, such as 1x4xfsdp; MESH->MESH trains the first chunk on the one and, from its
checkpoint, the rest on the other.
"""

import functools
import json
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
import tiny

from attnlab import population, sharding
from attnlab.checkpoints import Checkpoints

STATIC = {
    "batch_size": 8, "eval.every": 8, "eval.windows": 8, "eval.final_windows": 16,
    "objective": "masked_lm(0.3)", "positions": "learned", "model.attention": "dense",
}  # fmt: skip


def group_on(mesh: str):
    members, data, kind = mesh.split("x")
    changes = {**STATIC, "mesh.data": int(data), "mesh.sharding": kind}
    if kind == "fsdp":  # every switch for large models at once
        changes |= {"accumulation": 8 // int(data) if int(data) > 1 else 1, "model.remat": "block"}
    return tiny.group(*(tiny.config({**changes, "seed.init": i}) for i in range(int(members))))


class StopsAtACheckpoint(tiny.MemoryLog):
    """Its rows are flushed before a checkpoint is written: from then on it wants to stop."""

    saved = False

    def flush(self) -> bool:
        self.saved = True
        return True


def train(group, checkpoints=None, *, stop=False):
    log = StopsAtACheckpoint(len(group.members))
    report = population.run_group(
        group, log, checkpoints=checkpoints, should_stop=lambda: stop and log.saved
    )
    return log, report


def record(mesh: str) -> dict:
    """Losses of every member, how the largest parameter lies, and how often the update was traced."""
    group = group_on(mesh)
    log, report = train(group)
    made = sharding.make_mesh(len(group.members), group.task.budget.data_devices)
    program = population.Program(group.task, made)
    kernel = program.init(program.place(group.knobs())).params["block_00"]["mlp"]["up_kernel"]
    return {
        "train": [log.column(i, "train/loss").tolist() for i in range(len(log.rows))],
        "val": [log.ends[i][1]["val/loss"] for i in range(len(log.rows))],
        "traces": report.traces["train"],
        "devices": kernel.sharding.num_devices,
        "bytes_a_device": kernel.addressable_shards[0].data.nbytes,
    }


def resumed(before: str, after: str) -> dict:
    """The first chunk on one mesh, the second on another."""
    with tempfile.TemporaryDirectory() as folder:
        with Checkpoints(Path(folder), every_steps=4) as checkpoints:
            train(group_on(before), checkpoints, stop=True)
        with Checkpoints(Path(folder)) as checkpoints:
            log, _ = train(group_on(after), checkpoints)
    return {
        "train": [log.column(0, "train/loss").tolist()],
        "val": [log.ends[0][1]["val/loss"]],
    }


def main(words: list[str]) -> None:
    jax.config.update("jax_numpy_rank_promotion", "raise")
    population.Program = functools.cache(population.Program)  # each compiles once
    found = {}
    with tiny.quick_compilation():
        for word in words:
            before, arrow, after = word.partition("->")
            found[word] = resumed(before, after) if arrow else record(word)
    print(json.dumps(found, default=np.ndarray.tolist))


if __name__ == "__main__":
    main(sys.argv[1:])
