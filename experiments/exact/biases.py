"""What a constant added to queries, keys, values or logits does, and under which normalisers."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attnlab import masks, norms, positions
from attnlab.attention import Alibi, attend
from attnlab.checks import Check, Finding, at_most
from experiments.exact import lab

T = lab.LENGTH
TRIANGLE = np.tri(T, dtype=bool)
# The variants under which a key bias is absorbed, and those under which it is not.
ABSORBED, NOT_ABSORBED = ("plain", "alibi"), ("rope", "qk-layernorm", "qk-rmsnorm", "softcap")


def softmax_one(scores: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """exp(s) / (1 + sum exp(s)): a row may decline to attend, so it need not sum to 1."""
    exponentials = np.where(allowed, np.exp(scores), 0)
    return exponentials / (1 + exponentials.sum(axis=-1, keepdims=True))


def sigmoid(scores: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Every weight on its own, without normalisation over keys."""
    return np.where(allowed, 1 / (1 + np.exp(-scores)), 0)


def _alibi() -> Alibi:
    places = positions.by_index(T)
    return Alibi(positions.alibi_slopes(lab.HEADS), places, places)


def _variant(name: str, q: Array, k: Array, v: Array, mask: masks.Mask) -> Array:
    bias, softcap = None, None
    places = positions.by_index(T)
    if name == "alibi":
        bias = _alibi()
    if name == "rope":
        rotation = positions.rope_rotation(places, positions.rope_frequencies(lab.HEAD_DIM))
        q, k = positions.rope(q, rotation), positions.rope(k, rotation)
    if name.startswith("qk-"):
        gates = {name.removeprefix("qk-"): jnp.bool_(True)}
        q, k = (norms.qk_norm(x, jnp.ones(lab.HEAD_DIM), gates) for x in (q, k))
    if name == "softcap":
        softcap = 1.0
    return attend(q, k, v, mask, scale=lab.HEAD_DIM**-0.5, bias=bias, softcap=softcap)


def _biased(x: Array, bias: Array) -> Array:
    return x + bias[None, None]


@jax.jit
def _outputs(
    bq: Array, bk: Array, q: Array, k: Array, v: Array, mask: masks.Mask
) -> dict[str, Array]:
    names = (*ABSORBED, *NOT_ABSORBED)
    return {n: _variant(n, _biased(q, bq), _biased(k, bk), v, mask) for n in names}


def key_bias_is_useless_under_softmax(seed: int) -> Finding:
    """A bias on keys changes no output of softmax attention and gets no gradient; a bias on queries does.

    It stops being useless under RoPE, QK-norm, soft capping, softmax-one and sigmoid attention.
    """
    rng = lab.generator(seed)
    q, k, v = lab.qkv(rng)
    mask = masks.causal(T).canonical(2)
    bq, bk = lab.normal(rng, lab.HEADS, lab.HEAD_DIM), lab.normal(rng, lab.KV_HEADS, lab.HEAD_DIM)
    plain, query, key = (
        {n: np.asarray(out) for n, out in _outputs(b, c, q, k, v, mask).items()}
        for b, c in ((0 * bq, 0 * bk), (bq, 0 * bk), (0 * bq, bk))
    )
    by_keys = {
        "plain": lab.gradients(q, _biased(k, bk), v, mask)[1],
        "alibi": lab.gradients(q, _biased(k, bk), v, mask, bias=_alibi())[1],
    }  # the gradient of a bias is the sum of those of the keys
    shifted, unshifted = (lab.scores(q, x) for x in (_biased(k, bk), k))
    return Finding(
        (
            *(lab.same(f"key bias, {n}", key[n], plain[n]) for n in ABSORBED),
            *(
                at_most(
                    f"gradient of the key bias, {n}, relative to those of the keys",
                    lab.largest(by_keys[n].sum(axis=(0, 1))) / lab.largest(by_keys[n]),
                    lab.EQUAL,
                )
                for n in ABSORBED
            ),
            lab.differs("query bias, plain", query["plain"], plain["plain"]),
            *(lab.differs(f"key bias, {n}", key[n], plain[n]) for n in NOT_ABSORBED),
            *(
                lab.differs(
                    f"key bias, {name}",
                    lab.mix(f(shifted, TRIANGLE), v),
                    lab.mix(f(unshifted, TRIANGLE), v),
                )
                for name, f in {"softmax-one": softmax_one, "sigmoid": sigmoid}.items()
            ),
        )
    )


def value_bias_is_an_output_bias(seed: int) -> Finding:
    """Rows sum to 1, so a bias on values shifts every output by exactly that bias; not so where rows need not sum to 1."""
    rng = lab.generator(seed)
    q, k, v = lab.qkv(rng)
    bias = lab.normal(rng, lab.KV_HEADS, T)
    shift = np.broadcast_to(
        np.repeat(bias, lab.HEADS // lab.KV_HEADS, axis=0), (2, T, lab.HEADS, T)
    )
    causal = masks.causal(T)
    moved = lab.attention(q, k, _biased(v, bias), causal) - lab.attention(q, k, v, causal)
    scores = lab.scores(q, k)
    weights = {
        "softmax-one": softmax_one(scores, TRIANGLE),
        "sigmoid": sigmoid(scores, TRIANGLE),
        "dropout of a tenth of the weights": np.moveaxis(lab.weights(q, k, causal), 2, 1)
        * (rng.random(scores.shape) < 0.9)
        / 0.9,
    }
    return Finding(
        (
            lab.same("attend: shift of the output - bias", moved, shift),
            *(
                lab.differs(
                    f"{name}: shift - bias", lab.mix(w, _biased(v, bias)) - lab.mix(w, v), shift
                )
                for name, w in weights.items()
            ),
        )
    )


def softmax_is_shift_invariant(seed: int) -> Finding:
    """Adding one number to all logits of a row changes nothing and its gradient is 0: the reason behind I9."""
    rng = lab.generator(seed)
    q, k, v = lab.qkv(rng)
    causal = masks.causal(T)
    k[..., 0] = 1  # so the first entry of a query is a number that all its logits share
    shifted = q.copy()
    shifted[..., 0] += 10 * lab.normal(rng, *q.shape[:-1])
    by_query = lab.gradients(q, k, v, causal)[0]
    a, b = lab.scores(shifted, k), lab.scores(q, k)
    return Finding(
        (
            lab.same(
                "attend: outputs",
                lab.attention(shifted, k, v, causal),
                lab.attention(q, k, v, causal),
            ),
            at_most(
                "attend: gradient of the shift, relative to those of the other entries of q",
                lab.largest(by_query[..., 0]) / lab.largest(by_query),
                lab.EQUAL,
            ),
            *(
                lab.differs(f"{name}: weights", f(a, TRIANGLE), f(b, TRIANGLE))
                for name, f in {"softmax-one": softmax_one, "sigmoid": sigmoid}.items()
            ),
        )
    )


CHECKS = (
    Check("I9", key_bias_is_useless_under_softmax, 'One line changed L209: "a bias on k ... does nothing; a bias on q is not wasted"; against Six notes L113'),
    Check("I10", value_bias_is_an_output_bias, "attnlab: follows from the row sum"),
    Check("I35", softmax_is_shift_invariant, 'One line changed L154: "shift invariance"'),
)  # fmt: skip
