"""Several processes that train one sweep together, each with devices of its own (`jax.distributed`).

All of them run the same program on global arrays. Only the first writes, talks to W&B and prints; what it alone can
know (that rows are on disk, that somebody pressed a stop button) it tells the others, because all must do the same.

A process that dies takes the others with it: they notice within `HEARTBEAT_SECONDS`, end with an error, and the job is
started again from its last checkpoint.
"""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

HEARTBEAT_SECONDS = 30
START_SECONDS = 300
LEAVE_SECONDS = 30


def start(
    count: int | None,
    index: int | None,
    coordinator: str | None,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Joins the other processes where that was asked for, by flags or by an `srun` of several tasks.

    `count`: processes; `index`: this one's number; `coordinator`: HOST:PORT of process 0. Nothing happens without them,
    and in a SLURM step of one task: the variables of an allocation alone would start what nobody else joins (jax#30073).

    Raises:
      ValueError: only some of the three are given, or they do not fit each other.
    """
    given = {"--processes": count, "--process-id": index, "--coordinator": coordinator}
    missing = [flag for flag, value in given.items() if value is None]
    if count is None and len(missing) == 3:
        if int(environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
            _join()
        return
    if missing:
        raise ValueError(f"{', '.join(missing)}: must be given too; all three or none of them")
    assert count is not None
    assert index is not None
    assert coordinator is not None
    if count < 1 or not 0 <= index < count:
        raise ValueError(
            f"--process-id: got {index} of {count} processes; allowed: 0 to {count - 1}"
        )
    if not coordinator.rpartition(":")[2].isdecimal() or coordinator.startswith(":"):
        raise ValueError(f"--coordinator: got {coordinator!r}; allowed: HOST:PORT of process 0")
    if count > 1:
        _join(coordinator_address=coordinator, num_processes=count, process_id=index)


def _join(**where: Any) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        **where,
        initialization_timeout=START_SECONDS,
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=LEAVE_SECONDS,
    )
    if not is_first():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for as long as the process lives)


def leave(code: int) -> None:
    """Ends this process at once after a refusal, if it has joined others: jax would wait for them at its exit.

    They notice, and end too.
    """
    if jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def several() -> bool:
    """Whether other processes take part."""
    return jax.process_count() > 1


def is_first() -> bool:
    """Whether this process writes."""
    return jax.process_index() == 0


def from_first(value: Any) -> np.ndarray:
    """The first process's value, in all of them; a number or an array of the same shape everywhere."""
    if not several():
        return np.asarray(value)
    return np.asarray(multihost_utils.broadcast_one_to_all(np.asarray(value)))


def by_first(action: Callable[[], None]) -> None:
    """Has the first process do something, when all have come to this place; all fail where it fails.

    Raises:
      ValueError: in the first process what `action` raised, in the others that it did.
    """
    from_first(True)
    error: Exception | None = None
    if is_first():
        try:
            action()
        except (ValueError, OSError) as raised:
            error = raised
    good = bool(from_first(error is None))
    if error is not None:
        raise error
    if not good:
        raise ValueError("process 0 refused; see its message")


def place(tree: Any, sharding: Any) -> Any:
    """Puts host arrays, which are equal in all processes, on the devices. `sharding`: one, or a pytree of them."""
    if not several():
        return jax.device_put(tree, sharding)

    def put(x: Any, where: Any) -> Any:
        host = np.asarray(x)
        return jax.make_array_from_callback(host.shape, where, lambda index: host[index])

    if isinstance(sharding, jax.sharding.Sharding):
        return jax.tree.map(lambda x: put(x, sharding), tree)
    return jax.tree.map(put, tree, sharding)


def fetch(tree: Any, everywhere: jax.sharding.Sharding) -> Any:
    """Device arrays as host arrays, whole in every process. `everywhere`: the replicated sharding of their mesh."""
    if several():
        tree = jax.tree.map(lambda x: x.addressable_data(0), _replicated(tree, everywhere))
    return jax.tree.map(np.asarray, jax.device_get(tree))


def _replicated(tree: Any, everywhere: jax.sharding.Sharding) -> Any:
    return jax.jit(_same, out_shardings=everywhere)(tree)


def _same(tree: Any) -> Any:
    return tree
