"""BatchNorm makes a language model's answer depend on its company, and lets it read the future.

    attnlab reproduce norm_kind --preset quick

Over the batch and all positions ("batchnorm") or at each position over the batch ("batchnorm_by_position"), against
LayerNorm, RMSNorm and none. The exact part is `attnlab check I15 I16 I17`. Here it is asked of trained models: how much a
loss moves with the other sequences of the batch, with tokens behind it, with the size of the batch, and with running
statistics in place of the batch's, which is how such a model would be used. The validation loss that training reports is
that of whole batches.
"""

from collections.abc import Callable, Mapping
from typing import Any

from attnlab.claims import Claim, ClaimFigure, Control, Gap, Measurement, SubClaim, below_reference
from attnlab.claims.rules import above, below, positive
from attnlab.measurements.norms import NormModes
from attnlab.results import Results
from experiments.measures import METRIC, Measure, largest

ONE_LINE = "One line changed"
IOFFE = "Ioffe & Szegedy 2015, arXiv 1502.03167"

KINDS = ("layernorm", "rmsnorm", "batchnorm", "batchnorm_by_position", "none")
ARMS: Mapping[str, Mapping[str, Any]] = {kind: {"model.norm": kind} for kind in KINDS}
PRESETS = ("smoke", "quick", "standard", "gpu")
SEEDS = {"smoke": 2, "quick": 3, "standard": 5, "gpu": 5}

# Nats. A loss that moves by less than this moves by nothing that matters, and rounding moves it by far less.
MOVES = 1e-3
ROUNDING = 1e-4
# A batch of one leaves BatchNorm over the batch with nothing but zeros: at the least half a nat is lost.
ALONE = 0.5
BELOW_BIGRAM = 0.1


def measured(arm: str, number: Callable[[NormModes], float]) -> Measure:
    """A number of what was measured on an arm."""

    def measure(results: Results) -> dict[int, float]:
        return {seed: float(number(m)) for seed, m in results.measured(NormModes.read, arm).items()}

    return measure


def at(modes: NormModes, size: int) -> float:
    """The loss in batches of `size`, statistics of the batch at hand."""
    by_size = dict(zip(modes.batch_sizes.tolist(), modes.losses.tolist(), strict=True))
    return by_size[size]


def of_batch_size(modes: NormModes) -> float:
    """By how much the loss of the same sequences differs between batches of 4 and of 32."""
    return abs(at(modes, 4) - at(modes, 32))


def _moved(arm: str) -> Measure:
    """The largest of all that should not move a loss."""
    return largest(
        measured(arm, lambda m: max(abs(at(m, n) - at(m, 32)) for n in (1, 4))),
        measured(arm, lambda m: m.batch.coupling),
        measured(arm, lambda m: m.batch.leak),
    )


def _subclaim(id: str, title: str, statement: str, metric: str, arm: str, **more: Any) -> SubClaim:
    return SubClaim(
        id=id, title=title, statement=statement, metric=metric, unit="nats", arms=(arm,),
        **({"source": f"{ONE_LINE} L164, L300", "controls": (f"{arm}-learns",)} | more),
    )  # fmt: skip


