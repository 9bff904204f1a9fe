"""What a window of tokens asks of the model: inputs, targets and loss weights. The objective is data.

    window   t0 t1 t2 t3 t4 t5      T = 4, two tokens more than T, for offsets up to 2

    next_token(1)    inputs  t0 t1 t2 t3    targets t1 t2 t3 t4    weights 1 1 1 1
    next_token(0)    inputs  t0 t1 t2 t3    targets t0 t1 t2 t3    weights 1 1 1 1
    next_token(2)    inputs  t0 t1 t2 t3    targets t2 t3 t4 t5    weights 1 1 1 1
    prefix_lm(2)     inputs  t0 t1 t2 t3    targets t1 t2 t3 t4    weights 0 1 1 1
    masked_lm(.25)   inputs  t0 M  t2 t3    targets t0 t1 t2 t3    weights 0 1 0 0

Three numbers say which: the offset of the targets, the length of the prefix and the rate of masked inputs. So the
causal arm of a claim and its masked-LM control train in the same compiled program. What a window holds is data too:
a [BOS] before the text or none, and its tokens as they stand, in random order, or all alike (negative controls).
"""

import dataclasses
import re
from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp
import optax
from jax import Array

from attnlab import masks
from attnlab.masks import Mask

MAX_OFFSET = 2
# The tokens of a window: as they stand; in an order drawn anew for each (all arms must tie); all like the first.
ORDERS = ("natural", "shuffled", "constant")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Objective:
    """What is asked, and of which text; every leaf a scalar.

    `offset`: int32, target index minus input index. `mask_rate`: float32, 0 for next-token. `prefix`: int32, targets
    among so many first tokens are given and not asked. `bos`: bool, the window begins with [BOS] instead of ending
    with its last token. `order`: int32, index in `ORDERS`.
    """

    offset: Array
    mask_rate: Array
    prefix: Array
    bos: Array
    order: Array

    @classmethod
    def _of(cls, offset: int, *, mask_rate: float = 0.0, prefix: int = 0) -> Self:
        zero = jnp.int32(0)
        return cls(jnp.int32(offset), jnp.float32(mask_rate), zero + prefix, jnp.bool_(False), zero)

    @classmethod
    def next_token(cls, offset: int = 1) -> Self:
        """Predict the token `offset` places on; 1 is the usual, 0 and 2 serve the leak experiments."""
        if not (isinstance(offset, int) and 0 <= offset <= MAX_OFFSET):
            raise ValueError(
                f"objective: next_token offset must be 0..{MAX_OFFSET}, got {offset!r}"
            )
        return cls._of(offset)

    @classmethod
    def prefix_lm(cls, prefix: int) -> Self:
        """Predict the next token from the last one of the prefix on (Raffel et al. 2020).

        Earlier ones may read their own target, with the mask of the same name: their loss would say nothing.
        """
        if not (isinstance(prefix, int) and prefix >= 1):
            raise ValueError(f"objective: prefix_lm needs a prefix of at least 1, got {prefix!r}")
        return cls._of(1, prefix=prefix)

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
        return cls._of(0, mask_rate=rate)

    @classmethod
    def parse(cls, text: str) -> Self:
        """`next_token`, `next_token(0)`, `prefix_lm(8)`, `masked_lm`, `masked_lm(0.5)`.

        Raises:
          ValueError: anything else.
        """
        match = re.fullmatch(
            r"(next_token|prefix_lm|masked_lm)(?:\(\s*([0-9.]+)\s*\))?", text.strip()
        )
        try:
            if match is None:
                raise ValueError
            name, number = match.groups()
            if name == "next_token":
                return cls.next_token(int(number)) if number else cls.next_token()
            if name == "prefix_lm":
                return cls.prefix_lm(int(number or ""))
            return cls.masked_lm(float(number)) if number else cls.masked_lm()
        except ValueError as error:
            raise ValueError(
                str(error)
                if str(error).startswith("objective")
                else f"objective: got {text!r}; allowed: next_token, next_token(0..{MAX_OFFSET}), "
                "prefix_lm(length), masked_lm, masked_lm(rate) with 0 < rate < 1"
            ) from None

    def on(self, *, bos: bool = False, order: str = "natural") -> Self:
        """The same question asked of another text.

        Raises:
          ValueError: an order that is not in `ORDERS`.
        """
        if order not in ORDERS:
            raise ValueError(f"order: got {order!r}; allowed: {', '.join(ORDERS)}")
        return dataclasses.replace(self, bos=jnp.bool_(bos), order=jnp.int32(ORDERS.index(order)))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """One step's work: `inputs`, `targets` int32 [B, T]; `weights` float32 [B, T]; `mask`, who may read whom.

    `positions`: int32 [B, T], of each token in its document; None: that in the window.
    """

    inputs: Array
    targets: Array
    weights: Array
    mask: Mask
    positions: Array | None = None


