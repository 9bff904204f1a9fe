"""A sweep's directory with made-up numbers, as the tracker would have left it: what a report is tested on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.claims import Claim, Control, Gap, Published, SubClaim, Trend, below_reference
from attnlab.claims.rules import above
from attnlab.measurements import LossByLength, Probes, ShuffledPrefix
from attnlab.results import Results

CONTEXT, LAYERS, HEADS, ROWS, STEPS = 16, 4, 4, 10, 200
ENDS = {
    "causal-learned": 1.95,
    "causal-none": 2.09,
    "causal-rope": 1.86,
    "mlm-learned": 2.41,
    "mlm-none": 3.27,
}
ENVIRONMENT = {
    "command": ["attnlab", "reproduce", "toy", "--workdir", "runs/a b"],
    "data": {"name": "shakespeare", "sha256": "e19b" * 16},
    "device": "2 x cpu",
    "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": True},
    "packages": {"jax": "0.10.2", "wandb": None},
    "platform": {"system": "Linux", "machine": "x86_64", "cpus": 2},
    "python": "3.11.7",
    "variables": {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
}
REFERENCES = {"unigram": 3.347, "bigram": 2.4875}
CAUSAL = {"mask": "causal", "objective": "next_token"}
FULL = {"mask": "full", "objective": "masked_lm(0.15)"}
ARMS = {
    "causal-learned": {**CAUSAL, "positions": "learned"},
    "causal-none": {**CAUSAL, "positions": "none"},
    "causal-rope": {**CAUSAL, "positions": "rope"},
    "mlm-learned": {**FULL, "positions": "learned"},
    "mlm-none": {**FULL, "positions": "none"},
}


def _closure(results: Results) -> dict[int, float]:
    seeds, loss = results.paired("val/loss", ("causal-none", "causal-learned"))
    bigram = results.reference("bigram")
    share_S = (bigram - loss["causal-none"]) / (bigram - loss["causal-learned"])
    return dict(zip(seeds, share_S.tolist(), strict=True))


def _mask_effect(results: Results) -> dict[int, float]:
    arms = ("mlm-none", "mlm-learned", "causal-none", "causal-learned")
    seeds, loss = results.paired("val/loss", arms)
    full_S = loss["mlm-none"] - loss["mlm-learned"]
    gap_S = full_S - (loss["causal-none"] - loss["causal-learned"])
    return dict(zip(seeds, gap_S.tolist(), strict=True))


CLAIM = Claim(
    name="toy",
    statement="A transformer without positions trains, and its mask is why.",
    source="A paper, 2022",
    metric="val/loss",
    arms=ARMS,
    subclaims=(
        SubClaim(
            id="F1",
            title="it trains",
            statement="It goes more than half of the way from the bigram model to learned positions.",
            source="A paper, Table 2",
            metric="(bigram - none) / (bigram - learned)",
            unit="",
            rule=above(0.5),
            arms=("causal-none", "causal-learned"),
            controls=("learned-learns",),
            measure=_closure,
        ),
        SubClaim(
            id="F3",
            title="it is the mask",
            statement="Removing positions costs at least 0.5 nats more under the full mask.",
            source="A paper, Table 3",
            metric="(none - learned), full mask, minus (none - learned), causal mask",
            unit="nats",
            rule=above(0.5),
            arms=("mlm-none", "mlm-learned", "causal-none", "causal-learned"),
            controls=("learned-learns",),
            measure=_mask_effect,
            published=(Published(3.59, "nats", "large models", "A paper, Table 3", "two models"),),
        ),
    ),
    controls=(
        Control(
            id="learned-learns",
            statement="with learned positions the decoder uses more than the previous character",
            arms=("causal-learned",),
            check=below_reference("val/loss", "causal-learned", "bigram", margin=0.1),
        ),
    ),
    presets={"quick": "for tests"},
    gaps=(
        Gap("full mask", "mlm-none", "mlm-learned"),
        Gap(
            "causal mask",
            "causal-none",
            "causal-learned",
            (Published(0.005, "nats", "125 M parameters, T 1024", "A paper, Table 2", "one seed"),),
        ),
    ),
    trends=(
        Trend(
            "Cost of removing positions by what is visible",
            "share of the future",
            {0: ("causal-none", "causal-learned"), 1: ("mlm-none", "mlm-learned")},
        ),
    ),
)


@dataclass(frozen=True)
class Member:
    """One run to be written. `rows`: how many validations it got to; `status`: how its summary says it ended."""

    arm: str
    seed: int
    end: float
    status: str = "finished"
    rows: int = ROWS
    overrides: tuple[tuple[str, Any], ...] = ()

    @property
    def id(self) -> str:
        return f"{self.arm.replace(' ', '-') or 'unnamed'}-s{self.seed}-{len(self.overrides)}"


def toy_members(seeds: int = 3) -> list[Member]:
    """The members of `CLAIM`, as they would end if it held."""
    rng = np.random.default_rng(0)
    return [
        Member(arm, seed, end + rng.normal(0, 0.004))
        for seed in range(seeds)
        for arm, end in ENDS.items()
    ]


def write_sweep(
    workdir: Path, members: Sequence[Member], name: str = "toy-quick", *, measured: bool = True
) -> Path:
    """Writes the directory and returns it. `measured`: with what is measured on trained members, too."""
    workdir.mkdir(parents=True, exist_ok=True)
    listed = [
        {"id": m.id, "name": f"{m.arm} s{m.seed}", "arm": m.arm, "seed": m.seed, "tags": []}
        for m in members
    ]
    _json(workdir / "sweep.json", {"format": 1, "name": name, "members": listed})
    for index, member in enumerate(members):
        run = workdir / "runs" / member.id
        run.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(index)
        config = _config(member)
        _json(run / "config.json", config)
        if member.rows:
            _json(run / "environment.json", [ENVIRONMENT])
        rows = _rows(member, rng)
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        _json(run / "summary.json", _summary(member, rng))
        if measured and member.status == "finished":
            _measure(run, member, rng)
    return workdir


def _config(member: Member) -> dict[str, Any]:
    config: dict[str, Any] = {
        "arm": member.arm,
        "corpus": "shakespeare",
        "context": CONTEXT,
        "batch_size": 32,
        "steps": STEPS,
        "model": {"layers": LAYERS, "width": 64, "heads": HEADS, "norm": "layernorm"},
        "optimizer": {"learning_rate": 0.004},
        "seed": {"init": member.seed, "data": member.seed},
    }
    arm = ARMS.get(member.arm, ARMS["causal-rope"])
    for key, value in (*arm.items(), *member.overrides):
        *outer, last = key.split(".")
        at = config
        for part in outer:
            at = at[part]
        at[last] = value
    return config


def _rows(member: Member, rng: np.random.Generator) -> list[dict[str, Any]]:
    rows = []
    for index in range(member.rows):
        step = STEPS * (index + 1) // ROWS
        loss = member.end + (4.3 - member.end) * np.exp(-5.0 * index / (ROWS - 1))
        loss = member.end if index == ROWS - 1 else loss + rng.normal(0, 0.01)
        row = {"step": step, "tokens": step * 512, "train/loss": loss + 0.05, "val/loss": loss}
        for layer in range(LAYERS):
            for head in range(HEADS):
                row[f"attn/entropy_l{layer:02d}h{head:02d}"] = float(rng.uniform(0.1, 1.0))
        rows.append(row)
    if member.status == "diverged" and rows:
        rows[-1]["val/loss"] = "NaN"
    return rows


def _summary(member: Member, rng: np.random.Generator) -> dict[str, Any]:
    summary: dict[str, Any] = {"status": member.status}
    if member.status == "finished":
        by_position = member.end + 1.2 / np.arange(1, CONTEXT + 1) + rng.normal(0, 0.02, CONTEXT)
        summary |= {
            "step": STEPS,
            "val/loss": member.end,
            "val/loss_by_position": by_position.tolist(),
            "references": REFERENCES,
        }
    if member.status == "diverged":
        summary["diverged_at"] = STEPS * member.rows // ROWS
    return summary


def _measure(run: Path, member: Member, rng: np.random.Generator) -> None:
    fall = 0.0 if member.arm == "mlm-none" else 0.55
    layers = np.arange(LAYERS + 1)
    trained = CONTEXT / 4 * (1 - fall * layers / LAYERS) + rng.normal(0, 0.05, (3, LAYERS + 1))
    start = CONTEXT / 4 * (1 - 0.3 * layers / LAYERS) + rng.normal(0, 0.05, (3, LAYERS + 1))
    Probes(
        CONTEXT,
        {"random init": start, "trained": trained, "bag of prefix": np.full((3, 1), CONTEXT / 4.4)},
    ).write(run)
    intact = member.end + rng.normal(0, 0.6, 40) ** 2
    ShuffledPrefix(intact, intact + (1.0 if "none" not in member.arm else 0.4)).write(run)
    lengths = [CONTEXT, CONTEXT * 3 // 2, CONTEXT * 2]
    LossByLength(CONTEXT, lengths, member.end + np.array([0.0, 0.02, 0.3])).write(run)


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))
