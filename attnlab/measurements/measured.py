"""What is measured on a trained member beside its loss, and where in the run directory it lies.

    runs/RUN_ID/summary.json          "val/loss_by_position": `loss_by_position`
    runs/RUN_ID/metrics.jsonl         "attn/entropy_l03h02": `attention_entropy`
    runs/RUN_ID/probes.json           `Probes`
    runs/RUN_ID/probes_beyond_reach.json  `ProbesBeyondReach`
    runs/RUN_ID/shuffled_prefix.json  `ShuffledPrefix`
    runs/RUN_ID/loss_by_length.json   `LossByLength`

More kinds are in `attnlab.measurements.context`.

The program that measures writes these files; claims and the report read them. Each file is optional, and a run
without it takes no part in what the file is about.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from attnlab.results import Run
from attnlab.whole_files import replacing

FORMAT = 1  # of every file; raised when a key changes its meaning


def loss_by_position(run: Run) -> np.ndarray | None:
    """Validation loss at each target position, float64 [T], nats; nan where no target fell. None if unmeasured."""
    stored = run.summary.get("val/loss_by_position")
    if stored is None:
        return None
    loss_T = np.asarray(stored, np.float64)
    # A mean over no targets is stored as 0, which no cross-entropy of a trained model reaches.
    return np.where(loss_T > 0.0, loss_T, np.nan)


def attention_entropy(run: Run) -> np.ndarray | None:
    """Last logged entropy of each head over the log of its visible keys, float64 [L, N]; None if unmeasured."""
    last = {}
    for column, values in run.history.items():
        head = re.fullmatch(r"attn/entropy_l(\d+)h(\d+)", column)
        logged = np.asarray(values, np.float64)
        logged = logged[~np.isnan(logged)]
        if head and len(logged):
            last[int(head[1]), int(head[2])] = logged[-1]
    if not last:
        return None
    shape = tuple(1 + max(place[axis] for place in last) for axis in (0, 1))
    entropy_LN = np.full(shape, np.nan)
    for place, value in last.items():
        entropy_LN[place] = value
    return entropy_LN


class Measured:
    """A measurement: one JSON file in a run's directory, written by the program that measures and read by claims."""

    FILE: ClassVar[str]

    @classmethod
    def read(cls, run: Run) -> Self | None:
        """What lies in the run's directory; None without the file, ValueError where it cannot be understood."""
        return _read_file(cls, run.path / cls.FILE)

    def write(self, directory: Path) -> None:
        """Writes the file into a run's directory, whole or not at all."""
        text = json.dumps({"format": FORMAT, **self._stored()}, allow_nan=False) + "\n"
        with replacing(directory / self.FILE) as partial:
            partial.write_text(text, encoding="utf-8")

    def _stored(self) -> Mapping[str, Any]:
        """The fields as JSON can hold them."""
        return {k: x.tolist() if isinstance(x, np.ndarray) else x for k, x in vars(self).items()}


@dataclass(frozen=True)
class Probes(Measured):
    """How well a probe reads a token's position off frozen hidden states, layer by layer.

    Attributes:
      positions: N, the number of positions told apart. A uniform guess errs by (N^2 - 1) / 3N, the best
        guess that looks at nothing by N / 4.
      curves: what was probed ("trained", "random init", "trained, i.i.d. tokens", "labels shuffled", ...) ->
        mean absolute distance in positions, float64 [P, L + 1]: a row per probe seed, column 0 the embedding.
        What has no layers ("bag of prefix") has one column.

    File: {"format": 1, "positions": 32, "curves": {"trained": [[8.0, 4.1, 3.0], ...]}}

    Raises:
      ValueError: fewer than 2 positions, or a curve that is not a finite, non-negative [P, L + 1].
    """

    FILE = "probes.json"
    TRAINED = "trained"

    positions: int
    curves: Mapping[str, np.ndarray]

    def __post_init__(self) -> None:
        if self.positions < 2:
            raise ValueError(f"positions: must be at least 2, got {self.positions}")
        curves = {k: numbers(f"curves[{k!r}]", v, axes=2) for k, v in self.curves.items()}
        object.__setattr__(self, "curves", curves)

    def _stored(self) -> Mapping[str, Any]:
        curves = {label: mad_PL.tolist() for label, mad_PL in self.curves.items()}
        return {"positions": self.positions, "curves": curves}


class ProbesBeyondReach(Probes):
    """The same for the positions alone from which the first token cannot be seen through all layers of the mask.

    A sliding window of W tokens reaches L (W - 1) back. Only what begins with the text, or with [BOS], could tell such
    positions from each other.
    """

    FILE = "probes_beyond_reach.json"


@dataclass(frozen=True)
class ShuffledPrefix(Measured):
    """Loss of one target with its prefix as it stood and with the prefix shuffled: nats, float64 [K] each, paired.

    File: {"format": 1, "intact": [2.1, ...], "shuffled": [3.0, ...]}

    Raises:
      ValueError: lengths differ, no sequence, or a number that is not finite.
    """

    FILE = "shuffled_prefix.json"

    intact: np.ndarray
    shuffled: np.ndarray

    def __post_init__(self) -> None:
        for name in ("intact", "shuffled"):
            object.__setattr__(self, name, numbers(name, getattr(self, name), axes=1))
        if len(self.intact) != len(self.shuffled):
            raise ValueError(
                f"intact, shuffled: need one of each per sequence, got {len(self.intact)} and {len(self.shuffled)}"
            )


@dataclass(frozen=True)
class LossByLength(Measured):
    """Loss of the same last targets, in nats, with contexts of several lengths; `trained` is the training context.

    File: {"format": 1, "trained": 32, "lengths": [32, 48, 64], "loss": [1.9, 1.9, 2.4]}

    Raises:
      ValueError: lengths differ, are not ascending, or a number is not finite.
    """

    FILE = "loss_by_length.json"

    trained: int
    lengths: np.ndarray
    loss: np.ndarray

    def __post_init__(self) -> None:
        for name in ("lengths", "loss"):
            object.__setattr__(self, name, numbers(name, getattr(self, name), axes=1))
        if len(self.lengths) != len(self.loss) or np.any(np.diff(self.lengths) <= 0):
            raise ValueError(
                f"lengths: need one per loss, ascending, got {self.lengths.tolist()} for {len(self.loss)} losses"
            )

    def _stored(self) -> Mapping[str, Any]:
        return {**super()._stored(), "lengths": [int(length) for length in self.lengths]}


def _read_file(kind: Any, path: Path) -> Any:
    """A measurement of a kind from its file; None without the file.

    Raises:
      ValueError: naming the file, where it is not what `kind` was written as.
    """
    try:
        stored = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path}: is not JSON ({error})") from error
    if not isinstance(stored, dict) or stored.pop("format", None) != FORMAT:
        raise ValueError(f"{path}: must hold an object with format {FORMAT}")
    try:
        return kind(**stored)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def numbers(name: str, values: Any, *, axes: int) -> np.ndarray:
    """`values` as float64.

    Raises:
      ValueError: another number of axes, nothing, or a number that is negative or not finite.
    """
    array = np.asarray(values, np.float64)
    if array.ndim != axes or array.size == 0 or not np.all(np.isfinite(array)):
        raise ValueError(
            f"{name}: must be finite numbers with {axes} axes, got shape {array.shape}"
        )
    if np.any(array < 0):
        raise ValueError(f"{name}: must not be negative, got {array.min():g}")
    return array
