"""A finished sweep as training leaves it, without the training: what loading, sampling and evaluating start from."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tiny

from attnlab import resume, sweeps, training
from attnlab.checkpoints import Checkpoints
from attnlab.plan import Group
from attnlab.tracking import MemberRecord, SweepDirectory, environment_record
from attnlab.tracking.files import write_json

STEPS = 8
TEXT = "".join(chr(ord("a") + (i * i + i // 7) % 11) for i in range(4000)) + "é"
MEMBERS = {
    "learned": {"mask": "causal", "positions": "learned", "model.qk_norm": "rmsnorm"},
    "window": {"mask": "sliding_window(3)", "positions": "rope", "bos": True},
    "encoder": {"mask": "full", "positions": "none", "objective": "masked_lm(0.4)"},
}


def group(root: Path) -> Group:
    """Three members of one program, on the text below `root`."""
    text = root / "text.txt"
    text.write_text(TEXT, encoding="utf-8")
    configs = [
        tiny.config({"corpus": f"text:{text}", "steps": STEPS, **overrides}, arm=arm)
        for arm, overrides in MEMBERS.items()
    ]
    (only,) = sweeps.plan("tiny", configs, tiny.BASE).groups
    return only


def states(trained: Group) -> training.TrainState:
    """Random states of all members, as a checkpoint holds them: nothing is compiled for them."""
    rng = np.random.default_rng(0)

    def stacked() -> training.TrainState:
        made = [training.init_state(trained.task, k) for k in trained.knobs()]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *made)

    drawn = jax.tree.map(
        lambda x: rng.normal(0.0 if x.ndim > 2 else 1.0, 0.3, x.shape).astype(x.dtype),
        jax.eval_shape(stacked),
    )
    return dataclasses.replace(drawn, step=np.full(len(trained.members), STEPS, np.int32))


def make(root: Path) -> Path:
    """Writes the sweep below `root` and returns its workdir; the text is `root / "text.txt"`."""
    trained, workdir = group(root), root / "work"
    records = [
        MemberRecord(m.id, m.name, m.arm, m.config["seed"]["init"], m.config)
        for m in trained.members
    ]
    with SweepDirectory(workdir, "tiny") as directory:
        directory.create(records)
        environment = environment_record(None, trained.corpus.record())
        for member in trained.members:
            write_json(directory.run(member.id) / "environment.json", [environment])
        resume.record(workdir, trained)
        with Checkpoints(resume.checkpoint_directory(workdir, trained)) as checkpoints:
            checkpoints.save(STEPS, states(trained), wait=True)
    return workdir
