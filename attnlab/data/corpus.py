"""The corpus: tokens with a vocabulary, split by position."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnlab.data import texts
from attnlab.data.texts import Starts
from attnlab.data.vocabulary import Tokens, Vocabulary

SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """Tokens split by position: train, then validation, then test; disjoint, nothing left out.

    The arrays are one-dimensional, read-only and unsigned (uint8 for characters), so that a corpus
    takes as little of the device as it can; they may be memory-mapped. `sha256` is of the text's UTF-8 bytes (of the
    little-endian token bytes where there is no text): equal names with unequal hashes are
    different data.

    `tokenizer`: as the configuration names it. `documents`: the first token of each document of a split, int64,
    ascending from 0; None where the source has no documents. `text_bytes`: the bytes of UTF-8 behind each split;
    None where there is no text.
    """

    name: str
    vocabulary: Vocabulary
    train: Tokens
    validation: Tokens
    test: Tokens
    sha256: str
    tokenizer: str = "char"
    documents: Mapping[str, Starts] | None = None
    text_bytes: Mapping[str, int] | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What a configuration asks for: the corpus and the tokenizer."""
        return self.name, self.tokenizer

    def split(self, name: str) -> Tokens:
        """The tokens of one of `SPLITS`."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[name]

    def shortest(self) -> tuple[str, int]:
        """The name and the length of the shortest split."""
        return min(((name, len(self.split(name))) for name in SPLITS), key=lambda item: item[1])

    def bits_per_nat(self, split: str = "validation") -> float | None:
        """Turns nats per token of a split into bits per byte of its text, which tokenizers can be compared in."""
        if self.text_bytes is None:
            return None
        return len(self.split(split)) / self.text_bytes[split] / math.log(2)

    def record(self) -> dict[str, Any]:
        """What a run writes down about its data; JSON types only."""
        record: dict[str, Any] = {
            "name": self.name,
            "sha256": self.sha256,
            "tokenizer": self.tokenizer,
            "vocabulary_size": self.vocabulary.size,
            "tokens": {split: len(self.split(split)) for split in SPLITS},
        }
        if self.documents is not None:
            record["documents"] = {split: len(starts) for split, starts in self.documents.items()}
        if self.text_bytes is not None:
            record["text_bytes"] = dict(self.text_bytes)
        return record


def check_fractions(validation_fraction: float, test_fraction: float) -> None:
    """Raises ValueError for a share that is not strictly between 0 and 1."""
    for field, share in (
        ("validation_fraction", validation_fraction),
        ("test_fraction", test_fraction),
    ):
        if not (math.isfinite(share) and 0 < share < 1):
            raise ValueError(f"{field}: must be 0 < fraction < 1, got {share}")


def cuts(
    name: str, length: int, unit: str, *, validation_fraction: float, test_fraction: float
) -> tuple[int, int]:
    """Where validation and test begin in `length` units: test is the end, validation stands before it.

    Raises:
      ValueError: fractions outside (0, 1), or a split that would be empty.
    """
    check_fractions(validation_fraction, test_fraction)
    n_validation = round(length * validation_fraction)
    n_test = round(length * test_fraction)
    n_train = length - n_validation - n_test
    if min(n_train, n_validation, n_test) < 1:
        raise ValueError(
            f"corpus {name!r}: {length} {unit} split into {n_train} train, {n_validation} "
            f"validation and {n_test} test; allowed: at least 1 in each (a longer text, or other "
            f"fractions)"
        )
    return n_train, n_train + n_validation


def from_cuts(
    name: str,
    tokens: Tokens,
    vocabulary: Vocabulary,
    sha256: str,
    at: tuple[int, int],
    *,
    tokenizer: str = "char",
    starts: Starts | None = None,
    text_bytes: tuple[int, int, int] | None = None,
) -> Corpus:
    """One-dimensional `tokens`, with validation and test beginning at `at` (views, no copy: a memory map stays one).

    Args:
      starts: the first token of each document, counted from the start of `tokens`; one or none is no documents.
      text_bytes: of the three splits.
    """
    bounds = (0, *at, len(tokens))
    arrays = np.split(tokens, at)
    for array in arrays:
        array.flags.writeable = False
    documents = None
    if starts is not None and len(starts) > 1:
        documents = {
            split: texts.within(starts, bounds[i], bounds[i + 1]) for i, split in enumerate(SPLITS)
        }
    sizes = None if text_bytes is None else dict(zip(SPLITS, text_bytes, strict=True))
    train, validation, test = arrays
    return Corpus(name, vocabulary, train, validation, test, sha256, tokenizer, documents, sizes)