SUBCLAIMS = (
    _subclaim(
        "T8a", "BatchNorm answers by its company",
        "Other sequences in the batch move the loss of a sequence.",
        "largest change of a loss, other sequences replaced, batchnorm", "batchnorm",
        rule=above(MOVES), measure=measured("batchnorm", lambda m: m.batch.coupling),
    ),
    _subclaim(
        "T8b", "and by the size of it",
        "The same sequences have another loss in batches of 4 than in batches of 32.",
        "difference between batches of 4 and 32, batchnorm", "batchnorm",
        rule=above(MOVES), measure=measured("batchnorm", of_batch_size),
    ),
    _subclaim(
        "T8c", "BatchNorm over positions reads the future",
        "Another last token moves losses of earlier positions, past any causal mask.",
        "largest change of an earlier loss, last token replaced, batchnorm", "batchnorm",
        rule=above(MOVES), measure=measured("batchnorm", lambda m: m.batch.leak),
        source="attnlab: the second harm of One line changed L164 (I17)",
    ),
    _subclaim(
        "T8d", "at each position by itself it does not",
        "Over the batch alone BatchNorm leaves earlier positions as they are.",
        "largest change of an earlier loss, last token replaced, batchnorm_by_position",
        "batchnorm_by_position",
        rule=below(ROUNDING),
        measure=measured("batchnorm_by_position", lambda m: m.batch.leak),
        source="attnlab: I17",
    ),
    _subclaim(
        "T8e", "a batch of one is nothing to it",
        "Over the batch alone, a batch of one sequence is normalized to zeros.",
        "loss in batches of 1 - in batches of 32, batchnorm_by_position", "batchnorm_by_position",
        rule=above(ALONE),
        measure=measured("batchnorm_by_position", lambda m: at(m, 1) - at(m, 32)),
    ),
    _subclaim(
        "T8f", "its running statistics are another model",
        "With running statistics, as in use, the loss is larger than training reports.",
        "loss with running statistics - with the batch's, batchnorm", "batchnorm",
        rule=positive(),
        measure=measured("batchnorm", lambda m: m.running.loss - m.batch.loss),
        source=f"{IOFFE}, section 3.1",
    ),
    _subclaim(
        "T8g", "running statistics need no company and see no future",
        "With running statistics BatchNorm moves with neither.",
        "larger of both changes, batchnorm, running statistics", "batchnorm",
        rule=below(ROUNDING),
        measure=measured("batchnorm", lambda m: max(m.running.coupling, m.running.leak)),
    ),
    *(
        _subclaim(
            f"T8h-{kind}", f"{kind} depends on nothing else",
            "Neither other sequences, nor their number, nor later tokens move a loss.",
            f"largest change of all, {kind}", kind,
            rule=below(ROUNDING), measure=_moved(kind),
        )
        for kind in ("layernorm", "rmsnorm")
    ),
)  # fmt: skip

CONTROLS = tuple(
    Control(
        id=f"{kind}-learns",
        statement=f"with {kind} the model uses more than the previous character",
        arms=(kind,),
        check=below_reference(METRIC, kind, "bigram", margin=BELOW_BIGRAM),
    )
    for kind in KINDS[:4]
)


def _loss_by_batch(results: Results) -> Any:
    from attnlab.plots import rate_plots  # matplotlib takes seconds to import

    series: dict[str, dict[float, dict[int, float]]] = {}
    for kind in (kind for kind in KINDS if kind in results.arms):
        for seed, modes in results.measured(NormModes.read, kind).items():
            for size, loss in zip(modes.batch_sizes, modes.losses, strict=True):
                series.setdefault(kind, {}).setdefault(float(size), {})[seed] = float(loss)
    return rate_plots.by_size(
        series, xlabel="sequences in a batch, its own statistics", ylabel="loss, nats per token"
    )


CLAIM = Claim(
    name="norm_kind",
    statement="With BatchNorm a language model's answer depends on whom it is computed beside, and on the future.",
    source=f'{ONE_LINE} L300: "your answer would depend on whom it happened to be computed alongside"; {IOFFE}',
    metric=METRIC,
    arms=ARMS,
    subclaims=SUBCLAIMS,
    controls=CONTROLS,
    presets={
        "smoke": "seconds; shows that the machinery runs, its verdicts mean nothing",
        "quick": "five norms, two layers of width 64",
        "standard": "the same with four layers, 2000 updates",
        "gpu": "8 layers of width 256, T 256; for an accelerator",
    },
    seeds=SEEDS["quick"],
    rests_on=("T8a", "T8c"),
    gaps=tuple(Gap(f"{kind}", kind, "layernorm") for kind in KINDS[1:]),
    measurements=(Measurement("norm_modes", KINDS),),
    figures=(
        ClaimFigure(
            "loss_by_batch_size",
            "Loss of the same sequences by the number of sequences in a batch, normalized by the batch at hand.",
            "Lines of loss by batch size, a line a norm.",
            _loss_by_batch,
        ),
    ),
)
