"""What the checks share: one small network, jitted attention, random arrays, and two thresholds.

The network is `attnlab.model` with four layers, and every check uses the same compiled program: the mask and the
position families are data, and so is the depth, because a block whose output kernels are 0 adds exactly 0.
Parameters are drawn here, wider than at initialisation (gains and tables too): the claims hold for any.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from attnlab import model
from attnlab.attention import PositionBias, attend
from attnlab.checks import Measurement, at_least, at_most, equal
from attnlab.knobs import Architecture, ModelKnobs
from attnlab.masks import Mask, graph, key_padding

# Relative to the larger of 1 and the largest reference value. float32 rounds at 1e-7 and a few layers add up.
EQUAL = 1e-5
# A real effect is O(1) here; a thousand times the rounding still counts.
DIFFERENT = 1e-2

LENGTH = 16  # T, and the batch size: one row per token that is replaced
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8
VOCAB = 24
MASKED, BOS = 24, 25  # the two ids that are read but never predicted
NETWORK = Architecture(
    vocab_size=VOCAB,
    input_size=VOCAB + 2,
    context=LENGTH,
    layers=4,
    width=HEADS * HEAD_DIM,
    heads=HEADS,
    kv_heads=KV_HEADS,
    mlp_width=64,
    position_families=("alibi", "learned", "rope"),
)
DEPTHS = (1, 2, 4)


def generator(seed: int) -> np.random.Generator:
    """The random numbers of one check; equal seeds, equal numbers."""
    return np.random.Generator(np.random.SFC64(seed))


def layers(depth: int) -> str:
    """`1 layer`, `2 layers`."""
    return f"{depth} layer" + "s" * (depth > 1)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Independent standard normals, float32."""
    return rng.standard_normal(shape, np.float32)


def largest(difference: np.ndarray) -> float:
    """max |difference|; infinite if any entry is not finite."""
    return float(np.max(np.abs(difference))) if np.all(np.isfinite(difference)) else np.inf


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """max |a - b| relative to the larger of 1 and max |b|."""
    if a.shape != b.shape:
        raise ValueError(f"shapes {a.shape} and {b.shape} differ")
    return largest(a.astype(np.float64) - b) / max(1.0, largest(b))


def same(quantity: str, a: np.ndarray, b: np.ndarray) -> Measurement:
    """`a` is `b` up to float32 rounding."""
    return at_most(quantity, distance(a, b), EQUAL)


def differs(quantity: str, a: np.ndarray, b: np.ndarray) -> Measurement:
    """`a` is visibly not `b`."""
    return at_least(quantity, distance(a, b), DIFFERENT)


def identical(quantity: str, a: np.ndarray, b: np.ndarray) -> Measurement:
    """`a` is `b`, bit for bit (0 and -0 alike)."""
    return equal(quantity, distance(a, b), 0.0)


