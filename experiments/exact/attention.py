"""Queries, keys and values: what the scores are made of, shapes, and agreement with other implementations."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attnlab import masks, model, norms, positions
from attnlab.attention import AttentionStats, attend
from attnlab.checks import Check, Finding, Table, at_least, at_most, equal
from attnlab.knobs import ModelKnobs
from experiments.exact import lab

T = lab.LENGTH
PLAIN = dataclasses.replace(lab.NETWORK, position_families=())
# One line changed, "Worked through by hand": x is the identity, rows are h, o, u.
TOY_Q = np.array([[1, 0], [0, 1], [2, 0.5]], np.float32)
TOY_K = np.array([[2, 0], [0, 1], [1, 1]], np.float32)
TOY_V = np.array([[10, 0], [0, 10], [5, 5]], np.float32)


@jax.jit
def _layer(attention: Any, x_BTD: Array, mask: masks.Mask) -> tuple[Array, AttentionStats]:
    """The residual stream after one pre-norm attention layer, and what its weights were like."""
    module, knobs = (
        model.Attention(PLAIN),
        ModelKnobs({}, {}, jnp.float32(1), jnp.float32(lab.HEAD_DIM**-0.5)),
    )
    normed = norms.normalize(x_BTD, center=1.0)
    out, stats, _ = module.apply(
        {"params": attention}, normed, mask, knobs, model.Placement(None, None), True
    )
    return x_BTD + out, stats


def values_do_not_choose(seed: int) -> Finding:
    """Changing W_v moves no attention weight of its own layer; the weights of later layers do move."""
    rng = lab.generator(seed)
    params = lab.random_params(PLAIN, rng)
    first, second = (params[f"block_0{layer}"]["attention"] for layer in (0, 1))
    kernel = first["qkv_kernel"].copy()
    kernel[:, (lab.HEADS + lab.KV_HEADS) * lab.HEAD_DIM :] *= -1.5
    x, mask = lab.normal(rng, 2, T, PLAIN.width), masks.causal(T).canonical(2)

    def patterns(first: Any) -> tuple[np.ndarray, ...]:
        after_one, one = _layer(first, x, mask)
        after_two, two = _layer(second, after_one, mask)
        return of(one), of(two), np.asarray(after_two)

    def of(stats: AttentionStats) -> np.ndarray:
        entries = (stats.lse, stats.entropy, stats.first_key_mass, stats.diagonal_mass)
        return np.concatenate(
            [*(np.asarray(x)[..., None] for x in entries), np.asarray(stats.distance_mass)], axis=-1
        )

    before, after = patterns(first), patterns({**first, "qkv_kernel": kernel})
    return Finding(
        (
            lab.identical("layer 1: statistics of the weights", after[0], before[0]),
            lab.differs("layer 2: statistics of the weights", after[1], before[1]),
            lab.differs("outputs", after[2], before[2]),
        )
    )


@jax.jit
def _lone_lse(q: Array, k: Array, mask: masks.Mask) -> Array:
    return attend(q, k, k, mask, scale=1.0, stats=True)[1].lse


def _scores(q_TH: np.ndarray, k_SH: np.ndarray) -> np.ndarray:
    """q . k as `attend` computes it, [T, S]: with one visible key the log-sum-exp is its score."""
    size, (n, H) = T, q_TH.shape
    padded = np.zeros((2, size, size), np.float32)
    padded[0, :n, :H], padded[1, : len(k_SH), :H] = q_TH, k_SH
    q, k = (np.tile(x[None, :, None], (size, 1, 1, 1)) for x in padded)
    one_key_each = masks.key_padding(size, starts=np.arange(size), lengths=np.arange(size) + 1)
    lse_SNT = np.asarray(_lone_lse(q, k, one_key_each.canonical(size)))
    return lse_SNT[: len(k_SH), 0, :n].T


@jax.jit
def _rotated(x_BTNH: Array) -> Array:
    return positions.rope(
        x_BTNH, positions.rope_rotation(positions.by_index(T), positions.rope_frequencies(T))
    )


def scores_are_a_bilinear_form(seed: int) -> Finding:
    """A score q . k is x M x' with M = W_q W_k' of rank at most the head size; M is symmetric only if W_q = W_k.

    In the worked example u looks at h with 4.0 and h at u with 1.0. Under RoPE, M depends on the distance i - j.
    """
    rng = lab.generator(seed)
    D, H = 32, T
    toy = _scores(TOY_Q, TOY_K)
    x, w_q, w_k = lab.normal(rng, T, D), lab.normal(rng, D, H), lab.normal(rng, D, H)
    w_q, w_k = w_q * np.float32(D**-0.5), w_k * np.float32(D**-0.5)
    M = w_q.astype(np.float64) @ w_k.T
    scores, shared = _scores(x @ w_q, x @ w_k), _scores(x @ w_q, x @ w_q)
    token = np.tile(x[:1], (T, 1))
    turned_q, turned_k = (
        np.asarray(_rotated((token @ w)[None, :, None]))[0, :, 0] for w in (w_q, w_k)
    )
    relative = _scores(turned_q, turned_k)
    return Finding(
        (
            equal("u looking at h", toy[2, 0], 4.0),
            equal("h looking at u", toy[0, 2], 1.0),
            lab.same("q . k - x M x'", scores, x @ M @ x.T),
            equal("rank of M (32 x 32, head size 16)", np.linalg.matrix_rank(M), H),
            lab.differs("scores against their transpose, W_q and W_k apart", scores, scores.T),
            lab.same("scores against their transpose, W_q = W_k", shared, shared.T),
            lab.same(
                "RoPE, one token everywhere: score (i, j) - score (i+1, j+1)",
                relative[1:, 1:],
                relative[:-1, :-1],
            ),
            lab.differs(
                "RoPE, one token everywhere: score (i, j) - score (i+1, j)",
                relative[1:],
                relative[:-1],
            ),
        )
    )


def head_worked_by_hand(seed: int) -> Finding:
    """In the worked example u reads [0.80, 0.02, 0.18] of h, o, u and outputs [8.87, 1.13], without the scale.

    With 1/sqrt(2) the weights are [0.699, 0.059, 0.242] and the output [8.20, 1.80].
    """
    del seed
    q, k, v = (x[None, :, None] for x in (TOY_Q, TOY_K, TOY_V))
    rows, measurements = [], []
    worked = {
        "unscaled": (1.0, (0.798, 0.024, 0.178), (8.869, 1.131)),
        "scaled": (2**-0.5, (0.699, 0.059, 0.242), (8.20, 1.80)),
    }
    for name, (scale, weights, output) in worked.items():
        got = lab.weights(q, k, masks.causal(3), scale=scale)[0, 2, 0]
        out = lab.attention(q, k, v, masks.causal(3), scale=scale)[0, 2, 0]
        digits = 5e-4 if name == "unscaled" else 5e-3
        measurements += [
            at_most(
                f"{name}: output - {list(output)}", lab.largest(out - np.array(output)), digits
            ),
            at_most(
                f"{name}: weights - {list(weights)}", lab.largest(got - np.array(weights)), 5e-4
            ),
        ]
        rows.append((name, *(float(x) for x in got), *(float(x) for x in out)))
    columns = ("", "on h", "on o", "on u", "output 1", "output 2")
    return Finding(tuple(measurements), (Table("u's row", columns, tuple(rows)),))


def cross_attention_has_the_shape_of_its_queries(seed: int) -> Finding:
    """In cross-attention the weights are T_q by T_kv and the output has T_q rows; swapping the streams changes its length.

    A triangular mask fits a rectangle once its corner is named: bottom right is decoding from a cache.
    """
    rng = lab.generator(seed)
    q, k, v = lab.qkv(rng, length=5, kv_length=T)
    whole_q = np.concatenate([lab.normal(rng, 2, T - 5, lab.HEADS, lab.HEAD_DIM), q], axis=1)
    weights = lab.weights(q, k, masks.full(5, T))
    out = lab.attention(q, k, v, masks.full(5, T))
    swapped = jax.eval_shape(
        lambda *x: attend(*x, masks.full(T, 5), scale=1.0), whole_q, k[:, :5], v[:, :5]
    )
    last_five = masks.causal(5, T, align="bottom_right")
    try:
        masks.causal(5, T)
        refused = 0
    except ValueError:
        refused = 1
    return Finding(
        (
            equal("rows of the weights, T_q = 5", weights.shape[1], 5),
            equal("columns of the weights, T_kv = 16", weights.shape[3], T),
            lab.same("row sums against 1", weights.sum(-1), np.ones_like(weights.sum(-1))),
            equal("rows of the output", out.shape[1], 5),
            equal("rows of the output, streams swapped", swapped.shape[1], T),
            equal("causal(5, 16) without a corner is refused", refused, 1),
            lab.same(
                "causal, bottom right: against the last rows of the square",
                lab.attention(q, k, v, last_five), lab.attention(whole_q, k, v, masks.causal(T))[:, -5:],
            ),
        )
    )  # fmt: skip


@jax.jit
def _peers(q: Array, k: Array, v: Array, mask: masks.Mask, scale: Array) -> tuple[Array, Array]:
    theirs = jax.nn.dot_product_attention(q, k, v, mask=mask.as_array(), scale=scale)
    return attend(q, k, v, mask, scale=scale), theirs


@jax.jit
def _defaults(q: Array, k: Array, v: Array, mask: masks.Mask) -> tuple[Array, Array]:
    k, v = (jnp.repeat(x, lab.HEADS // lab.KV_HEADS, axis=2) for x in (k, v))
    return jax.nn.dot_product_attention(q, k, v, is_causal=True), nn.dot_product_attention(
        q, k, v, mask=mask.as_array()
    )


def agrees_with_other_implementations(seed: int) -> Finding:
    """`attend` equals jax.nn.dot_product_attention for every mask without empty rows and every scale, with grouped heads;
    with a causal mask and 1/sqrt(head size) it equals the defaults of jax.nn and flax."""
    rng = lab.generator(seed)
    q, k, v = lab.qkv(rng)
    v = v[..., : lab.HEAD_DIM]  # jax.nn wants values as wide as keys
    measurements = []
    for name, mask in {
        "causal": masks.causal(T),
        "full": masks.full(T),
        "sliding window": masks.sliding_window(T, 3),
        "two-sided window": masks.window(T, left=1, right=2),
        "prefix-LM": masks.prefix_lm(T, 5),
        "chunked": masks.chunked(T, 3),
        "block-causal": masks.block_causal(T, 3),
        "documents": masks.documents([0] * 5 + [1] * 7 + [2] * 4),
        "padding": masks.full(T) & masks.key_padding(T, lengths=[5, 9]),
    }.items():
        scale = np.float32(rng.uniform(0.1, 2.0))
        ours, theirs = (np.asarray(x) for x in _peers(q, k, v, mask.canonical(2), scale))
        measurements.append(lab.same(f"jax.nn, {name}, scale {scale:.2f}", ours, theirs))
    causal = masks.causal(T).canonical(2)
    ours = np.asarray(_peers(q, k, v, causal, np.float32(lab.HEAD_DIM**-0.5))[0])
    jax_nn, flax = (np.asarray(x) for x in _defaults(q, k, v, causal))
    return Finding(
        (
            *measurements,
            lab.same("jax.nn, is_causal and its default scale", ours, jax_nn),
            lab.same("flax, its only scale", ours, flax),
        )
    )


def two_projections_are_one(seed: int) -> Finding:
    """Projecting x to Q and Q to each head is one linear map of rank at most the inner width: the same functions if that is
    at least the head size, though gradient descent takes another path."""
    rng = lab.generator(seed)
    D, H, eta = 32, lab.HEAD_DIM, 0.1
    x, (_, k, v) = lab.normal(rng, 2, T, D), lab.qkv(rng)

    def projected(inner: int) -> tuple[np.ndarray, np.ndarray]:
        return lab.normal(rng, D, inner) * np.float32(D**-0.5), lab.normal(
            rng, inner, lab.HEADS, H
        ) * np.float32(inner**-0.5)

    wide, narrow = projected(D), projected(4)
    one_map = np.einsum("de,enh->dnh", *(w.astype(np.float64) for w in wide))
    twice = np.einsum("btd,de,enh->btnh", x, *wide).astype(np.float32)
    # Attention by the one map, in float64 and in words: softmax of the scores over the past.
    scores = np.where(
        np.tri(T, dtype=bool), lab.scores(np.einsum("btd,dnh->btnh", x, one_map), k), -np.inf
    )
    once = lab.mix(lab.softmax(scores), v)
    head, of_narrow = one_map[:, 0], np.einsum("de,enh->dnh", *narrow)[:, 0]
    spectrum = np.linalg.svd(head, compute_uv=False)
    beyond = np.sqrt((spectrum[4:] ** 2).sum() / (spectrum**2).sum())
    gradient = lab.normal(rng, D, H)
    first, second = wide[0], wide[1][:, 0]
    two_steps = (first - eta * gradient @ second.T) @ (second - eta * first.T @ gradient)
    return Finding(
        (
            lab.same(
                "projected twice against one map: outputs",
                lab.attention(twice, k, v, masks.causal(T)),
                once,
            ),
            equal(
                "rank of the one map of a head of 8, inner width 32",
                np.linalg.matrix_rank(head, tol=1e-6),
                H,
            ),
            equal(
                "rank of the one map of a head of 8, inner width 4",
                np.linalg.matrix_rank(of_narrow, tol=1e-5),
                4,
            ),
            at_least(
                "share of a map of rank 8 that inner width 4 cannot express", beyond, lab.DIFFERENT
            ),
            lab.differs(
                "after one gradient step of both factors or of the map",
                two_steps,
                head - eta * gradient,
            ),
        )
    )


CHECKS = (
    Check("I18", values_do_not_choose, 'One line changed L258: "Change W_v and not one number of wei moves" (of that layer)'),
    Check("I19", scores_are_a_bilinear_form, 'One line changed L230: "computing M then x_t M x_s, both give 4.0"; L232: "rank(M) <= 16"'),
    Check("I20", head_worked_by_hand, 'One line changed L269: "u\'s output by hand ... [8.87, 1.13]"'),
    Check("I21", cross_attention_has_the_shape_of_its_queries, 'Six notes L57: "In cross-attention it is (B, T_q, T_kv)"'),
    Check("I30", agrees_with_other_implementations, 'Six notes L132: "is_causal is the triangular mask, scale defaults to 1/sqrt(E)"'),
    Check("I37", two_projections_are_one, 'On paper L59: "Mathematically close" (it is equal)'),
)  # fmt: skip
