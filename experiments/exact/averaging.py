"""The ladder from a loop over predecessors to attention, and the arithmetic along the way."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlab import costs, masks
from attnlab.checks import Check, Finding, at_least, at_most, equal
from experiments.exact import lab

T = lab.LENGTH
# One line changed, "Scheme one: take the average".
H_O_U = np.array([[2, 7], [6, 4], [6, 5]], np.float32)


def divided_without_keepdim(weights_TS: Any) -> Any:
    """The wrong normalisation: row sums as a [T] vector, which broadcasts along the columns."""
    return weights_TS / weights_TS.sum(1)


def average_by_loop(x_TD: np.ndarray) -> np.ndarray:
    """Scheme one: each place averages itself and its predecessors, in two loops."""
    means = np.zeros_like(x_TD)
    for t in range(len(x_TD)):
        for i in range(t + 1):
            means[t] += x_TD[i]
        means[t] /= t + 1
    return means


def average_is_attention_with_zero_scores(seed: int) -> Finding:
    """Averaging over the past by a loop, by a matrix product, by the softmax of masked zeros and by `attend` with zero
    queries are one thing."""
    rng = lab.generator(seed)
    x = lab.normal(rng, T, T)
    triangle = np.tri(T)
    by_loop = average_by_loop(x)
    by_product = triangle / triangle.sum(1, keepdims=True) @ x
    by_softmax = lab.softmax(np.where(triangle == 0, -np.inf, 0.0)) @ x
    q, k, _ = lab.qkv(rng)
    v = np.broadcast_to(x[None, :, None], (2, T, lab.KV_HEADS, T))
    zero_queries = lab.attention(np.zeros_like(q), k, v, masks.causal(T))[0, :, 0]
    zero_scale = lab.attention(q, k, v, masks.causal(T), scale=0.0)[0, :, 0]
    toy = np.zeros((1, 3, 1, 2), np.float32)
    worked = lab.attention(toy, toy, H_O_U[None, :, None], masks.causal(3))[0, :, 0]
    return Finding(
        (
            lab.same("attend with zero queries against the loop", zero_queries, by_loop),
            lab.same("attend with scale 0 against the loop", zero_scale, by_loop),
            lab.same("matrix product against the loop", by_product, by_loop),
            lab.same("softmax of masked zeros against the loop", by_softmax, by_loop),
            at_most(
                "h, o, u: averages - [[2, 7], [4, 5.5], [4.67, 5.33]]",
                lab.largest(worked - np.array([[2, 7], [4, 5.5], [4.67, 5.33]])), 5e-3,
            ),
            lab.differs("attend with its own queries", lab.attention(q, k, v, masks.causal(T))[0, :, 0], by_loop),
        )
    )  # fmt: skip


def worked_numbers(seed: int) -> Finding:
    """The numbers worked in the notes hold: 65 x 65 = 65 x 32 + 32 x 65 + 65 parameters, [0.27, 0.01, 0.72, 0] for the
    scores [2, -1, 3] with a hidden 5, and a third row of [0.38, 0.38, 0.25]."""
    del seed
    scores = [2.0, -1.0, 3.0, 5.0]
    hidden = lab.row_weights(scores, visible=3)
    zeros = lab.row_weights([0.0, 0.0, 0.0, 0.0], visible=3)
    matrix = np.array([[1, 1, 0], [2, 1, 1], [3, 3, 2]])
    arch = dataclasses.replace(
        lab.NETWORK, layers=0, vocab_size=65, input_size=65, width=32, position_families=()
    )
    tables = costs.parameter_count(arch) - 32  # less the gain of the final norm
    return Finding(
        (
            at_most(
                "weights of the scores [2, -1, 3, hidden 5] - [0.27, 0.01, 0.72, 0]",
                lab.largest(hidden - np.array([0.27, 0.01, 0.72, 0])), 5e-3,
            ),
            equal("weight of the hidden score", hidden[3], 0),
            at_most("weights of zero scores, one hidden - [1/3, 1/3, 1/3, 0]", lab.largest(zeros - np.array([1, 1, 1, 0]) / 3), lab.EQUAL),
            at_most(
                "third row of [[1,1,0],[2,1,1],[3,3,2]], rows normalised - [0.38, 0.38, 0.25]",
                lab.largest(matrix[2] / matrix.sum(1)[2] - np.array([0.38, 0.38, 0.25])), 6e-3,
            ),
            equal("parameters of a bigram table, 65 x 65", 65 * 65, 4225),
            equal("parameters of two tables of width 32, with 65 biases", tables + 65, 4225),
            equal("loop iterations per step of B = 64, T = 256", 64 * 256, 16_384),
        )
    )  # fmt: skip


def keepdim_cannot_be_dropped(seed: int) -> Finding:
    """Without keepdim the row sums divide columns: at T = 4 row 1 becomes [1, 0.5, 0, 0] and the rows sum to 1, 1.5, 1.83,
    2.08, without an error."""
    rng = lab.generator(seed)
    triangle = np.tri(4)
    wrong = divided_without_keepdim(triangle)
    sums = 1 / np.arange(1, 5)
    q, k, _ = lab.qkv(rng)
    right = lab.weights(q, k, masks.causal(T)).sum(-1)
    try:
        with jax.numpy_rank_promotion("raise"):
            divided_without_keepdim(jnp.asarray(triangle, jnp.float32))
        refused = 0
    except ValueError:
        refused = 1
    return Finding(
        (
            lab.same("row 1 against [1, 0.5, 0, 0]", wrong[1], np.array([1, 0.5, 0, 0])),
            lab.same("row sums against 1, 1.5, 1.83, 2.08", wrong.sum(1), np.cumsum(sums)),
            equal("refused under jax_numpy_rank_promotion = raise", refused, 1),
            lab.same("attend: row sums against 1", right, np.ones_like(right)),
        )
    )


def dividing_by_the_sum_is_no_softmax(seed: int) -> Finding:
    """Dividing scores by their sum gives negative weights ([2, -1, 3]) or divides by zero ([1, -1, 0]); softmax gives
    weights that are positive and sum to 1."""
    rng = lab.generator(seed)
    first, second = np.array([2.0, -1.0, 3.0]), np.array([1.0, -1.0, 0.0])
    drawn = [first, second, *(5 * lab.normal(rng, 3) for _ in range(8))]
    rows = np.array([lab.row_weights(scores) for scores in drawn])
    with np.errstate(divide="ignore", invalid="ignore"):
        broken = second / second.sum()
    return Finding(
        (
            lab.same(
                "[2, -1, 3] / 4 against [0.5, -0.25, 0.75]",
                first / first.sum(),
                np.array([0.5, -0.25, 0.75]),
            ),
            equal("[1, -1, 0] / 0: entries that are not finite", np.sum(~np.isfinite(broken)), 3),
            at_least("attend, ten rows of scores: smallest weight", rows.min(), 0.0),
            lab.same("attend, ten rows of scores: row sums against 1", rows.sum(1), np.ones(10)),
            lab.same(
                "attend: log of the weights of [2, -1, 3] against the scores",
                np.diff(np.log(rows[0])),
                np.diff(first),
            ),
        )
    )


CHECKS = (
    Check("I14", average_is_attention_with_zero_scores, 'One line changed L146: "Scheme two is scheme three in the special case where every score is 0"'),
    Check("I26", worked_numbers, "One line changed L46, L72, L133-144, L158"),
    Check("I34", keepdim_cannot_be_dropped, 'One line changed L122: "keepdim=True cannot be dropped ... a wrong result with no error"'),
    Check("I36", dividing_by_the_sum_is_no_softmax, "One line changed L128-129"),
)  # fmt: skip
