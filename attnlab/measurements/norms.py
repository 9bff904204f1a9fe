"""What is measured of a norm that reads the whole batch.

    runs/RUN_ID/norm_modes.json  `NormModes`

As in `attnlab.measurements`: the program that measures writes the file, claims and the report read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlab.measurements.measured import Measured, numbers


@dataclass(frozen=True)
class Mode:
    """What a member does with one kind of statistics: nats.

    Attributes:
      loss: mean loss.
      coupling: the largest change of any loss of a sequence when the other sequences of its batch are replaced.
      leak: the largest change of any earlier loss when the last token of each sequence is replaced.
    """

    loss: float
    coupling: float
    leak: float


@dataclass(frozen=True)
class NormModes(Measured):
    """A member with the statistics of the batch at hand, as in training, and with running ones, as in use.

    Attributes:
      batch_sizes: sequences in a batch, ascending; the last is `batch`'s.
      losses: mean loss of the same sequences in batches of so many, statistics of the batch at hand: nats.
      batch: statistics of the batch at hand.
      running: statistics gathered beforehand, over batches of the training split.

    File: {"format": 1, "batch_sizes": [1, 4, 32], "losses": [4.1, 2.1, 2.0],
           "batch": {"loss": 2.0, "coupling": 0.3, "leak": 0.2}, "running": {...}}

    Raises:
      ValueError: lengths differ, sizes are not ascending, or a number is negative or not finite.
    """

    FILE = "norm_modes.json"

    batch_sizes: np.ndarray
    losses: np.ndarray
    batch: Mode
    running: Mode

    def __post_init__(self) -> None:
        for name in ("batch_sizes", "losses"):
            object.__setattr__(self, name, numbers(name, getattr(self, name), axes=1))
        if len(self.batch_sizes) != len(self.losses) or np.any(np.diff(self.batch_sizes) <= 0):
            raise ValueError(
                f"batch_sizes: need one per loss, ascending, got {self.batch_sizes.tolist()} for {len(self.losses)} losses"
            )
        for name in ("batch", "running"):
            mode: Any = getattr(self, name)
            mode = mode if isinstance(mode, Mode) else Mode(**mode)
            numbers(name, [mode.loss, mode.coupling, mode.leak], axes=1)
            object.__setattr__(self, name, mode)

    def _stored(self) -> Mapping[str, Any]:
        return {
            **super()._stored(),
            "batch_sizes": [int(size) for size in self.batch_sizes],
            "batch": vars(self.batch),
            "running": vars(self.running),
        }
