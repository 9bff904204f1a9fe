"""One member's training as pure functions of (state, knobs, tokens): no iterator, no global, no I/O.

A batch is a function of (data seed, step), so stopping, resuming and replaying need only the state.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax import Array

from attnlab import health, magnitudes, model, objectives, optimizer, sharding
from attnlab.attention import AttentionStats
from attnlab.data import sampling
from attnlab.data.sampling import Data, Windows
from attnlab.health import Health
from attnlab.knobs import Architecture, Budget, Knobs

# Masked places of validation windows are the same for every member, step and seed.
EVALUATION_KEY = 20_170_612
NEVER = -1
T = TypeVar("T")  # any pytree of arrays
SUMMED = ("loss_by_position", "count_by_position")  # results of `evaluate` to add up over parts


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """`step`: int32, updates done. `diverged_at`: int32, the step whose loss or gradient was not finite, or -1.

    From that step on the state does not change: `params` and `health` are the last good ones. `stopped`: bool,
    somebody asked this member to end early.
    """

    params: model.Params
    moments: optax.ScaleByAdamState
    step: Array
    diverged_at: Array
    stopped: Array
    health: Health


@dataclass(frozen=True)
class Task:
    """The static side of one program: what is built, how much of it at once, and how batches are made."""

    architecture: Architecture
    budget: Budget
    inputs: objectives.Inputs


def init_state(task: Task, knobs: Knobs) -> TrainState:
    """A member before its first update."""
    return _fresh(task, knobs.seed_init, knobs.init_gain)


def state_shapes(task: Task) -> TrainState:
    """Shapes and dtypes of a member's state."""
    return jax.eval_shape(lambda: _fresh(task, jnp.uint32(0), jnp.float32(1.0)))


def _fresh(task: Task, seed: Array, gain: Array) -> TrainState:
    params = model.init(task.architecture, seed, gain)
    return TrainState(
        params=params,
        moments=optimizer.init(params),
        step=jnp.int32(0),
        diverged_at=jnp.int32(NEVER),
        stopped=jnp.bool_(False),
        health=health.init(),
    )


def compiler_options(task: Task, platform: str) -> dict[str, str] | None:
    """What XLA has to be told to compile a task for a platform; None: nothing.

    Its CPU back end removes the barriers of rematerialisation before it merges equal work, so that what should be
    computed again is kept after all (jax 0.10.2: not a byte less); without that pass the barriers stand.
    """
    if task.architecture.remat == "none" or platform != "cpu":
        return None
    return {"xla_disable_hlo_passes": "cse_barrier_expander"}


def is_active(state: TrainState, knobs: Knobs) -> Array:
    """bool scalar: this member still has updates to do."""
    running = (state.diverged_at == NEVER) & ~state.stopped
    return running & (state.step < knobs.optimizer.total_steps)


def batch_at(task: Task, knobs: Knobs, step: Array, tokens: Data) -> objectives.Batch:
    """The batch of update number `step`: a function of the data seed and the step.

    Windows that the host has cut must be those of that function.
    """
    if not isinstance(tokens, Windows):
        length = objectives.window_length(task.architecture.context)
        tokens = sampling.cut(
            tokens, knobs.seed_data, step, batch_size=task.budget.batch_size, length=length
        )
    # A different stream from the one that draws the windows, made from the same two numbers.
    key = jax.random.fold_in(sampling.batch_key(knobs.seed_data, step), 1)
    return batch_of(task, knobs, tokens, key)


def batch_of(task: Task, knobs: Knobs, windows: Windows, key: Array) -> objectives.Batch:
    """What a member's objective and mask make of windows [B, W]; `key` draws places and orders."""
    return objectives.make_batch(
        knobs.objective, windows.tokens, knobs.mask,
        key=key, inputs=task.inputs, segments_BW=windows.segments,
    )  # fmt: skip


def logits_of(
    task: Task, params: model.Params, knobs: Knobs, batch: objectives.Batch, *, stats: bool = False
) -> tuple[Array, dict[str, Any]]:
    """The network on a batch, see `model.apply`: (logits [B, T, V], intermediates)."""
    batch = sharding.by_example(batch)
    return model.apply(
        task.architecture, params, batch.inputs, batch.mask, knobs.model,
        positions_BT=batch.positions, stats=stats,
    )  # fmt: skip


def loss_and_grads(
    task: Task, params: model.Params, knobs: Knobs, batch: objectives.Batch
) -> tuple[tuple[Array, tuple[Array, Array]], model.Params]:
    """((mean loss, (sum, count)), gradients of the mean).

    With `accumulation` micro-batches each contributes its sum over the count of the whole batch: the mean of their
    means would be another number as soon as their counts differ, as they do in masked-LM.
    """
    count = jnp.sum(batch.weights)

    def share(params: model.Params, part: objectives.Batch) -> tuple[Array, Array]:
        logits, _ = logits_of(task, params, knobs, part)
        total, _ = objectives.loss(logits, part)
        return total / jnp.maximum(count, 1.0), total

    (loss, total), grads = sum_over_micro_batches(
        lambda part: jax.value_and_grad(share, has_aux=True)(params, part),
        batch,
        task.budget.accumulation,
    )
    return (loss, (total, count)), grads


