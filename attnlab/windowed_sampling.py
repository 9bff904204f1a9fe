"""Text from a next-token model of any mask: each token from a window of the text so far, read anew.

This is what short generation loops do: the last `context` tokens go through the network, the last row is drawn from. It
needs no cache, and so it also takes masks that let tokens read later ones, which `decoding` refuses. Such a model was
asked for tokens that it could read; here there is nothing behind the last token, as there never is in use.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attnlab import masks, model
from attnlab.knobs import Architecture, Knobs
from attnlab.model import Params
from attnlab.training import Task


def check_samples(knobs: Knobs) -> None:
    """Refuses what does not predict the next token.

    Raises:
      ValueError: another objective.
    """
    if float(knobs.objective.mask_rate) > 0 or int(knobs.objective.offset) != 1:
        raise ValueError(
            "objective: it does not predict the next token, so nothing can be sampled; allowed: next_token"
        )


def texts(
    task: Task, params: Params, knobs: Knobs, first_C: np.ndarray, count: int, seed: int
) -> np.ndarray:
    """C texts at temperature 1, int32 [C, 1 + count]: a given first token each, and `count` that follow.

    A member that was trained with [BOS] reads it before its window.

    Raises:
      ValueError: what `check_samples` refuses, or a count below 1.
    """
    check_samples(knobs)
    if count < 1:
        raise ValueError(f"count: must be at least 1, got {count}")
    first = np.asarray(first_C, np.int32)
    head = [task.inputs.bos_id] if bool(knobs.objective.bos) else []
    window_CT = np.zeros((len(first), task.architecture.context), np.int32)
    window_CT[:, : len(head)] = head
    window_CT[:, len(head)] = first
    key = jax.random.key(seed, impl="threefry2x32")
    drawn = _drawn(task.architecture, count, len(head), params, knobs, window_CT, key)
    return np.concatenate([first[:, None], np.asarray(drawn)], axis=1)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _drawn(
    arch: Architecture,
    count: int,
    head: int,
    params: Params,
    knobs: Knobs,
    window_CT: Array,
    key: Array,
) -> Array:
    """int32 [C, count]. The first `head` tokens of a window stay, the others move on when it is full."""
    T = arch.context

    def body(carry: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], Array]:
        window_CT, used = carry
        there = knobs.mask & masks.key_padding(T, lengths=used)
        logits_CTV, _ = model.apply(arch, params, window_CT, there, knobs.model)
        last_CV = jax.lax.dynamic_index_in_dim(logits_CTV, used - 1, axis=1, keepdims=False)
        token_C1 = jax.random.categorical(key, last_CV)[:, None].astype(jnp.int32)
        moved = jnp.concatenate([window_CT[:, :head], window_CT[:, head + 1 :], token_C1], axis=1)
        longer = jax.lax.dynamic_update_slice(window_CT, token_C1, (0, jnp.minimum(used, T - 1)))
        window_CT = jnp.where(used == T, moved, longer)
        return (window_CT, jnp.minimum(used + 1, T)), token_C1[:, 0]

    start = (jnp.asarray(window_CT), jnp.int32(head + 1))
    _, drawn = jax.lax.scan(body, start, jax.random.split(key, count))
    return drawn.T
