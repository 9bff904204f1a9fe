"""Tokens from a trained next-token model, one after another, with a cache of keys and values.

The network is the one that was trained, called with fewer queries than keys: once for the whole prompt, then once per
token. Who may read whom is the member's own mask at the rows of the tokens being read, so a sliding window, a prefix
or documents need nothing of their own, and position is a number, not a shape: every token runs the same program.

A member reads at most `context` tokens. When the next one does not fit, the last half of a context is read anew from
position 0 and decoding goes on: a learned table has no further rows, and no family was trained beyond them.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attnlab import kv_cache, model
from attnlab.knobs import Architecture, Knobs, ModelKnobs
from attnlab.kv_cache import Cache
from attnlab.masks import Mask
from attnlab.model import Params
from attnlab.training import Task


@dataclass(frozen=True)
class Choice:
    """How a token is chosen. `temperature`: 0 takes the likeliest. `top_k`: only among so many (None: among all).

    Raises:
      ValueError: a temperature that is negative or not finite, a top_k below 1, a seed outside uint32.
    """

    temperature: float = 1.0
    top_k: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature: must be finite and >= 0, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k: must be at least 1, got {self.top_k}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed: must be 0 <= seed < 2^32, got {self.seed}")


def least_prompt(mask: Mask) -> int:
    """The fewest tokens that must be there before the next can be chosen; q_len where no next one ever can.

    What a token reads may not change when later ones come, so every token behind the prompt must read nothing after
    itself: 0 for a causal mask or a window of it, p for prefix_lm(p), q_len for a full mask.
    """
    hi_T = np.asarray(mask.hi).max(axis=(0, 1))
    ahead = hi_T > np.arange(1, mask.q_len + 1)
    return int(hi_T[ahead].max(initial=0))


def check_decodable(knobs: Knobs) -> None:
    """Refuses what cannot continue a text.

    Raises:
      ValueError: an objective other than the next token, or a mask that lets every token read later ones.
    """
    if float(knobs.objective.mask_rate) > 0:
        raise ValueError(
            "objective: masked_lm fills in hidden tokens from both sides and never learned what comes next; "
            "allowed: next_token"
        )
    if int(knobs.objective.offset) != 1:
        raise ValueError(
            f"objective: next_token({int(knobs.objective.offset)}) does not predict the next token; "
            "allowed: next_token"
        )
    if least_prompt(knobs.mask) >= knobs.mask.q_len:
        raise ValueError(
            "mask: it lets tokens read those that come after them, so a text cannot be written token by token; "
            "allowed: masks that are causal behind a prefix"
        )


def read(
    arch: Architecture,
    params: Params,
    knobs: ModelKnobs,
    mask: Mask,
    cache: Cache,
    tokens_BT: Array,
) -> tuple[Array, Cache]:
    """Logits float32 [B, T, V] of tokens that follow those in the cache, and the cache with them in it.

    `mask`: of the whole context, [S, S] with S the slots of the cache; its rows `length ... length + T - 1` are used.
    """
    rows = mask.rows(cache.length, tokens_BT.shape[1])
    logits_BTV, aux = model.apply(arch, params, tokens_BT, rows, knobs, cache=cache)
    return logits_BTV, aux["cache"]


def choose(logits_BV: Array, key: Array, *, temperature: Array | float, top_k: int | None) -> Array:
    """int32 [B]: a draw from softmax(logits / temperature) over the `top_k` largest; the largest at temperature 0."""
    best_BK, index_BK = jax.lax.top_k(logits_BV, logits_BV.shape[1] if top_k is None else top_k)
    heat = jnp.asarray(temperature, jnp.float32)
    drawn_B = jax.random.categorical(key, best_BK / jnp.where(heat > 0, heat, 1.0))
    place_B = jnp.where(heat > 0, drawn_B, 0)
    return jnp.take_along_axis(index_BK, place_B[:, None], axis=1)[:, 0]


def generate(
    task: Task, params: Params, knobs: Knobs, prompt: Sequence[int], count: int, choice: Choice
) -> Iterator[int]:
    """`count` token ids that continue `prompt`; equal arguments give equal tokens.

    A member that was trained with [BOS] reads it first, and then needs no prompt. Of a prompt longer than the context
    the end is read.

    Raises:
      ValueError: what `check_decodable` refuses, an empty prompt or one shorter than the mask's prefix, a count below
        1, or a top_k above the vocabulary; before the first token.
    """
    check_decodable(knobs)
    head = [task.inputs.bos_id] if bool(knobs.objective.bos) else []
    least = max(least_prompt(knobs.mask), 1) - len(head)
    if len(prompt) < least:
        raise ValueError(f"prompt: {len(prompt)} tokens; allowed: at least {least} with this mask")
    if count < 1:
        raise ValueError(f"count: must be at least 1, got {count}")
    size = task.architecture.vocab_size
    if choice.top_k is not None and choice.top_k > size:
        raise ValueError(f"top_k: got {choice.top_k}; allowed: 1..{size}, the vocabulary")
    room = knobs.mask.q_len - len(head)
    windows = _Windows(head, room, max(room // 2, least))
    program = (task.architecture, choice.top_k, jax.device_put(params), knobs.model, knobs.mask)
    return _generate(program, windows, list(prompt), count, choice)


@dataclass(frozen=True)
class _Windows:
    """What is read anew: `head`, then the last tokens, at most `room` at first and `kept` of them ever after."""

    head: list[int]
    room: int
    kept: int

    def first(self, tokens: list[int]) -> list[int]:
        return self.head + tokens[-self.room :]

    def next(self, tokens: list[int]) -> list[int]:
        return self.head + tokens[-self.kept :]


def _generate(
    program: tuple[Any, ...], windows: _Windows, tokens: list[int], count: int, choice: Choice
) -> Iterator[int]:
    context = windows.room + len(windows.head)
    key = jax.random.key(choice.seed, impl="threefry2x32")
    heat = jnp.float32(choice.temperature)
    cache, used = None, context
    for index in range(count):
        draw = (key, np.uint32(index), heat)
        if used == context:
            window = windows.first(tokens) if cache is None else windows.next(tokens)
            used = len(window)
            padded_1S = np.zeros((1, context), np.int32)
            padded_1S[0, :used] = window
            token, cache = _prefill(*program, padded_1S, np.int32(used), *draw)
        else:
            token, cache = _step(*program, cache, np.array([[tokens[-1]]], np.int32), *draw)
            used += 1
        tokens.append(int(token))
        yield tokens[-1]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _prefill(
    arch: Architecture, top_k: int | None, params: Params, knobs: ModelKnobs, mask: Mask,
    tokens_1S: Array, count: Array, key: Array, index: Array, temperature: Array,
) -> tuple[Array, Cache]:  # fmt: skip
    """The token after the first `count` of a padded context. Nobody reads the padding: `least_prompt` sees to it."""
    empty = kv_cache.empty(arch, batch=1, slots=tokens_1S.shape[1])
    logits_1SV, cache = read(arch, params, knobs, mask, empty, tokens_1S)
    last_1V = jax.lax.dynamic_index_in_dim(logits_1SV, count - 1, axis=1, keepdims=False)
    key = jax.random.fold_in(key, index)
    token_1 = choose(last_1V, key, temperature=temperature, top_k=top_k)
    return token_1[0], dataclasses.replace(cache, length=count)


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=5)
def _step(
    arch: Architecture, top_k: int | None, params: Params, knobs: ModelKnobs, mask: Mask,
    cache: Cache, token_11: Array, key: Array, index: Array, temperature: Array,
) -> tuple[Array, Cache]:  # fmt: skip
    """The token after the one given, which is read into the cache."""
    logits_11V, cache = read(arch, params, knobs, mask, cache, token_11)
    key = jax.random.fold_in(key, index)
    return choose(logits_11V[:, 0], key, temperature=temperature, top_k=top_k)[0], cache
