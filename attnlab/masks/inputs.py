"""What the constructors of masks accept, and the one-line errors for everything else.

Lengths set shapes and are Python ints. Every other number is data: a Python int, a numpy or jax
integer array, or a traced value. Data are checked where their values are known; a traced value
cannot be, and its constructor says what an impossible one then means.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

# numpy where the values are known, jax where they are traced.
Data = Array | np.ndarray

INT32 = np.iinfo(np.int32)
# Typed: as Python ints they would make numpy widen to int64.
_LEAST, _GREATEST = np.int32(INT32.min), np.int32(INT32.max)


def length(name: str, value: Any) -> int:
    """A static length: an int >= 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        shape = getattr(value, "shape", None)
        of_shape = "" if shape is None else f" of shape {tuple(shape)}"
        raise TypeError(
            f"{name} sets a shape and must be a Python int, not {type(value).__name__}{of_shape}"
        )
    if value < 1:
        raise ValueError(f"{name} is {value}; it must be at least 1")
    return int(value)


def lengths(q_len: Any, kv_len: Any) -> tuple[int, int]:
    """(T, S); S is T where kv_len is None."""
    T = length("q_len", q_len)
    return T, T if kv_len is None else length("kv_len", kv_len)


def number(name: str, value: Any, low: int | None = None, high: int | None = None) -> Data:
    """Integer data, scalar, `[B]` or `[B, N]`, as strong int32 `(1|B, 1|N, 1)`.

    Values beyond int32 saturate. Raises TypeError for floats and bools, ValueError where a value
    that is known lies outside [low, high].
    """
    x = integers(name, value)
    if x.ndim > 2 or x.size == 0:
        raise ValueError(
            f"{name} has shape {x.shape}; it must be a scalar, [batch] or [batch, heads]"
        )
    check_range(name, x, low, high)
    return x.reshape((*x.shape, 1, 1, 1)[:3])


def span(name: str, start: Any, n: Any, size_name: str, size: int) -> tuple[Array, int]:
    """(start, n) with start an int32 scalar, known values checked to lie within `size`."""
    n = length("n", n)
    if n > size:
        raise ValueError(f"n is {n}; {size_name} is only {size}")
    x = number(name, start, low=0, high=size - n)
    if x.size != 1:
        raise ValueError(f"{name} must be one number; map over several with jax.vmap")
    return jnp.asarray(x).reshape(()), n


def integers(name: str, value: Any) -> Data:
    """Integer data of any shape as strong int32, saturating; numpy where the values are known."""
    x = value
    if not is_known(x):
        x = jnp.asarray(x)
    else:
        if isinstance(x, int) and not isinstance(x, bool):
            x = min(max(x, INT32.min), INT32.max)
        try:
            x = np.asarray(x)
        except ValueError:
            raise ValueError(f"{name} is a list whose rows differ in length") from None
        if x.size == 0 and x.dtype == np.float64:
            x = x.astype(np.int32)  # numpy calls an empty list float
    if not np.issubdtype(x.dtype, np.integer):
        raise TypeError(f"{name} must hold integers, not {x.dtype}")
    info, xp = np.iinfo(x.dtype), backend(x)
    if info.max > INT32.max:
        x = xp.minimum(x, xp.asarray(INT32.max, x.dtype))
    if info.min < INT32.min:
        x = xp.maximum(x, xp.asarray(INT32.min, x.dtype))
    if xp is np:
        return np.asarray(x, np.int32)
    return lax.convert_element_type(x, jnp.int32)


def booleans(name: str, value: Any) -> Array:
    """Boolean data, True = may read. Raises TypeError for 0/1 numbers and additive masks."""
    x = value if isinstance(value, jax.Array) else np.asarray(value)
    if x.dtype != np.bool_:
        raise TypeError(
            f"{name} must be boolean with True meaning 'may read', not {x.dtype}; "
            f"write `{name} != 0` for 0/1, `{name} > -1` for an additive mask"
        )
    return jnp.asarray(x)


def flag(name: str, value: Any) -> bool:
    """A static True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")
    return bool(value)


def check_range(name: str, x: Data, low: int | None = None, high: int | None = None) -> None:
    """Raises ValueError where the values are known and one lies outside [low, high]."""
    if not is_known(x):
        return
    known = np.asarray(x)
    bad = np.zeros(known.shape, bool)
    if low is not None:
        bad |= known < low
    if high is not None:
        bad |= known > high
    if bad.any():
        limits = (("at least", low), ("at most", high))
        allowed = " and ".join(f"{word} {limit}" for word, limit in limits if limit is not None)
        raise ValueError(f"{name} is {known[bad].flat[0]}; it must be {allowed}")


def is_known(value: Any) -> bool:
    """The values can be looked at: not a tracer, nor a list that contains one."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))


def backend(*arrays: Any) -> Any:
    """numpy if every array is numpy's, else jax.numpy."""
    return np if all(isinstance(x, np.ndarray) for x in arrays) else jnp


def add(a: Any, b: Any) -> Any:
    """int32 addition that saturates instead of wrapping, so that huge windows stay huge."""
    xp, total = backend(a, b), a + b
    wrapped = (a ^ total) & (b ^ total) < 0
    return xp.where(wrapped, xp.where(b < 0, _LEAST, _GREATEST), total)


def subtract(a: Any, b: Any) -> Any:
    """int32 subtraction that saturates instead of wrapping."""
    xp, total = backend(a, b), a - b
    wrapped = (a ^ b) & (a ^ total) < 0
    return xp.where(wrapped, xp.where(a < 0, _LEAST, _GREATEST), total)
