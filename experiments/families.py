"""Decoder, prefix decoder, encoder, sliding window: one network with four masks; and what the width of a window is worth.

    attnlab reproduce families --preset quick

All arms of one depth have the same parameters and train in one program: a mask is data. A prefix that may be read in both
directions is compared with the causal mask on the targets behind the prefix alone, because the tokens of a prefix can
read their own targets. Raffel et al. (2020, arXiv 1910.10683, Table 2) find a prefix decoder far above a causal one on
tasks whose input is a prefix (81.82 against 74.70 on GLUE); plain text has no such input, so none is expected here.

A window of W tokens through L layers reaches L (W - 1) + 1 tokens (`attnlab check I24`); how many of these a trained
network leans on is measured by gradients.
"""

from collections.abc import Mapping
from typing import Any

from attnlab.claims import Claim, Control, Gap, Measurement, SubClaim, Trend, below_reference
from attnlab.claims.rules import below, equivalent
from attnlab.measurements.context import Reach
from attnlab.results import Results
from experiments.measures import METRIC, above_corpus, difference, largest, rise

ON_PAPER = "On paper"
SIX_NOTES = "Six notes on attention"

# Thresholds in nats, as they were before the first run.
SAME = 0.02  # T9a: prefix and causal on plain text
TRAINS = -0.1  # T9b: what a family must be below the model that uses less of the context
NO_STEP_UP = 0.02  # T10a, b
SHARE = 0.9  # T10c: of all influence

CAUSAL_BELOW_BIGRAM = 0.1
DEPTHS = (2, 4)
PREFIX = 1 / 4  # of the context
WINDOWS: Mapping[str, float] = {
    "window-eighth": 1 / 8,
    "window-quarter": 1 / 4,
    "window-half": 1 / 2,
}
FAMILIES = ("causal", "prefix", "encoder", "window-half")
PARITY = ("prefix", "causal-behind-prefix")


def arms(context: int) -> dict[str, dict[str, Any]]:
    """Every arm for a context of so many tokens; those of two layers say so in their label."""
    prefix = f"prefix_lm({round(PREFIX * context)})"
    found: dict[str, dict[str, Any]] = {
        "causal": {"mask": "causal", "objective": "next_token"},
        "prefix": {"mask": prefix, "objective": prefix},
        "causal-behind-prefix": {"mask": "causal", "objective": prefix},
        "encoder": {"mask": "full", "objective": "masked_lm(0.15)"},
    }
    for label, share in WINDOWS.items():
        mask = f"sliding_window({round(share * context)})"
        found[label] = {"mask": mask, "objective": "next_token"}
    found = {label: {**o, "model.layers": 4} for label, o in found.items()}
    for label in ("causal", *WINDOWS):
        found[f"{label}-depth2"] = {**found[label], "model.layers": 2}
    return found


ARMS = arms(context=32)  # as in configs/families.py:quick
# Ever wider, at each depth.
WIDER = {4: (*WINDOWS, "causal"), 2: (*(f"{w}-depth2" for w in WINDOWS), "causal-depth2")}
NARROW = tuple(arm for wider in WIDER.values() for arm in wider[:-1])
SEEDS = {"smoke": 2, "quick": 3, "standard": 5, "gpu": 5}
PARITY_SEEDS = {"smoke": 2, "quick": 6, "standard": 12, "gpu": 5}


def theoretical(results: Results, arm: str) -> int:
    """L (W - 1) + 1 tokens, and no more than there are."""
    config = results.config(arm)
    width = int(config["mask"].removeprefix("sliding_window(").removesuffix(")"))
    return min(config["model.layers"] * (width - 1) + 1, config["context"])


def effective_share(results: Results) -> dict[int, float]:
    """The largest over window arms of (tokens that hold 90 % of the influence) / (tokens that can be reached)."""

    def of(arm: str) -> dict[int, float]:
        found = results.measured(Reach.read, arm)
        reached = theoretical(results, arm)
        return {seed: m.tokens_holding(SHARE) / reached for seed, m in found.items()}

    return largest(*(lambda _, arm=arm: of(arm) for arm in NARROW))(results)


def _reach_is_exact(results: Results) -> tuple[bool, str]:
    beyond, measured = [], 0
    for arm in NARROW:
        for seed, m in results.measured(Reach.read, arm).items():
            measured += 1
            if m.farthest != theoretical(results, arm):
                beyond.append(f"{arm} seed {seed} {m.farthest} of {theoretical(results, arm)}")
    if not measured:
        return False, "reach: not measured"
    return (
        not beyond,
        f"tokens read: {'; '.join(beyond) or f'as they should be in {measured} runs'}",
    )


def _one_network(results: Results) -> tuple[bool, str]:
    configs = {arm: results.config(arm) for arm in FAMILIES}
    keys = {
        key
        for key in configs["causal"]
        if len({repr(config[key]) for config in configs.values() if key in config}) > 1
    }
    apart = sorted(keys - {"arm", "mask", "objective", "seed.init", "seed.data"})
    return not apart, f"knobs that differ beside mask and objective: {', '.join(apart) or 'none'}"


