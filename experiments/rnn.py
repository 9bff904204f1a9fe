"""Attention against a recurrent network of as many parameters: which trains faster, by length and by the clock.

    attnlab reproduce rnn --preset quick

The same block twice, with the tokens mixed by causal attention (RoPE) or by a GRU whose kernels hold as many numbers. The
GRU does less work the longer the text, and must do it one token after the other; attention does all of a sequence in a
few large products. Which of the two counts is a matter of the device: a verdict holds for the machine that gave it.
"""

from typing import Any

import numpy as np

from attnlab.claims import Claim, ClaimFigure, Control, Measurement, SubClaim, below_reference
from attnlab.claims.rules import Rule, above, positive
from attnlab.measurements.times import UpdateTime
from attnlab.results import Results
from experiments.measures import METRIC, Measure, by_seed, ratio, smallest

ON_PAPER = "On paper"
LENGTHS = (64, 128, 256, 512, 1024, 2048)
MIXERS = {
    "attention": {"model.mixer": "attention", "positions": "rope"},
    "gru": {"model.mixer": "gru", "positions": "none"},
}
RACE = 256  # the context at which both train for long enough to compare what they have learned by the clock

# As they were before the first run.
UP_TO = 1024  # T12a
PROPORTIONAL = Rule(0.9, 1.1)  # T12b: the exponent of length
BELOW_BIGRAM = 0.05  # nats: both must have learned something at the end of the race

PRESETS = {
    "smoke": (RACE,),
    "quick": LENGTHS[:5],
    "standard": LENGTHS,
    "gpu": LENGTHS,
}
SEEDS = {"smoke": 2, "quick": 3, "standard": 5, "gpu": 5}


def label(mixer: str, length: int) -> str:
    """The arm: `gru-T256`."""
    return f"{mixer}-T{length}"


def arms(lengths: tuple[int, ...], race_updates: int) -> dict[str, dict[str, Any]]:
    """Arms of some lengths; at one length they train for more updates than timing takes."""
    return {
        label(mixer, length): {
            **overrides,
            "context": length,
            **({"steps": race_updates} if length == RACE else {}),
        }
        for length in lengths
        for mixer, overrides in MIXERS.items()
    }


def tokens_per_second(arm: str) -> Measure:
    """Of training, at the median update."""

    def measure(results: Results) -> dict[int, float]:
        found = results.measured(UpdateTime.read, arm)
        return {seed: m.tokens_per_second for seed, m in found.items()}

    return measure


def advantage(length: int) -> Measure:
    """Tokens a second of attention over those of the GRU."""
    return ratio(*(tokens_per_second(label(mixer, length)) for mixer in MIXERS))


def exponent(mixer: str, lengths: tuple[int, ...]) -> Measure:
    """Of length in the time of an update with as many sequences: the slope of its logarithm over that of the length."""

    def measure(results: Results) -> dict[int, float]:
        found = [results.measured(UpdateTime.read, label(mixer, n)) for n in lengths]
        seeds = [seed for seed in found[0] if all(seed in by for by in found)]
        seconds_NS = np.log([[by[seed].per_sequence for seed in seeds] for by in found])
        return by_seed(seeds, np.polyfit(np.log(lengths), seconds_NS, deg=1)[0])

    return measure


def behind_by_the_clock(results: Results) -> dict[int, float]:
    """Loss of the GRU minus that of attention when both have trained for as long as the faster of the two took."""
    curves = {mixer: _loss_by_seconds(results, label(mixer, RACE)) for mixer in MIXERS}
    values = {}
    for seed in curves["attention"].keys() & curves["gru"].keys():
        both = {mixer: curve[seed] for mixer, curve in curves.items()}
        end = min(seconds[-1] for seconds, _ in both.values())
        at_end = {mixer: float(np.interp(end, *curve)) for mixer, curve in both.items()}
        values[seed] = at_end["gru"] - at_end["attention"]
    return dict(sorted(values.items()))


