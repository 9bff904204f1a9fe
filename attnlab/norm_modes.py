"""What a norm reads beside its own vector: the batch, the future, and how much the network relies on it.

BatchNorm normalizes a vector by the other vectors of its batch. In use there is no batch, and statistics gathered in
training stand in for it; the network was not trained with these. LayerNorm and RMSNorm are measured the same way: their
numbers are 0 up to rounding.
"""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from attnlab import model, probes
from attnlab.knobs import Architecture, ModelKnobs
from attnlab.masks import Mask
from attnlab.measurements.norms import Mode, NormModes
from attnlab.members import Trained

SEED = 20_150_211  # of the choice of sequences and of what replaces tokens
BATCH_SIZES = (1, 4, 32)
SEQUENCES = 256  # of the validation split
GATHERED = 32  # batches of the training split behind the running statistics

Statistics = Mapping[str, tuple[Array, Array]]


def norm_modes(trained: Trained) -> NormModes:
    """A member with the statistics of the batch at hand and with running ones.

    Raises:
      ValueError: a member that was not trained to predict the next token.
    """
    objective = trained.knobs.objective
    if int(objective.offset) != 1 or float(objective.mask_rate) > 0 or bool(objective.bos):
        raise ValueError(
            f"{trained.name}: got objective {trained.config['objective']!r}; allowed: next_token without [BOS]"
        )
    size = BATCH_SIZES[-1]
    length = trained.architecture.context + 1
    windows = probes.consecutive_tokens(trained.corpus.validation, SEQUENCES, length, SEED)
    text = probes.consecutive_tokens(trained.corpus.train, GATHERED * size, length, SEED)
    _, gathered = _losses(*_member(trained), _batches(text, size))
    # Of mean and variance over the batches: the variance between batches is no part of it, as in running averages.
    running = jax.tree.map(lambda x: jnp.mean(x, axis=0), gathered)
    by_size = [_losses(*_member(trained), _batches(windows, n))[0] for n in BATCH_SIZES]
    return NormModes(
        batch_sizes=np.array(BATCH_SIZES),
        losses=np.array([np.mean(x, dtype=np.float64) for x in map(np.asarray, by_size)]),
        batch=_mode(trained, windows, {}),
        running=_mode(trained, windows, running),
    )


def _mode(trained: Trained, windows_QW: np.ndarray, statistics: Statistics) -> Mode:
    size, rng = BATCH_SIZES[-1], np.random.default_rng(SEED)
    member = _member(trained, statistics)
    other = rng.integers(1, trained.vocabulary.size, windows_QW.shape)
    replaced = ((windows_QW + other) % trained.vocabulary.size).astype(windows_QW.dtype)
    beside = _batches(replaced, size).copy()
    beside[:, 0] = _batches(windows_QW, size)[:, 0]
    # The last input is one before the last token, which is a target only.
    later = windows_QW.copy()
    later[:, -2] = replaced[:, -2]
    loss_NBT, beside_NBT, later_NBT = (
        np.asarray(_losses(*member, batches)[0], np.float64)
        for batches in (_batches(windows_QW, size), beside, _batches(later, size))
    )
    # The two targets that the replaced token is, or is read for, are left out.
    earlier = slice(None, -2)
    return Mode(
        loss=float(loss_NBT.mean()),
        coupling=float(np.abs(beside_NBT - loss_NBT)[:, 0].max()),
        leak=float(np.abs(later_NBT - loss_NBT)[:, :, earlier].max()),
    )


def _member(
    trained: Trained, statistics: Statistics | None = None
) -> tuple[Architecture, model.Params, ModelKnobs, Mask]:
    knobs = dataclasses.replace(trained.knobs.model, norm_statistics=dict(statistics or {}))
    return trained.architecture, trained.params, knobs, trained.knobs.mask


def _batches(windows_QW: np.ndarray, size: int) -> np.ndarray:
    return windows_QW.reshape(-1, size, windows_QW.shape[1])


@functools.partial(jax.jit, static_argnums=0)
def _losses(
    arch: Architecture, params: model.Params, knobs: ModelKnobs, mask: Mask, windows_NBW: Array
) -> tuple[Array, Statistics]:
    """(loss of every target [N, B, T], the norms' statistics of each batch), batches one after another."""

    def one(windows_BW: Array) -> tuple[Array, Statistics]:
        logits, aux = model.apply(arch, params, windows_BW[:, :-1], mask, knobs)
        loss_BT = optax.softmax_cross_entropy_with_integer_labels(logits, windows_BW[:, 1:])
        return loss_BT, aux["norm_statistics"]

    return jax.lax.map(one, windows_NBW)
