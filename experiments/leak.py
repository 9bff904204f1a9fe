"""A decoder trained without its mask: the loss falls through the floor, and the model is worse.

    attnlab reproduce leak --preset quick

Four masks, targets 0, 1 or 2 places ahead, with and without positions, one layer and two. By the leak law (`attnlab
check I25`) keys up to i + k let L layers read a target s places ahead exactly when s <= k L. What a leak does to a trained
model is measured three ways: the loss, by position too; the loss of the same weights where nothing of the future is
there to be read, as in use; and how likely 5-grams of the training text find 300 characters that it writes.

A loss of exactly 0 is out of reach: the last target of a window is never among its inputs, so the mean ends near h / T, h
the loss of an honest model: 0.2 to 0.3 nats at T = 8, and 0.01 at T = 256. How near to zero is "near zero" is a matter
of the context.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnlab import measurements
from attnlab.claims import Claim, Control, Gap, Measurement, SubClaim, below_reference
from attnlab.claims.rules import above, below, equivalent, positive
from attnlab.measurements.context import Samples, TruncatedContext
from attnlab.results import Results
from experiments.measures import METRIC, Measure, by_seed, difference, in_every_seed, minus

SIX_NOTES = "Six notes on attention"
ONE_LINE = "One line changed"

MASKS = {
    "causal": "causal",
    "full": "full",
    "plus1": "causal(offset=1)",
    "strict": "causal(offset=-1)",
}
AHEAD = {"causal": 0.0, "full": np.inf, "plus1": 1.0, "strict": -1.0}  # k: keys up to i + k
OFFSETS = (0, 1, 2)
DEPTHS = (1, 2)

# Thresholds in nats, as they were before the first run.
FALLS = -0.5  # T1a: unmasked - causal
WITHOUT_FUTURE = 0.3  # T1b: the same, nothing of the future to be read
LAST_PLACE = 0.3  # T1c: the only place that is trained honestly
BLIND_TO_ORDER = 0.3  # T1d: a bag of tokens cannot be read off, so it must stay this far above
DEPTH = 0.5  # T1e: one diagonal too many, two tokens ahead
TWO_AHEAD = 0.3  # T2: counts give 0.43 (one character) and 0.61 (two) on tiny Shakespeare

# Controls, in nats.
COPIES = 0.1  # a target that is the input itself must be learned: "close to 0" is reachable
CAUSAL_BELOW_BIGRAM = 0.1
HONEST = 1e-3  # by how much the loss of a causal model may change with the future cut off


def label(mask: str, offset: int, positions: str = "learned", depth: int = 2) -> str:
    """The arm of a cell: `causal-s1-learned-depth2`."""
    return f"{mask}-s{offset}-{positions}-depth{depth}"


ARMS: Mapping[str, Mapping[str, Any]] = {
    label(mask, offset, positions, depth): {
        "mask": text,
        "objective": f"next_token({offset})",
        "positions": positions,
        "model.layers": depth,
    }
    for depth in DEPTHS
    for positions in ("learned", "none")
    for offset in OFFSETS
    for mask, text in MASKS.items()
}
CAUSAL, FULL = label("causal", 1), label("full", 1)
# Cells whose target is not the input itself, by depth.
LAW = {depth: tuple((m, s, label(m, s, depth=depth)) for m in MASKS for s in (1, 2)) for depth in DEPTHS}  # fmt: skip
SAMPLED = tuple(label(mask, 1, positions) for positions in ("learned", "none") for mask in MASKS)

# What the sub-claims rest on, and no more.
QUICK = (
    label("causal", 0),
    *(arm for cells in LAW.values() for _, _, arm in cells),
    *(label(mask, 1, "none") for mask in ("causal", "full")),
)
PRESETS = {"smoke": QUICK, "quick": QUICK, "standard": tuple(ARMS), "gpu": tuple(ARMS)}
SEEDS = {"smoke": 2, "quick": 3, "standard": 5, "gpu": 5}


def leaks(mask: str, offset: int, depth: int) -> bool:
    """The law, for targets that are not the input itself."""
    return offset <= AHEAD[mask] * depth


def without_future(arm: str) -> Measure:
    """Mean over positions of the loss with the context cut off behind the position."""

    def measure(results: Results) -> dict[int, float]:
        found = results.measured(TruncatedContext.read, arm)
        return {seed: float(np.mean(m.truncated)) for seed, m in found.items()}

    return measure


def use_of_future(arm: str) -> Measure:
    """The largest change of the loss at any position when the context behind it is cut off."""

    def measure(results: Results) -> dict[int, float]:
        found = results.measured(TruncatedContext.read, arm)
        return {seed: float(np.max(np.abs(m.truncated - m.whole))) for seed, m in found.items()}

    return measure


def sample_score(arm: str) -> Measure:
    """Loss of 5-grams on what the arm writes."""

    def measure(results: Results) -> dict[int, float]:
        return {seed: m.score for seed, m in results.measured(Samples.read, arm).items()}

    return measure


def last_place(arm: str) -> Measure:
    """Loss of the last target of a window."""

    def measure(results: Results) -> dict[int, float]:
        found = results.measured(measurements.loss_by_position, arm)
        return {seed: float(loss_T[-1]) for seed, loss_T in found.items()}

    return measure


def law_margin(results: Results) -> dict[int, float]:
    """How far the worst cell is on its side of "0.5 nats below the causal next-token arm of its depth"."""
    margins = []
    for depth, cells in LAW.items():
        honest = label("causal", 1, depth=depth)
        seeds, loss = results.paired(METRIC, [arm for _, _, arm in cells])
        for mask, offset, arm in cells:
            below_border_S = loss[honest] + FALLS - loss[arm]
            margins.append(below_border_S if leaks(mask, offset, depth) else -below_border_S)
    return by_seed(seeds, np.min(margins, axis=0))


CONTROLS = (
    Control(
        id="copying-is-learned",
        statement="with the input itself as target the causal arm comes close to 0",
        arms=(label("causal", 0),),
        check=in_every_seed(lambda r: r.final(METRIC, label("causal", 0)), 0.0, COPIES, "loss"),
    ),
    Control(
        id="causal-beats-bigram",
        statement="the causal arm uses more than the previous character",
        arms=(CAUSAL,),
        check=below_reference(METRIC, CAUSAL, "bigram", margin=CAUSAL_BELOW_BIGRAM),
    ),
    Control(
        id="causal-reads-no-future",
        statement="the causal arm has the same loss at every position when the future is cut off",
        arms=(CAUSAL,),
        check=in_every_seed(use_of_future(CAUSAL), 0.0, HONEST, "largest change of the loss"),
    ),
    Control(
        id="two-ahead-reads-no-future",
        statement="nor does the causal arm that is asked two places ahead change",
        arms=(label("causal", 2),),
        check=in_every_seed(
            use_of_future(label("causal", 2)), 0.0, HONEST, "largest change of the loss"
        ),
    ),
)

SUBCLAIMS = (
    SubClaim(
        id="T1a",
        title="the loss falls through the floor",
        statement="Without the mask the validation loss ends more than 0.5 nats below the causal one.",
        source=f"{SIX_NOTES} L47: \"Training loss will fall through the floor, validation loss will follow\"; {ONE_LINE} L316",
        metric="unmasked - causal, learned positions, 2 layers",
        unit="nats",
        rule=below(FALLS),
        arms=(FULL, CAUSAL),
        controls=("copying-is-learned", "causal-beats-bigram"),
        measure=difference(FULL, CAUSAL),
    ),
    SubClaim(
        id="T1b",
        title="the model is worse",
        statement="With nothing of the future to be read, the same weights lose more than 0.3 nats against causal ones.",
        source=f"{SIX_NOTES} L47",
        metric="unmasked - causal, contexts cut off behind each position",
        unit="nats",
        rule=above(WITHOUT_FUTURE),
        arms=(FULL, CAUSAL),
        controls=("causal-beats-bigram", "causal-reads-no-future"),
        measure=minus(without_future(FULL), without_future(CAUSAL)),
    ),
    SubClaim(
        id="T1c",
        title="the last position stays honest",
        statement="At the last position, whose target no mask shows, unmasked and causal end within 0.3 nats.",
        source="attnlab: the last target of a window is never among its inputs",
        metric="unmasked - causal at the last position",
        unit="nats",
        rule=equivalent(LAST_PLACE),
        arms=(FULL, CAUSAL),
        controls=("causal-beats-bigram",),
        measure=minus(last_place(FULL), last_place(CAUSAL)),
    ),
    SubClaim(
        id="T1d",
        title="it takes positions to read the answer",
        statement="Without positions an unmasked network sees a bag of tokens: it ends more than 0.3 nats above.",
        source="attnlab: follows from permutation equivariance (attnlab check I1)",
        metric="unmasked, no positions - learned",
        unit="nats",
        rule=above(BLIND_TO_ORDER),
        arms=(label("full", 1, "none"), FULL),
        controls=("copying-is-learned",),
        measure=difference(label("full", 1, "none"), FULL),
    ),
    SubClaim(
        id="T1e",
        title="depth makes a small leak a large one",
        statement="With one diagonal too many, two layers read the target two places ahead and one layer does not.",
        source="attnlab: the leak law (attnlab check I25)",
        metric="one layer - two layers, keys up to i + 1, targets two ahead",
        unit="nats",
        rule=above(DEPTH),
        arms=(label("plus1", 2, depth=1), label("plus1", 2, depth=2)),
        controls=("copying-is-learned",),
        measure=difference(label("plus1", 2, depth=1), label("plus1", 2, depth=2)),
    ),
    SubClaim(
        id="T1f",
        title="trained losses obey the leak law",
        statement=(
            "A cell of mask, offset and depth ends more than 0.5 nats below the causal next-token arm of its depth "
            "exactly where the law says that it leaks."
        ),
        source="attnlab: the leak law (attnlab check I25)",
        metric="distance of the worst of 16 cells from the border, positive on the side of the law",
        unit="nats",
        rule=positive(),
        arms=tuple(arm for cells in LAW.values() for _, _, arm in cells),
        controls=("copying-is-learned",),
        measure=law_margin,
    ),
    SubClaim(
        id="T1g",
        title="samples tell what the loss hides",
        statement="5-grams of the training text find what the unmasked arm writes less likely than what the causal arm writes.",
        source=f"{SIX_NOTES} L47: which of loss and samples to trust when they disagree",
        metric="unmasked - causal, loss of 5-grams on 300 sampled characters",
        unit="nats per character",
        rule=positive(),
        arms=(FULL, CAUSAL),
        controls=("causal-beats-bigram",),
        measure=minus(sample_score(FULL), sample_score(CAUSAL)),
    ),
    SubClaim(
        id="T2",
        title="two places ahead, with the mask on",
        statement="With the causal mask, targets two ahead cost more than 0.3 nats more than the next: harder, and no leak.",
        source=f"{SIX_NOTES} L140, exercise 1 (4)",
        metric="two ahead - one ahead, causal mask",
        unit="nats",
        rule=above(TWO_AHEAD),
        arms=(label("causal", 2), CAUSAL),
        controls=("causal-beats-bigram", "two-ahead-reads-no-future"),
        measure=difference(label("causal", 2), CAUSAL),
    ),
)  # fmt: skip

CLAIM = Claim(
    name="leak",
    statement="Without the mask a decoder's loss falls through the floor, and the model is worse.",
    source=f"{SIX_NOTES} L47, L140; {ONE_LINE} L316",
    metric=METRIC,
    arms=ARMS,
    subclaims=SUBCLAIMS,
    controls=CONTROLS,
    presets={
        "smoke": "seconds; shows that the machinery runs, its verdicts mean nothing",
        "quick": "T 8, width 64, the cells that the sub-claims rest on; minutes on a laptop",
        "standard": "all cells, five seeds, three times the updates",
        "gpu": "T 64, width 256; for an accelerator",
    },
    seeds=SEEDS["quick"],
    rests_on=("T1a", "T1b"),
    gaps=(
        Gap("no mask", FULL, CAUSAL),
        Gap("no mask, no positions", label("full", 1, "none"), label("causal", 1, "none")),
        Gap("one diagonal too many", label("plus1", 1), CAUSAL),
        Gap("one diagonal too few", label("strict", 1), CAUSAL),
        Gap("two ahead, causal", label("causal", 2), CAUSAL),
        Gap("two ahead, no mask", label("full", 2), label("causal", 2)),
        Gap("two ahead, one diagonal too many, one layer", label("plus1", 2, depth=1), label("causal", 2, depth=1)),
        Gap("two ahead, one diagonal too many, two layers", label("plus1", 2), label("causal", 2)),
    ),
    measurements=(
        Measurement("truncated_context", (*SAMPLED, label("causal", 2), label("full", 2), label("plus1", 2))),
        Measurement("samples", SAMPLED),
    ),
)  # fmt: skip