def random_params(arch: Architecture, rng: np.random.Generator) -> dict[str, Any]:
    """Parameters of `arch`: kernels of variance 1/fan_in, tables of variance 1, gains 1 ± 0.2."""

    def draw(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        values = normal(rng, *leaf.shape)
        name = path[-1].key
        if name.endswith("gain"):
            return 1 + np.float32(0.2) * values
        return values * np.float32(leaf.shape[0] ** -0.5) if name.endswith("kernel") else values

    return jax.tree_util.tree_map_with_path(draw, _shapes(arch))


@functools.cache
def _shapes(arch: Architecture) -> Any:
    seed = jax.ShapeDtypeStruct((), np.uint32)
    return jax.eval_shape(functools.partial(model.init, arch), seed)


def at_depth(params: dict[str, Any], depth: int) -> dict[str, Any]:
    """The first `depth` blocks only: the others add 0 to the residual stream."""
    return {
        name: silenced(value) if name.startswith("block") and int(name[-2:]) >= depth else value
        for name, value in params.items()
    }


def silenced(block: dict[str, Any], *sublayers: str) -> dict[str, Any]:
    """A block whose `attention`, `mlp` or (by default) both add exactly 0."""
    block = dict(block)
    for sublayer in sublayers or ("attention", "mlp"):
        kernel = {"attention": "out_kernel", "mlp": "down_kernel"}[sublayer]
        block[sublayer] = {**block[sublayer], kernel: np.zeros_like(block[sublayer][kernel])}
    return block


@jax.jit
def _logits(params: Any, tokens_BT: Array, mask: Mask, knobs: ModelKnobs) -> Array:
    return model.apply(NETWORK, params, tokens_BT, mask, knobs)[0]


def logits(
    params: dict[str, Any],
    tokens_BT: np.ndarray,
    mask: Mask,
    *,
    depth: int = NETWORK.layers,
    positions: Sequence[str] = (),
    center: float = 1.0,
) -> np.ndarray:
    """What the network predicts: float32 [B, T, V].

    `positions`: the families that are switched on; none by default. `center`: 1 LayerNorm, 0 RMSNorm.
    Examples are padded to LENGTH of them, so that every call is the same program.
    """
    B, T = tokens_BT.shape
    tokens = np.zeros((max(B, LENGTH), T), np.int32)
    tokens[:B] = tokens_BT
    knobs = ModelKnobs(
        positions={f: np.float32(f in positions) for f in NETWORK.position_families},
        qk_norm={},
        norm_center=np.float32(center),
        logit_scale=np.float32(HEAD_DIM**-0.5),
    )
    out = _logits(at_depth(params, depth), tokens, mask.canonical(len(tokens)), knobs)
    return np.asarray(out)[:B]


def dependencies(
    params: dict[str, Any], rng: np.random.Generator, mask: Mask, **how: Any
) -> np.ndarray:
    """bool [T, T]: entry (i, j) says that output i changes, in any bit, when input token j is replaced."""
    tokens_T = rng.integers(0, VOCAB, LENGTH)
    replaced_TT = np.tile(tokens_T, (LENGTH, 1))
    np.fill_diagonal(replaced_TT, (tokens_T + rng.integers(1, VOCAB, LENGTH)) % VOCAB)
    # Both calls hold the same rows at the same places, so what is unaffected is equal to the last bit.
    before_JTV = logits(params, np.tile(tokens_T, (LENGTH, 1)), mask, **how)
    after_JTV = logits(params, replaced_TT, mask, **how)
    return np.any(before_JTV != after_JTV, axis=-1).T


def distinct_tokens(rng: np.random.Generator, count: int = LENGTH) -> np.ndarray:
    """`count` different ids."""
    return rng.permutation(VOCAB)[:count]


def derangement(rng: np.random.Generator, size: int) -> np.ndarray:
    """A permutation of 0 .. size-1 that leaves nothing in its place: one random cycle."""
    cycle = rng.permutation(size)
    places = np.empty(size, np.int64)
    places[cycle] = np.roll(cycle, 1)
    return places


def qkv(
    rng: np.random.Generator, *, batch: int = 2, length: int = LENGTH, kv_length: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Standard normal queries [B, T, N, H], keys [B, S, K, H] and values [B, S, K, S]."""
    S = length if kv_length is None else kv_length
    return (
        normal(rng, batch, length, HEADS, HEAD_DIM),
        normal(rng, batch, S, KV_HEADS, HEAD_DIM),
        normal(rng, batch, S, KV_HEADS, S),
    )


@functools.partial(jax.jit, static_argnames="softcap")
def _attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Mask,
    scale: Array,
    bias: PositionBias | None,
    softcap: float | None,
) -> Array:
    return attend(q, k, v, mask, scale=scale, bias=bias, softcap=softcap)


def attention(
    q_BTNH: np.ndarray,
    k_BSKH: np.ndarray,
    v_BSKH: np.ndarray,
    mask: Mask,
    *,
    scale: float | None = None,
    bias: PositionBias | None = None,
    softcap: float | None = None,
) -> np.ndarray:
    """`attend`, jitted; the scale is 1/sqrt(head size) unless given."""
    scale = q_BTNH.shape[-1] ** -0.5 if scale is None else scale
    mask = mask.canonical(len(q_BTNH))
    return np.asarray(_attention(q_BTNH, k_BSKH, v_BSKH, mask, np.float32(scale), bias, softcap))


@jax.jit
def _gradients(
    q: Array, k: Array, v: Array, mask: Mask, bias: PositionBias | None
) -> tuple[Array, Array, Array]:
    def total(q: Array, k: Array, v: Array) -> Array:
        return (attend(q, k, v, mask, scale=HEAD_DIM**-0.5, bias=bias) ** 2).sum()

    return jax.grad(total, argnums=(0, 1, 2))(q, k, v)


def gradients(
    q_BTNH: np.ndarray,
    k_BSKH: np.ndarray,
    v_BSKH: np.ndarray,
    mask: Mask,
    *,
    bias: PositionBias | None = None,
) -> tuple[np.ndarray, ...]:
    """Gradients by q, k and v of the sum of squared outputs of `attend`."""
    found = _gradients(q_BTNH, k_BSKH, v_BSKH, mask.canonical(len(q_BTNH)), bias)
    return tuple(np.asarray(g) for g in found)


@functools.partial(jax.jit, static_argnames="self_loops")
def _graph(edge_index: Array, self_loops: bool) -> Mask:
    return graph(edge_index, LENGTH, self_loops)


def graph_mask(edge_index: np.ndarray, *, self_loops: bool = False) -> Mask:
    """`masks.graph` over LENGTH nodes, jitted."""
    return _graph(edge_index.astype(np.int32), self_loops)


def weights(
    q_BTNH: np.ndarray, k_BSKH: np.ndarray, mask: Mask, *, scale: float | None = None
) -> np.ndarray:
    """The attention weights, float32 [B, T, N, S]: what `attend` does to values that are the unit vectors."""
    B, S, K, _ = k_BSKH.shape
    unit = np.broadcast_to(np.eye(S, dtype=np.float32)[None, :, None], (B, S, K, S))
    return attention(q_BTNH, k_BSKH, unit, mask, scale=scale)


def row_weights(
    scores: Sequence[float] | np.ndarray, visible: int | None = None, scale: float = 1.0
) -> np.ndarray:
    """The weights `attend` gives one query whose scores against its keys are these; keys from `visible` on are hidden."""
    size = 8  # one program for all rows
    n = len(scores)
    visible = n if visible is None else visible
    k = np.zeros((1, size, 1, 1), np.float32)
    k[0, :n, 0, 0] = scores
    mask = key_padding(1, lengths=visible, kv_len=size)
    return weights(np.ones((1, 1, 1, 1), np.float32), k, mask, scale=scale)[0, 0, 0, :n]


def scores(q_BTNH: np.ndarray, k_BSKH: np.ndarray, scale: float | None = None) -> np.ndarray:
    """q . k * scale in float64, [B, N, T, S]: what the deliberately wrong variants start from."""
    N, H = q_BTNH.shape[2:]
    k_BSNH = np.repeat(k_BSKH, N // k_BSKH.shape[2], axis=2).astype(np.float64)
    return np.einsum("btnh,bsnh->bnts", q_BTNH, k_BSNH) * (H**-0.5 if scale is None else scale)


def mix(weights_BNTS: np.ndarray, v_BSKH: np.ndarray) -> np.ndarray:
    """Weights times values, [B, T, N, Hv]."""
    N = weights_BNTS.shape[1]
    return np.einsum(
        "bnts,bsnh->btnh", weights_BNTS, np.repeat(v_BSKH, N // v_BSKH.shape[2], axis=2)
    )


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """exp(x) / sum exp(x); -inf gives 0."""
    exponentials = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return exponentials / exponentials.sum(axis=axis, keepdims=True)
