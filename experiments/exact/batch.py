"""What may influence what: nothing crosses the batch, only attention crosses positions, prefixes stand alone."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from attnlab import masks, norms
from attnlab.attention import attend
from attnlab.checks import Check, Finding, equal
from experiments.exact import lab

T = lab.LENGTH


def batch_norm(
    x_BTD: np.ndarray, mean_D: np.ndarray | None = None, variance_D: np.ndarray | None = None
) -> np.ndarray:
    """BatchNorm without gain: by column, over batch and positions, or with given (running) statistics."""
    mean_D = x_BTD.mean(axis=(0, 1)) if mean_D is None else mean_D
    variance_D = x_BTD.var(axis=(0, 1)) if variance_D is None else variance_D
    return (x_BTD - mean_D[None, None, :]) / np.sqrt(variance_D + 1e-6)[None, None, :]


@jax.jit
def _normalize(x_BTD: Array, center: Array) -> Array:
    return norms.normalize(x_BTD, center=center)


def layer_norm(x_BTD: np.ndarray) -> np.ndarray:
    """The library's LayerNorm."""
    return np.asarray(_normalize(x_BTD, np.float32(1)))


def rms_norm(x_BTD: np.ndarray) -> np.ndarray:
    """The library's RMSNorm."""
    return np.asarray(_normalize(x_BTD, np.float32(0)))


def nothing_crosses_the_batch(seed: int) -> Finding:
    """Replacing every other sequence of a batch leaves a sequence's outputs equal to the last bit (LayerNorm, RMSNorm).

    At a fixed shape: another batch size may order the sums differently and flip last bits.
    """
    rng = lab.generator(seed)
    params = lab.random_params(lab.NETWORK, rng)
    tokens = rng.integers(0, lab.VOCAB, (T, T))
    others = (tokens + rng.integers(1, lab.VOCAB, (T, T))) % lab.VOCAB
    others[0] = tokens[0]
    causal, measurements = masks.causal(T), []
    for name, center in (("LayerNorm", 1.0), ("RMSNorm", 0.0)):
        before = lab.logits(params, tokens, causal, center=center)
        after = lab.logits(params, others, causal, center=center)
        measurements.append(lab.identical(f"{name}, 4 layers: sequence 0", after[0], before[0]))
    alone = lab.logits(params, tokens[:1], causal)
    measurements += [
        lab.same("sequence 0 beside padding", alone[0], lab.logits(params, tokens, causal)[0]),
        lab.differs("sequence 1, which was replaced", after[1], before[1]),
    ]
    return Finding(tuple(measurements))


def batch_norm_couples_sequences(seed: int) -> Finding:
    """BatchNorm in training mode couples the sequences of a batch; with running statistics, like LayerNorm, it does not."""
    rng = lab.generator(seed)
    x = lab.normal(rng, 4, T, 8)
    other = x.copy()
    other[1] = 3 * lab.normal(rng, T, 8)
    running = x.mean(axis=(0, 1)), x.var(axis=(0, 1))
    return Finding(
        (
            lab.differs(
                "BatchNorm, training: sequence 0 when 1 is replaced",
                batch_norm(other)[0],
                batch_norm(x)[0],
            ),
            lab.identical(
                "BatchNorm, running statistics",
                batch_norm(other, *running)[0],
                batch_norm(x, *running)[0],
            ),
            lab.identical("LayerNorm", layer_norm(other)[0], layer_norm(x)[0]),
            lab.identical("RMSNorm", rms_norm(other)[0], rms_norm(x)[0]),
        )
    )


