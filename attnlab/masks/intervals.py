"""Masks whose rows are intervals by arithmetic: full, causal, windows, prefixes, chunks, padding.

All numbers but the lengths are data (`inputs.number`): a scalar, one per example `[B]`, or one per
example and head `[B, N]`, traced or not. i is the query, k the key.
"""

from typing import Any, Literal

import numpy as np

from attnlab.masks import inputs
from attnlab.masks.inputs import Data
from attnlab.masks.mask import Mask, make

Align = Literal["top_left", "bottom_right"]


def full(q_len: int, kv_len: int | None = None) -> Mask:
    """Every query reads every key: an encoder, or cross-attention.

    full(6):

        xxxxxx
        xxxxxx
        xxxxxx
        xxxxxx
        xxxxxx
        xxxxxx
    """
    T, S = inputs.lengths(q_len, kv_len)
    return make(_zeros(T), _zeros(T) + S, None, S)


def causal(
    q_len: int, kv_len: int | None = None, *, offset: Any = None, align: Align | None = None
) -> Mask:
    """k <= i + offset. The default 0 is the decoder's mask; -1 forbids reading oneself.

    causal(6) and causal(6, offset=-1):

        x.....    ......
        xx....    x.....
        xxx...    xx....
        xxxx..    xxx...
        xxxxx.    xxxx..
        xxxxxx    xxxxx.

    A rectangle must say which corner the diagonal runs through, because libraries disagree:
    `align="top_left"` is offset 0; `align="bottom_right"` is offset kv_len - q_len (the queries are
    the last tokens, as with a key-value cache); `offset` may be any integer, as data.
    """
    return window(q_len, kv_len, left=None, right=0, offset=offset, align=align)


def window(
    q_len: int,
    kv_len: int | None = None,
    *,
    left: Any,
    right: Any,
    offset: Any = None,
    align: Align | None = None,
) -> Mask:
    """i + offset - left <= k <= i + offset + right; None leaves that side unbounded.

    `left` and `right` count keys beside the query's own, as in jax.nn and flash-attention, and are
    never negative: -1 means "unbounded" in one library and "not even oneself" in another. (Traced
    negative values cannot raise; the inequality above then holds as written.)

    window(6, left=1, right=1) and window(6, left=None, right=2):

        xx....    xxx...
        xxx...    xxxx..
        .xxx..    xxxxx.
        ..xxx.    xxxxxx
        ...xxx    xxxxxx
        ....xx    xxxxxx

    Rectangles need `align` or `offset`, see `causal`.
    """
    T, S = inputs.lengths(q_len, kv_len)
    shift = _offset(T, S, offset, align)
    lo: Data = _zeros(T)
    hi: Data = _zeros(T) + S
    if left is not None:
        # i comes last: only then does a saturated sum still lie beyond every key.
        lo = inputs.add(inputs.subtract(shift, inputs.number("left", left, low=0)), _iota(T))
    if right is not None:
        hi = inputs.add(inputs.add(shift, inputs.number("right", right, low=0)), _iota(T) + 1)
    return make(lo, hi, None, S)


def sliding_window(
    q_len: int,
    size: Any,
    kv_len: int | None = None,
    *,
    offset: Any = None,
    align: Align | None = None,
) -> Mask:
    """The `size` latest keys, the query's own included (Mistral, Gemma): causal and local.

    Equal to `window(left=size - 1, right=0)`. A traced size below 1 gives empty rows.

    sliding_window(6, 3):

        x.....
        xx....
        xxx...
        .xxx..
        ..xxx.
        ...xxx
    """
    T, S = inputs.lengths(q_len, kv_len)
    shift = _offset(T, S, offset, align)
    size = inputs.number("size", size, low=1)
    lo = inputs.add(inputs.subtract(shift, size), _iota(T) + 1)
    return make(lo, inputs.add(shift, _iota(T) + 1), None, S)


