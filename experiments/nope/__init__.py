"""A transformer with no position embedding still trains, because its mask is causal.

    attnlab reproduce nope --preset quick

Hypothesis (Haviv et al. 2022, arXiv 2203.16634): a decoder-only transformer without any position embedding trains
well, while the same network as an encoder (full mask, masked language modelling) fails. With a full mask the
network is permutation-equivariant and sees its context as a bag of tokens; the causal mask breaks that symmetry.

    arms.py       which members there are
    subclaims.py  F1 ... F8: what is said, its threshold, and the controls
    measures.py   the numbers that only this claim needs, by seed; the others are in experiments/measures.py
    published.py  what others found

The statement rests on F1 and F3. Parity with learned positions (F2a) is another claim, and is judged as one.
"""

from attnlab.claims import Claim, Gap, Measurement, Trend
from experiments.measures import METRIC
from experiments.nope import published
from experiments.nope.arms import SEEDS, arms
from experiments.nope.measures import DOSE
from experiments.nope.subclaims import CONTROLS, SUBCLAIMS

# As in configs/nope.py:standard; a prefix is as many tokens as the context of the preset makes it.
ARMS = arms(context=64)

CLAIM = Claim(
    name="nope",
    statement="A transformer with no position embedding still trains, because its mask is causal.",
    source=published.HAVIV,
    metric=METRIC,
    arms=ARMS,
    subclaims=SUBCLAIMS,
    controls=CONTROLS,
    presets={
        "smoke": "seconds; shows that the machinery runs, its verdicts mean nothing",
        "quick": "F1, F3, F5, F6 in minutes on a laptop; the README's numbers",
        "standard": "all of F1 to F8 and the negative controls; hours on two cores",
        "gpu": "5, 15 and 25 M parameters on BPE tokens; for an accelerator",
    },
    seeds=SEEDS["quick"],
    rests_on=("F1", "F3"),
    gaps=(
        Gap("causal mask", "causal-none", "causal-learned", published.BEHIND_LEARNED),
        Gap("causal mask, against sinusoidal", "causal-none", "causal-sinusoidal", published.BEHIND_SINUSOIDAL),
        Gap("causal mask, against ALiBi", "causal-none", "causal-alibi", published.BEHIND_ALIBI),
        Gap("causal mask, against RoPE", "causal-none", "causal-rope", published.BEHIND_ROPE),
        Gap("causal mask, with [BOS]", "bos-none", "bos-learned"),
        Gap("causal mask, 5 M parameters", "causal-none-5m", "causal-learned-5m", published.BEHIND_LEARNED),
        Gap("causal mask, 15 M parameters", "causal-none-15m", "causal-learned-15m", published.BEHIND_LEARNED),
        Gap("window of 8", "window8-none", "window8-learned"),
        Gap("window of 32", "window32-none", "window32-learned"),
        Gap("full mask, 15 % hidden", "mlm-none", "mlm-learned", published.MLM_BEHIND_LEARNED),
        Gap("full mask, 50 % hidden", "mlm50-none", "mlm50-learned"),
        Gap("shuffled windows", "shuffled-none", "shuffled-learned"),
    ),
    measurements=(
        Measurement("shuffled_prefix", ("causal-none", "causal-none-depth1", "causal-learned", "bos-none")),
        Measurement(
            "loss_by_length", ("causal-none", "causal-learned", "causal-rope", "causal-alibi", "bos-none"),
            presets=("smoke", "standard", "gpu"),
        ),
        # Half a minute a member.
        Measurement(
            "probes", ("causal-none", "causal-learned", "mlm-none", "bos-none", "window8-none"),
            presets=("standard", "gpu"),
        ),
        Measurement("probes_beyond_reach", ("window8-none",), presets=("standard", "gpu")),
    ),
    trends=(
        Trend("Cost of removing positions by depth", "layers", {
            1: ("causal-none-depth1", "causal-learned-depth1"),
            2: ("causal-none-depth2", "causal-learned-depth2"),
            4: ("causal-none", "causal-learned"),
        }),
        Trend("Cost of removing positions by prefix", "share of the context that is prefix", DOSE),
    ),
)  # fmt: skip
