"""The population engine: one compiled train step for all members of a group.

Members are sharded over the devices of a one-axis mesh. On a CPU the members of a device run one after another
(`lax.map`), each for a chunk of updates; on an accelerator they are vmapped, so that small members fill the chip.
Measured on 2 cores with two host devices this is 1.5 to 3 times as fast as ordinary single runs.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from attnlab import perf, sharding, training
from attnlab.checkpoints import Checkpoints
from attnlab.data import feed
from attnlab.data.feed import HostFeed, Place
from attnlab.data.sampling import Windows
from attnlab.health import Health
from attnlab.knobs import Knobs
from attnlab.objectives import window_length
from attnlab.plan import Group
from attnlab.processes import fetch, from_first, place
from attnlab.sharding import MEMBER
from attnlab.training import NEVER, Task, TrainState


class Program:
    """The compiled functions of one group on one mesh, and how often each was traced.

    `fed`: the windows of a chunk come from the host, for each member its own, instead of all tokens for all.
    """

    def __init__(self, task: Task, mesh: Mesh, *, fed: bool = False):
        self.task = task
        self.mesh = mesh
        self.traces = {"train": 0, "evaluate": 0}
        self.members = NamedSharding(mesh, P(MEMBER))
        self.layout = sharding.of_members(mesh, training.state_shapes(task), task.budget.sharding)
        self.everywhere = NamedSharding(mesh, P())
        platform = mesh.devices.flat[0].platform
        one_by_one = platform == "cpu"
        options = training.compiler_options(task, platform)
        over_members = _mapped if one_by_one else jax.vmap
        sharded, whole = P(MEMBER), P()

        def init(knobs: Knobs) -> TrainState:
            return over_members(lambda k: training.init_state(task, k))(knobs)

        def train(states: TrainState, knobs: Knobs, tokens: Any) -> Any:
            self.traces["train"] += 1

            def chunk(state: TrainState, k: Knobs, *own: Windows) -> Any:
                return training.train_chunk(task, state, k, *(own or (tokens,)))

            per_member = (states, knobs, tokens) if fed else (states, knobs)
            return over_members(_skip_inactive(chunk) if one_by_one else chunk)(*per_member)

        def evaluate(
            states: TrainState, knobs: Knobs, wanted: Array, windows: Array, block: Array
        ) -> Any:
            self.traces["evaluate"] += 1

            def one(state: TrainState, k: Knobs, _: Array) -> Any:
                return training.evaluate(task, state, k, windows, block)

            return over_members(_skip_unwanted(one) if one_by_one else one)(states, knobs, wanted)

        def shard(f: Callable[..., Any], in_specs: Any, **kwargs: Any) -> Callable[..., Any]:
            mapped = jax.shard_map(
                f, mesh=mesh, in_specs=in_specs, out_specs=sharded, check_vma=False,
                axis_names=sharding.manual_axes(mesh),
            )  # fmt: skip
            return jax.jit(mapped, compiler_options=options, **kwargs)

        self.init = shard(init, (sharded,), out_shardings=self.layout)
        self.train = shard(
            train,
            (sharded, sharded, sharded if fed else whole),
            donate_argnums=(0,),
            out_shardings=(self.layout, self.members),
        )
        self.evaluate = shard(evaluate, (sharded, sharded, sharded, whole, whole))

    def place(self, knobs: Sequence[Knobs]) -> Knobs:
        """Stacks the members' data along a leading axis, padded to the mesh, on the devices.

        Padding repeats the last member with no updates to do.
        """
        missing = -len(knobs) % self.mesh.shape[MEMBER]
        last = knobs[-1]
        idle = dataclasses.replace(
            last, optimizer=dataclasses.replace(last.optimizer, total_steps=jnp.int32(0))
        )
        stacked = jax.tree.map(
            lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *knobs, *[idle] * missing
        )
        return place(stacked, self.members)

    def place_states(self, states: TrainState) -> TrainState:
        """Puts the states of the members (numpy, no padding) on the devices; padding repeats the last one."""
        return place(jax.tree.map(self._padded, states), self.layout)

    def place_windows(self, windows: Windows) -> Windows:
        """Puts the windows of each member on its device; padding repeats the last one."""
        return place(jax.tree.map(self._padded, windows), self.members)

    def place_flags(self, flags: np.ndarray) -> Array:
        """Puts one bool per member on the devices; padding repeats the last one."""
        return place(self._padded(flags), self.members)

    def _padded(self, x: np.ndarray) -> np.ndarray:
        return np.concatenate([x, np.repeat(x[-1:], -len(x) % self.mesh.shape[MEMBER], axis=0)])


def _mapped(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: jax.lax.map(lambda xs: f(*xs), args)


def _skip_inactive(chunk: Callable[..., Any]) -> Callable[..., Any]:
    """A member that is done or diverged costs nothing where members run one after another."""

    def skip(state: TrainState, knobs: Knobs, *windows: Windows) -> Any:
        return state, training.no_metrics(state)

    def run(state: TrainState, knobs: Knobs, *windows: Windows) -> Any:
        return jax.lax.cond(training.is_active(state, knobs), chunk, skip, state, knobs, *windows)

    return run


def _skip_unwanted(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    """A member that nobody asks about costs nothing where members run one after another; its results are 0."""

    def run(state: TrainState, knobs: Knobs, wanted: Array) -> Any:
        shapes = jax.eval_shape(evaluate, state, knobs, wanted)

        def skip(*_: Any) -> Any:
            return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

        return jax.lax.cond(wanted, evaluate, skip, state, knobs, wanted)

    return run


class Log(Protocol):
    """What the loop needs of a tracker.

    `log`: columns of one value per member. `flush`: waits for all logged rows to be on disk, and says whether they
    are. `finish`: how a member ended. `stop_requests`: members that somebody asked to stop, by index.
    """

    def log(self, step: int, rows: dict[str, np.ndarray], where: np.ndarray) -> None: ...

    def flush(self) -> bool: ...

    def stop_requests(self) -> frozenset[int]: ...

    def finish(self, index: int, status: str, summary: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Progress:
    """State of a group after a chunk, for the person who waits. `loss`: mean over the members still training."""

    step: int
    steps: int
    active: int
    loss: float
    tokens_per_second: float


@dataclass(frozen=True)
class GroupReport:
    """How a group ran. `train_seconds` excludes the first call, which compiles."""

    members: int
    traces: dict[str, int]
    interrupted: bool
    first_call_seconds: float
    train_seconds: float
    member_updates: int  # updates of all members within train_seconds

    @property
    def ms_per_member_update(self) -> float:
        """Milliseconds of wall time per update of one member, all devices working."""
        return 1e3 * self.train_seconds / max(self.member_updates, 1)


def run_group(
    group: Group,
    log: Log,
    *,
    checkpoints: Checkpoints | None = None,
    debug_nans: bool = False,
    data_on: Place = "auto",
    profile: Path | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[Progress], None] = lambda _: None,
) -> GroupReport:
    """Trains every member of a group to its end, or until `should_stop()`; metrics go to `log`.

    Metrics of a chunk are fetched while the next one runs. A member whose loss or gradient is not finite is
    frozen at its last good parameters and reported as `diverged`; the others are not affected. How a member ended is
    recorded with the next validation. Training starts from the newest checkpoint, if there is one; what follows
    equals an uninterrupted run bit for bit on CPU. `should_stop` is asked before everything that may take long:
    compiling, a chunk of updates, a block of a validation. Members that had not ended are then `interrupted`.
    `debug_nans`: rerun the update at which a member diverged, and put the first bad tensor's name in its summary.
    `data_on`: whether the tokens are on the devices, or windows come from the host; the batches are the same.
    `profile`: a directory for jax's profiler trace of the second call; summaries then hold `perf/...` as well.
    """
    if should_stop():
        return GroupReport(len(group.members), {"train": 0, "evaluate": 0}, True, 0.0, 0.0, 0)
    run = _Run(group, log, checkpoints, progress, debug_nans, data_on, profile, should_stop)
    with contextlib.closing(run):
        return run.train()


class _Run:
    """The loop's own state: what is on the devices, and the clock."""

    def __init__(
        self,
        group: Group,
        log: Log,
        checkpoints: Checkpoints | None,
        progress: Callable[[Progress], None],
        debug_nans: bool,
        data_on: Place,
        profile: Path | None,
        should_stop: Callable[[], bool],
    ):
        self.debug_nans, self.should_stop, self.profile = debug_nans, should_stop, profile
        self.traced = False  # the call whose metrics are pending
        self.group, self.log, self.progress = group, log, progress
        self.checkpoints = checkpoints
        self.count = len(group.members)
        self.feed = _host_feed(group) if feed.on_host(group.corpus, data_on) else None
        mesh = sharding.make_mesh(self.count, group.task.budget.data_devices)
        self.program = (
            Program(group.task, mesh) if self.feed is None else Program(group.task, mesh, fed=True)
        )
        self.knobs = self.program.place(group.knobs())
        self.states = self.program.init(self.knobs)
        self.start = self._restore()
        self.budget = group.task.budget
        if self.feed is None:
            tokens = feed.device_tokens(group.corpus, documents=self.budget.packed)
            self.tokens = place(tokens, self.program.everywhere)
        self.tokens_per_update = self.budget.batch_size * group.task.architecture.context
        self.first_call_seconds = self.train_seconds = 0.0
        self.member_updates = 0
        self.pending: tuple[int, dict[str, Array]] | None = None
        self.recorded = np.zeros(self.count, bool)  # members whose end the log knows
        self.clock = time.monotonic()

    def close(self) -> None:
        """Stops cutting windows ahead."""
        if self.feed is not None:
            self.feed.close()

    def train(self) -> GroupReport:
        steps, chunk = self.group.steps, self.budget.log_every
        step = self.start
        # Also where a checkpoint was resumed: the stop may have come before its validation.
        going = self._validate_if_due(step)
        while going and step < steps and not self.should_stop():
            self._stop_members()
            self.states, metrics = self._updates(step)
            self._log_pending()
            step += chunk
            self.pending = (step, metrics)
            going = self._validate_if_due(step)
            if going and self.checkpoints is not None and self.checkpoints.due(step):
                self._save(step)
        self._log_pending()
        self._save(step, wait=True)
        complete = going and step >= steps and self._record_ends(np.ones(self.count, bool))
        if not complete:
            self._interrupt(step)
        return GroupReport(
            self.count, dict(self.program.traces), not complete,
            self.first_call_seconds, self.train_seconds, self.member_updates,
        )  # fmt: skip

    def _updates(self, step: int) -> Any:
        """A chunk from `step` on. The second one is traced where a profile is wanted: the first compiles."""
        arguments = (self.states, self.knobs, self._data(step))
        if self.profile is None or step != self.start + self.budget.log_every:
            return self.program.train(*arguments)
        self._log_pending()
        with jax.profiler.trace(str(self.profile)):
            result = jax.block_until_ready(self.program.train(*arguments))
        self.traced, self.clock = True, time.monotonic()
        return result

    def _performance(self) -> dict[str, float]:
        """`perf/...` of the group so far, where a profile is wanted: no two runs agree on it."""
        if self.profile is None:
            return {}
        devices = self.program.mesh.size
        return perf.of_group(
            self.group.task, self.member_updates, self.train_seconds, devices=devices
        )

    def _data(self, step: int) -> Any:
        """What the updates from `step` on read: all tokens, or their windows."""
        if self.feed is None:
            return self.tokens
        return self.program.place_windows(self.feed.chunk(step))

    def _stop_members(self) -> None:
        """Freezes members that somebody asked to stop; the others do not notice, and a checkpoint remembers."""
        asked = np.zeros(self.count, bool)
        asked[list(self.log.stop_requests())] = True
        asked = from_first(asked)
        if not asked.any():
            return
        stopped = self._fetch(self.states.stopped)
        if (asked & ~stopped).any():
            placed = self.program.place_flags(stopped | asked)
            self.states = dataclasses.replace(self.states, stopped=placed)

    def _ended(self) -> np.ndarray:
        """bool [M]: members without an update left to do."""
        states, totals = self.states, self.knobs.optimizer.total_steps
        step, diverged_at, stopped, total = self._fetch(
            (states.step, states.diverged_at, states.stopped, totals)
        )
        return (step >= total) | (diverged_at != NEVER) | stopped

    def _restore(self) -> int:
        """Takes the newest checkpoint, if there is one; the number of updates done."""
        if self.checkpoints is None:
            return 0
        like = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((self.count, *x.shape[1:]), x.dtype), self.states
        )
        restored = self.checkpoints.restore(like)
        if restored is None:
            return 0
        step, states = restored
        self.states = self.program.place_states(states)
        return step

    def _save(self, step: int, *, wait: bool = False) -> None:
        """A checkpoint after `step` updates; rows up to it are on disk first, so that none can be missing."""
        if self.checkpoints is None:
            return
        self._log_pending()
        if not from_first(self.log.flush()):
            # Resuming from it would pass over rows that only this process has.
            self.checkpoints.pass_over(step, "the rows up to there are not on disk")
            return
        states = self.states
        if self.count % self.program.mesh.size:
            states = _first(states, self.count)
        self.checkpoints.save(step, states, wait=wait)

    def _log_pending(self) -> None:
        """Rows of the last chunk, fetched while the next one runs."""
        if self.pending is None:
            return
        (step, metrics), self.pending = self.pending, None
        fetched = self._fetch(metrics)
        updates = fetched.pop("updates")
        seconds, self.clock = time.monotonic() - self.clock, time.monotonic()
        if self.first_call_seconds == 0.0:
            self.first_call_seconds = seconds
        elif self.traced:  # its time is that of the profiler
            self.traced = False
        else:
            self.train_seconds += seconds
            self.member_updates += int(updates.sum())
        trained = updates > 0
        if not trained.any():
            return
        tokens = np.full(self.count, step * self.tokens_per_update)
        # A member that diverged within the chunk never reached this step: its last row is that of its end.
        whole = updates == self.budget.log_every
        self.log.log(step, {"tokens": tokens, **_by_layer(fetched)}, whole)
        done = int(updates.sum()) * self.tokens_per_update
        self.progress(
            Progress(
                step,
                self.group.steps,
                int(trained.sum()),
                float(fetched["train/loss"][trained].mean()),
                done / max(seconds, 1e-9),
            )
        )

    def _validate_if_due(self, step: int) -> bool:
        """Validation of the members that reached this step, on `eval.windows` windows; False: asked to stop.

        Members that ended get their last one here. Not at once: on an accelerator one costs as much as all.
        """
        if step % self.budget.eval_every or step >= self.group.steps:
            return True
        self._log_pending()
        reached = np.asarray(self._fetch(self.states.step)) >= step
        if reached.any():
            result = self._validation(self.budget.eval_windows, reached)
            if result is None:
                return False
            tokens = np.full(self.count, step * self.tokens_per_update)
            self.log.log(step, {"tokens": tokens, **_flat(result)}, reached)
        recorded = self._record_ends(self._ended())
        self.clock = time.monotonic()
        return recorded

    def _validation(
        self, count: int, wanted: np.ndarray, *, poll: bool = True
    ) -> dict[str, np.ndarray] | None:
        """Metrics of the members `wanted` on `count` windows of the validation split; None: asked to stop.

        In blocks of `eval.windows`: one program.
        """
        length = window_length(self.group.task.architecture.context)
        corpus, size = self.group.corpus, self.budget.eval_windows
        windows = feed.evaluation(
            corpus, "validation", count=count, length=length, documents=self.budget.packed
        )
        flags = self.program.place_flags(wanted)
        parts = []
        for index in range(count // size):
            if poll and self.should_stop():
                return None
            block = jax.tree.map(lambda x, i=index: x[i * size : (i + 1) * size], windows)
            placed = place((block, np.int32(index)), self.program.everywhere)
            part = self.program.evaluate(self.states, self.knobs, flags, *placed)
            parts.append(self._fetch(part))
        sums = {k: sum(p[k] for p in parts) for k in parts[0] if k in training.SUMMED}
        total, targets = (sums[k].sum(-1) for k in training.SUMMED)
        by_position = sums["loss_by_position"] / np.maximum(sums["count_by_position"], 1.0)
        loss = total / np.where(wanted, targets, 1.0)
        bits = corpus.bits_per_nat()
        return {
            "val/loss": loss,
            **({} if bits is None else {"val/bpb": loss * bits}),
            "val/loss_by_position": by_position,
            **{f"attn/{k}": x for k, x in parts[0].items() if k not in training.SUMMED},
        }

    def _record_ends(self, ended: np.ndarray, *, poll: bool = True) -> bool:
        """Last validation, on `eval.final_windows`, and the end of members that have none yet; False: asked to stop."""
        new = ended & ~self.recorded
        if not new.any():
            return True
        result = self._validation(self.budget.final_eval_windows, new, poll=poll)
        if result is None:
            return False
        flat, states = _flat(result), self.states
        facts = self._fetch((states.step, states.diverged_at, states.stopped, states.health))
        for index in np.flatnonzero(new).tolist():
            step, *ending = jax.tree.map(lambda x, i=index: x[i].item(), facts)
            tokens = np.full(self.count, step * self.tokens_per_update)
            self.log.log(step, {"tokens": tokens, **flat}, np.arange(self.count) == index)
            summary: dict[str, Any] = {k: float(v[index]) for k, v in flat.items()}
            summary["val/loss_by_position"] = result["val/loss_by_position"][index].tolist()
            summary |= {"step": step, "tokens": int(tokens[index])}
            status, more = self._ending(index, *ending)
            self.log.finish(index, status, {**summary, **more})
        self.recorded |= new
        return True

    def _ending(
        self, index: int, diverged_at: int, stopped: bool, health: Health
    ) -> tuple[str, dict[str, Any]]:
        """How a member ended: its status, and what its summary says of its training."""
        facts: dict[str, Any] = {
            "val/windows": self.budget.final_eval_windows,
            "health/last_loss": health.last_loss,
            "health/last_grad_norm": health.last_grad_norm,
            "health/loss_spikes": health.spikes,
            **self._performance(),
        }
        if diverged_at == NEVER:
            return ("stopped" if stopped else "finished"), facts
        facts["diverged_at"] = diverged_at
        if self.debug_nans:
            facts["first_not_finite"] = self._first_not_finite(index)
        return "diverged", facts

    def _first_not_finite(self, index: int) -> str:
        """Reruns the update at which a member diverged and names the first tensor that is not finite."""
        state, knobs = jax.tree.map(lambda x: x[index], (self.states, self.knobs))
        update = self.tokens if self.feed is None else self.feed.update(index, int(state.step))
        finite = training.finiteness(self.group.task, state, knobs, update)
        bad = [name for name, ok in finite.items() if not ok]
        return bad[0] if bad else "none on rerun"

    def _interrupt(self, step: int) -> None:
        """Marks the members that had not ended, and records those that have since the last validation.

        The first get no validation, so that a resumed run has the rows of one that never stopped. A session that
        trained nothing compiles nothing either: what ended before it is recorded already, or will be.
        """
        ended = self._ended()
        if step >= self.group.steps:  # it was the last validation that was cut short
            ended &= np.asarray(self._fetch(self.states.step)) < step
        if step > self.start:
            self._record_ends(ended, poll=False)
        for index in np.flatnonzero(~ended & ~self.recorded).tolist():
            self.log.finish(index, "interrupted", {"step": step})

    def _fetch(self, tree: Any) -> Any:
        """To the host, without the padding of the mesh."""
        on_host = fetch(tree, self.program.everywhere)
        return jax.tree.map(lambda x: x[: self.count], on_host)


@functools.partial(jax.jit, static_argnums=1)
def _first(states: TrainState, count: int) -> TrainState:
    """Without the padding; in one program, because slicing leaf by leaf takes a second."""
    return jax.tree.map(lambda x: x[:count], states)


def _host_feed(group: Group) -> HostFeed:
    task, budget = group.task, group.task.budget
    return HostFeed(
        group.corpus,
        [m.config["seed"]["data"] for m in group.members],
        batch_size=budget.batch_size,
        length=window_length(task.architecture.context),
        updates=budget.log_every,
        documents=budget.packed,
    )


def _flat(result: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The columns of a validation; `val/bpb` is `val/loss` in bits per byte of text, to compare tokenizers by."""
    return _by_layer({k: x for k, x in result.items() if k != "val/loss_by_position"})


def _by_layer(result: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays [M], [M, L], [M, L, N] as columns of one value a member: `attn/max_logit_l03`, `attn/entropy_l03h02`."""
    columns: dict[str, np.ndarray] = {}
    for name, values in result.items():
        for at in np.ndindex(values.shape[1:]):
            suffix = "".join(f"{axis}{i:02d}" for axis, i in zip("lh", at, strict=False))
            columns[f"{name}_{suffix}" if suffix else name] = values[:, *at]
    return columns
