"""What a token id means: text to ids and back.

A vocabulary of size V names the ids a corpus holds and a model predicts, 0..V-1. Two more ids are
inputs only, never targets: MASK = V stands where a masked token was, BOS = V + 1 where a sequence
begins. So a model embeds `input_size` = V + 2 ids and predicts `size` = V of them.
"""

from __future__ import annotations

import abc
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.unsignedinteger[Any]]


class Vocabulary(abc.ABC):
    """Text to token ids and back; `size` is V."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """V: how many ids a corpus may hold and a model predicts."""

    @abc.abstractmethod
    def encode(self, text: str) -> Tokens:
        """ids[len] of `text` in the smallest unsigned dtype that holds V - 1.

        Raises:
          ValueError: something in `text` is not in the vocabulary.
        """

    @abc.abstractmethod
    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of integer ids[len].

        Raises:
          ValueError: an id is not in 0..V-1 (MASK and BOS have no text).
        """

    @property
    def mask_id(self) -> int:
        """The input id of a masked token: V."""
        return self.size

    @property
    def bos_id(self) -> int:
        """The input id of a sequence's beginning: V + 1."""
        return self.size + 1

    @property
    def input_size(self) -> int:
        """How many ids a model must embed: V + 2."""
        return self.size + 2

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest unsigned dtype that holds every id of a corpus."""
        return np.min_scalar_type(self.size - 1)

    def _checked(self, ids: npt.ArrayLike) -> npt.NDArray[np.integer[Any]]:
        array = np.asarray(ids)
        if array.size == 0:
            return np.zeros(0, self.dtype)
        if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
            raise ValueError(
                f"ids: must be one-dimensional integers, got shape {array.shape} {array.dtype}"
            )
        wrong = array[(array < 0) | (array >= self.size)]
        if wrong.size:
            raise ValueError(
                f"ids: {int(wrong[0])} has no text; allowed: 0..{self.size - 1} "
                f"(MASK = {self.mask_id} and BOS = {self.bos_id} are inputs only)"
            )
        return array


@dataclass(frozen=True)
class CharVocabulary(Vocabulary):
    """One id per character: id i is the i-th character of `characters` in code-point order.

    Raises:
      ValueError: fewer than 2 characters, or not strictly ascending.
    """

    characters: str

    def __post_init__(self) -> None:
        if len(self.characters) < 2:
            raise ValueError(
                f"characters: a vocabulary needs at least 2 distinct characters, "
                f"got {self.characters!r}"
            )
        if not (np.diff(_code_points(self.characters).astype(np.int64)) > 0).all():
            raise ValueError("characters: must be distinct and in code-point order")

    @classmethod
    def of(cls, text: str) -> CharVocabulary:
        """The vocabulary of exactly the characters that occur in `text`."""
        codes = _code_points(text)
        # A presence table instead of a sort: 20 times faster on 5 MB.
        present = np.zeros(int(codes.max(initial=0)) + 1, bool)
        present[codes] = True
        return cls("".join(map(chr, np.flatnonzero(present))) if len(text) else "")

    @property
    def size(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> Tokens:
        codes = _code_points(text)
        table = self._id_of_code
        ids = table[np.minimum(codes, len(table) - 1)]
        if ids.size and ids.max() == self.size:
            position = int(np.argmax(ids == self.size))
            raise ValueError(
                f"text: {text[position]!r} at position {position} is not in the vocabulary; "
                f"allowed: {self.characters!r}"
            )
        return ids.astype(self.dtype)

    def decode(self, ids: npt.ArrayLike) -> str:
        codes = _code_points(self.characters)[self._checked(ids)]
        return codes.tobytes().decode("utf-32-le")

    @functools.cached_property
    def _id_of_code(self) -> npt.NDArray[np.uint32]:
        """id by code point, `size` for every other; the last entry stands for all beyond."""
        codes = _code_points(self.characters)
        table = np.full(int(codes[-1]) + 2, self.size, np.uint32)
        table[codes] = np.arange(self.size, dtype=np.uint32)
        return table


@dataclass(frozen=True)
class ByteVocabulary(Vocabulary):
    """One id per byte of UTF-8: V = 256, for any text."""

    @property
    def size(self) -> int:
        return 256

    def encode(self, text: str) -> Tokens:
        return np.frombuffer(text.encode(), np.uint8)

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of integer ids[len]; bytes that are not UTF-8 become U+FFFD.

        Raises:
          ValueError: an id is not in 0..255.
        """
        return self._checked(ids).astype(np.uint8).tobytes().decode("utf-8", errors="replace")


@dataclass(frozen=True)
class NumberVocabulary(Vocabulary):
    """Ids that stand for themselves, for synthetic corpora; their text is "3 1 4".

    Raises:
      ValueError: fewer than 2 numbers, or more than 2^31 - 2 (model inputs are int32).
    """

    count: int

    def __post_init__(self) -> None:
        if not 2 <= self.count <= 2**31 - 3:
            raise ValueError(f"count: must be 2 <= V <= 2147483645, got {self.count}")

    @property
    def size(self) -> int:
        return self.count

    def encode(self, text: str) -> Tokens:
        words = text.split()
        wrong = [word for word in words if not word.isdecimal() or int(word) >= self.count]
        if wrong:
            raise ValueError(
                f"text: {wrong[0]!r} is not in the vocabulary; allowed: numbers "
                f"0..{self.count - 1} separated by spaces"
            )
        return np.array([int(word) for word in words], self.dtype)

    def decode(self, ids: npt.ArrayLike) -> str:
        return " ".join(map(str, self._checked(ids).tolist()))


def _code_points(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), np.dtype("<u4"))