def batch_norm_leaks_the_future(seed: int) -> Finding:
    """BatchNorm over batch and positions also leaks the future inside a sequence: a change of the last token moves
    earlier outputs, which no causal mask can stop.

    So a causal language model with BatchNorm has an optimistic training loss.
    """
    rng = lab.generator(seed)
    x = lab.normal(rng, 1, T, 8)
    other = x.copy()
    other[:, -1] = 3 * lab.normal(rng, 8)
    q_and_k = lab.normal(rng, 8, lab.HEADS, lab.HEAD_DIM) * np.float32(8**-0.5)

    def attended(x: np.ndarray) -> np.ndarray:
        q = np.einsum("btd,dnh->btnh", x, q_and_k).astype(np.float32)
        pad = lambda y: np.concatenate([y, y])  # noqa: E731 - one compiled program for two sequences
        v = np.zeros((1, T, lab.KV_HEADS, T), np.float32)
        v[..., :8] = x[:, :, None]
        return lab.attention(pad(q), pad(q[:, :, : lab.KV_HEADS]), pad(v), masks.causal(T))[:1, :-1]

    return Finding(
        (
            lab.differs(
                "BatchNorm: earlier places, last token changed",
                batch_norm(other)[:, :-1],
                batch_norm(x)[:, :-1],
            ),
            lab.differs(
                "BatchNorm, then causal attention",
                attended(batch_norm(other)),
                attended(batch_norm(x)),
            ),
            lab.identical(
                "LayerNorm: earlier places", layer_norm(other)[:, :-1], layer_norm(x)[:, :-1]
            ),
            lab.identical(
                "LayerNorm, then causal attention",
                attended(layer_norm(other)),
                attended(layer_norm(x)),
            ),
        )
    )


@jax.jit
def _decode(q_BTNH: Array, k_BSKH: Array, v_BSKH: Array, mask: masks.Mask) -> Array:
    """One query at a time against a cache that holds the keys written so far and zeros after them: [B, T, N, Hv]."""

    def step(cache: tuple[Array, Array], i: Array) -> tuple[tuple[Array, Array], Array]:
        def at(x: Array) -> Array:
            return lax.dynamic_slice_in_dim(x, i, 1, axis=1)

        k, v = (
            lax.dynamic_update_slice_in_dim(cached, at(x), i, axis=1)
            for cached, x in zip(cache, (k_BSKH, v_BSKH), strict=True)
        )
        out = attend(at(q_BTNH), k, v, mask.rows(i, 1), scale=lab.HEAD_DIM**-0.5)
        return (k, v), out[:, 0]

    empty = jnp.zeros_like(k_BSKH), jnp.zeros_like(v_BSKH)
    _, out_TBNH = lax.scan(step, empty, jnp.arange(T))
    return jnp.swapaxes(out_TBNH, 0, 1)


def prefixes_stand_alone(seed: int) -> Finding:
    """A causal network's outputs on a prefix are those on the whole sequence, f(x[:t]) = f(x)[:t], and decoding token by
    token from a cache gives the same again.

    False for a full mask, and for a prefix-LM whose prefix is cut.
    """
    rng = lab.generator(seed)
    params, tokens, t = lab.random_params(lab.NETWORK, rng), rng.integers(0, lab.VOCAB, (2, T)), 9

    def of_both(short: masks.Mask, long: masks.Mask) -> tuple[np.ndarray, np.ndarray]:
        return lab.logits(params, tokens[:, :t], short), lab.logits(params, tokens, long)[:, :t]

    q, k, v = lab.qkv(rng)
    measurements = [
        lab.same(f"{name}, 4 layers: first {t} of {T} tokens", *of_both(make(t), make(T)))
        for name, make in {
            "causal": masks.causal,
            "window of 3": lambda n: masks.sliding_window(n, 3),
        }.items()
    ]
    for name, mask in {
        "causal": masks.causal(T),
        "window of 3": masks.sliding_window(T, 3),
    }.items():
        decoded = np.asarray(_decode(q, k, v, mask.canonical(2)))
        measurements.append(
            lab.same(
                f"{name}: cached decoding against all at once",
                decoded,
                lab.attention(q, k, v, mask),
            )
        )
    return Finding(
        (
            *measurements,
            lab.differs("full mask: the same prefix", *of_both(masks.full(t), masks.full(T))),
            lab.differs(
                "prefix-LM with a prefix of 12, cut",
                *of_both(masks.full(t), masks.prefix_lm(T, 12)),
            ),
        )
    )


