"""What a trained next-token model makes of its context: its order, its length, and how far it reaches.

Each function is pure and takes one member; `jax.vmap` or a loop over members is the caller's choice. A sequence is
given as int [K, n + 1]: n inputs, and the target behind them.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from attnlab import masks, model
from attnlab.knobs import Architecture, ModelKnobs
from attnlab.masks import Mask


def shuffled_prefix(sequences_KW: np.ndarray, seed: int, *, fixed: int = 0) -> np.ndarray:
    """The same sequences with the tokens before the last input in random order, int32 [K, n + 1].

    The last input and the target stay, because the last input is the one token that every model can tell from the
    others; so do the first `fixed` tokens (1 with [BOS]).

    Raises:
      ValueError: fewer than two tokens to shuffle.
    """
    width = sequences_KW.shape[1]
    if width - 2 - fixed < 2:
        raise ValueError(
            f"sequences_KW: {width} tokens, of which {fixed} first and 2 last stay; allowed: at least 2 more"
        )
    shuffled = np.array(sequences_KW, np.int32)
    prefix = slice(fixed, width - 2)
    shuffled[:, prefix] = np.random.default_rng(seed).permuted(shuffled[:, prefix], axis=1)
    return shuffled


def last_losses(
    arch: Architecture,
    params: model.Params,
    knobs: ModelKnobs,
    mask: Mask,
    sequences_KW: Array | np.ndarray,
    *,
    last: int = 1,
) -> Array:
    """Loss of the last `last` targets of each sequence, nats, float32 [K, last].

    Beside `shuffled_prefix` this is the test of whether order is used (Haviv et al. 2022, section 5): a causal layer
    without positions is a function of the set before it, so one layer must give both the same loss.

    Raises:
      ValueError: more targets than inputs, or more inputs than a learned position table has rows.
    """
    inputs_KT, targets_KT = sequences_KW[:, :-1], sequences_KW[:, 1:]
    if not 1 <= last <= inputs_KT.shape[1]:
        raise ValueError(f"last: got {last}; allowed: 1..{inputs_KT.shape[1]}, the inputs")
    logits_KTV, _ = model.apply(arch, params, jnp.asarray(inputs_KT), mask, knobs)
    return optax.softmax_cross_entropy_with_integer_labels(
        logits_KTV[:, -last:], jnp.asarray(targets_KT)[:, -last:]
    )


def losses_by_length(
    arch: Architecture,
    params: model.Params,
    knobs: ModelKnobs,
    mask_of: Callable[[int], Mask],
    sequences_KW: np.ndarray,
    lengths: Sequence[int],
    *,
    last: int,
    bos_id: int | None = None,
) -> np.ndarray:
    """Loss of the same last targets with the last n tokens as context, for each n: nats, float64 [lengths, K].

    The mean over `last` targets. Every length predicts the same tokens of the same sequences, so the differences are
    paired. `mask_of(n)` is the member's mask for n tokens. With `bos_id` each context begins with it, and holds one
    token less.

    Raises:
      ValueError: a length shorter than `last`, longer than the sequences, or beyond a learned position table.
    """
    width = sequences_KW.shape[1]
    for length in lengths:
        if not last <= length <= width - 1:
            raise ValueError(
                f"lengths: got {length}; allowed: {last}..{width - 1}, from the targets to the sequences"
            )
        if "learned" in arch.position_families and length > arch.context:
            raise ValueError(
                f"lengths: got {length}; allowed: at most {arch.context}, the rows of the learned position table"
            )
    losses = []
    for length in lengths:
        window = np.array(sequences_KW[:, width - 1 - length :], np.int32)
        if bos_id is not None:
            window[:, 0] = bos_id
        loss_KL = _last_losses(arch, last, params, knobs, mask_of(length), window)
        losses.append(np.asarray(loss_KL, np.float64).mean(axis=1))
    return np.stack(losses)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _last_losses(
    arch: Architecture,
    last: int,
    params: model.Params,
    knobs: ModelKnobs,
    mask: Mask,
    window: Array,
) -> Array:
    return last_losses(arch, params, knobs, mask, window, last=last)


def losses_without_future(
    arch: Architecture,
    params: model.Params,
    knobs: ModelKnobs,
    mask: Mask,
    inputs_KT: Array | np.ndarray,
    targets_KT: Array | np.ndarray,
) -> Array:
    """Loss of each target with the context cut off behind its own input, nats, float32 [K, T].

    The mask lets nobody read a token behind that place, so no layer can bring one in: the loss at place t is that of the
    same weights on the first t + 1 tokens alone. Where a mask hides the future it is the ordinary loss; where it does
    not, this is what the model would do in use, where there is no future to read.
    """
    inputs_KT, targets_KT = jnp.asarray(inputs_KT), jnp.asarray(targets_KT)
    T = inputs_KT.shape[1]

    def at(place: Array) -> Array:
        known = mask & masks.key_padding(T, lengths=place + 1)
        logits_KTV, _ = model.apply(arch, params, inputs_KT, known, knobs)
        return optax.softmax_cross_entropy_with_integer_labels(
            jax.lax.dynamic_index_in_dim(logits_KTV, place, axis=1, keepdims=False),
            jax.lax.dynamic_index_in_dim(targets_KT, place, axis=1, keepdims=False),
        )

    return jax.lax.map(at, jnp.arange(T)).T


def receptive_field(
    arch: Architecture,
    params: model.Params,
    knobs: ModelKnobs,
    mask: Mask,
    sequences_KW: Array | np.ndarray,
) -> Array:
    """How much the last target's loss depends on the token d places before the last input: float32 [T], d from 0.

    The mean over sequences of the norm of the gradient with respect to the token's embedding (Luo et al. 2016,
    arXiv 1701.04128, on text). With a window of w keys and L layers it is exactly 0 from d = L (w - 1) + 1 on.
    """
    inputs_KT = jnp.asarray(sequences_KW)[:, :-1]
    T = inputs_KT.shape[1]
    # A table with one row per place, so that the gradient of the table is one gradient per place.
    own_rows = dataclasses.replace(arch, input_size=T)
    places_1T = jnp.arange(T)[None]

    def loss(table_TD: Array, target: Array) -> Array:
        own = {**params, "embedding": table_TD}
        logits_1TV, _ = model.apply(own_rows, own, places_1T, mask, knobs)
        return optax.softmax_cross_entropy_with_integer_labels(logits_1TV[0, -1], target)

    def influence(sequence: tuple[Array, Array]) -> Array:
        tokens_T, target = sequence
        gradient_TD = jax.grad(loss)(params["embedding"][tokens_T], target)
        return jnp.linalg.norm(gradient_TD, axis=-1)

    targets_K = jnp.asarray(sequences_KW)[:, -1]
    return jnp.mean(jax.lax.map(influence, (inputs_KT, targets_K)), axis=0)[::-1]


def reach_of_first(mask: Mask, layers: int) -> int:
    """The number of positions up to the last one that the first token can influence through so many layers.

    A sliding window of w keys gives L (w - 1) + 1, if the mask is that long. Positions from here on see the same whatever
    stands before them, so nothing tells them where they are.
    """
    allowed_TS = np.asarray(mask.as_array()).any(axis=(0, 1))
    reached_T = np.zeros(allowed_TS.shape[0], bool)
    reached_T[0] = True
    for _ in range(layers):
        reached_T |= allowed_TS @ reached_T
    return int(np.flatnonzero(reached_T)[-1]) + 1
