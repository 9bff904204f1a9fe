"""What a window of tokens asks of the model: inputs, targets and loss weights. The objective is data.

    window   t0 t1 t2 t3 t4 t5      T = 4, two tokens more than T, for offsets up to 2

    next_token(1)    inputs  t0 t1 t2 t3    targets t1 t2 t3 t4    weights 1 1 1 1
    next_token(0)    inputs  t0 t1 t2 t3    targets t0 t1 t2 t3    weights 1 1 1 1
    next_token(2)    inputs  t0 t1 t2 t3    targets t2 t3 t4 t5    weights 1 1 1 1
    masked_lm(.25)   inputs  t0 M  t2 t3    targets t0 t1 t2 t3    weights 0 1 0 0

Two numbers say which: the offset of the targets and the rate of masked inputs. So the causal arm of a claim
and its masked-LM control train in the same compiled program.
"""

import re
from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp
import optax
from jax import Array

from attnlab.masks import Mask

MAX_OFFSET = 2


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Objective:
    """`offset`: int32 scalar, target index minus input index. `mask_rate`: float32 scalar, 0 for next-token."""

    offset: Array
    mask_rate: Array

    @classmethod
    def next_token(cls, offset: int = 1) -> Self:
        """Predict the token `offset` places on; 1 is the usual, 0 and 2 serve the leak experiments."""
        if not (isinstance(offset, int) and 0 <= offset <= MAX_OFFSET):
            raise ValueError(
                f"objective: next_token offset must be 0..{MAX_OFFSET}, got {offset!r}"
            )
        return cls(jnp.int32(offset), jnp.float32(0.0))

    @classmethod
    def masked_lm(cls, rate: float = 0.15) -> Self:
        """Replace each input by [MASK] with probability `rate`, and predict exactly those (Devlin et al. 2019).

        Every chosen token becomes [MASK]: the 80/10/10 mixture of BERT is left out, because kept and random
        tokens would let a model without positions tell two masked places apart.
        """
        if not 0.0 < rate < 1.0:
            raise ValueError(
                f"objective: masked_lm rate must lie strictly between 0 and 1, got {rate!r}"
            )
        return cls(jnp.int32(0), jnp.float32(rate))

    @classmethod
    def parse(cls, text: str) -> Self:
        """`next_token`, `next_token(0)`, `masked_lm`, `masked_lm(0.5)`.

        Raises:
          ValueError: anything else.
        """
        match = re.fullmatch(r"(next_token|masked_lm)(?:\(\s*([0-9.]+)\s*\))?", text.strip())
        try:
            if match is None:
                raise ValueError
            name, number = match.groups()
            if name == "next_token":
                return cls.next_token(int(number)) if number else cls.next_token()
            return cls.masked_lm(float(number)) if number else cls.masked_lm()
        except ValueError as error:
            raise ValueError(
                str(error)
                if str(error).startswith("objective")
                else f"objective: got {text!r}; allowed: next_token, next_token(0..{MAX_OFFSET}), "
                "masked_lm, masked_lm(rate) with 0 < rate < 1"
            ) from None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """One step's work: `inputs`, `targets` int32 [B, T]; `weights` float32 [B, T]; `mask`, who may read whom."""

    inputs: Array
    targets: Array
    weights: Array
    mask: Mask


def window_length(context: int) -> int:
    """Tokens a window must hold so that every offset has a target; equal for all objectives, so that arms with
    the same data seed see the same text."""
    return context + MAX_OFFSET


def make_batch(
    objective: Objective, window_BW: Array, mask: Mask, *, key: Array, mask_id: int
) -> Batch:
    """Applies the objective to windows of tokens, int [B, T + MAX_OFFSET]; `key` draws the masked places."""
    B, W = window_BW.shape
    T = W - MAX_OFFSET
    window_BW = window_BW.astype(jnp.int32)
    inputs_BT = window_BW[:, :T]
    targets_BT = jax.lax.dynamic_slice_in_dim(window_BW, objective.offset, T, axis=1)
    masked_BT = jax.random.uniform(key, (B, T)) < objective.mask_rate
    weights_BT = jnp.where(objective.mask_rate > 0, masked_BT, True).astype(jnp.float32)
    return Batch(jnp.where(masked_BT, mask_id, inputs_BT), targets_BT, weights_BT, mask)


def weighted_losses(logits_BTV: Array, batch: Batch) -> Array:
    """Cross-entropy of every target times its weight, in nats: float32 [B, T]."""
    losses_BT = optax.softmax_cross_entropy_with_integer_labels(
        logits_BTV.astype(jnp.float32), batch.targets
    )
    return losses_BT * batch.weights


def loss(logits_BTV: Array, batch: Batch) -> tuple[Array, Array]:
    """(sum of weighted cross-entropies in nats, sum of weights), float32 scalars; divide once, at the end.

    A mean of means is not the mean: 11 tokens at 2.0 and 101 at 4.0 are 3.80, not 3.0.
    """
    return jnp.sum(weighted_losses(logits_BTV, batch)), jnp.sum(batch.weights)


def loss_by_position(logits_BTV: Array, batch: Batch) -> tuple[Array, Array]:
    """`loss` for each position: two float32 arrays [T]."""
    return jnp.sum(weighted_losses(logits_BTV, batch), axis=0), jnp.sum(batch.weights, axis=0)
