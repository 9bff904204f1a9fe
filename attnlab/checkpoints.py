"""Checkpoints of a whole group by Orbax: atomic, asynchronous, restored onto whatever devices there are now.

A checkpoint holds the members' states without the padding of the mesh, so a group saved from two devices resumes
on one and the other way round. Its number is the number of updates done. A checkpoint that cannot be read (cut
short by a crash, damaged on disk) is passed over with a warning for the one before it.

This is the only file that knows Orbax.
"""

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np


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
        self._last_step, self._last_time = 0, time.monotonic()

    def due(self, step: int) -> bool:
        """Whether it is time to save after `step` updates."""
        by_steps = self.every_steps is not None and step - self._last_step >= self.every_steps
        minutes = (time.monotonic() - self._last_time) / 60
        return by_steps or (self.every_minutes is not None and minutes >= self.every_minutes)

    def save(self, step: int, state: Any, *, wait: bool = False) -> None:
        """Saves a pytree of arrays in the background; `wait` returns when it is complete on disk.

        The arrays may be donated as soon as this returns: they have been copied.
        """
        if step not in self.steps():
            self._checkpointer().save_async(step, state, force=True)
        self._last_step, self._last_time = step, time.monotonic()
        if wait:
            self._checkpointer().wait()

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
        target = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like)
        for step in reversed(self.steps()):
            try:
                found = self._checkpointer().metadata(step).metadata
                state = self._checkpointer().load(step, target)
            except Exception as error:  # Orbax raises whatever its storage layers raise
                reason = (str(error).strip() or repr(error)).splitlines()[0][:200]
                warnings.warn(
                    f"checkpoint {step} in {self.directory} cannot be read ({reason}); trying the one before",
                    stacklevel=2,
                )
                continue
            _check_leaves(found, like)
            self._last_step, self._last_time = step, time.monotonic()
            return step, state
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Waits for the save under way."""
        if self._orbax is not None:
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


def _check_leaves(found: Any, like: Any) -> None:
    """Orbax casts in silence (int32 16777217 becomes float32 16777216) and pads or cuts: refuse instead."""
    expected = jax.tree.map(lambda x: (tuple(x.shape), np.dtype(x.dtype)), like)
    wanted = _by_name(jax.tree_util.tree_leaves_with_path(expected, is_leaf=_is_pair))
    there = _by_name(jax.tree_util.tree_leaves_with_path(found))
    for name, (shape, dtype) in wanted.items():
        leaf = there.get(name)
        if leaf is None or tuple(leaf.shape) != shape or np.dtype(leaf.dtype) != dtype:
            has = "nothing" if leaf is None else f"{leaf.dtype}{list(leaf.shape)}"
            raise ValueError(
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
