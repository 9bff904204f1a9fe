"""From a bigram model to a transformer block, one change a rung: what each of them is worth.

    attnlab reproduce ladder --preset quick

The rungs are gates of one block (see `attnlab.model`), so every rung has the same parameters at the start, reads the same
text, and takes as many updates; one head and several are two shapes, hence two programs. A rung without a residual path
passes on what attention gathered and nothing else: the uniform average forgets which token comes last, so it may end
above the bigram model, and the order that is claimed begins there.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from attnlab.claims import Claim, Control, Gap, Measurement, SubClaim
from attnlab.claims.rules import below, equivalent, positive
from experiments.measures import METRIC, above_corpus, difference, in_every_seed, order, rise

ONE_LINE = "One line changed"

# Thresholds in nats, as they were before the first run.
BIGRAM = 0.02
ATTENTION = -0.02
NO_STEP_UP = 0.02

_BIGRAM = {
    "positions": "none",
    "model.attention_branch": 0.0,
    "model.mlp_branch": 0.0,
    "model.residual": 1.0,
    "model.norm": "none",
}
# Each rung: what it changes of the one before.
RUNGS: Mapping[str, Mapping[str, Any]] = {
    "bigram": _BIGRAM,
    "positions": {"positions": "learned"},
    "average": {"model.attention_branch": 1.0, "model.logit_scale": "uniform", "model.residual": 0.0},
    "one head": {"model.logit_scale": "inv_sqrt_head_dim", "model.heads": 1, "model.kv_heads": 1},
    "heads": {"model.heads": 4, "model.kv_heads": 4},
    "mlp": {"model.mlp_branch": 1.0},
    "residual": {"model.residual": 1.0},
    "norm": {"model.norm": "layernorm"},
}  # fmt: skip
CLIMB = ("average", "one head", "heads", "mlp", "residual", "norm")
DEEP_LAYERS = 4
DEEP = ("mlp", "residual", "norm")


def _arms() -> dict[str, dict[str, Any]]:
    arms: dict[str, dict[str, Any]] = {}
    rung: dict[str, Any] = {}
    for label, change in RUNGS.items():
        rung = {**rung, **change}
        arms[label] = {**rung}
    # The upper rungs again where there is depth for them to matter.
    return arms | {
        f"{label}, {DEEP_LAYERS} layers": {**arms[label], "model.layers": DEEP_LAYERS}
        for label in DEEP
    }


ARMS: Mapping[str, Mapping[str, Any]] = _arms()
DEEP_CLIMB = tuple(f"{label}, {DEEP_LAYERS} layers" for label in DEEP)
PRESETS = {"smoke": tuple(ARMS), "quick": tuple(RUNGS), "standard": tuple(ARMS), "gpu": tuple(ARMS)}
SEEDS = {"smoke": 2, "quick": 3, "standard": 5, "gpu": 5}

CONTROLS = (
    Control(
        id="bigram-is-bigram",
        statement="without attention and positions the network ends within 0.02 nats of the counted bigram model",
        arms=("bigram",),
        check=in_every_seed(
            above_corpus("bigram", "bigram"), -BIGRAM, BIGRAM, "nats above the counts"
        ),
    ),
)

SUBCLAIMS = (
    SubClaim(
        id="T3a",
        title="positions alone are worth nothing",
        statement="A bigram model that is told the position, too, stays within 0.02 nats of the counted bigram model.",
        source=f"{ONE_LINE} L186",
        metric="bigram with positions - counted bigram",
        unit="nats",
        rule=equivalent(BIGRAM),
        arms=("positions",),
        controls=("bigram-is-bigram",),
        measure=above_corpus("positions", "bigram"),
    ),
    SubClaim(
        id="T3b",
        title="attention beats averaging",
        statement="Where every score is 0 made a score that is learned, one head ends more than 0.02 nats lower.",
        source=f'{ONE_LINE} L194, L385: "changed one line"',
        metric="one head - uniform average",
        unit="nats",
        rule=below(ATTENTION),
        arms=("one head", "average"),
        controls=("bigram-is-bigram",),
        measure=difference("one head", "average"),
    ),
    SubClaim(
        id="T3c",
        title="the ladder goes down",
        statement="From the average to the whole block the rungs fall in order (Page's trend test over seeds).",
        source=f"{ONE_LINE} L194, L385",
        metric="Page's L of a seed, -1 every rung worse, 1 every rung better",
        unit="",
        rule=positive(),
        arms=CLIMB,
        controls=("bigram-is-bigram",),
        measure=order(CLIMB),
    ),
    SubClaim(
        id="T3d",
        title="no rung goes up",
        statement="No rung from the average to the whole block ends more than 0.02 nats above the one before it.",
        source=f"{ONE_LINE} L194, L385",
        metric="largest step up",
        unit="nats",
        rule=below(NO_STEP_UP),
        arms=CLIMB,
        controls=("bigram-is-bigram",),
        measure=rise(CLIMB),
    ),
    SubClaim(
        id="T3e",
        title="nor with four layers",
        statement="With four layers, too, neither the residual path nor the norm ends more than 0.02 nats above.",
        source="attnlab: the upper rungs are about depth",
        metric="largest step up, 4 layers",
        unit="nats",
        rule=below(NO_STEP_UP),
        arms=DEEP_CLIMB,
        controls=("bigram-is-bigram",),
        measure=rise(DEEP_CLIMB),
    ),
)

CLAIM = Claim(
    name="ladder",
    statement="From averaging to attention is one line, and every rung from there to the block lowers the loss.",
    source=f"{ONE_LINE} L186, L194, L385",
    metric=METRIC,
    arms=ARMS,
    subclaims=SUBCLAIMS,
    controls=CONTROLS,
    presets={
        "smoke": "seconds; shows that the machinery runs, its verdicts mean nothing",
        "quick": "eight rungs of one layer, width 64, T 32; minutes on a laptop",
        "standard": "the upper rungs with four layers as well, five seeds, longer",
        "gpu": "width 256, T 256; for an accelerator",
    },
    seeds=SEEDS["quick"],
    rests_on=("T3b", "T3c"),
    gaps=tuple(
        Gap(f"{label} after {before}", label, before)
        for rungs in (tuple(RUNGS), DEEP_CLIMB)
        for before, label in pairwise(rungs)
    ),
    # The mask says which edges there are, the text how much goes over them: an average has position alone.
    measurements=(Measurement("position_share", (*CLIMB, *DEEP_CLIMB)),),
)