CONTROLS = (
    Control(
        id="one-network",
        statement="the families differ in mask and objective and in nothing else",
        arms=FAMILIES,
        check=_one_network,
    ),
    Control(
        id="causal-beats-bigram",
        statement="the causal arm uses more than the previous character",
        arms=("causal",),
        check=below_reference(METRIC, "causal", "bigram", margin=CAUSAL_BELOW_BIGRAM),
    ),
    Control(
        id="shallow-beats-bigram",
        statement="so does the causal arm of two layers",
        arms=("causal-depth2",),
        check=below_reference(METRIC, "causal-depth2", "bigram", margin=CAUSAL_BELOW_BIGRAM),
    ),
    Control(
        id="reach-is-exact",
        statement="L layers of a window of W read L (W - 1) + 1 tokens: no gradient comes from farther, some from there",
        arms=NARROW,
        check=_reach_is_exact,
    ),
)

SUBCLAIMS = (
    SubClaim(
        id="T9a",
        title="a prefix read both ways is worth nothing on plain text",
        statement="On the targets behind the prefix, the prefix decoder and the causal one end within 0.02 nats.",
        source=f'{ON_PAPER} L31: "one architecture with three answers"; Raffel et al. 2020, arXiv 1910.10683, Table 2',
        metric="prefix - causal, targets behind the prefix",
        unit="nats",
        rule=equivalent(SAME),
        arms=PARITY,
        controls=("causal-beats-bigram",),
        measure=difference(*PARITY),
    ),
    SubClaim(
        id="T9b",
        title="one network, four masks",
        statement=(
            "Decoder, prefix decoder and window each end more than 0.1 nats below the bigram model, and the encoder below "
            "the unigram model."
        ),
        source=f"{ON_PAPER} L31; {SIX_NOTES} L25",
        metric="the worst family against its n-gram model",
        unit="nats",
        rule=below(TRAINS),
        arms=FAMILIES,
        controls=("one-network",),
        measure=largest(
            *(above_corpus(arm, "unigram" if arm == "encoder" else "bigram") for arm in FAMILIES)
        ),
    ),
    SubClaim(
        id="T10a",
        title="a wider window is no worse",
        statement="With four layers no window ends more than 0.02 nats above the narrower one.",
        source=f"{SIX_NOTES} L27; Beltagy et al. 2020, arXiv 2004.05150; Gemma 3, arXiv 2503.19786",
        metric="largest step up from T/8 to T/4, T/2 and T",
        unit="nats",
        rule=below(NO_STEP_UP),
        arms=WIDER[4],
        controls=("causal-beats-bigram", "reach-is-exact"),
        measure=rise(WIDER[4]),
    ),
    SubClaim(
        id="T10b",
        title="nor with two layers",
        statement="With two layers no window ends more than 0.02 nats above the narrower one.",
        source=f"{SIX_NOTES} L27",
        metric="largest step up from T/8 to T/4, T/2 and T, 2 layers",
        unit="nats",
        rule=below(NO_STEP_UP),
        arms=WIDER[2],
        controls=("shallow-beats-bigram", "reach-is-exact"),
        measure=rise(WIDER[2]),
    ),
    SubClaim(
        id="T10c",
        title="it leans on less than it reaches",
        statement="In every window arm the tokens that hold 90 % of the influence are fewer than those that are reached.",
        source="Luo et al. 2016, arXiv 1701.04128, of convolutions",
        metric="tokens that hold 90 % / tokens that are reached, largest of the window arms",
        unit="",
        rule=below(1.0),
        arms=NARROW,
        controls=("reach-is-exact",),
        measure=effective_share,
    ),
)

CLAIM = Claim(
    name="families",
    statement="Decoder, prefix decoder, encoder and sliding window are one network, trained with four masks.",
    source=f"{ON_PAPER} L31; {SIX_NOTES} L27",
    metric=METRIC,
    arms=ARMS,
    subclaims=SUBCLAIMS,
    controls=CONTROLS,
    presets={
        "smoke": "seconds; shows that the machinery runs, its verdicts mean nothing",
        "quick": "width 64, T 32; six seeds for prefix against causal; minutes on a laptop",
        "standard": "T 64, five seeds, twelve for prefix against causal; an hour on two cores",
        "gpu": "width 512, T 512, BPE tokens; for an accelerator",
    },
    seeds=SEEDS["quick"],
    rests_on=("T9b",),
    gaps=(
        Gap("prefix, targets behind it", *PARITY),
        *(
            Gap(f"{window} of the context, {depth} layers", label, wider[-1])
            for depth, wider in WIDER.items()
            for window, label in zip(WINDOWS, wider, strict=False)
        ),
    ),
    trends=tuple(
        Trend(
            f"Cost of a window, {depth} layers",
            "window as a share of the context",
            {share: (label, wider[-1]) for label, share in zip(wider, WINDOWS.values(), strict=False)},
        )
        for depth, wider in WIDER.items()
    ),
    measurements=(Measurement("reach", tuple(arm for wider in WIDER.values() for arm in wider)),),
)  # fmt: skip
