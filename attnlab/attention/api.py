"""The one door to attention: checks every argument, chooses an implementation, calls it."""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attnlab.attention import accelerators
from attnlab.attention.bias import PositionBias
from attnlab.attention.blockwise import blockwise_attention
from attnlab.attention.dense import dense_attention
from attnlab.attention.stats import AttentionStats
from attnlab.masks import Mask

IMPLEMENTATIONS = ("dense", "blockwise", *accelerators.PLATFORMS)

# Up to this many query-key pairs `auto` keeps all logits in memory.
DENSE_PAIRS = {"cpu": 512 * 512, "gpu": 2048 * 2048, "tpu": 2048 * 2048}


@overload
def attend(
    q_BTNH: Array, k_BSKH: Array, v_BSKH: Array, mask: Mask, *, scale: Array | float,
    softcap: float | None = None, bias: PositionBias | None = None, impl: str = "auto",
    stats: Literal[False] = False, block_q: int | None = None, block_k: int | None = None,
) -> Array: ...  # fmt: skip
@overload
def attend(
    q_BTNH: Array, k_BSKH: Array, v_BSKH: Array, mask: Mask, *, scale: Array | float,
    softcap: float | None = None, bias: PositionBias | None = None, impl: str = "auto",
    stats: Literal[True], block_q: int | None = None, block_k: int | None = None,
) -> tuple[Array, AttentionStats]: ...  # fmt: skip
@overload
def attend(
    q_BTNH: Array, k_BSKH: Array, v_BSKH: Array, mask: Mask, *, scale: Array | float,
    softcap: float | None = None, bias: PositionBias | None = None, impl: str = "auto",
    stats: bool, block_q: int | None = None, block_k: int | None = None,
) -> Array | tuple[Array, AttentionStats]: ...  # fmt: skip
def attend(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKH: Array,
    mask: Mask,
    *,
    scale: Array | float,
    softcap: float | None = None,
    bias: PositionBias | None = None,
    impl: str = "auto",
    stats: bool = False,
    block_q: int | None = None,
    block_k: int | None = None,
) -> Array | tuple[Array, AttentionStats]:
    """Scaled dot-product attention over the keys that `mask` lets each query read.

        logits = q . k * scale + bias;  logits = softcap * tanh(logits / softcap);  forbidden: weight 0
        out_i  = sum over allowed k of softmax(logits_i)_k * v_k

    A query that may read no key gets out = 0, contributes no gradient and has log-sum-exp -inf, in every
    implementation. (jax.nn.dot_product_attention and flax return the mean of all values there.)

    Logits, softmax and sums are float32 for float32, bfloat16 and float16 inputs; the weights are rounded to the
    dtype of the values before they meet them. Keys that no query may read may hold anything finite.

    Args:
      q_BTNH: queries, float [B, T, N, H].
      k_BSKH: keys, float [B, S, K, H]. N is a multiple of K; query head n reads kv head n // (N / K) (Ainslie et al.
        2023). Keys and values are never repeated in memory.
      v_BSKH: values, float [B, S, K, Hv]; Hv may differ from H.
      mask: who may read whom (attnlab.masks). Data: changing it never retraces.
      scale: multiplies q . k: a Python float, or an array [] or [N] that may be traced, swept or learned. There is
        no default: a scale applied twice, or never, is too common a fault.
      softcap: None, or a static number > 0 (Gemma 2).
      bias: None, or a position bias (attnlab.attention.bias); added after the scale, before the cap.
      impl: "auto" (see `choose_impl`) or the name of an implementation.
      stats: also return AttentionStats. Static; off, it costs nothing.
      block_q, block_k: tile sizes of the blockwise implementation; None chooses from the shapes.

    Returns:
      out [B, T, N, Hv] in the dtype of q, or (out, AttentionStats).

    Raises:
      TypeError, ValueError: an argument that is no such thing; shapes, dtypes or lengths that do not fit together;
        an implementation that cannot express the request. All at trace time.
    """
    _check_qkv(q_BTNH, k_BSKH, v_BSKH)
    batch, q_len, heads, _ = q_BTNH.shape
    kv_len = k_BSKH.shape[1]
    mask = _check_mask(mask, batch, heads, q_len, kv_len)
    scale = _check_scale(scale, heads)
    softcap = _check_softcap(softcap)
    if bias is not None:
        if not isinstance(bias, PositionBias):
            raise TypeError(
                f"bias: got {type(bias).__name__}; allowed: None or a position bias such as Alibi"
            )
        bias = bias.canonical(batch, heads)
        bias.check(batch, heads, q_len, kv_len)
    for name, block in (("block_q", block_q), ("block_k", block_k)):
        _check_block(name, block)
    if impl == "auto" and (block_q or block_k):
        impl = "blockwise"
    name = choose_impl(q_len, kv_len, impl=impl)
    if name != "blockwise" and (block_q or block_k):
        raise ValueError(f"block_q, block_k: impl={name!r} has no blocks; allowed: None")
    run: Callable[..., tuple[Array, AttentionStats | None]] = dense_attention
    if name == "blockwise":
        run = partial(blockwise_attention, block_q=block_q, block_k=block_k)
    elif name in accelerators.PLATFORMS:
        run = partial(accelerators.accelerated_attention, name)
    out_BTNH, statistics = run(
        q_BTNH, k_BSKH, v_BSKH, mask, scale=scale, softcap=softcap, bias=bias, stats=stats
    )
    if statistics is None:
        return out_BTNH
    return out_BTNH, statistics


