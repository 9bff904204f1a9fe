"""The 1/sqrt(d) in numbers: variance of a dot product, peak mass, entropy and gradient of the softmax by head size.

Sampled with seeded generators; standard errors are those of independent draws. The reference tables come from an
independent numpy run of the same size and carry its own sampling error, which the tolerances allow for.
"""

import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
from jax import Array
from matplotlib.figure import Figure

from attnlab import knobs, masks, plots
from attnlab.attention import attend
from attnlab.checks import Check, Finding, Table, at_least, at_most, equal, sampled
from experiments.exact import lab

KEYS = 8  # T of the notes: the last row of a causal mask sees 8 keys
DRAWS, CHUNK = 20_000, 1_000
# Small heads are cheap, and their tables need the smaller standard error: (up to this head size, draws).
DRAWS_BY_SIZE = ((1024, 20_000), (256, 40_000), (64, 80_000))
HEAD_SIZES = (1, 4, 16, 32, 64, 128, 256, 1024)
KINDS = ("scaled", "unscaled", "q and k x 3")
# Peak mass and entropy (nats) by head size, and the tolerance that was fixed with them. At head size 1024 scaled
# and tripled are the limit of normal logits; the table first read 0.367 and 0.893 there, which did not come out.
PEAK_MASS = {
    "scaled": (0.303, 0.345, 0.358, 0.359, 0.360, 0.362, 0.362, 0.361),
    "unscaled": (0.303, 0.529, 0.750, 0.823, 0.874, 0.912, 0.938, 0.969),
    "q and k x 3": (0.750, 0.866, 0.885, 0.888, 0.888, 0.889, 0.890, 0.890),
}
ENTROPY = {
    "scaled": (1.80, 1.75, 1.73, 1.73, 1.72, 1.72, 1.72, 1.72),
    "unscaled": (1.80, 1.28, 0.67, 0.46, 0.32, 0.22, 0.15, 0.08),
}
PEAK_TOLERANCE = 0.006
LAST_DIGIT = 0.005  # half a unit of a table printed to 0.01
# sum p(1-p), the trace of the softmax Jacobian.
TRACE = {
    4: (0.774, 0.604),
    16: (0.768, 0.343),
    64: (0.768, 0.182),
    256: (0.769, 0.090),
    1024: (0.768, 0.045),
}
TRACE_TOLERANCE = 0.02
PEAK_BY_HEADS = {1: 0.361, 2: 0.286, 4: 0.234, 6: 0.211, 8: 0.198, 12: 0.183}


@jax.jit
def _last_row(q_BTNH: Array, k_BSKH: Array, scale_N: Array) -> Array:
    B, S, K, _ = k_BSKH.shape
    unit = jnp.broadcast_to(jnp.eye(S)[None, :, None], (B, S, K, S))
    mask = masks.causal(1, S, align="bottom_right")
    return attend(q_BTNH, k_BSKH, unit, mask, scale=scale_N)[:, 0]


def _draws(head_size: int) -> int:
    return max(n for largest, n in DRAWS_BY_SIZE if head_size <= largest)


def _last_rows(seed: int) -> Mapping[int, np.ndarray]:
    """Weights of the last row for standard normal q and k: head size -> float32 [draws, kind, 8].

    Smaller heads use the first dimensions of the same draws.
    """
    return _sampled_rows(seed, attend)


@functools.lru_cache(maxsize=1)
def _sampled_rows(seed: int, implementation: Callable) -> Mapping[int, np.ndarray]:
    # Two checks read these rows. The implementation is part of the key, so that a replaced one is measured too.
    del implementation
    rng = lab.generator(seed)
    rows: dict[int, list[np.ndarray]] = {d: [] for d in HEAD_SIZES}
    for done in range(0, _draws(1), CHUNK):
        width = max(largest for largest, n in DRAWS_BY_SIZE if done < n)
        q, k = lab.normal(rng, CHUNK, 1, 1, width), lab.normal(rng, CHUNK, KEYS, 1, width)
        for d in HEAD_SIZES:
            if d <= width:
                scale = np.array([d**-0.5, 1.0, 9 * d**-0.5], np.float32)
                each_kind = np.broadcast_to(q[..., :d], (CHUNK, 1, len(KINDS), d))
                rows[d].append(np.asarray(_last_row(each_kind, k[..., :d], scale)))
    return {d: np.concatenate(chunks) for d, chunks in rows.items()}


