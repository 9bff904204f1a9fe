"""How well a token's position can be read off hidden states: the probe of Haviv et al. 2022 (arXiv 2203.16634, section 5).

A two-layer ReLU network reads one frozen state and says at which position it stands. States of every layer and member
are stacked, and all their probes train in one program. Sequences, not tokens, are split into training and test: two
tokens of one sequence share their content.

What a probe's error is compared with, each by the same code on other states or labels: (N^2 - 1) / 3N, a uniform
guess, and N / 4, the best guess that looks at nothing; labels shuffled within each sequence; the bag of tokens so far;
a model that was never trained; tokens drawn independently of their place. Haviv et al. report the error of the
likeliest class. Without information that is any class, so the first number printed here is the error of the median,
which the mean absolute distance asks for, and which then is the N / 4.

Letters in names: X probes (members times layers), Q training and R test sequences, N positions told apart (= T).
"""

# ruff: noqa: N815  (fields carry their shapes in their names)

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from attnlab import model
from attnlab.data.vocabulary import Tokens
from attnlab.knobs import Architecture, ModelKnobs
from attnlab.masks import Mask

AXIS = "probe"


@dataclass(frozen=True)
class Settings:
    """How a probe is trained; static. Adam as in Haviv et al., with fewer steps than their 10 000.

    `hidden`: width of the hidden layer over that of the states. `batch`: sequences per step. `warmup`: share of the
    steps; after it the learning rate falls to 0 along a cosine.

    Raises:
      ValueError: a number that is not positive, or fewer than 2 steps.
    """

    hidden: int = 4
    steps: int = 1000
    batch: int = 16
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    warmup: float = 0.05

    def __post_init__(self) -> None:
        for name, least in (("hidden", 1), ("steps", 2), ("batch", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: must be at least {least}, got {getattr(self, name)}")
        if not (self.learning_rate > 0 and self.weight_decay >= 0 and 0 <= self.warmup < 1):
            raise ValueError(
                "learning_rate, weight_decay, warmup: must be > 0, >= 0 and in [0, 1), got "
                f"{self.learning_rate}, {self.weight_decay}, {self.warmup}"
            )


@dataclass(frozen=True)
class Errors:
    """Mean absolute distance of predicted and true position on test sequences, in positions.

    `median_PX`, `argmax_PX`: of the median and of the likeliest class, float64, a row per probe seed.
    `median_PXN`: the first one by true position.
    """

    median_PX: np.ndarray
    argmax_PX: np.ndarray
    median_PXN: np.ndarray


def uniform_guess(positions: int) -> float:
    """Error of guessing uniformly among N positions: (N^2 - 1) / 3N, about N / 3."""
    return (positions**2 - 1) / (3 * positions)


def blind_guess(positions: int) -> float:
    """Error of always saying the middle: N / 4 for even N, and (N^2 - 1) / 4N for odd."""
    return (positions**2 // 4) / positions


def position_errors(
    train_XQND: Array | np.ndarray,
    test_XRND: Array | np.ndarray,
    settings: Settings,
    *,
    seeds: int = 3,
    train_labels_QN: Array | np.ndarray | None = None,
    test_labels_RN: Array | np.ndarray | None = None,
) -> Errors:
    """Trains `seeds` probes on each of X kinds of states and tests them on other sequences.

    States are first brought to mean 0 and variance 1 per dimension, as measured on the training sequences: the first
    layer could do that itself, and layers of another scale would train at another speed.

    Args:
      train_XQND, test_XRND: states float [X, sequences, N, D], for instance `states_of_members` with its first two axes
        flattened.
      settings: how a probe is trained.
      seeds: P; seed p fixes parameters and batches.
      train_labels_QN, test_labels_RN: int [sequences, N], what is asked for instead of the position.

    Raises:
      ValueError: shapes that do not belong together, or no seed.
    """
    X, Q, N, D = train_XQND.shape
    if test_XRND.shape[0] != X or test_XRND.shape[2:] != (N, D):
        raise ValueError(
            f"test_XRND: shape {test_XRND.shape}; allowed: ({X}, sequences, {N}, {D}), as in train_XQND"
        )
    if seeds < 1:
        raise ValueError(f"seeds: must be at least 1, got {seeds}")
    labels = [
        np.broadcast_to(np.arange(N, dtype=np.int32), (count, N)) if given is None else given
        for count, given in ((Q, train_labels_QN), (test_XRND.shape[1], test_labels_RN))
    ]
    probe_seeds = np.arange(seeds, dtype=np.uint32)
    median_XPN, argmax_XPN = _run(_errors, settings, (train_XQND, test_XRND), probe_seeds, *labels)
    return Errors(
        median_PX=median_XPN.mean(axis=-1, dtype=np.float64).T,
        argmax_PX=argmax_XPN.mean(axis=-1, dtype=np.float64).T,
        median_PXN=median_XPN.swapaxes(0, 1).astype(np.float64),
    )


def _errors(
    settings: Settings, states: tuple[Array, Array], seeds_P: Array, train_QN: Array, test_RN: Array
) -> tuple[Array, Array]:
    """`_error` of a probe for each seed: float32 [P, N] each."""
    return _over(lambda seed: _error(settings, *states, train_QN, test_RN, seed))(seeds_P)


def _error(
    settings: Settings,
    train_QND: Array,
    test_RND: Array,
    train_QN: Array,
    test_RN: Array,
    seed: Array,
) -> tuple[Array, Array]:
    """(error of the median, error of the likeliest class) by true position, float32 [N] each: one probe."""
    mean_D = jnp.mean(train_QND, axis=(0, 1))[None, None]
    inverse_D = jax.lax.rsqrt(jnp.var(train_QND, axis=(0, 1)) + 1e-6)[None, None]
    key = jax.random.key(seed, impl="threefry2x32")
    N = train_QND.shape[1]
    probe = _trained(settings, (train_QND - mean_D) * inverse_D, train_QN, key)
    probabilities_RNC = jax.nn.softmax(_logits(probe, (test_RND - mean_D) * inverse_D))
    reached_RNC = jnp.cumsum(probabilities_RNC, axis=-1) >= 0.5
    guesses = jnp.argmax(reached_RNC, axis=-1), jnp.argmax(probabilities_RNC, axis=-1)
    count_N = jnp.zeros(N).at[test_RN].add(1.0)
    median_N, argmax_N = (
        jnp.zeros(N).at[test_RN].add(jnp.abs(guess - test_RN).astype(jnp.float32)) / count_N
        for guess in guesses
    )
    return median_N, argmax_N


def _trained(
    settings: Settings, states_QND: Array, labels_QN: Array, key: Array
) -> dict[str, Array]:
    Q, N, D = states_QND.shape
    F, draw = settings.hidden * D, jax.nn.initializers.lecun_normal()
    keys = jax.random.split(key, 3)
    probe = {
        "up": draw(keys[0], (D, F)), "up_bias": jnp.zeros(F),
        "down": draw(keys[1], (F, N)), "down_bias": jnp.zeros(N),
    }  # fmt: skip
    warmup = max(1, round(settings.warmup * settings.steps))
    schedule = optax.schedules.warmup_cosine_decay_schedule(
        0.0, settings.learning_rate, warmup, settings.steps
    )
    adam = optax.adamw(schedule, weight_decay=settings.weight_decay)

    def loss(probe: dict[str, Array], chosen_B: Array) -> Array:
        logits = _logits(probe, states_QND[chosen_B])
        return jnp.mean(
            optax.softmax_cross_entropy_with_integer_labels(logits, labels_QN[chosen_B])
        )

    def step(carry: Any, index: Array) -> tuple[Any, None]:
        probe, moments = carry
        chosen_B = jax.random.randint(jax.random.fold_in(keys[2], index), (settings.batch,), 0, Q)
        updates, moments = adam.update(jax.grad(loss)(probe, chosen_B), moments, probe)
        return (optax.apply_updates(probe, updates), moments), None

    (probe, _), _ = jax.lax.scan(step, (probe, adam.init(probe)), jnp.arange(settings.steps))
    return probe


def _logits(probe: Mapping[str, Array], states_QND: Array) -> Array:
    Q, N, D = states_QND.shape
    hidden = jax.nn.relu(states_QND.reshape(Q * N, D) @ probe["up"] + probe["up_bias"][None, :])
    return (hidden @ probe["down"] + probe["down_bias"][None, :]).reshape(Q, N, -1)


# What a probe reads


def states(
    arch: Architecture, params: model.Params, knobs: ModelKnobs, mask: Mask, tokens_QT: Array
) -> Array:
    """The residual stream after the embedding and after each block: float32 [L + 1, Q, T, D]."""
    _, aux = model.apply(arch, params, tokens_QT, mask, knobs)
    return jnp.stack([x.astype(jnp.float32) for x in aux["residual"].values()])


def states_of_members(
    arch: Architecture, params_M: model.Params, knobs_M: ModelKnobs, mask_M: Mask, tokens_QT: Tokens
) -> np.ndarray:
    """`states` of every member of a group, in one program: float32 [M, L + 1, Q, T, D].

    `params_M`, `knobs_M`, `mask_M`: stacked along a leading axis, as in a population.
    """

    return _run(_states, arch, (params_M, knobs_M, mask_M), np.asarray(tokens_QT, np.int32))


def _states(arch: Architecture, member: tuple[Any, ModelKnobs, Mask], tokens_QT: Array) -> Array:
    params, knobs, mask = member
    return states(arch, params, knobs, mask, tokens_QT)


def bag_of_prefix(tokens_QT: Tokens, vocabulary_size: int) -> np.ndarray:
    """Share of each id among the tokens so far, the current one included: float32 [Q, T, V].

    What one head that looks at everything alike could know, and all that the content alone gives away.
    """
    one_hot_QTV = np.asarray(tokens_QT)[..., None] == np.arange(vocabulary_size)
    so_far_T = np.arange(1, one_hot_QTV.shape[1] + 1)
    return (one_hot_QTV.cumsum(axis=1) / so_far_T[None, :, None]).astype(np.float32)


def shuffled_labels(sequences: int, positions: int, seed: int) -> np.ndarray:
    """The positions in an order of its own for each sequence, int32 [sequences, N]: nothing to be learned."""
    rng = np.random.default_rng(seed)
    in_order = np.tile(np.arange(positions, dtype=np.int32), (sequences, 1))
    return rng.permuted(in_order, axis=1)


def independent_tokens(tokens: Tokens, sequences: int, length: int, seed: int) -> np.ndarray:
    """Sequences of tokens drawn one by one from all of a corpus, int32 [sequences, length].

    As frequent as in the text, and independent of their neighbours and their place.
    """
    places = np.random.default_rng(seed).integers(len(tokens), size=(sequences, length))
    return np.asarray(tokens[places], np.int32)


def consecutive_tokens(tokens: Tokens, sequences: int, length: int, seed: int) -> np.ndarray:
    """Windows of a corpus at random places, int32 [sequences, length]: none begins where a text does more often.

    Windows are drawn without repetition, so that no two of them are equal.

    Raises:
      ValueError: fewer windows than asked for.
    """
    most = len(tokens) - length + 1
    if sequences > most:
        raise ValueError(f"sequences: got {sequences}; allowed: at most {most} of {length} tokens")
    starts = np.random.default_rng(seed).choice(most, size=sequences, replace=False)
    return np.asarray(tokens[starts[:, None] + np.arange(length)[None, :]], np.int32)


def behind_bos(tokens_QT: np.ndarray, bos_id: int) -> np.ndarray:
    """[BOS] and all tokens but the last: the same length, and a first token that every query can count on."""
    head = np.full((len(tokens_QT), 1), bos_id, tokens_QT.dtype)
    return np.concatenate([head, tokens_QT[:, :-1]], axis=1)


# One program for all of them


def _over(f: Callable[..., Any]) -> Callable[[Any], Any]:
    """`f` over a leading axis: one after another on a CPU, where that is faster, side by side elsewhere."""
    if jax.default_backend() == "cpu":
        return lambda xs: jax.lax.map(f, xs)
    return jax.vmap(f)


def _run(f: Callable[..., Any], static: Any, stacked: Any, *shared: Any) -> Any:
    """`f(static, one, *shared)` for each entry of the leading axis of `stacked`, over all devices; numpy results."""
    count = jax.tree.leaves(stacked)[0].shape[0]
    devices = min(count, jax.device_count())

    def padded(x: Any) -> np.ndarray:
        x = np.asarray(x)
        return np.concatenate([x, np.repeat(x[-1:], -count % devices, axis=0)])

    result = _program(f, static, devices, len(shared))(jax.tree.map(padded, stacked), *shared)
    return jax.tree.map(lambda x: np.asarray(x)[:count], jax.device_get(result))


@functools.cache
def _program(f: Callable[..., Any], static: Any, devices: int, shared: int) -> Callable[..., Any]:
    mesh = jax.make_mesh(
        (devices,), (AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices]
    )

    def here(stacked: Any, *shared: Any) -> Any:
        return _over(lambda one: f(static, one, *shared))(stacked)

    specs = (P(AXIS), *[P()] * shared)
    return jax.jit(
        jax.shard_map(here, mesh=mesh, in_specs=specs, out_specs=P(AXIS), check_vma=False)
    )
