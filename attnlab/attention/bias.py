# ruff: noqa: N815  (fields carry their shapes in their names)
"""Position biases: numbers added to the logits that depend on two positions only.

A bias holds what it is made of (slopes or a table, and the positions of queries and keys) and is evaluated for the
queries and keys at hand: `bias.rows(...).keys(...).value()` is one tile, so a blockwise implementation never sees
[T, S]. Every leaf is data: slopes may be learned, swept or gated to 0.
"""

import dataclasses
from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import Array


class PositionBias:
    """What every bias can do; the leaves are its own.

    After `canonical` each leaf has a leading axis 1|B, which is what lets a vmapped axis be folded into the batch.
    """

    q_positions_BT: Any
    kv_positions_BS: Any

    def canonical(self, batch: int, heads: int) -> Self:
        """The same bias with a leading batch axis (1 or `batch`) on every leaf.

        Raises:
          ValueError: a leaf whose shape fits neither the batch nor the heads.
        """
        raise NotImplementedError

    def value(self) -> Array:
        """The bias between the positions held: float32 [1|B, N, T, S]. Needs the canonical form."""
        raise NotImplementedError

    def rows(self, start: Array | int, size: int) -> Self:
        """The bias of queries `start ... start + size - 1`."""
        return replace(self, q_positions_BT=_slice(self.q_positions_BT, start, size))  # type: ignore[type-var]

    def keys(self, start: Array | int, size: int) -> Self:
        """The bias towards keys `start ... start + size - 1`."""
        return replace(self, kv_positions_BS=_slice(self.kv_positions_BS, start, size))  # type: ignore[type-var]

    def padded(self, q_len: int, kv_len: int) -> Self:
        """Extends the positions by repeating the last: queries and keys past the end, which no result contains."""
        q, k = self.q_positions_BT, self.kv_positions_BS
        return replace(  # type: ignore[type-var]
            self,
            q_positions_BT=jnp.pad(q, ((0, 0), (0, q_len - q.shape[1])), mode="edge"),
            kv_positions_BS=jnp.pad(k, ((0, 0), (0, kv_len - k.shape[1])), mode="edge"),
        )

    def check(self, batch: int, heads: int, q_len: int, kv_len: int) -> None:
        """Raises ValueError unless this canonical bias fits the batch, the heads and both lengths."""
        for name, positions, length in (
            ("q_positions_BT", self.q_positions_BT, q_len),
            ("kv_positions_BS", self.kv_positions_BS, kv_len),
        ):
            if positions.shape[0] not in (1, batch) or positions.shape[1] != length:
                raise ValueError(
                    f"bias.{name}: shape {positions.shape}; allowed: (1 or {batch}, {length})"
                )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Alibi(PositionBias):
    """ALiBi (Press et al. 2022): -slope_n * |q_position - kv_position|.

    The distance is absolute, as in FlashAttention, so the same object serves bidirectional masks. A slope of 0 is
    exactly no bias. Positions are data: they restart in packed documents.

    Attributes:
      slopes_N: float [N] (canonical: [1|B, N]); differentiable.
      q_positions_BT: int [1|B, T].
      kv_positions_BS: int [1|B, S].
    """

    slopes_N: Array
    q_positions_BT: Array
    kv_positions_BS: Array

    def canonical(self, batch: int, heads: int) -> "Alibi":
        slopes = jnp.asarray(self.slopes_N, jnp.float32)
        slopes_BN = slopes[None] if slopes.ndim == 1 else slopes
        if (
            slopes_BN.ndim != 2
            or slopes_BN.shape[0] not in (1, batch)
            or slopes_BN.shape[1] != heads
        ):
            raise ValueError(
                f"bias.slopes_N: shape {slopes.shape}; allowed: ({heads},), one per head"
            )
        return Alibi(slopes_BN, _positions(self.q_positions_BT), _positions(self.kv_positions_BS))

    def value(self) -> Array:
        distance_BTS = jnp.abs(self.q_positions_BT[:, :, None] - self.kv_positions_BS[:, None, :])
        return -self.slopes_N[:, :, None, None] * distance_BTS.astype(jnp.float32)[:, None]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RelativeBuckets(PositionBias):
    """T5's relative position bias (Raffel et al. 2020): a learned number per head and distance bucket.

    With r = kv_position - q_position, half of the buckets hold one distance each and the other half grow
    logarithmically up to `max_distance`, the last one holding everything beyond. Bidirectional: the upper half of the
    table is for keys after the query; otherwise keys after the query share bucket 0. The table is added as it is,
    after the logit scale (T5 itself uses no logit scale).

    Attributes:
      table_NR: float [N, R], R buckets (canonical: [1|B, N, R]); differentiable.
      q_positions_BT: int [1|B, T].
      kv_positions_BS: int [1|B, S].
      bidirectional: static.
      max_distance: static; T5 uses 128.
    """

    table_NR: Array
    q_positions_BT: Array
    kv_positions_BS: Array
    bidirectional: bool = dataclasses.field(metadata={"static": True})
    max_distance: int = dataclasses.field(default=128, metadata={"static": True})

    def canonical(self, batch: int, heads: int) -> "RelativeBuckets":
        table = jnp.asarray(self.table_NR, jnp.float32)
        table_BNR = table[None] if table.ndim == 2 else table
        if (
            table_BNR.ndim != 3
            or table_BNR.shape[0] not in (1, batch)
            or table_BNR.shape[1] != heads
        ):
            raise ValueError(f"bias.table_NR: shape {table.shape}; allowed: ({heads}, buckets)")
        buckets = table_BNR.shape[2]
        if buckets < 4 or buckets % 4:
            raise ValueError(f"bias.table_NR: {buckets} buckets; allowed: a multiple of 4")
        if self.max_distance <= buckets // 2:
            raise ValueError(
                f"bias.max_distance: got {self.max_distance}; allowed: more than half of {buckets} buckets"
            )
        return replace(
            self,
            table_NR=table_BNR,
            q_positions_BT=_positions(self.q_positions_BT),
            kv_positions_BS=_positions(self.kv_positions_BS),
        )

    def bucket(self) -> Array:
        """The bucket of every pair of positions held: int32 [1|B, T, S]."""
        relative_BTS = self.kv_positions_BS[:, None, :] - self.q_positions_BT[:, :, None]
        buckets, offset_BTS = self.table_NR.shape[-1], jnp.zeros_like(relative_BTS)
        if self.bidirectional:
            buckets //= 2
            offset_BTS = jnp.where(relative_BTS > 0, buckets, 0)
            distance_BTS = jnp.abs(relative_BTS)
        else:
            distance_BTS = jnp.maximum(-relative_BTS, 0)
        exact = buckets // 2
        # Thresholds instead of a logarithm: bucket b starts at the smallest distance whose formula gives b.
        starts = [
            exact * (self.max_distance / exact) ** (b / (buckets - exact))
            for b in range(1, buckets - exact)
        ]
        bucket_BTS = jnp.minimum(distance_BTS, exact)
        for start in starts:
            bucket_BTS += (distance_BTS >= _ceil(start)).astype(jnp.int32)
        return bucket_BTS + offset_BTS

    def value(self) -> Array:
        bucket_BTS = self.bucket()
        batch = max(bucket_BTS.shape[0], self.table_NR.shape[0])
        bucket_BTS = jnp.broadcast_to(bucket_BTS, (batch, *bucket_BTS.shape[1:]))
        table_BNR = jnp.broadcast_to(self.table_NR, (batch, *self.table_NR.shape[1:]))
        return jax.vmap(lambda table_NR, bucket_TS: table_NR[:, bucket_TS])(table_BNR, bucket_BTS)


def _ceil(x: float) -> int:
    """The smallest integer not below x, where x may be an integer blurred by rounding."""
    nearest = round(x)
    return nearest if abs(x - nearest) < 1e-6 else int(x) + 1


def _positions(positions: Array) -> Array:
    positions = jnp.asarray(positions, jnp.int32)
    if positions.ndim == 1:
        positions = positions[None]
    if positions.ndim != 2:
        raise ValueError(f"bias positions: shape {positions.shape}; allowed: (1 or batch, length)")
    return positions


def _slice(positions_BT: Array, start: Array | int, size: int) -> Array:
    return jax.lax.dynamic_slice_in_dim(positions_BT, start, size, axis=1)
