"""Attention as a graph whose edges come and go: what dropout of attention weights does."""

import numpy as np

from attnlab import masks
from attnlab.checks import Check, Finding, Measurement, sampled
from experiments.exact import lab

T = lab.LENGTH
RATES = (0.1, 0.5)
DRAWS = 4000


def attention_dropout_drops_edges(seed: int) -> Finding:
    """Attention dropout at rate p removes edges and scales the others by 1 / (1 - p): the sum of a row and its output keep
    their mean, and the sum has variance p / (1 - p) times the row's squared weights; edges removed before the softmax
    leave every row at 1 and change the mean."""
    rng = lab.generator(seed)
    q, k, _ = lab.qkv(rng, batch=1)
    weights_RS = np.moveaxis(lab.weights(q, k, masks.causal(T))[0], 1, 0).reshape(-1, T)
    direction = lab.normal(rng, T)
    measurements = []
    for p in RATES:
        kept_DRS = rng.random((DRAWS, *weights_RS.shape), np.float32) >= p
        dropped_DRS = np.where(kept_DRS, weights_RS[None] / (1 - p), 0.0)
        off_DR = dropped_DRS.sum(-1) - 1
        expected_R = p / (1 - p) * np.square(weights_RS).sum(-1)
        output_D = ((dropped_DRS - weights_RS[None]) @ direction).mean(-1)
        measurements += [
            _mean(f"p = {p:g}: sum of a row", 1 + off_DR.mean(-1), 1.0),
            _mean(
                f"p = {p:g}: variance of the sum / (p / (1 - p) sum w^2)",
                (np.square(off_DR) / expected_R[None]).mean(-1), 1.0,
            ),
            _mean(f"p = {p:g}: output - output without dropout, one direction", output_D, 0.0),
        ]  # fmt: skip
    # The other order: a sparser graph, on which attention is normalised as ever. A node keeps its edge to itself.
    graph_TT = (rng.random((T, T)) < 0.5) & np.tri(T, dtype=bool) | np.eye(T, dtype=bool)
    renormalised = lab.weights(q, k, masks.dense(graph_TT))
    drawn = rng.random((DRAWS, 1, T, T)) < 0.5
    allowed = drawn & np.tri(T, dtype=bool) | np.eye(T, dtype=bool)
    before = lab.softmax(np.where(allowed, lab.scores(q, k)[0, :1][None], -np.inf)).mean(0)[0]
    return Finding(
        (
            *measurements,
            lab.same("before the softmax: sums of rows against 1", renormalised.sum(-1), np.ones((1, T, lab.HEADS))),
            lab.differs("before the softmax: mean weights against those without", before, weights_RS[:T]),
        )
    )  # fmt: skip


def _mean(quantity: str, values_D: np.ndarray, expected: float) -> Measurement:
    error = values_D.std(ddof=1) / len(values_D) ** 0.5
    return sampled(quantity, values_D.mean(), expected, standard_error=error)


CHECKS = (
    Check("M10", attention_dropout_drops_edges, 'Six notes L117: "Randomly zeroing entries of wei is dropping edges of the graph during training"'),
)  # fmt: skip
