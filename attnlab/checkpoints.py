"""Checkpoints of a whole group by Orbax: atomic, asynchronous, restored onto whatever devices there are now.

A checkpoint holds the members' states without the padding of the mesh, so a group saved from two devices resumes
on one and the other way round. Its number is the number of updates done. A checkpoint that cannot be read (cut
short by a crash, damaged on disk) is passed over with a warning for the one before it, and replaced when training
comes to its step again. One that cannot be written (full disk) costs a warning, not the run.

Orbax notices damage to its index but not to the arrays: a flipped bit in one of them comes back as another number
(seen with 0.12.8). So a checksum of every array is stored with them.

This is the only file that knows Orbax.
"""

import contextlib
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import multihost_utils


class Checkpoints:
    """The checkpoints of one group, below `directory`; nothing is written before the first `save`.

    `every_steps`, `every_minutes`: save when either has passed since the last one (None: not by that measure).
    `keep`: how many of the newest stay. `keep_every`: steps whose multiples stay too. `reading`: nothing will be saved,
    and another process may be saving there: what looks half-written is left to it.

    Raises:
      ValueError: a period or a number to keep that is not positive.
    """

    def __init__(
        self,
        directory: Path,
        *,
        every_steps: int | None = None,
        every_minutes: float | None = 10.0,
        keep: int = 2,
        keep_every: int | None = None,
        reading: bool = False,
    ):
        for name, value in (
            ("every_steps", every_steps), ("every_minutes", every_minutes),
            ("keep", keep), ("keep_every", keep_every),
        ):  # fmt: skip
            if value is not None and not value > 0:
                raise ValueError(f"checkpoints.{name}: must be positive, got {value}")
        self.directory = directory.absolute()  # Orbax takes no other
        self.every_steps, self.every_minutes = every_steps, every_minutes
        self.keep, self.keep_every, self.reading = keep, keep_every, reading
        self._orbax: Any = None
        self._under_way: tuple[int, Any] | None = None
        self._unreadable: set[int] = set()
        self._last_step, self._last_time = 0, time.monotonic()

    def due(self, step: int) -> bool:
        """Whether it is time to save after `step` updates; the same answer in every process of a job."""
        by_steps = self.every_steps is not None and step - self._last_step >= self.every_steps
        minutes = (time.monotonic() - self._last_time) / 60
        now = by_steps or (self.every_minutes is not None and minutes >= self.every_minutes)
        if jax.process_count() > 1:  # clocks differ, and a save waits for all
            now = bool(multihost_utils.broadcast_one_to_all(np.bool_(now)))
        return now

    def save(self, step: int, state: Any, *, wait: bool = False) -> None:
        """Saves a pytree of arrays in the background; `wait` returns when it is complete on disk.

        The arrays may be donated as soon as this returns: they have been copied. A save that fails is given up with a
        warning, at once or when the next one starts.
        """
        self._last_step, self._last_time = step, time.monotonic()
        self._settle()
        if step not in self.steps() or step in self._unreadable:
            contents = {"state": state, "checksums": _checksums(jax.tree.leaves(state))}
            try:
                response = self._checkpointer().save_async(
                    step, contents, force=True, overwrite=step in self._unreadable
                )
            except Exception as error:
                self._give_up(step, error)
            else:
                self._under_way = (step, response)
                self._unreadable.discard(step)
        if wait:
            self._settle()

    def pass_over(self, step: int, why: str) -> None:
        """Takes none after `step` updates, with a warning; the next one is due as if it had been taken."""
        self._last_step, self._last_time = step, time.monotonic()
        warnings.warn(f"no checkpoint at {step}: {why}", stacklevel=2)

    def steps(self) -> Sequence[int]:
        """Steps of the complete checkpoints, oldest first."""
        if self._orbax is None and not self.directory.is_dir():
            return ()
        return sorted(checkpoint.step for checkpoint in self._checkpointer().checkpoints)

    def restore(self, like: Any) -> tuple[int, Any] | None:
        """(step, state) of the newest checkpoint that can be read, as numpy arrays; None where there is none.

        `like`: a pytree of anything with shape and dtype, what the state must look like.

        Raises:
          ValueError: a readable checkpoint with a leaf of another shape or dtype, naming the leaf.
        """
        mismatch: ValueError | None = None
        for step in reversed(self.steps()):
            try:
                state = self._read(step, like)
            except _MismatchError as error:
                mismatch, reason = mismatch or ValueError(str(error)), _one_line(error)
            except Exception as error:  # Orbax raises whatever its storage layers raise
                reason = _one_line(error)
            else:
                self._last_step, self._last_time = step, time.monotonic()
                return step, state
            self._unreadable.add(step)
            warnings.warn(
                f"checkpoint {step} in {self.directory} cannot be used ({reason}); trying the one before",
                stacklevel=2,
            )
        if mismatch is not None:
            raise mismatch
        return None

    def _read(self, step: int, like: Any) -> Any:
        found = self._checkpointer().metadata(step).metadata
        if not isinstance(found, dict) or not {"state", "checksums"} <= found.keys():
            raise RuntimeError("it describes no state with checksums")
        _check_leaves(found["state"], like)
        target = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like)
        sums = np.zeros(len(jax.tree.leaves(like)), np.uint32)
        loaded = self._checkpointer().load(step, {"state": target, "checksums": sums})
        for (name, leaf), expected in zip(
            _by_name(jax.tree_util.tree_leaves_with_path(loaded["state"])).items(),
            loaded["checksums"].tolist(),
            strict=True,
        ):
            if int(_checksum(np.asarray(leaf), np)) != expected:
                raise RuntimeError(f"leaf {name} is not what was saved")
        return loaded["state"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Waits for the save under way."""
        self._settle()
        self._close()

    def _settle(self) -> None:
        """Waits for the save under way, if there is one, and tells what became of it."""
        if self._under_way is not None:
            (step, response), self._under_way = self._under_way, None
            try:
                response.result()
            except Exception as error:
                self._give_up(step, error)

    def _give_up(self, step: int, error: Exception) -> None:
        warnings.warn(
            f"checkpoint {step} could not be written to {self.directory} ({_one_line(error)})",
            stacklevel=3,
        )
        self._close()  # what it left half done is removed when the next one is opened

    def _close(self) -> None:
        if self._orbax is not None:
            # It raises the error of the last save once more.
            with contextlib.suppress(Exception):
                self._orbax.close()
            self._orbax = None

    def _checkpointer(self) -> Any:
        if self._orbax is None:
            # Imported where it is needed: it takes seconds, and a dry run needs none of it.
            from orbax.checkpoint import v1 as ocp

            policies = ocp.training.preservation_policies
            kept: list[Any] = [policies.LatestN(self.keep)]
            if self.keep_every is not None:
                kept.append(policies.EveryNSteps(self.keep_every))
            self._orbax = ocp.training.Checkpointer(
                self.directory,
                preservation_policy=policies.AnyPreservationPolicy(kept),
                cleanup_tmp_directories=not self.reading,
            )
        return self._orbax


def reached_preemption(asked: int) -> bool:
    """Whether all processes of a job have come to the place where they agreed to stop, some having got SIGTERM.

    `asked`: 1, 2, 3, ... in every process: jax picks the first number that none of them has reached yet.
    """
    from orbax.checkpoint import multihost

    return bool(multihost.reached_preemption(asked))


class _MismatchError(ValueError):
    """A checkpoint that is whole, but of another program."""


@jax.jit
def _checksums(leaves: Sequence[Array]) -> Array:
    return jnp.stack([_checksum(leaf, jnp) for leaf in leaves])


def _checksum(x: Any, xp: Any) -> Any:
    """uint32 that changes with any one bit of `x`: the words, each times its own odd number, modulo 2^32.

    A sum of integers is the same in any order, so it does not matter how an array lies on its devices.
    """
    bits = x.astype(np.uint8) if x.dtype == np.bool_ else x
    words = xp.ravel(bits).view(f"uint{8 * min(bits.dtype.itemsize, 4)}").astype(np.uint32)
    odd = 2 * xp.arange(words.size, dtype=np.uint32) + np.uint32(1)
    return xp.sum(words * odd, dtype=np.uint32)


def _one_line(error: Exception) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0][:200]


def _check_leaves(found: Any, like: Any) -> None:
    """Orbax casts in silence (int32 16777217 becomes float32 16777216) and pads or cuts: refuse instead."""
    expected = jax.tree.map(lambda x: (tuple(x.shape), np.dtype(x.dtype)), like)
    wanted = _by_name(jax.tree_util.tree_leaves_with_path(expected, is_leaf=_is_pair))
    there = _by_name(jax.tree_util.tree_leaves_with_path(found))
    for name, (shape, dtype) in wanted.items():
        leaf = there.get(name)
        if leaf is None or tuple(leaf.shape) != shape or np.dtype(leaf.dtype) != dtype:
            has = "nothing" if leaf is None else f"{leaf.dtype}{list(leaf.shape)}"
            raise _MismatchError(
                f"checkpoint leaf {name}: has {has}, the program needs {dtype}{list(shape)}"
            )


def _is_pair(x: Any) -> bool:
    return isinstance(x, tuple) and len(x) == 2 and isinstance(x[1], np.dtype)


def _by_name(leaves: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    """Leaves by path; Orbax writes the fields of a dataclass as keys of a dict, so names are compared bare."""
    return {
        ".".join(
            str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path
        ): leaf
        for path, leaf in leaves
    }
