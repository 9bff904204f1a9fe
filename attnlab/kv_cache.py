"""Keys and values of tokens that were read, so that those after them need not read them again."""

from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp
from jax import Array

from attnlab import positions
from attnlab.knobs import Architecture


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Held:
    """One block's part: `keys`, `values` [B, S, K, H]. `length`: int32 scalar, how many of the S slots are filled."""

    keys: Array
    values: Array
    length: Array

    def extended(self, k_BTKH: Array, v_BTKH: Array) -> Self:
        """The same with T more tokens. Beyond the last slot they would be moved back: `Cache.following` refuses."""
        keys, values = (
            jax.lax.dynamic_update_slice_in_dim(old, new, self.length, axis=1)
            for old, new in ((self.keys, k_BTKH), (self.values, v_BTKH))
        )
        return type(self)(keys, values, self.length + k_BTKH.shape[1])


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """What every block holds. Slot s is the token at position s; `length`: int32 scalar, how many are filled.

    The slots behind hold anything finite: that no query reads them is the mask's business.
    """

    keys: tuple[Array, ...]
    values: tuple[Array, ...]
    length: Array

    @property
    def slots(self) -> int:
        return int(self.keys[0].shape[1])

    def block(self, index: int) -> Held:
        """The part of one block."""
        return Held(self.keys[index], self.values[index], self.length)

    @classmethod
    def of(cls, blocks: list[Held]) -> Self:
        """The cache that these parts make."""
        return cls(tuple(b.keys for b in blocks), tuple(b.values for b in blocks), blocks[0].length)

    def following(self, q_len: int) -> Array:
        """Positions int32 [1, T] of the next `q_len` tokens.

        Raises:
          ValueError: there are not so many slots left. A traced length cannot be refused: see `fits`.
        """
        known = not isinstance(self.length, jax.core.Tracer)
        free = self.slots - int(self.length) if known else self.slots
        if q_len > free:
            raise ValueError(
                f"tokens: got {q_len}, and {free} of {self.slots} slots of the cache are free; allowed: at most those"
            )
        return positions.by_index(q_len, offset=self.length)

    def fits(self) -> Array:
        """bool scalar: no token was written beyond the last slot."""
        return self.length <= self.slots


def empty(arch: Architecture, *, batch: int, slots: int) -> Cache:
    """A cache for `batch` sequences of at most `slots` tokens, in the dtype of the activations.

    Raises:
      ValueError: more slots than a learned position table has rows.
    """
    if "learned" in arch.position_families and slots > arch.context:
        raise ValueError(
            f"slots: {slots} exceed the learned position table of {arch.context} rows; allowed: at most context slots"
        )
    zeros = jnp.zeros((batch, slots, arch.kv_heads, arch.head_dim), arch.activations)
    return Cache((zeros,) * arch.layers, (zeros,) * arch.layers, jnp.int32(0))