def sum_over_micro_batches(
    f: Callable[[objectives.Batch], T], batch: objectives.Batch, parts: int
) -> T:
    """Sum of `f` over the micro-batches of a batch, one after another, so that only one is in memory.

    Micro-batch k holds the examples k, k + parts, ...: each device of a sharded batch keeps a share of every one.
    """
    if parts == 1:
        return f(batch)
    examples = batch.inputs.shape[0]
    leaves, structure = jax.tree.flatten(batch)
    split = [i for i, x in enumerate(leaves) if x.shape[0] == examples]  # a mask may serve them all

    def part(pieces: list[Array]) -> objectives.Batch:
        chosen = [pieces[split.index(i)] if i in split else x for i, x in enumerate(leaves)]
        return jax.tree.unflatten(structure, chosen)

    def body(total: T, pieces: list[Array]) -> tuple[T, None]:
        return jax.tree.map(jnp.add, total, f(part(pieces))), None

    pieces = [
        leaves[i].reshape(examples // parts, parts, *leaves[i].shape[1:]).swapaxes(0, 1)
        for i in split
    ]
    shapes = jax.eval_shape(lambda p: f(part([x[0] for x in p])), pieces)
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return jax.lax.scan(body, zero, pieces)[0]


def train_step(
    task: Task, state: TrainState, knobs: Knobs, tokens: Data
) -> tuple[TrainState, dict[str, Array]]:
    """One update: (state, metrics).

    `tokens`: the training corpus, int [n], or with document borders, or the windows [B, W] of this update. Metrics, scalars: `loss_sum` (nats), `count` (targets), `updates` (1,
    or 0 when the member is done or this update was not finite: then the state is returned as it was, but for
    `diverged_at`), `grad_norm` before clipping, `learning_rate`. By layer, [L]: `layer_grad_norm` before clipping, and
    `layer_update_rms` of what the parameters of the block moved by.
    """
    batch = batch_at(task, knobs, state.step, tokens)
    (_, (total, count)), grads = loss_and_grads(task, state.params, knobs, batch)
    grads = sharding.parameters(grads, task.budget.sharding)
    params, moments, norm = optimizer.update(
        grads, state.moments, state.params, knobs.optimizer, state.step
    )
    params, moments = sharding.parameters((params, moments), task.budget.sharding)
    moved_by = magnitudes.rms(jax.tree.map(jnp.subtract, params, state.params))
    finite = jnp.isfinite(total) & jnp.isfinite(norm)
    active = is_active(state, knobs)
    moved = dataclasses.replace(
        state,
        params=params,
        moments=moments,
        step=state.step + 1,
        health=health.after_update(state.health, total / jnp.maximum(count, 1.0), norm, state.step),
    )
    diverged_at = jnp.where(active & ~finite, state.step, state.diverged_at)
    stuck = dataclasses.replace(state, diverged_at=diverged_at)
    state = jax.tree.map(lambda new, old: jnp.where(active & finite, new, old), moved, stuck)
    counted = active & finite
    metrics = {
        "loss_sum": jnp.where(counted, total, 0.0),
        "count": jnp.where(counted, count, 0.0),
        "updates": counted.astype(jnp.int32),
        "grad_norm": jnp.where(counted, norm, 0.0),
        "learning_rate": optimizer.learning_rate(knobs.optimizer, state.step - 1),
        "layer_grad_norm": jnp.where(counted, magnitudes.norms(grads), 0.0),
        "layer_update_rms": jnp.where(counted, moved_by, 0.0),
    }
    return state, metrics


def train_chunk(
    task: Task, state: TrainState, knobs: Knobs, tokens: Data
) -> tuple[TrainState, dict[str, Array]]:
    """`budget.log_every` updates in one call: (state, metrics of the chunk as scalars, or [L] by layer).

    `tokens`: as in `train_step`; windows have the updates of the chunk as their first axis.

    `train/loss`: mean over the targets of the chunk. `train/grad_norm`: the largest. `updates`: how many were
    done. By layer, of the last update: `opt/grad_norm`, `opt/update_rms`, and `params/norm` after it. A scan, because one call for K updates saves a third of the time of a small step.
    """

    def body(carry: TrainState, windows: Windows | None) -> tuple[TrainState, dict[str, Array]]:
        return train_step(task, carry, knobs, tokens if windows is None else windows)

    each = tokens if isinstance(tokens, Windows) else None
    state, steps = jax.lax.scan(body, state, each, length=task.budget.log_every)
    return state, {
        "train/loss": jnp.sum(steps["loss_sum"]) / jnp.maximum(jnp.sum(steps["count"]), 1.0),
        "train/grad_norm": jnp.max(steps["grad_norm"]),
        "opt/learning_rate": steps["learning_rate"][-1],
        "opt/grad_norm": steps["layer_grad_norm"][-1],
        "opt/update_rms": steps["layer_update_rms"][-1],
        "params/norm": magnitudes.norms(state.params),
        "updates": jnp.sum(steps["updates"]),
    }


def no_metrics(state: TrainState) -> dict[str, Array]:
    """What `train_chunk` reports when it does nothing."""
    zero = jnp.float32(0.0)
    zero_L = jnp.zeros(len(magnitudes.blocks(state.params)), jnp.float32)
    return {
        "train/loss": zero,
        "train/grad_norm": zero,
        "opt/learning_rate": zero,
        "opt/grad_norm": zero_L,
        "opt/update_rms": zero_L,
        "params/norm": zero_L,
        "updates": jnp.int32(0),
    }


def evaluate(
    task: Task, state: TrainState, knobs: Knobs, windows_EW: Array | Windows, block: Array
) -> dict[str, Array]:
    """Loss on given windows, and what attention does on the first batch of them (its first micro-batch).

    `windows_EW`: int [E, T + MAX_OFFSET], or these with their documents; E a multiple of the batch size. `block`: int32, which part of the
    evaluation this is, so that parts hide different places. Returns float32 arrays: `loss_by_position` and
    `count_by_position` [T] (sums), `max_logit` [L], `entropy` [L, N] (normalised by ln of the visible keys), `q_norm`,
    `k_norm` and `qk_cosine` [L] (see `attention.geometry`).
    """
    size, parts = task.budget.batch_size, task.budget.accumulation
    windows = windows_EW if isinstance(windows_EW, Windows) else Windows(windows_EW)
    batches = jax.tree.map(lambda x: x.reshape(-1, size, x.shape[1]), windows)
    key = jax.random.fold_in(jax.random.key(EVALUATION_KEY, impl="threefry2x32"), block)
    keys = jax.random.split(key, batches.tokens.shape[0])

    def losses_of(part: objectives.Batch) -> tuple[Array, Array]:
        logits, _ = logits_of(task, state.params, knobs, part)
        return objectives.loss_by_position(logits, part)

    def body(carry: None, item: tuple[Windows, Array]) -> tuple[None, tuple[Array, Array]]:
        return None, sum_over_micro_batches(losses_of, batch_of(task, knobs, *item), parts)

    _, (sums, counts) = jax.lax.scan(body, None, (batches, keys))
    batch = batch_of(task, knobs, jax.tree.map(lambda x: x[0], batches), keys[0])
    first = jax.tree.map(lambda x: x[: size // parts] if x.shape[0] == size else x, batch)
    _, aux = logits_of(task, state.params, knobs, first, stats=True)
    return {
        "loss_by_position": jnp.sum(sums, axis=0),
        "count_by_position": jnp.sum(counts, axis=0),
        **_attention_summary(aux),
    }


def _attention_summary(aux: dict[str, Any]) -> dict[str, Array]:
    """By layer; nothing where no layer attends."""
    layers: list[AttentionStats] = aux["attention"]
    if not layers:
        return {}
    heads = [stats.per_head() for stats in layers]
    return {
        **jax.tree.map(lambda *layers: jnp.stack(layers), *aux["queries_and_keys"]),
        "max_logit": jnp.stack([jnp.max(h["max_logit"]) for h in heads]),
        "entropy": jnp.stack([h["normalized_entropy"] for h in heads]),
    }


def finiteness(task: Task, state: TrainState, knobs: Knobs, tokens: Data) -> dict[str, bool]:
    """Which tensors of update number `state.step` are finite, by name, in order of computation.

    Parameters, the residual stream after the embedding and after each block, logits, loss, gradients: the first
    False is where a diverged update went wrong.
    """
    names: list[str] = []

    @jax.jit
    def flags(state: TrainState, knobs: Knobs, tokens: Data) -> Array:
        batch = batch_at(task, knobs, state.step, tokens)
        logits, aux = logits_of(task, state.params, knobs, batch)
        (loss, _), grads = loss_and_grads(task, state.params, knobs, batch)
        tensors = {f"parameter {name}": x for name, x in _named(state.params)}
        tensors |= {f"residual stream {name}": x for name, x in aux["residual"].items()}
        tensors |= {"logits": logits, "loss": loss}
        tensors |= {f"gradient of {name}": x for name, x in _named(grads)}
        names.extend(tensors)
        return jnp.stack([jnp.all(jnp.isfinite(x)) for x in tensors.values()])

    finite = flags(state, knobs, tokens).tolist()  # traced first: that fills the names
    return dict(zip(names, finite, strict=True))


def _named(tree: model.Params) -> list[tuple[str, Array]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [("/".join(str(k.key) for k in path), leaf) for path, leaf in leaves]
