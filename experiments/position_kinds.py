"""Learned positions or a sinusoid, added to the tokens or beside them: whether it makes a difference.

    attnlab reproduce position_kinds --preset quick

Positions that have dimensions of their own are a concatenation: the token keeps to the first part of the width, the
position to the last. Width and all matrices behind the embedding are the same as where both are added. That a learned table
ends where training did, and says so, is an exact claim: `attnlab check I39`; what positions do beyond training is F8 of
`nope`.
"""

from collections.abc import Mapping
from typing import Any

from attnlab.claims import Claim, Control, Gap, Measurement, Published, SubClaim, below_reference
from attnlab.claims.rules import equivalent
from experiments.measures import METRIC, difference

ONE_LINE = "One line changed"
VASWANI = "Vaswani et al. 2017, arXiv 1706.03762, Table 3 (E)"

# Thresholds in nats, as they were before the first run.
SINUSOID = 0.03
CONCATENATION = 0.02
LEARNED_BELOW_BIGRAM = 0.1
SHARES = {"half": 1 / 2, "fifth": 1 / 5}  # of the width: 16 + 16, and 32 + 8


def arms(width: int) -> dict[str, dict[str, Any]]:
    """Every arm for a width: the share that positions have of it is a number of dimensions."""
    return {
        "learned": {"positions": "learned"},
        "sinusoidal": {"positions": "sinusoidal"},
        **{
            f"beside, {name}": {"positions": "learned", "model.position_dims": round(share * width)}
            for name, share in SHARES.items()
        },
    }


ARMS: Mapping[str, Mapping[str, Any]] = arms(width=64)  # as in configs/position_kinds.py:quick
# A difference of 0.02 nats between arms is about as large as that between seeds.
SEEDS = {"smoke": 2, "quick": 6, "standard": 12, "gpu": 5}

CONTROLS = (
    Control(
        id="learned-beats-bigram",
        statement="with learned positions it uses more than the previous character",
        arms=("learned",),
        check=below_reference(METRIC, "learned", "bigram", margin=LEARNED_BELOW_BIGRAM),
    ),
)

SUBCLAIMS = (
    SubClaim(
        id="T16",
        title="learned positions or a sinusoid",
        statement="Learned positions and a sinusoid end within 0.03 nats.",
        source=VASWANI,
        metric="learned - sinusoidal",
        unit="nats",
        rule=equivalent(SINUSOID),
        arms=("learned", "sinusoidal"),
        controls=("learned-beats-bigram",),
        measure=difference("learned", "sinusoidal"),
        published=(
            Published(
                0.0, "nats", "65 M parameters, WMT 2014 English-German; perplexity 4.92 and 4.92, BLEU 25.7 and 25.8",
                VASWANI, "one seed",
            ),
        ),
    ),
    *(
        SubClaim(
            id=f"T18{id}",
            title=f"added or beside, {name} of the width",
            statement=f"Positions that have a {name} of the width to themselves end within 0.02 nats of added ones.",
            source=f'{ONE_LINE} L182: "32 dimensions is room enough"',
            metric=f"beside, {name} - added",
            unit="nats",
            rule=equivalent(CONCATENATION),
            arms=(f"beside, {name}", "learned"),
            controls=("learned-beats-bigram",),
            measure=difference(f"beside, {name}", "learned"),
        )
        for id, name in zip("ab", SHARES, strict=True)
    ),
)  # fmt: skip

CLAIM = Claim(
    name="position_kinds",
    statement="Learned or a sinusoid, added or beside: the kind of absolute positions makes no difference.",
    source=f"{VASWANI}; {ONE_LINE} L182",
    metric=METRIC,
    arms=ARMS,
    subclaims=SUBCLAIMS,
    controls=CONTROLS,
    presets={
        "smoke": "seconds; shows that the machinery runs, its verdicts mean nothing",
        "quick": "four layers of width 64, T 32, six seeds; minutes on a laptop",
        "standard": "T 64, twelve seeds, longer; an hour on two cores",
        "gpu": "width 512, T 256; for an accelerator",
    },
    seeds=SEEDS["quick"],
    gaps=tuple(Gap(f"{arm} against learned", arm, "learned") for arm in ARMS if arm != "learned"),
    measurements=(Measurement("position_share", tuple(ARMS)),),
)
