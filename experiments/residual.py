"""Why deep stacks train: a residual path keeps the gradient of the first layer alive.

    attnlab reproduce residual --preset quick

Eight layers, each sublayer's output added to the stream or put in its place; with norms and without, because a norm
rescales what goes back through it as well. One program: all of it is data. What is compared is the norm of the gradient of
the first block with that of the last, early, before training has had its say; and where training ends.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnlab.claims import Claim, Control, Gap, SubClaim, below_reference
from attnlab.claims.rules import above, below
from attnlab.results import Results
from experiments.measures import METRIC, Measure, difference

ON_PAPER = "On paper"
LAYERS = 8

# Thresholds as they were before the first run: of ln(gradient of the first block / of the last), and of a loss in nats.
VANISHES = -2.0
SURVIVES = -1.0
COST = 0.1
RESIDUAL_BELOW_BIGRAM = 0.1

ARMS: Mapping[str, Mapping[str, Any]] = {
    "residual": {"model.residual": 1.0, "model.norm": "layernorm"},
    "replaced": {"model.residual": 0.0, "model.norm": "layernorm"},
    "residual, no norm": {"model.residual": 1.0, "model.norm": "none"},
    "replaced, no norm": {"model.residual": 0.0, "model.norm": "none"},
}
SEEDS = {"smoke": 2, "quick": 5, "standard": 10, "gpu": 5}


def first_to_last(arm: str) -> Measure:
    """ln(gradient norm of the first block / of the last) in the first row of metrics."""

    def measure(results: Results) -> dict[int, float]:
        early = [
            results.curve(f"opt/grad_norm_l{layer:02d}", arm)[1][:, 0] for layer in (0, LAYERS - 1)
        ]
        ratio_S = np.log(early[0]) - np.log(early[1])
        found = zip(results.runs(arm), ratio_S, strict=True)
        return {seed: float(ratio) for seed, ratio in found if np.isfinite(ratio)}

    return measure


CONTROLS = (
    Control(
        id="residual-learns",
        statement="with a residual path eight layers use more than the previous character",
        arms=("residual",),
        check=below_reference(METRIC, "residual", "bigram", margin=RESIDUAL_BELOW_BIGRAM),
    ),
)


def _gradient(id: str, arm: str, title: str, statement: str, *, vanishes: bool) -> SubClaim:
    return SubClaim(
        id=id,
        title=title,
        statement=statement,
        source=f'{ON_PAPER} L76: "an unbroken identity route from the loss all the way back to the embedding"',
        metric=f"ln(gradient norm, first block / last), first row, {arm}",
        unit="",
        rule=below(VANISHES) if vanishes else above(SURVIVES),
        arms=(arm,),
        controls=(),
        measure=first_to_last(arm),
    )


SUBCLAIMS = (
    _gradient(
        "T13a", "replaced", "without it the gradient vanishes",
        "Where each sublayer replaces the stream, the first of eight blocks gets less than e^-2 of the last one's gradient.",
        vanishes=True,
    ),
    _gradient(
        "T13b", "residual", "with it the gradient survives",
        "With a residual path the first of eight blocks gets more than e^-1 of the last one's gradient.",
        vanishes=False,
    ),
    SubClaim(
        id="T13c",
        title="and the loss shows it",
        statement="After as many updates, eight layers without a residual path end more than 0.1 nats above.",
        source=f'{ON_PAPER} L76: "That is what makes very deep stacks trainable"',
        metric="replaced - residual",
        unit="nats",
        rule=above(COST),
        arms=("replaced", "residual"),
        controls=("residual-learns",),
        measure=difference("replaced", "residual"),
    ),
    _gradient(
        "T13d", "replaced, no norm", "without norms, too, it vanishes",
        "The same as T13a where nothing is normalised.",
        vanishes=True,
    ),
    _gradient(
        "T13e", "residual, no norm", "without norms, too, it survives",
        "The same as T13b where nothing is normalised.",
        vanishes=False,
    ),
)  # fmt: skip

CLAIM = Claim(
    name="residual",
    statement="A residual path keeps the gradient of the first layer alive, which is what lets deep stacks train.",
    source=f"{ON_PAPER} L76",
    metric=METRIC,
    arms=ARMS,
    subclaims=SUBCLAIMS,
    controls=CONTROLS,
    presets={
        "smoke": "seconds; shows that the machinery runs, its verdicts mean nothing",
        "quick": "eight layers of width 64, five seeds; minutes on a laptop",
        "standard": "four times the updates, ten seeds",
        "gpu": "width 512, T 256; for an accelerator",
    },
    seeds=SEEDS["quick"],
    rests_on=("T13a", "T13b"),
    gaps=(
        Gap("no residual path", "replaced", "residual"),
        Gap("no residual path, no norm", "replaced, no norm", "residual, no norm"),
        Gap("no norm", "residual, no norm", "residual"),
    ),
)