def prefix_lm(q_len: int, prefix_len: Any) -> Mask:
    """Bidirectional over the first `prefix_len` tokens, causal after: k < max(prefix_len, i + 1).

    0 and 1 are both `causal`, q_len is `full`. Traced values outside [0, q_len] are clipped.

    prefix_lm(6, 3):

        xxx...
        xxx...
        xxx...
        xxxx..
        xxxxx.
        xxxxxx
    """
    T = inputs.length("q_len", q_len)
    prefix = inputs.number("prefix_len", prefix_len, low=0, high=T)
    hi = inputs.backend(prefix).maximum(prefix, _iota(T) + 1)
    return make(_zeros(T), hi, None, T)


def chunked(q_len: int, chunk: Any) -> Mask:
    """Causal within consecutive chunks of `chunk` tokens, nothing across (Llama 4's local layers).

    A traced chunk below 1 counts as 1.

    chunked(6, 2):

        x.....
        xx....
        ..x...
        ..xx..
        ....x.
        ....xx
    """
    T = inputs.length("q_len", q_len)
    size = _at_least_1(inputs.number("chunk", chunk, low=1))
    return make(_iota(T) // size * size, _iota(T) + 1, None, T)


def block_causal(q_len: int, block: Any) -> Mask:
    """Bidirectional within consecutive blocks, causal across them (block diffusion, video frames).

    A traced block below 1 counts as 1.

    block_causal(6, 2):

        xx....
        xx....
        xxxx..
        xxxx..
        xxxxxx
        xxxxxx
    """
    T = inputs.length("q_len", q_len)
    size = _at_least_1(inputs.number("block", block, low=1))
    return make(_zeros(T), (_iota(T) // size + 1) * size, None, T)


def key_padding(
    q_len: int, *, lengths: Any = None, starts: Any = None, kv_len: int | None = None
) -> Mask:
    """starts <= k < lengths, for every query: right padding, left padding, or both.

    `lengths` is the end of the real keys, so a left-padded row of total length S has lengths S.
    Combine with `&`. Padded queries stay alive: what they compute must have loss weight 0, or
    gradients flow from it into the real keys; `documents` empties them instead.
    Traced values outside [0, kv_len] are clipped.

    causal(6) & key_padding(6, lengths=4), and with starts=2:

        x.....    ......
        xx....    ......
        xxx...    ..x...
        xxxx..    ..xx..
        xxxx..    ..xxx.
        xxxx..    ..xxxx
    """
    if lengths is None and starts is None:
        raise ValueError("lengths, starts or both must be given; the mask without padding is full")
    T, S = inputs.lengths(q_len, kv_len)
    lo: Data = _zeros(T)
    hi: Data = _zeros(T) + S
    if starts is not None:
        lo = inputs.number("starts", starts, low=0, high=S) + lo
    if lengths is not None:
        hi = inputs.number("lengths", lengths, low=0, high=S) + _zeros(T)
    return make(lo, hi, None, S)


def _offset(T: int, S: int, offset: Any, align: Align | None) -> Data:
    if align not in (None, "top_left", "bottom_right"):
        raise ValueError(f"align is {align!r}; it must be 'top_left' or 'bottom_right'")
    if offset is not None and align is not None:
        raise ValueError(f"align={align!r} and offset are two ways to say one thing; give one")
    if offset is None and align is None and T != S:
        raise ValueError(
            f"q_len {T} and kv_len {S} differ, so the diagonal is ambiguous: give "
            f"align='top_left' (offset 0), align='bottom_right' (offset {S - T}) or offset"
        )
    if offset is None:
        offset = S - T if align == "bottom_right" else 0
    return inputs.number("offset", offset)


def _at_least_1(size: Data) -> Data:
    return inputs.backend(size).maximum(size, 1)


def _iota(T: int) -> np.ndarray:
    return np.arange(T, dtype=np.int32).reshape(1, 1, T)


def _zeros(T: int) -> np.ndarray:
    return np.zeros((1, 1, T), np.int32)