def _entropy(weights: np.ndarray) -> np.ndarray:
    return -np.sum(weights * np.log(np.maximum(weights, 1e-30)), axis=-1)


def _standard_error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5)


@jax.jit
def _scores(q: Array, k: Array, d: Array) -> Array:
    """q . k over the first d dimensions, one key a query: with one visible key the log-sum-exp is the score."""
    q = jnp.where((jnp.arange(q.shape[-1]) < d)[None, None, None], q, 0)
    return attend(q, k, k, masks.full(1, 1), scale=1.0, stats=True)[1].lse[:, 0, 0]


def variance_is_the_dimension(seed: int) -> Finding:
    """The dot product of two standard normal vectors has variance d, so dividing by sqrt(d) brings it back to 1."""
    rng = lab.generator(seed)
    sizes = (1, 4, 16, 64, 256, 1024)
    drawn: dict[int, list[np.ndarray]] = {d: [] for d in sizes}
    for _ in range(DRAWS // CHUNK):
        q, k = lab.normal(rng, 2, CHUNK, 1, 1, max(sizes))
        for d in sizes:
            drawn[d].append(np.asarray(_scores(q, k, np.int32(d))))
    measurements, rows = [], []
    for d in sizes:
        ratio = float(np.concatenate(drawn[d]).astype(np.float64).var(ddof=1)) / d
        # Var(sample variance) / d^2 = (kurtosis - 1) / n, and the kurtosis of a product-normal sum is 3 + 6/d.
        error = ((2 + 6 / d) / DRAWS) ** 0.5
        measurements.append(sampled(f"Var(q . k) / d, d = {d}", ratio, 1.0, standard_error=error))
        rows.append((d, ratio * d, ratio, error))
    published = {4: 3.91, 16: 15.98, 64: 63.76, 256: 258.20}
    for d, variance in published.items():
        error = ((2 + 6 / d) / 20_000) ** 0.5
        measurements.append(
            sampled(f"published Var(q . k) / d, d = {d}", variance / d, 1.0, standard_error=error)
        )
    return Finding(
        tuple(measurements),
        (Table("variance of q . k", ("d", "variance", "/ d", "standard error"), tuple(rows)),),
    )


def peak_mass_depends_on_width_only_unscaled(seed: int) -> Finding:
    """Scaled, the largest of 8 weights is about 0.36 at every head size from 16 on; unscaled it climbs towards 1.

    Scaling removes the dependence on width, not the effect of larger weights: with q and k tripled the mass is high
    at every size. At head size 1 and 4 the product of normals is not yet normal: 0.303 and 0.345.
    """
    rows, measurements = [], []
    for place, d in enumerate(HEAD_SIZES):
        weights = _last_rows(seed)[d]
        peaks, entropies = weights.max(axis=-1), _entropy(weights)
        for i, kind in enumerate(KINDS):
            measurements.append(
                sampled(
                    f"peak mass, {kind}, head size {d}", peaks[:, i].mean(), PEAK_MASS[kind][place],
                    standard_error=_standard_error(peaks[:, i]), tolerance=PEAK_TOLERANCE,
                )
            )  # fmt: skip
            if kind in ENTROPY:
                error = _standard_error(entropies[:, i])
                measurements.append(
                    sampled(
                        f"entropy in nats, {kind}, head size {d}", entropies[:, i].mean(), ENTROPY[kind][place],
                        standard_error=error, tolerance=LAST_DIGIT + 3.5 * error,
                    )
                )  # fmt: skip
        rows.append(
            (
                d,
                *(float(p) for p in peaks.mean(axis=0)),
                *(float(e) for e in entropies.mean(axis=0)),
            )
        )
    columns = ("head size", *(f"peak, {k}" for k in KINDS), *(f"entropy, {k}" for k in KINDS))
    return Finding(
        tuple(measurements),
        (Table("largest of 8 weights, and entropy in nats", columns, tuple(rows)),),
    )


def peak_mass_figure(finding: Finding) -> dict[str, Figure]:
    """Peak mass against head size, scaled and unscaled."""
    table = np.array(finding.tables[0].rows, np.float64)
    with mpl.rc_context(plots.STYLE):
        figure = Figure(figsize=(5.0, 3.4), layout="constrained")
        axis = figure.subplots()
        for i, kind in enumerate(KINDS):
            axis.plot(
                table[:, 0],
                table[:, 1 + i],
                color=plots.COLOURS[i],
                linestyle=plots.DASHES[i],
                marker="o",
                label=kind,
            )
        axis.axhline(1 / KEYS, color="black", linewidth=0.8)
        axis.annotate(
            "uniform",
            (table[0, 0], 1 / KEYS),
            textcoords="offset points",
            xytext=(0, 3),
            fontsize=8,
        )
        axis.set_xscale("log", base=2)
        axis.set_xticks(table[:, 0], [str(int(d)) for d in table[:, 0]])
        axis.set_title(f"mean of at least {DRAWS:,} draws", loc="left")
        axis.set(xlabel="head size", ylabel=f"largest of {KEYS} weights", ylim=(0, 1))
        axis.legend(loc="center right")
    return {"peak_mass": figure}


def scaling_by_the_width_flattens(seed: int) -> Finding:
    """Scaling by the width instead of the head size makes logits sqrt(heads) too small: x 2 for 4 heads of 8, x 2.449 for
    384 in 6 heads of 64, and attention flatter the more heads there are."""
    rng = lab.generator(seed)
    d, heads = 64, tuple(PEAK_BY_HEADS)

    def scale(name: str, n: int) -> float:
        return knobs.parse_logit_scale(name, head_dim=d, width=n * d)

    wrong = np.array([scale("inv_sqrt_width", n) for n in heads], np.float32)
    ratios = {
        (4, 8): knobs.parse_logit_scale("inv_sqrt_head_dim", head_dim=8, width=32)
        / knobs.parse_logit_scale("inv_sqrt_width", head_dim=8, width=32),
        (6, 64): scale("inv_sqrt_head_dim", 6) / scale("inv_sqrt_width", 6),
    }
    q, k = lab.normal(rng, DRAWS, 1, 1, d), lab.normal(rng, DRAWS, KEYS, 1, d)
    weights = np.asarray(_last_row(np.broadcast_to(q, (DRAWS, 1, len(heads), d)), k, wrong))
    peaks, entropies = weights.max(axis=-1), _entropy(weights)
    rows = tuple(
        (n, n**0.5, float(peaks[:, i].mean()), float(entropies[:, i].mean()))
        for i, n in enumerate(heads)
    )
    return Finding(
        (
            equal("logits too small by, 4 heads of 8", ratios[4, 8], 2.0, tolerance=1e-12),
            equal("logits too small by, 6 heads of 64", ratios[6, 64], 6**0.5, tolerance=1e-12),
            *(
                sampled(
                    f"peak mass, {n} heads of 64", peaks[:, i].mean(), PEAK_BY_HEADS[n],
                    standard_error=_standard_error(peaks[:, i]), tolerance=PEAK_TOLERANCE,
                )
                for i, n in enumerate(heads)
            ),
        ),
        (Table("scaled by 1/sqrt(width)", ("heads of 64", "too small by", "peak mass", "entropy"), rows),),
    )  # fmt: skip


def sharpening_by_eight_is_not_one_hot(seed: int) -> Finding:
    """Multiplying [0.1, -0.2, 0.3, -0.2, 0.5] by 8 puts 0.80 on the largest entry: sharp, not one-hot; 16 gives 0.96."""
    del seed
    s = np.array([0.1, -0.2, 0.3, -0.2, 0.5])
    worked = {
        1: (0.19, 0.14, 0.24, 0.14, 0.29),
        4: (0.11, 0.03, 0.25, 0.03, 0.56),
        8: (0.033, 0.003, 0.162, 0.003, 0.800),
    }
    rows = {factor: lab.row_weights(s, scale=factor) for factor in (*worked, 16)}
    return Finding(
        (
            equal("largest weight, x 8", rows[8].max(), 0.800, tolerance=5e-4),
            equal("largest weight, x 16", rows[16].max(), 0.959, tolerance=5e-4),
            *(
                at_most(
                    f"x {factor}: weights - {list(want)}", lab.largest(rows[factor] - np.array(want)),
                    5e-4 if factor == 8 else 5e-3,
                )
                for factor, want in worked.items()
            ),
        ),
        (Table("softmax of factor x s", ("factor", *map(str, s)), tuple((f, *map(float, w)) for f, w in rows.items())),),
    )  # fmt: skip


@jax.jit
def _jacobian(scores: Array) -> tuple[Array, Array]:
    """Weights of one query over 8 keys and their derivatives by the scores: [8], [8, 8]."""
    unit = jnp.eye(KEYS)[None, :, None]

    def weights(scores: Array) -> Array:
        return attend(scores[None, None, None], unit, unit, masks.full(1, KEYS), scale=1.0)[0, 0, 0]

    return weights(scores), jax.jacrev(weights)(scores)


def saturation_shrinks_the_gradient(seed: int) -> Finding:
    """Unscaled, the gradient through the softmax, tr J = sum p(1-p), falls as d^-1/2: 4 times at head size 64 and 17 at
    1024, not to zero; scaled it does not depend on the width."""
    rows, measurements, traces = [], [], {}
    for d, (scaled_trace, unscaled_trace) in TRACE.items():
        p = _last_rows(seed)[d][:, :2]
        trace = 1 - np.sum(p**2, axis=-1)
        means = trace.mean(axis=0)
        second = np.median(np.sort(p, axis=-1)[..., -2], axis=0)
        ratio = means[1] / means[0]
        error = ratio * _standard_error(trace[:, 1] / means[1] - trace[:, 0] / means[0])
        measurements.append(
            sampled(
                f"tr J unscaled / scaled, head size {d}", ratio, unscaled_trace / scaled_trace,
                standard_error=error, tolerance=TRACE_TOLERANCE,
            )
        )  # fmt: skip
        traces[d] = means[1]
        rows.append(
            (d, float(means[0]), float(means[1]), float(ratio), float(second[0]), float(second[1]))
        )
    sizes = np.array([64, 256, 1024])
    slope = np.polyfit(np.log(sizes), np.log([traces[d] for d in sizes]), 1)[0]
    weights, jacobian = _jacobian(lab.normal(lab.generator(seed), KEYS))
    weights, jacobian = np.asarray(weights), np.asarray(jacobian)
    columns = (
        "head size",
        "tr J scaled",
        "tr J unscaled",
        "ratio",
        "second p scaled",
        "second p unscaled",
    )
    return Finding(
        (
            *measurements,
            equal(
                "slope of log tr J on log d from 64 to 1024, unscaled", slope, -0.5, tolerance=0.05
            ),
            at_least("tr J unscaled at head size 1024: small, not 0", traces[1024], 0.01),
            lab.same(
                "trace of the Jacobian of attend against sum p(1-p)",
                np.trace(jacobian),
                np.sum(weights * (1 - weights)),
            ),
        ),
        (
            Table(
                "trace of the softmax Jacobian, and the median second-largest weight",
                columns,
                tuple(rows),
            ),
        ),
    )


CHECKS = (
    Check("M1", variance_is_the_dimension, 'One line changed L335-362: "the variance equals the dimension"; Vaswani et al. 2017, footnote 4'),
    Check("M2", peak_mass_depends_on_width_only_unscaled, 'Six notes L65, L141: "roughly 0.36 peak mass at every head size when scaled"', peak_mass_figure),
    Check("M4", scaling_by_the_width_flattens, 'Six notes L124: "Normalising by C instead of head_size"'),
    Check("M5", sharpening_by_eight_is_not_one_hot, 'One line changed L371; Six notes L63: "putting essentially all mass on the single largest entry"'),
    Check("M9", saturation_shrinks_the_gradient, 'On paper L21: "drives the gradient on every other key toward zero"; Six notes L63'),
)  # fmt: skip