def only_attention_moves_information(seed: int) -> Finding:
    """Attention is the only step in which tokens touch: without it every output depends on its own token alone; with it,
    on exactly the tokens that the mask lets through."""
    rng = lab.generator(seed)
    params = lab.random_params(lab.NETWORK, rng)
    mlp_only = {
        n: lab.silenced(p, "attention") if n.startswith("block") else p for n, p in params.items()
    }
    attention_only = {
        n: lab.silenced(p, "mlp") if n.startswith("block") else p for n, p in params.items()
    }
    own = np.eye(T, dtype=bool)

    def strays(params: dict, mask: masks.Mask, expected: np.ndarray, depth: int) -> int:
        return int(np.sum(lab.dependencies(params, rng, mask, depth=depth) != expected))

    i, j = np.indices((T, T))
    document = np.repeat([0, 1, 2], [5, 7, 4])
    worded = {
        "causal": (masks.causal(T), j <= i),
        "strict causal": (masks.causal(T, offset=-1), j < i),
        "sliding window of 4": (masks.sliding_window(T, 4), (j <= i) & (i - j < 4)),
        "prefix-LM of 5": (masks.prefix_lm(T, 5), (j <= i) | (j < 5)),
        "documents": (masks.documents(document), (j <= i) & (document[i] == document[j])),
    }
    return Finding(
        (
            equal(
                "MLPs, norms, residuals, head, 4 layers: pairs off the diagonal",
                strays(mlp_only, masks.full(T), own, 4),
                0,
            ),
            *(
                # The residual stream carries one's own token, whatever the mask.
                equal(
                    f"attention, {name}, 1 layer: pairs that differ from it",
                    strays(attention_only, mask, allowed | own, 1),
                    0,
                )
                for name, (mask, allowed) in worded.items()
            ),
        )
    )


def a_bigram_sees_one_token(seed: int) -> Finding:
    """Without attention the prediction after "hou", "you" and "thou" is the same to the last bit: it depends on u alone."""
    rng = lab.generator(seed)
    params = lab.random_params(lab.NETWORK, rng)
    h, o, u, y, t, *rest = lab.distinct_tokens(rng, T + 2)
    words = np.array([[h, o, u, *rest], [y, o, u, *rest], [t, h, o, u, *rest[1:]]])

    def after_u(depth: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        out = lab.logits(params, words, masks.causal(T), depth=depth)
        return out[0, 2], out[1, 2], out[2, 3]

    hou, you, thou = after_u(0)
    hou1, you1, thou1 = after_u(1)
    return Finding(
        (
            lab.identical("no layers: you against hou", you, hou),
            lab.identical("no layers: thou against hou", thou, hou),
            lab.differs("1 layer: you against hou", you1, hou1),
            lab.differs("1 layer: thou against hou", thou1, hou1),
        )
    )


CHECKS = (
    Check("I15", nothing_crosses_the_batch, 'Six notes L39: "nothing crosses the batch"; One line changed L294: "sequence 0 did not change by one number"'),
    Check("I16", batch_norm_couples_sequences, 'One line changed L164: "BatchNorm\'s going by column is why samples couple"'),
    Check("I17", batch_norm_leaks_the_future, "attnlab: the second harm of One line changed L164"),
    Check("I29", prefixes_stand_alone, 'Six notes L114: "shorter contexts ... work unchanged"; On paper L34: "train next-token prediction at all T positions"'),
    Check("I32", only_attention_moves_information, 'On paper L27: "Attention is the only step in which tokens touch each other"'),
    Check("I33", a_bigram_sees_one_token, 'One line changed L15: "Each position\'s prediction depends only on that position\'s own character"'),
)  # fmt: skip
