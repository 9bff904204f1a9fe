"""Fused kernels of GPUs and TPUs, each used only where it expresses the mask exactly.

These kernels take a mask as flags (causal, a window, lengths), not as data, so the bounds must be known while tracing: a
mask built outside `jit` and closed over, not one passed in or built inside. The flags are found by fitting them to the
bounds and checking that they give every bound back; where they do not, the request is refused with the reason. None of
them gives statistics or takes a position bias.

Not run on the hardware they are for: no GPU or TPU was at hand. What is tested is the refusals, that the calls trace
and lower for their platform, and the numbers of the TPU kernel in interpret mode.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attnlab.attention.bias import PositionBias
from attnlab.attention.blockwise import fold_scale
from attnlab.masks import Mask

PLATFORMS = {"cudnn": "gpu", "tokamax": None, "splash": "tpu"}


def refuse(impl: str, why: str) -> NoReturn:
    """Raises ValueError with the way out."""
    raise ValueError(f"impl={impl!r}: {why}; use impl='blockwise', which takes every mask as data")


def accelerated_attention(
    impl: str,
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKH: Array,
    mask: Mask,
    *,
    scale: Array | float,
    softcap: float | None,
    bias: PositionBias | None,
    stats: bool,
) -> tuple[Array, None]:
    """What `attend` specifies, by the kernel `impl`; arguments already checked.

    Raises:
      ValueError: the kernel cannot express the request, or does not exist on this machine.
    """
    if bias is not None:
        refuse(impl, "it takes a bias only as a [T, S] array")
    if stats:
        refuse(impl, "it gives no statistics")
    platform = PLATFORMS[impl]
    if platform is not None and jax.default_backend() != platform:
        refuse(impl, f"it runs on a {platform}, and this process runs on a {jax.default_backend()}")
    run = {"cudnn": cudnn, "tokamax": tokamax, "splash": splash}[impl]
    return run(q_BTNH, k_BSKH, v_BSKH, mask, scale=scale, softcap=softcap), None


@dataclass(frozen=True)
class Band:
    """i - left <= k <= i + right and k < length, for one example and head; None: unbounded on that side."""

    left: int | None
    right: int | None
    length: int


def fit_band(lo_T: np.ndarray, hi_T: np.ndarray) -> Band | None:
    """The band with these bounds on every row that is not empty, or None if there is no such band."""
    rows = np.flatnonzero(lo_T < hi_T)
    if not rows.size:
        return None
    lo, hi = lo_T[rows], hi_T[rows]
    length = int(hi.max())
    # A row that stops before the end says where the band ends; one that starts after 0 says where it begins.
    right = next((int(h - 1 - i) for i, h in zip(rows, hi, strict=True) if h < length), None)
    left = next((int(i - k) for i, k in zip(rows, lo, strict=True) if k > 0), None)
    want_lo = 0 if left is None else np.maximum(rows - left, 0)
    want_hi = length if right is None else np.minimum(rows + right + 1, length)
    return Band(left, right, length) if (lo == want_lo).all() and (hi == want_hi).all() else None


def fit_bands(impl: str, mask: Mask) -> list[list[Band]]:
    """The band of every example and head that the mask distinguishes, [1|B][1|N].

    Raises:
      ValueError: the mask is dense, its bounds are traced, or some row is no band.
    """
    if mask.dense is not None:
        refuse(impl, "it takes a dense mask only as a [T, S] bias")
    if isinstance(mask.lo, jax.core.Tracer) or isinstance(mask.hi, jax.core.Tracer):
        refuse(
            impl,
            "it takes a mask as flags, and the bounds of this one are traced: build it outside jit "
            "and close over it",
        )
    lo, hi = np.asarray(mask.lo), np.asarray(mask.hi)
    bands = [
        [fit_band(*rows) for rows in zip(*heads, strict=True)] for heads in zip(lo, hi, strict=True)
    ]
    if any(band is None for heads in bands for band in heads):
        refuse(impl, f"{mask} is no causal mask, window or length")
    return bands  # type: ignore[return-value]


@dataclass(frozen=True)
class Flags:
    """The mask as jax.nn.dot_product_attention and its kin take it."""

    is_causal: bool
    local_window_size: tuple[int, int] | None
    lengths: tuple[int, ...] | None  # of the keys, per example


def fit_flags(impl: str, mask: Mask, batch: int) -> Flags:
    """One causal flag and window for all examples and heads, and a length per example.

    A window is only ever a causal one, because the cuDNN path reads (left, 0) without the causal flag as "left, and the
    whole future" (jax-ml/jax#39576); and the diagonal of a rectangle is refused, because conventions differ.

    Raises:
      ValueError: these flags cannot express the mask.
    """
    bands = fit_bands(impl, mask)
    if len({(b.left, b.right) for heads in bands for b in heads}) > 1:
        refuse(impl, "its window is one for all examples and heads")
    if any(len({b.length for b in heads}) > 1 for heads in bands):
        refuse(impl, "its lengths are per example, not per head")
    band, lengths = bands[0][0], [heads[0].length for heads in bands]
    is_padded = any(length < mask.kv_len for length in lengths)
    if band.right not in (None, 0) or (band.left is not None and band.right is None):
        refuse(
            impl, f"its windows are causal, and this one is left={band.left}, right={band.right}"
        )
    if band.right == 0 and mask.q_len != mask.kv_len:
        refuse(impl, f"the diagonal of a {mask.q_len} x {mask.kv_len} mask is not one convention")
    if band.left is not None and is_padded:
        refuse(impl, "it has no window together with lengths")
    return Flags(
        is_causal=band.right == 0,
        local_window_size=None if band.left is None else (band.left, 0),
        lengths=tuple(lengths * (batch // len(lengths))) if is_padded else None,
    )


def cudnn(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKH: Array,
    mask: Mask,
    *,
    scale: Array | float,
    softcap: float | None,
) -> Array:
    """cuDNN's flash attention through jax.nn.dot_product_attention: full, causal, causal window, key lengths.

    Never run: it needs an NVIDIA GPU of compute capability 8.0 or later. jax itself refuses the shapes it does not
    take (head_dim a multiple of 8 and at most 128, 256 on capability 9.0 and later).
    """
    if softcap is not None:
        refuse("cudnn", "it has no softcap")
    if q_BTNH.dtype not in (jnp.bfloat16, jnp.float16):
        refuse("cudnn", f"it takes bfloat16 and float16, not {q_BTNH.dtype}")
    if k_BSKH.shape != v_BSKH.shape:
        refuse("cudnn", f"values {v_BSKH.shape} must be shaped like keys {k_BSKH.shape}")
    flags = fit_flags("cudnn", mask, q_BTNH.shape[0])
    q_BTNH, logit_scale = fold_scale(q_BTNH, scale)
    out_BTNH = jax.nn.dot_product_attention(
        q_BTNH,
        k_BSKH,
        v_BSKH,
        scale=logit_scale,
        is_causal=flags.is_causal,
        local_window_size=flags.local_window_size,
        key_value_seq_lengths=_lengths(flags),
        implementation="cudnn",
    )
    return _zero_empty(out_BTNH, mask)


def tokamax(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKH: Array,
    mask: Mask,
    *,
    scale: Array | float,
    softcap: float | None,
) -> Array:
    """tokamax.dot_product_attention (an extra: Python >= 3.12, jax >= 0.11), whichever of its kernels the device has.

    Masks that are flags go as flags. Every other mask goes as a boolean array, exact but [T, S] in memory, since the
    public interface has no row bounds. Its Triton kernel has no gradient with a softcap. Never run on a GPU or TPU.
    """
    try:
        library = importlib.import_module("tokamax")
    except ImportError as error:
        raise ValueError(
            "impl='tokamax': the package is not installed; pip install 'attnlab[tokamax]' "
            "(Python >= 3.12), or use impl='blockwise'"
        ) from error
    try:
        flags, allowed = fit_flags("tokamax", mask, q_BTNH.shape[0]), None
    except ValueError:
        flags, allowed = Flags(False, None, None), mask.as_array()
    q_BTNH, logit_scale = fold_scale(q_BTNH, scale)
    out_BTNH = library.dot_product_attention(
        q_BTNH,
        k_BSKH,
        v_BSKH,
        mask=allowed,
        scale=logit_scale,
        is_causal=flags.is_causal,
        local_window_size=flags.local_window_size,
        key_value_seq_lengths=_lengths(flags),
        logits_soft_cap=softcap,
    )
    return _zero_empty(out_BTNH, mask)


def splash(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKH: Array,
    mask: Mask,
    *,
    scale: Array | float,
    softcap: float | None,
    interpret: bool = False,
) -> Array:
    """The splash attention kernel of jax.experimental.pallas for TPUs: full, causal and windowed, by head if N = K.

    Both lengths must be multiples of 128 and every query must see a key. Never run on a TPU; `interpret` runs it
    anywhere, slowly.
    """
    library = "jax.experimental.pallas.ops.tpu.splash_attention"
    kernels = importlib.import_module(f"{library}.splash_attention_kernel")
    masks = importlib.import_module(f"{library}.splash_attention_mask")
    (q_len, heads), (kv_len, kv_heads) = q_BTNH.shape[1:3], k_BSKH.shape[1:3]
    if q_len % 128 or kv_len % 128:
        refuse("splash", f"it takes lengths that are multiples of 128, not {q_len} and {kv_len}")
    bands = fit_bands("splash", mask)
    if len(bands) > 1 and any(heads_of != bands[0] for heads_of in bands):
        refuse("splash", "its mask is one for all examples")
    if not (np.asarray(mask.lo) < np.asarray(mask.hi)).all():
        refuse("splash", "it divides by zero where a query sees no key")
    if any(band.length < kv_len for band in bands[0]):
        refuse("splash", "it takes lengths only as segment ids")
    if kv_heads != heads and len(set(bands[0])) > 1:
        refuse("splash", "with grouped kv heads its mask is one for all heads")
    shape, per_kernel = (q_len, kv_len), heads if kv_heads == heads else heads // kv_heads
    members = [
        masks.FullMask(shape)
        if band.left is None and band.right is None
        else masks.LocalMask(shape, (band.left, band.right), 0)
        for band in bands[0]
    ]
    # One for all heads, or one each; alike where heads are grouped.
    members = members if len(members) == per_kernel else members[:1] * per_kernel
    make: Callable[..., Any] = (
        kernels.make_splash_mha if kv_heads == heads else kernels.make_splash_mqa
    )
    kernel = make(
        masks.MultiHeadMask(members),
        block_sizes=_splash_blocks(kernels, q_len, kv_len),
        attn_logits_soft_cap=softcap,
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    # The kernel has no scale of its own, so even one that rounds is multiplied into q.
    q_BTNH, logit_scale = fold_scale(q_BTNH, scale)
    q_BNTH = (q_BTNH * jnp.asarray(logit_scale, q_BTNH.dtype)).swapaxes(1, 2)
    k_BKSH, v_BKSH = k_BSKH.swapaxes(1, 2), v_BSKH.swapaxes(1, 2)
    if kv_heads == heads:
        out_BNTH = jax.vmap(kernel)(q_BNTH, k_BKSH, v_BKSH)
    else:
        q_BKGTH = q_BNTH.reshape(q_BNTH.shape[0], kv_heads, per_kernel, *q_BNTH.shape[2:])
        out_BNTH = jax.vmap(jax.vmap(kernel))(q_BKGTH, k_BKSH, v_BKSH)
        out_BNTH = out_BNTH.reshape(*q_BNTH.shape[:3], -1)
    return _zero_empty(out_BNTH.swapaxes(1, 2).astype(q_BTNH.dtype), mask)


def _splash_blocks(kernels: Any, q_len: int, kv_len: int) -> Any:
    """Tiles of at most 512 that divide the lengths, forward and backward."""
    bq, bk = (next(b for b in (512, 256, 128) if n % b == 0) for n in (q_len, kv_len))
    return kernels.BlockSizes(
        block_q=bq, block_kv=bk, block_kv_compute=bk,
        block_q_dkv=bq, block_kv_dkv=bk, block_kv_dkv_compute=bk,
        block_q_dq=bq, block_kv_dq=bk,
    )  # fmt: skip


def _lengths(flags: Flags) -> Array | None:
    return None if flags.lengths is None else jnp.asarray(flags.lengths, jnp.int32)


def _zero_empty(out_BTNH: Array, mask: Mask) -> Array:
    """The specification's 0 for queries that may read nothing, whatever the kernel made of them."""
    return jnp.where(mask.nonempty.swapaxes(1, 2)[..., None], out_BTNH, 0)