def window_length(context: int) -> int:
    """Tokens a window must hold so that every offset has a target; equal for all objectives, so that arms with
    the same data seed see the same text."""
    return context + MAX_OFFSET


@dataclass(frozen=True)
class Inputs:
    """What is static about making batches: the ids that stand for [MASK] and [BOS], and whether any member of the
    program reads its windows shuffled (sorting costs small models a third of their update)."""

    mask_id: int
    bos_id: int
    shuffles: bool = False


def make_batch(
    objective: Objective,
    window_BW: Array,
    mask: Mask,
    *,
    key: Array,
    inputs: Inputs,
    segments_BW: Array | None = None,
) -> Batch:
    """Applies the objective to windows of tokens, int [B, T + MAX_OFFSET]; `key` draws places and orders.

    `segments_BW`: int32, which document a token belongs to. Then attention stays within documents, a target in
    another document than its input has weight 0, and positions count from the first token of each document that the
    window holds: a document is read as if it stood alone. [BOS] belongs to the first document of its window.
    """
    B, W = window_BW.shape
    T = W - MAX_OFFSET
    window_BW = _reordered(objective.order, window_BW.astype(jnp.int32), key, inputs.shuffles)
    after_bos_BW = jnp.roll(window_BW, 1, axis=1).at[:, 0].set(inputs.bos_id)
    window_BW = jnp.where(objective.bos, after_bos_BW, window_BW)
    index_1T = jnp.arange(T)[None]
    inputs_BT = window_BW[:, :T]
    targets_BT = jax.lax.dynamic_slice_in_dim(window_BW, objective.offset, T, axis=1)
    masked_BT = jax.random.uniform(key, (B, T)) < objective.mask_rate
    masked_BT &= (index_1T > 0) | ~objective.bos  # [BOS] is known, not to be guessed
    asked_BT = jnp.where(objective.mask_rate > 0, masked_BT, True)
    asked_BT &= index_1T + objective.offset >= objective.prefix
    positions_BT = None
    if segments_BW is not None:
        after_bos_BW = jnp.concatenate([segments_BW[:, :1], segments_BW[:, :-1]], axis=1)
        segments_BW = jnp.where(objective.bos, after_bos_BW, segments_BW)
        own_BT = segments_BW[:, :T]
        asked_BT &= own_BT == jax.lax.dynamic_slice_in_dim(segments_BW, objective.offset, T, axis=1)
        mask = mask & masks.documents(own_BT, causal=False)
        positions_BT = masks.positions(own_BT)
    return Batch(
        inputs=jnp.where(masked_BT, inputs.mask_id, inputs_BT),
        targets=targets_BT,
        weights=asked_BT.astype(jnp.float32),
        mask=mask,
        positions=positions_BT,
    )


def _reordered(order: Array, window_BW: Array, key: Array, shuffles: bool) -> Array:
    """Windows in the order with this index in `ORDERS`."""
    changed_BW = jnp.where(order == ORDERS.index("constant"), window_BW[:, :1], window_BW)
    if not shuffles:
        return changed_BW
    drawn_BW = jax.random.bits(jax.random.fold_in(key, 1), window_BW.shape)
    _, shuffled_BW = jax.lax.sort((drawn_BW, window_BW), dimension=1, num_keys=1)
    return jnp.where(order == ORDERS.index("shuffled"), shuffled_BW, changed_BW)


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