def _loss_by_seconds(results: Results, arm: str) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    tokens_T, loss_ST = results.curve(METRIC, arm)
    speeds = tokens_per_second(arm)(results)
    curves = {}
    for seed, loss_T in zip(results.runs(arm), loss_ST, strict=True):
        if seed in speeds:
            there = np.isfinite(loss_T)
            curves[seed] = (tokens_T[there] / speeds[seed], loss_T[there])
    return curves


def _draw(results: Results) -> Any:
    from attnlab.plots import rate_plots

    return rate_plots.by_size(
        {
            mixer: {
                n: {
                    seed: x / 1e3 for seed, x in tokens_per_second(label(mixer, n))(results).items()
                }
                for n in LENGTHS
                if label(mixer, n) in results.arms
            }
            for mixer in MIXERS
        },
        xlabel="context, tokens",
        ylabel="thousand tokens a second, training",
    )


UP_TO_1024 = tuple(n for n in LENGTHS if n <= UP_TO)
RACERS = tuple(label(mixer, RACE) for mixer in MIXERS)

CLAIM = Claim(
    name="rnn",
    statement="Attention trains faster than a recurrent network, though it costs O(T^2) and the other O(T).",
    source=f"{ON_PAPER} L37-40, L74; Vaswani et al. 2017, arXiv 1706.03762, Table 1 and section 4",
    metric=METRIC,
    arms=arms(LENGTHS, 500),
    subclaims=(
        SubClaim(
            id="T12a",
            title="more tokens a second",
            statement="Up to T 1024 attention trains more tokens a second than a GRU of as many parameters.",
            source=f"{ON_PAPER} L37-40",
            metric="tokens a second, attention / GRU, the smallest over lengths",
            unit="",
            rule=above(1.0),
            arms=tuple(label(mixer, n) for n in UP_TO_1024 for mixer in MIXERS),
            controls=(),
            measure=smallest(*(advantage(n) for n in UP_TO_1024)),
        ),
        SubClaim(
            id="T12b",
            title="the GRU's time is proportional to length",
            statement="The time of an update of the GRU grows as T, for as many sequences at once.",
            source=f'{ON_PAPER} L74: "Attention costs O(T^2) and an RNN costs O(T)"',
            metric="exponent of T in the time of an update, T 64 to 1024",
            unit="",
            rule=PROPORTIONAL,
            arms=tuple(label("gru", n) for n in UP_TO_1024),
            controls=(),
            measure=exponent("gru", UP_TO_1024),
        ),
        SubClaim(
            id="T12c",
            title="ahead by the clock",
            statement="At T 256 attention has the lower loss when both have trained for the same time.",
            source="attnlab: what a faster update is good for",
            metric="validation loss, GRU - attention, at equal time of training",
            unit="nats",
            rule=positive(),
            arms=RACERS,
            controls=tuple(f"{arm}-learns" for arm in RACERS),
            measure=behind_by_the_clock,
        ),
    ),
    controls=tuple(
        Control(
            id=f"{arm}-learns",
            statement=f"{arm} ends below the bigram model",
            arms=(arm,),
            check=below_reference(METRIC, arm, "bigram", margin=BELOW_BIGRAM),
        )
        for arm in RACERS
    ),
    presets={
        "smoke": "T 256; shows that the machinery runs",
        "quick": "T 64 to 1024, 2 layers, width 96, 4 sequences at once",
        "standard": "T up to 2048, more updates, 5 seeds",
        "gpu": "6 layers, width 384, 32 sequences at once; for an accelerator",
    },
    seeds=SEEDS["quick"],
    rests_on=("T12a",),
    measurements=(Measurement("update_time", tuple(arms(LENGTHS, 500))),),
    figures=(
        ClaimFigure(
            stem="tokens_per_second",
            caption="Tokens a second of training, by context, on the machine under How it was made.",
            alt="tokens a second of training for attention and a GRU, by context length",
            draw=_draw,
        ),
    ),
)  # fmt: skip
