"""What is measured of the context that a trained member reads: the future, its own text, how far, and by position.

    runs/RUN_ID/truncated_context.json  `TruncatedContext`
    runs/RUN_ID/samples.json            `Samples`
    runs/RUN_ID/reach.json              `Reach`
    runs/RUN_ID/position_share.json     `PositionShare`

As in `attnlab.measurements`: the program that measures writes these files, claims and the report read them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlab.measurements.measured import Measured, numbers


@dataclass(frozen=True)
class TruncatedContext(Measured):
    """Loss at each position of whole windows, and with the context cut off behind the position's input.

    The means over the same sequences and the same weights, nats, float64 [T] each: they differ by what the model reads
    of the future.

    File: {"format": 1, "whole": [1.2, ...], "truncated": [2.9, ...]}

    Raises:
      ValueError: lengths differ, no position, or a number that is negative or not finite.
    """

    FILE = "truncated_context.json"

    whole: np.ndarray
    truncated: np.ndarray

    def __post_init__(self) -> None:
        for name in ("whole", "truncated"):
            object.__setattr__(self, name, numbers(name, getattr(self, name), axes=1))
        if len(self.whole) != len(self.truncated):
            raise ValueError(
                f"whole, truncated: need one of each per position, got {len(self.whole)} and {len(self.truncated)}"
            )


@dataclass(frozen=True)
class Samples(Measured):
    """How likely an n-gram model of the training text finds what the member writes: nats per token, lower is likelier.

    Attributes:
      text: one of the texts.
      score: over all sampled tokens of all texts.
      filling: over those whose window was not full yet. `full`: over the others.
      real: the same over validation text.

    Dull text scores below `real`; text that is none, far above.

    File: {"format": 1, "text": "ROMEO: ...", "score": 2.4, "filling": 2.9, "full": 2.3, "real": 1.9}

    Raises:
      ValueError: a number that is negative or not finite.
    """

    FILE = "samples.json"

    text: str
    score: float
    filling: float
    full: float
    real: float

    def __post_init__(self) -> None:
        for name in ("score", "filling", "full", "real"):
            numbers(name, getattr(self, name), axes=0)


@dataclass(frozen=True)
class Reach(Measured):
    """How much the loss of the last target depends on the token d places before the last input: float64 [T], d from 0.

    The mean norm of a gradient (`attnlab.probes.context_use.receptive_field`); exactly 0 where the mask lets nothing through.

    File: {"format": 1, "influence": [0.9, 0.2, 0.1, 0.0]}

    Raises:
      ValueError: a number that is negative or not finite, or nothing but zeros.
    """

    FILE = "reach.json"

    influence: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "influence", numbers("influence", self.influence, axes=1))
        if not self.influence.any():
            raise ValueError("influence: is 0 everywhere; allowed: a member that reads something")

    @property
    def shares(self) -> np.ndarray:
        """The influence as shares of 1."""
        return self.influence / self.influence.sum()

    def tokens_holding(self, share: float) -> int:
        """How many of the last tokens hold this share of all influence."""
        return 1 + int(np.argmax(np.cumsum(self.shares) >= share - 1e-12))

    @property
    def farthest(self) -> int:
        """How many of the last tokens there are up to the farthest one with any influence."""
        return 1 + int(np.flatnonzero(self.influence)[-1])


@dataclass(frozen=True)
class PositionShare(Measured):
    """Share of the variance of each head's attention weights that query and key positions explain: float64 [L, N].

    1: the head weighs by position alone. nan: all its weights are equal, of which nothing is to be explained.

    File: {"format": 1, "share": [[0.93, null], [0.41, 0.12]]}, null for nan

    Raises:
      ValueError: not two axes, or a share outside 0 to 1.
    """

    FILE = "position_share.json"

    share: np.ndarray

    def __post_init__(self) -> None:
        share_LN = np.array(self.share, np.float64)
        if share_LN.ndim != 2 or share_LN.size == 0:
            raise ValueError(f"share: must have two axes, got shape {share_LN.shape}")
        if not np.all(np.isnan(share_LN) | ((share_LN > -1e-5) & (share_LN < 1 + 1e-5))):
            raise ValueError(f"share: must be between 0 and 1, got {share_LN.tolist()}")
        object.__setattr__(self, "share", np.clip(share_LN, 0.0, 1.0))

    def _stored(self) -> Mapping[str, Any]:
        return {"share": [[None if np.isnan(x) else float(x) for x in row] for row in self.share]}
