"""How long a member's work takes on the machine it was measured on.

    runs/RUN_ID/update_time.json     `UpdateTime`
    runs/RUN_ID/attention_time.json  `AttentionTime`

As in `attnlab.measurements`: the program that measures writes these files, claims and the report read them. A time says
something beside another one of the same directory and machine, and nothing by itself.
"""

import statistics
from dataclasses import dataclass

import numpy as np

from attnlab.measurements.measured import Measured, numbers


@dataclass(frozen=True)
class _Times(Measured):
    """Seconds of each turn, after one that was not counted.

    Attributes:
      seconds: float64 [R].
      sequences: that were worked on at once. `length`: of each, in tokens.
      device: what it was measured on.

    File: {"format": 1, "seconds": [0.021, ...], "sequences": 8, "length": 256, "device": "cpu"}

    Raises:
      ValueError: no turn, a time that is not positive and finite, or sizes below 1.
    """

    seconds: np.ndarray
    sequences: int
    length: int
    device: str

    def __post_init__(self) -> None:
        seconds = numbers("seconds", self.seconds, axes=1)
        if not np.all(seconds > 0):
            raise ValueError(f"seconds: must be positive, got {seconds.min():g}")
        object.__setattr__(self, "seconds", seconds)
        for name in ("sequences", "length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}")

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.seconds.tolist())

    @property
    def per_sequence(self) -> float:
        """Seconds of one sequence, the median."""
        return self.median / self.sequences

    @property
    def tokens_per_second(self) -> float:
        """At the median."""
        return self.length / self.per_sequence


class UpdateTime(_Times):
    """An update of training: forward, backward, optimizer."""

    FILE = "update_time.json"


class AttentionTime(_Times):
    """One layer's attention by itself, forward and backward."""

    FILE = "attention_time.json"
