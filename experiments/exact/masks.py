"""What masking means: before or after the softmax, how far a token sees through layers, graphs, padding."""

import jax
import numpy as np
from jax import Array

from attnlab import masks, objectives
from attnlab.checks import Check, Finding, Table, at_least, at_most, equal, sampled
from experiments.exact import lab

T = lab.LENGTH
TRIANGLE = np.tri(T, dtype=bool)


def masked_after_softmax(
    scores: np.ndarray, allowed: np.ndarray, *, renormalise: bool = False
) -> np.ndarray:
    """The wrong order: softmax over all keys, then zeros where forbidden."""
    weights = lab.softmax(scores) * allowed
    return weights / weights.sum(axis=-1, keepdims=True) if renormalise else weights


def softmax_over_queries(scores: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """The wrong axis: every key shares itself out among the queries that may read it."""
    return lab.softmax(np.where(allowed, scores, -np.inf), axis=-2)


def minus_infinity(scores: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """The textbook form; NaN where nothing is allowed."""
    with np.errstate(invalid="ignore"):
        return lab.softmax(np.where(allowed, scores, -np.inf))


def most_negative_number(scores: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """The usual library form (flax, nanodo); uniform over forbidden keys where nothing is allowed."""
    return lab.softmax(np.where(allowed, scores, np.finfo(np.float32).min))


def masking_after_softmax_breaks_the_row_sum(seed: int) -> Finding:
    """Zeroing forbidden weights after the softmax leaves rows that sum to less than 1; `attend` keeps them at 1."""
    rng, B = lab.generator(seed), 64
    q, k, _ = lab.qkv(rng, batch=B)
    sums_BNT = masked_after_softmax(lab.scores(q, k), TRIANGLE).sum(-1)
    first_B = sums_BNT[:, :, 0].mean(axis=1)
    right = lab.weights(q[:2], k[:2], masks.causal(T)).sum(-1)
    return Finding(
        (
            equal("masked after: rows before the last that sum to 1", np.sum(sums_BNT[..., :-1] >= 1), 0),
            sampled(
                "masked after: mean sum of the first row (1/16, the share of its one key)",
                first_B.mean(), 1 / T, standard_error=first_B.std(ddof=1) / B**0.5,
            ),
            lab.same("masked after: sum of the last row, which sees all", sums_BNT[..., -1], np.ones((B, lab.HEADS))),
            lab.same("attend: row sums against 1", right, np.ones_like(right)),
        )
    )  # fmt: skip


def masking_after_softmax_leaks_the_future(seed: int) -> Finding:
    """Masking after the softmax leaks the future: the denominator holds forbidden logits, so a change of the last
    token moves earlier outputs."""
    rng = lab.generator(seed)
    q, k, v = lab.qkv(rng)
    changed = [x.copy() for x in (q, k, v)]
    for x in changed:
        x[:, -1] = lab.normal(rng, *x[:, -1].shape)

    def after(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        return lab.mix(masked_after_softmax(lab.scores(q, k), TRIANGLE), v)[:, :-1]

    def before(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        return lab.attention(q, k, v, masks.causal(T))[:, :-1]

    return Finding(
        (
            lab.differs(
                "masked after: earlier outputs, last token changed", after(*changed), after(q, k, v)
            ),
            lab.identical(
                "attend: earlier outputs, last token changed", before(*changed), before(q, k, v)
            ),
            lab.differs(
                "attend: the last output itself",
                *(lab.attention(*x, masks.causal(T))[:, -1] for x in (changed, (q, k, v))),
            ),
        )
    )


def renormalising_repairs_masking_after(seed: int) -> Finding:
    """Masking after the softmax and renormalising equals masking before, until the past underflows."""
    rng = lab.generator(seed)
    q, k, v = lab.qkv(rng)
    causal = masks.causal(T)
    q[..., 0] = 1
    plain = lab.attention(q, k, v, causal)
    repaired = lab.mix(masked_after_softmax(lab.scores(q, k), TRIANGLE, renormalise=True), v)
    # The last key scores 200 more than before, against every query.
    k[:, -1, :, 0] += 200 * lab.HEAD_DIM**0.5
    with np.errstate(invalid="ignore"):
        scores = lab.scores(q, k).astype(np.float32)
        loud = lab.mix(masked_after_softmax(scores, TRIANGLE, renormalise=True), v)
    earlier = lab.attention(q, k, v, causal)[:, :-1]
    return Finding(
        (
            lab.same("masked after and renormalised against attend", repaired, plain),
            equal(
                "future logits 200 higher, float32: share of earlier rows that become NaN",
                np.mean(np.isnan(loud[:, :-1]).all(axis=-1)), 1.0,
            ),
            lab.identical("future logits 200 higher, attend: earlier rows", earlier, plain[:, :-1]),
        )
    )  # fmt: skip


def forbidden_weight_is_exactly_zero(seed: int) -> Finding:
    """A forbidden key has weight exactly 0, and a row without any allowed key gives 0 with gradient 0.

    -inf alone gives NaN on such a row, and the most negative finite number gives uniform attention to the very keys
    that are forbidden.
    """
    rng = lab.generator(seed)
    q, k, v = lab.qkv(rng)
    strict = masks.causal(T, offset=-1)  # the first row may read nothing
    plain = lab.attention(q, k, v, strict)
    loud = v.copy()
    loud[:, -1] = 1e30  # nobody may read the last token
    dq, dk, dv = lab.gradients(q, k, v, strict)
    scores, allowed = lab.scores(q, k), np.tri(T, k=-1, dtype=bool)
    uniform = most_negative_number(scores, allowed)[:, :, 0]
    return Finding(
        (
            lab.identical(
                "forbidden value 1e30: outputs", lab.attention(q, k, loud, strict), plain
            ),
            equal("empty row: max |output|", lab.largest(plain[:, 0]), 0),
            equal("empty row: max |gradient of its query|", lab.largest(dq[:, 0]), 0),
            equal(
                "entries of all gradients that are not finite",
                sum(np.sum(~np.isfinite(g)) for g in (dq, dk, dv)),
                0,
            ),
            equal(
                "-inf: share of the empty row that is NaN",
                np.isnan(minus_infinity(scores, allowed)[:, :, 0]).mean(),
                1,
            ),
            lab.same(
                "most negative number: weights of the empty row against 1/T",
                uniform,
                np.full_like(uniform, 1 / T),
            ),
        )
    )


def softmax_axis_matters(seed: int) -> Finding:
    """Softmax over the wrong axis makes columns sum to 1 and lets the future into earlier rows."""
    rng = lab.generator(seed)
    q, k, v = lab.qkv(rng)
    wrong = softmax_over_queries(lab.scores(q, k), TRIANGLE)
    other = q.copy()
    other[:, -1] = lab.normal(
        rng, *q[:, -1].shape
    )  # the last query sees all, and belongs to no earlier row
    leaked = lab.mix(softmax_over_queries(lab.scores(other, k), TRIANGLE), v)[:, :-1]
    right = lab.weights(q, k, masks.causal(T))
    return Finding(
        (
            lab.differs("wrong axis: earlier outputs, last query changed", leaked, lab.mix(wrong, v)[:, :-1]),
            lab.identical(
                "attend: earlier outputs, last query changed",
                lab.attention(other, k, v, masks.causal(T))[:, :-1], lab.attention(q, k, v, masks.causal(T))[:, :-1],
            ),
            lab.same("wrong axis: column sums against 1", wrong.sum(-2), np.ones_like(wrong.sum(-2))),
            lab.differs("wrong axis: row sums against 1", wrong.sum(-1), np.ones_like(wrong.sum(-1))),
            lab.same("attend: row sums against 1", right.sum(-1), np.ones_like(right.sum(-1))),
        )
    )  # fmt: skip


def _ahead(reads: np.ndarray) -> int:
    """How far into the future the farthest dependency reaches: max of j - i."""
    i, j = np.nonzero(reads)
    return int((j - i).max())


def reach_of_a_sliding_window(seed: int) -> Finding:
    """L layers with a sliding window of W tokens, own token included, see L(W-1)+1 tokens.

    Mistral's 4096 x 32 = 131 072 counts a token too many per layer: 131 041. Longformer's window is two-sided, L w
    to each side.
    """
    rng = lab.generator(seed)
    params = lab.random_params(lab.NETWORK, rng)
    measurements, rows = [], []
    for W, depth in ((3, 4), (5, 3), (2, 4), (1, 4)):
        reads = lab.dependencies(params, rng, masks.sliding_window(T, W), depth=depth)
        seen, law = _ahead(reads.T) + 1, depth * (W - 1) + 1
        measurements.append(equal(f"tokens seen, W = {W}, {depth} layers", seen, law))
        rows.append((W, depth, seen, law))
    both_sides = lab.dependencies(params, rng, masks.window(T, left=2, right=2), depth=3)
    return Finding(
        (
            *measurements,
            equal("two-sided window of 2, 3 layers: reach backwards", _ahead(both_sides.T), 6),
            equal("two-sided window of 2, 3 layers: reach forwards", _ahead(both_sides), 6),
            equal("Mistral, W = 4096, 32 layers: tokens seen", 32 * (4096 - 1) + 1, 131_041),
        ),
        (Table("reach", ("W", "layers", "tokens seen", "L(W-1)+1"), tuple(rows)),),
    )


def leak_law(seed: int) -> Finding:
    """With keys up to i + k visible, L layers leak a target s places ahead exactly when s <= k L.

    So with the causal mask (k = 0) on, predicting two tokens ahead does not leak; with one diagonal too many (k = 1)
    depth turns a small leak into a large one.
    """
    rng = lab.generator(seed)
    params = lab.random_params(lab.NETWORK, rng)
    wrong, rows = 0, []
    for k in (-1, 0, 1, 2):
        mask = masks.causal(T, offset=k)
        reach = []
        for depth in (1, 2, 3):
            reads = lab.dependencies(params, rng, mask, depth=depth)
            leaks = [bool(np.diagonal(reads, s).any()) for s in range(1, T)]
            wrong += sum(leak != (s <= k * depth) for s, leak in enumerate(leaks, start=1))
            reach.append(_ahead(reads))
            if k == 0 and depth == 3:
                two_ahead = np.diagonal(reads, 2).sum()
        rows.append((k, *reach))
    return Finding(
        (
            equal("pairs (k, L, s) that break the law, of 180", wrong, 0),
            equal("causal mask, targets shifted by 2: outputs that see their target", two_ahead, 0),
            equal("one diagonal too many, 3 layers: tokens seen ahead", rows[2][3], 3),
        ),
        (
            Table(
                "farthest token ahead that an output depends on",
                ("k", "1 layer", "2 layers", "3 layers"),
                tuple(rows),
            ),
        ),
    )


def a_mask_is_an_adjacency(seed: int) -> Finding:
    """Attention masked by an adjacency matrix is each node's own weighted sum over its list of in-neighbours.

    A node that no edge enters gets 0; with self-loops it gets its own value.
    """
    rng = lab.generator(seed)
    q, k, v = lab.qkv(rng)
    isolated = int(rng.integers(T))
    edges = rng.integers(0, T, (2, 4 * T))
    edges[1, edges[1] == isolated] = (isolated + 1) % T
    scores, v_BSNH = lab.scores(q, k), np.repeat(v, lab.HEADS // lab.KV_HEADS, axis=2)
    summed = np.zeros((2, T, lab.HEADS, T))
    for node in range(T):
        neighbours = sorted(set(edges[0, edges[1] == node].tolist()))
        if neighbours:
            weights_BNK = lab.softmax(scores[:, :, node, neighbours])
            summed[:, node] = np.einsum("bnk,bknh->bnh", weights_BNK, v_BSNH[:, neighbours])
    out = lab.attention(q, k, v, lab.graph_mask(edges))
    looped = lab.attention(q, k, v, lab.graph_mask(edges, self_loops=True))
    return Finding(
        (
            lab.same("dense masked attention against neighbour lists", out, summed),
            equal("node without in-edges: max |output|", lab.largest(out[:, isolated]), 0),
            lab.same(
                "the same node with a self-loop against its value",
                looped[:, isolated],
                v_BSNH[:, isolated],
            ),
            lab.differs("edges reversed", lab.attention(q, k, v, lab.graph_mask(edges[::-1])), out),
        )
    )


@jax.jit
def _mean_loss(logits: Array, targets: Array, weights: Array, mask: masks.Mask) -> Array:
    total, count = objectives.loss(logits, objectives.Batch(targets, targets, weights, mask))
    return total / count


def padding_is_invisible(seed: int) -> Finding:
    """With a padding mask, outputs and loss on real tokens depend neither on what the padding holds nor on how much
    there is."""
    rng = lab.generator(seed)
    params, n = lab.random_params(lab.NETWORK, rng), 9
    one, other = np.tile(rng.integers(0, lab.VOCAB, T), (2, 1))
    other[n:] = (other[n:] + rng.integers(1, lab.VOCAB, T - n)) % lab.VOCAB
    targets = rng.integers(0, lab.VOCAB, (1, T)).astype(np.int32)
    real = (np.arange(T) < n).astype(np.float32)[None]
    padded = masks.full(T) & masks.key_padding(T, lengths=n)
    out = lab.logits(params, np.stack([one, other]), padded)
    alone = lab.logits(params, one[None, :n], masks.full(n))
    unmasked = lab.logits(params, np.stack([one, other]), masks.full(T))

    def loss(logits: np.ndarray, weights: np.ndarray, mask: masks.Mask) -> float:
        length = logits.shape[1]
        return float(_mean_loss(logits, targets[:, :length], weights[:, :length], mask))

    right = loss(alone, real, masks.full(n))
    return Finding(
        (
            lab.identical("real outputs, padding changed", out[0, :n], out[1, :n]),
            lab.same("real outputs, no padding at all", out[:1, :n], alone),
            lab.differs("real outputs, padding changed, no padding mask", unmasked[0, :n], unmasked[1, :n]),
            at_most("mean loss with padding - without, nats", abs(loss(out[:1], real, padded) - right), lab.EQUAL),
            at_least(
                "the same divided by all places instead of real ones, nats",
                abs(loss(out[:1], real, padded) * n / T - right), lab.DIFFERENT,
            ),
        )
    )  # fmt: skip


CHECKS = (
    Check("I11", masking_after_softmax_breaks_the_row_sum, 'On paper L17: "Zeroing after the softmax would break the row total"'),
    Check("I12", masking_after_softmax_leaks_the_future, "attnlab: the second harm of On paper L17, L64"),
    Check("I13", renormalising_repairs_masking_after, "attnlab"),
    Check("I22", forbidden_weight_is_exactly_zero, 'Six notes L116: "-inf is the identity element" (not for an empty row)'),
    Check("I23", softmax_axis_matters, 'Six notes L116: "dim=-1 matters"'),
    Check("I24", reach_of_a_sliding_window, "Jiang et al. 2023 (Mistral), arXiv 2310.06825, section 2; Beltagy et al. 2020 (Longformer), 2004.05150"),
    Check("I25", leak_law, "attnlab: answers Six notes, exercise 1 (4)"),
    Check("I27", a_mask_is_an_adjacency, 'Six notes L25: "Swap that buffer for a different 0/1 matrix and you have a different graph"; Velickovic et al. 2018 (GAT)'),
    Check("I31", padding_is_invisible, 'Six notes L49: "real encoders still use masks - just padding masks"'),
)  # fmt: skip
