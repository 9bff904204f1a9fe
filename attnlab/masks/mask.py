"""The `Mask` pytree and its algebra.

Shapes: B batch, N heads, T queries, S keys. Each of B and N may be 1, which broadcasts.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from attnlab.masks import inputs


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class Mask:
    """Which keys each query may read: `lo <= k < hi`, and `dense[..., k]` where there is one.

    Attributes:
      lo, hi: int32 `(1|B, 1|N, T)`, first readable key and one past the last.
      dense: None (the interval structure, O(T) memory), or bool `(1|B, 1|N, T, S)` that is
        and-ed with the interval (the dense structure).
      kv_len: S, static.

    Every constructor and operator keeps these promises, and the code that consumes masks relies
    on them: bounds are strong int32 in [0, S] and equally shaped; they are tight, also under
    `dense`; a row that may read nothing has `lo == hi == 0`, and no other row has `lo >= hi`.
    Attention defines the output of such a row as 0, its gradients as 0, its log-sum-exp as -inf.

    Build masks with the functions of `attnlab.masks`; calling this class checks nothing.
    """

    lo: Array
    hi: Array
    dense: Array | None
    kv_len: int = field(metadata={"static": True})

    @property
    def q_len(self) -> int:
        """T, the number of queries."""
        return int(self.lo.shape[-1])

    @property
    def nonempty(self) -> Array:
        """bool `(1|B, 1|N, T)`: the query may read at least one key. O(T)."""
        return self.lo < self.hi

    def as_array(self) -> Array:
        """bool `(1|B, 1|N, T, S)`, True = may read. The only O(T S) method of an interval mask."""
        return _allowed(self)

    def keys_per_row(self) -> Array:
        """int32 `(1|B, 1|N, T)`: how many keys each query may read."""
        if self.dense is None:
            return self.hi - self.lo
        return jnp.sum(self.as_array(), axis=-1, dtype=jnp.int32)

    def canonical(self, batch: int | None = None, heads: int | None = None) -> Mask:
        """Broadcasts to `(batch, heads, T)`; None keeps that axis as it is.

        After `canonical(batch=B)` causal, window, prefix, padding and documents are the same
        abstract value, so a function compiled for one of them serves all.
        """
        old_batch, old_heads = self.lo.shape[-3:-1]
        shape = (
            old_batch if batch is None else inputs.length("batch", batch),
            old_heads if heads is None else inputs.length("heads", heads),
        )
        for name, old, new in zip(("batch", "heads"), (old_batch, old_heads), shape, strict=True):
            if old not in (1, new):
                raise ValueError(f"canonical({name}={new}): the mask has {name} {old}, not 1")
        bounds = (*self.lo.shape[:-3], *shape, self.q_len)
        dense = self.dense
        if dense is not None:
            dense = jnp.broadcast_to(dense, (*bounds, self.kv_len))
        return dataclasses.replace(
            self,
            lo=jnp.broadcast_to(self.lo, bounds),
            hi=jnp.broadcast_to(self.hi, bounds),
            dense=dense,
        )

    def densify(self) -> Mask:
        """The same mask in the dense structure, so that it can meet dense ones in one program."""
        return self if self.dense is not None else dataclasses.replace(self, dense=self.as_array())

    def rows(self, i0: Any, n: int) -> Mask:
        """Queries `i0 .. i0+n-1` against all keys (a prefill chunk, a decoding step).

        `i0` may be traced; then rows outside [0, T) cannot raise and are empty instead.
        """
        start, n = inputs.span("i0", i0, n, "q_len", self.q_len)
        return _rows(self, start, n)

    def keys(self, k0: Any, n: int) -> Mask:
        """All queries against keys `k0 .. k0+n-1` only, renumbered from 0.

        `k0` may be traced; then keys outside [0, S) cannot raise and are read by nobody instead.
        """
        start, n = inputs.span("k0", k0, n, "kv_len", self.kv_len)
        return _keys(self, start, n)

    def __and__(self, other: Mask) -> Mask:
        """Exact intersection; two interval masks give an interval mask. Rows may become empty."""
        _check_same_lengths("&", self, other)
        return _intersection(self, other)

    def __or__(self, other: Mask) -> Mask:
        """Exact union, always in the dense structure.

        Two intervals have an interval as union only if they touch, which is a property of the
        data; a structure that depended on it could not be traced. See `hull` for the O(T) superset.
        """
        _check_same_lengths("|", self, other)
        return _union(self, other)

    def __invert__(self) -> Mask:
        """The complement, always in the dense structure."""
        return _complement(self)

    @staticmethod
    def at_heads(masks: Sequence[Mask]) -> Mask:
        """One mask per head: concatenates along N, densifying if any of them is dense."""
        members = _same_structure("at_heads", masks)
        batch = jnp.broadcast_shapes(*((m.lo.shape[-3],) for m in members))[0]
        members = [m.canonical(batch=batch) for m in members]
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=1), *members)

    @staticmethod
    def stack(masks: Sequence[Mask]) -> Mask:
        """A leading axis over `masks`, for `jax.vmap`; densifies if any of them is dense.

        The result is for mapping over: inside `vmap` each lane is an ordinary mask again.
        """
        members = _same_structure("stack", masks)
        batch, heads = jnp.broadcast_shapes(*(m.lo.shape[-3:-1] for m in members))
        members = [m.canonical(batch, heads) for m in members]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)

    def __repr__(self) -> str:
        """Shapes always, counts where the values are known: never a matrix, never an error."""
        structure = "interval" if self.dense is None else "dense"
        shape = getattr(self.lo, "shape", None)
        if not isinstance(shape, tuple) or len(shape) < 3:
            return f"Mask(lo={self.lo!r}, hi={self.hi!r}, {structure}, kv_len={self.kv_len})"
        head = "x".join(map(str, shape[:-1]))
        text = f"Mask({head} of {shape[-1]}x{self.kv_len}, {structure}"
        if not all(map(_is_readable, jax.tree.leaves(self))):
            return f"{text}, values not known here)"
        count = np.asarray(self.keys_per_row())
        pairs = int(count.sum(dtype=np.int64))
        return (
            f"{text}, {count.min()} to {count.max()} keys per row, {pairs} of "
            f"{count.size * self.kv_len} pairs, {int((count == 0).sum())} empty rows)"
        )

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, Mask):
            raise TypeError("a Mask holds arrays; compare a.as_array() with b.as_array()")
        return NotImplemented

    def __hash__(self) -> NoReturn:
        raise TypeError(
            "a Mask holds arrays and cannot be hashed; pass it as an ordinary traced argument, "
            "not through static_argnums or static_argnames"
        )


def hull(a: Mask, b: Mask) -> Mask:
    """The smallest interval mask that allows everything `a` or `b` allows: O(T), maybe too much.

    Equal to `a | b` exactly where the two intervals of a row touch or one is empty, for instance a
    bidirectional span in causal text, `hull(causal(6), documents([-1, -1, 0, 0, 0, -1],
    causal=False))`:

        x.....
        xx....
        xxxxx.
        xxxxx.
        xxxxx.
        xxxxxx
    """
    _check_same_lengths("hull", a, b)
    return _hull(a, b)


def make(lo: Any, hi: Any, dense: Array | None, kv_len: int) -> Mask:
    """A Mask from raw bounds: clips to [0, S], tightens under `dense`, writes empty rows as 0, 0.

    Bounds that are numpy arrays, hence known, are computed with numpy: building a mask outside jit
    then compiles nothing.
    """
    if dense is None and inputs.backend(lo, hi) is np:
        lo, hi = _canonical_bounds(np, lo, hi, (), kv_len)
        return Mask(jnp.asarray(lo), jnp.asarray(hi), None, kv_len)
    return _make_jitted(lo, hi, dense, kv_len)


# Everything below that works on arrays is jitted: outside a trace each operator then is one small
# program instead of a dozen, and tightening a dense mask is a fused pass without [T, S] integers.


@functools.partial(jax.jit, static_argnames="kv_len")
def _make_jitted(lo: Array, hi: Array, dense: Array | None, kv_len: int) -> Mask:
    if dense is None:
        return Mask(*_canonical_bounds(jnp, lo, hi, (), kv_len), None, kv_len)
    lo, hi = _canonical_bounds(jnp, lo, hi, dense.shape[:-1], kv_len)
    allowed = _allowed(Mask(lo, hi, dense, kv_len))
    k = _key_numbers(lo, kv_len)
    lo = jnp.min(jnp.where(allowed, k, kv_len), axis=-1)
    hi = jnp.max(jnp.where(allowed, k + 1, 0), axis=-1)
    return Mask(*_canonical_bounds(jnp, lo, hi, (), kv_len), dense, kv_len)


def _canonical_bounds(
    xp: Any, lo: Any, hi: Any, shape: tuple[int, ...], kv_len: int
) -> tuple[Any, Any]:
    shape = np.broadcast_shapes(lo.shape, hi.shape, shape)
    lo, hi = (xp.broadcast_to(xp.clip(x, 0, kv_len), shape) for x in (lo, hi))
    some = lo < hi
    return xp.where(some, lo, 0), xp.where(some, hi, 0)


@jax.jit
def from_allowed(allowed: Array) -> Mask:
    """A dense-structure Mask from bool `(1|B, 1|N, T, S)`."""
    kv_len = allowed.shape[-1]
    lo = jnp.zeros(allowed.shape[:-1], jnp.int32)
    return make(lo, lo + kv_len, allowed, kv_len)


@jax.jit
def _allowed(mask: Mask) -> Array:
    k = _key_numbers(mask.lo, mask.kv_len)
    allowed = (mask.lo[..., None] <= k) & (k < mask.hi[..., None])
    return allowed if mask.dense is None else allowed & mask.dense


def _key_numbers(lo: Array, kv_len: int) -> Array:
    return lax.broadcasted_iota(jnp.int32, (1,) * lo.ndim + (kv_len,), lo.ndim)


@jax.jit
def _intersection(a: Mask, b: Mask) -> Mask:
    dense = a.dense if b.dense is None else b.dense
    if a.dense is not None and b.dense is not None:
        dense = a.dense & b.dense
    return make(jnp.maximum(a.lo, b.lo), jnp.minimum(a.hi, b.hi), dense, a.kv_len)


@jax.jit
def _union(a: Mask, b: Mask) -> Mask:
    return from_allowed(_allowed(a) | _allowed(b))


@jax.jit
def _complement(mask: Mask) -> Mask:
    return from_allowed(~_allowed(mask))


@functools.partial(jax.jit, static_argnames="n")
def _rows(mask: Mask, start: Array, n: int) -> Mask:
    valid, index = _span(start, n, mask.q_len)
    axis = mask.lo.ndim - 1
    keep = valid.reshape((1,) * axis + (n,))
    lo, hi = (jnp.where(keep, jnp.take(x, index, axis=axis), 0) for x in (mask.lo, mask.hi))
    dense = None if mask.dense is None else jnp.take(mask.dense, index, axis=axis)
    return Mask(lo, hi, dense, mask.kv_len)


@functools.partial(jax.jit, static_argnames="n")
def _keys(mask: Mask, start: Array, n: int) -> Mask:
    dense = mask.dense
    if dense is not None:
        valid, index = _span(start, n, mask.kv_len)
        axis = dense.ndim - 1
        dense = jnp.take(dense, index, axis=axis) & valid.reshape((1,) * axis + (n,))
    shift = start.reshape((1,) * mask.lo.ndim)
    return make(inputs.subtract(mask.lo, shift), inputs.subtract(mask.hi, shift), dense, n)


def _span(start: Array, n: int, size: int) -> tuple[Array, Array]:
    """Which of `start .. start+n-1` lie in [0, size), and those indices made safe to gather."""
    index = inputs.add(jnp.broadcast_to(start, (n,)), jnp.arange(n, dtype=jnp.int32))
    return (index >= 0) & (index < size), jnp.clip(index, 0, size - 1)


@jax.jit
def _hull(a: Mask, b: Mask) -> Mask:
    lo = jnp.minimum(jnp.where(a.nonempty, a.lo, a.kv_len), jnp.where(b.nonempty, b.lo, b.kv_len))
    return make(lo, jnp.maximum(a.hi, b.hi), None, a.kv_len)


def _check_same_lengths(what: str, a: Mask, b: Mask) -> None:
    if not isinstance(b, Mask):
        raise TypeError(f"{what} needs two masks, not a Mask and a {type(b).__name__}")
    for name in ("q_len", "kv_len"):
        if getattr(a, name) != getattr(b, name):
            raise ValueError(
                f"{what}: {name} {getattr(a, name)} does not match {name} {getattr(b, name)}"
            )
    for name, m, n in zip(("batch", "heads"), a.lo.shape[-3:-1], b.lo.shape[-3:-1], strict=True):
        if m != n and 1 not in (m, n):
            raise ValueError(f"{what}: {name} {m} does not match {name} {n}, and neither is 1")


def _same_structure(what: str, masks: Sequence[Mask]) -> list[Mask]:
    members = list(masks)
    if not members:
        raise ValueError(f"{what} needs at least one mask")
    for other in members:
        _check_same_lengths(what, members[0], other)
    is_interval = all(m.dense is None for m in members)
    return members if is_interval else [_full_dense(m) for m in members]


def _full_dense(mask: Mask) -> Mask:
    """Dense, with a boolean array as large as its bounds, so that leaves can be stacked."""
    mask = mask.densify()
    return mask.canonical(*mask.lo.shape[-3:-1])


def _is_readable(leaf: Any) -> bool:
    if isinstance(leaf, jax.core.Tracer) or not isinstance(leaf, jax.Array | np.ndarray):
        return False
    if isinstance(leaf, np.ndarray):
        return True
    return leaf.is_fully_addressable and not leaf.is_deleted()