def choose_impl(q_len: int, kv_len: int, *, impl: str = "auto") -> str:
    """The implementation that `attend` uses for these lengths on this platform; a run record names it.

    "auto" is `dense` while all logits together are few enough to be cheap, and `blockwise` beyond; the limit is measured
    on a CPU and a guess elsewhere. A mask is data, so "auto" cannot depend on what it allows, and never picks a fused
    kernel that takes the mask as flags: those are asked for by name.
    """
    if impl not in ("auto", *IMPLEMENTATIONS):
        raise ValueError(f"impl: got {impl!r}; allowed: auto, {', '.join(IMPLEMENTATIONS)}")
    if impl != "auto":
        return impl
    limit = DENSE_PAIRS.get(jax.default_backend(), DENSE_PAIRS["gpu"])
    return "dense" if q_len * kv_len <= limit else "blockwise"


def _check_block(name: str, block: int | None) -> None:
    if block is None:
        return
    if isinstance(block, bool) or not isinstance(block, int | np.integer):
        raise TypeError(f"{name}: got {type(block).__name__}; allowed: None or an int >= 1")
    if block < 1:
        raise ValueError(f"{name}: got {block}; allowed: None or an int >= 1")


def _check_qkv(q_BTNH: Array, k_BSKH: Array, v_BSKH: Array) -> None:
    for name, x in (("q_BTNH", q_BTNH), ("k_BSKH", k_BSKH), ("v_BSKH", v_BSKH)):
        if not isinstance(x, Array | np.ndarray) or not jnp.issubdtype(x.dtype, jnp.floating):
            raise TypeError(
                f"{name}: got {getattr(x, 'dtype', type(x).__name__)}; allowed: a float array"
            )
        if x.ndim != 4 or 0 in x.shape:
            raise ValueError(
                f"{name}: shape {x.shape}; allowed: four non-empty axes (batch, length, heads, head_dim)"
            )
    if not q_BTNH.dtype == k_BSKH.dtype == v_BSKH.dtype:
        raise TypeError(
            f"q, k, v: dtypes {q_BTNH.dtype}, {k_BSKH.dtype}, {v_BSKH.dtype}; allowed: one dtype for all three"
        )
    for axis, what in ((0, "batch"), (3, "head_dim")):
        if q_BTNH.shape[axis] != k_BSKH.shape[axis]:
            raise ValueError(
                f"k_BSKH: {what} {k_BSKH.shape[axis]}; allowed: {q_BTNH.shape[axis]}, as in q_BTNH"
            )
    if k_BSKH.shape[:3] != v_BSKH.shape[:3]:
        raise ValueError(
            f"v_BSKH: shape {v_BSKH.shape}; allowed: {(*k_BSKH.shape[:3], 'any')}, as in k_BSKH"
        )
    if q_BTNH.shape[2] % k_BSKH.shape[2]:
        raise ValueError(
            f"q_BTNH: {q_BTNH.shape[2]} heads; allowed: a multiple of the {k_BSKH.shape[2]} kv heads"
        )


def _check_mask(mask: Mask, batch: int, heads: int, q_len: int, kv_len: int) -> Mask:
    if not isinstance(mask, Mask):
        raise TypeError(
            f"mask: got {type(mask).__name__}; allowed: a Mask, such as masks.causal({q_len}) or "
            f"masks.full({q_len}, {kv_len}); there is no default"
        )
    for name, have, want in (("q_len", mask.q_len, q_len), ("kv_len", mask.kv_len, kv_len)):
        if have != want:
            raise ValueError(
                f"mask: {name} {have}; allowed: {want}, the length of the array it masks"
            )
    if (
        mask.lo.ndim != 3
        or mask.lo.shape[0] not in (1, batch)
        or mask.lo.shape[1] not in (1, heads)
    ):
        raise ValueError(
            f"mask: shape {mask.lo.shape}; allowed: (1 or {batch}, 1 or {heads}, {q_len})"
        )
    return mask


def _check_scale(scale: Array | float, heads: int) -> Array | float:
    """A float, or a float32 array [1, 1|N] with the leading batch axis that folding a vmap needs."""
    if isinstance(scale, bool) or not isinstance(
        scale, int | float | Array | np.ndarray | np.number
    ):
        raise TypeError(
            f"scale: got {type(scale).__name__}; allowed: a number, or an array [] or [{heads}]"
        )
    if isinstance(scale, int | float | np.number):
        if not math.isfinite(scale):
            raise ValueError(f"scale: got {scale}; allowed: a finite number")
        return float(scale)
    if scale.shape not in ((), (heads,)):
        raise ValueError(f"scale: shape {scale.shape}; allowed: () or ({heads},), one per head")
    if jnp.issubdtype(scale.dtype, jnp.complexfloating) or scale.dtype == jnp.bool_:
        raise TypeError(f"scale: dtype {scale.dtype}; allowed: a float")
    return jnp.asarray(scale, jnp.float32).reshape(1, -1)


def _check_softcap(softcap: float | None) -> float | None:
    if softcap is None:
        return None
    if isinstance(softcap, jax.core.Tracer | bool) or not isinstance(
        softcap, int | float | np.number
    ):
        raise TypeError(
            f"softcap: got {type(softcap).__name__}; allowed: None or a static number > 0"
        )
    if not (math.isfinite(softcap) and softcap > 0):
        raise ValueError(f"softcap: got {softcap}; allowed: None (no cap) or a finite number > 0")
    return float(softcap)
