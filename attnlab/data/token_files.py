"""Tokens on disk, read through a memory map: for corpora larger than a device or than memory.

A token file is a directory:

    header.json     see below
    tokens.bin      ids, little-endian, the splits train, validation and test one after another
    documents.bin   optional: little-endian int64, the place in tokens.bin at which each document begins
    tokenizer.json  for a BPE vocabulary, as the `tokenizers` package writes it

    {"format": "attnlab-tokens", "version": 1,
     "dtype": "uint16",                                            or uint8, uint32
     "tokens": {"train": 900, "validation": 50, "test": 50},
     "vocabulary": {"kind": "numbers", "size": 50257},             or {"kind": "bytes"}, {"kind": "bpe"},
                                                                      {"kind": "characters", "characters": "..."}
     "sha256": "...",                                              of tokens.bin; optional, as all that follows
     "text_sha256": "...", "text_bytes": {"train": ..., "validation": ..., "test": ...},
     "tokenizer": "bpe:1024", "source": {}}                        source: whatever the writer wants to remember

so that tokens made elsewhere need two lines of numpy and a header of five entries.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.data import cache
from attnlab.data.bpe import BpeVocabulary
from attnlab.data.cache import CorpusError
from attnlab.data.corpus import SPLITS, Corpus, from_cuts
from attnlab.data.texts import Starts
from attnlab.data.vocabulary import (
    ByteVocabulary,
    CharVocabulary,
    NumberVocabulary,
    Tokens,
    Vocabulary,
)

FORMAT, VERSION = "attnlab-tokens", 1
_DTYPES = ("uint8", "uint16", "uint32")
_BLOCK = 1 << 22  # tokens handled at a time


class Writer:
    """Writes a token file into an existing empty directory: splits in order, each document by document."""

    def __init__(self, directory: Path, vocabulary: Vocabulary):
        self._directory, self._vocabulary = directory, vocabulary
        self._dtype = vocabulary.dtype.newbyteorder("<")
        self._file = (directory / "tokens.bin").open("xb")
        self._digest = hashlib.sha256()
        self._tokens = dict.fromkeys(SPLITS, 0)
        self._starts: list[int] = []

    def begin_document(self) -> None:
        """The next token is the first of a document."""
        self._starts.append(sum(self._tokens.values()))

    def append(self, split: str, ids: Tokens) -> None:
        """More tokens of a split."""
        raw = ids.astype(self._dtype).tobytes()
        self._digest.update(raw)
        self._file.write(raw)
        self._tokens[split] += len(ids)

    def finish(self, header: Mapping[str, Any], *, documents: bool) -> None:
        """Closes the file and writes what describes it; `header`: the optional entries."""
        self._file.close()
        if isinstance(self._vocabulary, BpeVocabulary):
            (self._directory / "tokenizer.json").write_text(
                self._vocabulary.definition, encoding="utf-8"
            )
        if documents:
            np.array(self._starts, "<i8").tofile(self._directory / "documents.bin")
        whole = {
            "format": FORMAT,
            "version": VERSION,
            "dtype": self._dtype.name,
            "tokens": self._tokens,
            "vocabulary": _vocabulary_record(self._vocabulary),
            "sha256": self._digest.hexdigest(),
            **header,
        }
        text = json.dumps(whole, indent=2, ensure_ascii=True)
        (self._directory / "header.json").write_text(text + "\n", encoding="utf-8")

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def write(corpus: Corpus, place: Path) -> None:
    """Writes a corpus as a token file, whole or not at all.

    Raises:
      ValueError: `place` exists.
      CorpusError: it cannot be written.
    """
    if place.exists():
        raise ValueError(f"{place}: exists; allowed: a new directory")
    with cache.building(place) as part, Writer(part, corpus.vocabulary) as writer:
        for split in SPLITS:
            starts = [0] if corpus.documents is None else corpus.documents[split].tolist()
            for start, end in zip(starts, [*starts[1:], len(corpus.split(split))], strict=True):
                writer.begin_document()
                for block in _blocks(corpus.split(split)[start:end]):
                    writer.append(split, block)
        header = {"text_sha256": corpus.sha256, "text_bytes": corpus.text_bytes}
        writer.finish(
            {
                **(header if corpus.text_bytes is not None else {}),
                "tokenizer": corpus.tokenizer,
                "source": {"corpus": corpus.name},
            },
            documents=corpus.documents is not None,
        )


def read(name: str, directory: Path, *, tokenizer: str | None = None) -> Corpus:
    """The corpus called `name` that a token file holds, memory-mapped.

    `tokenizer`: what the corpus says of it, by default "char", which asks for no tokenizer.

    Raises:
      CorpusError: no token file, a header that is not as the top of this file says, sizes that do not agree, or an
        id beyond the vocabulary.
    """
    header = _header(name, directory)
    tokens = _mapped(name, directory / "tokens.bin", np.dtype(header["dtype"]).newbyteorder("<"))
    sizes = [header["tokens"][split] for split in SPLITS]
    if sum(sizes) != len(tokens):
        raise CorpusError(
            f"corpus {name!r}: {directory / 'tokens.bin'} holds {len(tokens)} tokens, but header.json says "
            f"{sum(sizes)}: a file is damaged, or they are not of one corpus"
        )
    vocabulary = _vocabulary(name, directory, header["vocabulary"])
    _check_ids(name, tokens, vocabulary.size)
    text_bytes = header.get("text_bytes")
    return from_cuts(
        name,
        tokens,
        vocabulary,
        header.get("text_sha256") or header.get("sha256") or digest(tokens),
        (sizes[0], sizes[0] + sizes[1]),
        tokenizer="char" if tokenizer is None else tokenizer,
        starts=_starts(name, directory, len(tokens)),
        text_bytes=None if text_bytes is None else tuple(text_bytes[split] for split in SPLITS),
    )


def source(directory: Path) -> dict[str, Any]:
    """What the writer of a token file remembered about its origin."""
    return dict(_header(str(directory), directory).get("source", {}))


def check_digest(name: str, directory: Path) -> None:
    """Reads all of tokens.bin and compares its SHA-256 with the header's, if it has one.

    Raises:
      CorpusError: it is another one.
    """
    expected = _header(name, directory).get("sha256")
    with (directory / "tokens.bin").open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if expected is not None and found != expected:
        raise CorpusError(
            f"corpus {name!r}: SHA-256 of {directory / 'tokens.bin'} is {found}, not {expected}: the file is damaged"
        )


def digest(tokens: Tokens) -> str:
    """SHA-256 of the little-endian bytes, hexadecimal."""
    found = hashlib.sha256()
    for block in _blocks(tokens):
        found.update(block.astype(block.dtype.newbyteorder("<")).tobytes())
    return found.hexdigest()


def _header(name: str, directory: Path) -> dict[str, Any]:
    path = directory / "header.json"
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CorpusError(
            f"corpus {name!r}: {path} cannot be read ({error.strerror}); allowed: tokens:DIRECTORY as "
            f"`attnlab data CORPUS --write DIRECTORY` makes it"
        ) from error
    except ValueError as error:
        raise CorpusError(f"corpus {name!r}: {path} is not JSON ({error})") from error
    fault = _fault(header)
    if fault:
        raise CorpusError(f"corpus {name!r}: {path}: {fault}")
    return dict(header)


def _fault(header: Any) -> str | None:
    """What is wrong with a header, or None."""
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        return f"format must be {FORMAT!r}"
    if header.get("version") != VERSION:
        return f"version must be {VERSION}, got {header.get('version')!r}"
    if header.get("dtype") not in _DTYPES:
        return f"dtype must be one of {', '.join(_DTYPES)}, got {header.get('dtype')!r}"
    if not isinstance(header.get("vocabulary"), dict):
        return f"vocabulary must be a section with a kind, got {header.get('vocabulary')!r}"
    for field, needed in (("tokens", True), ("text_bytes", False)):
        counts = header.get(field)
        if not needed and counts is None:
            continue
        if not isinstance(counts, dict) or any(
            type(counts.get(split)) is not int or counts[split] < 1 for split in SPLITS
        ):
            return f"{field} must give train, validation and test, at least 1 each, got {counts!r}"
    return None


def _mapped(name: str, path: Path, dtype: np.dtype[Any]) -> Any:
    """The numbers of a file, read when they are used."""
    try:
        size = path.stat().st_size
        if size == 0 or size % dtype.itemsize:
            raise CorpusError(
                f"corpus {name!r}: {path} has {size} bytes; allowed: a positive multiple of {dtype.itemsize}"
            )
        return np.memmap(path, dtype, mode="r")
    except OSError as error:
        raise CorpusError(f"corpus {name!r}: {path} cannot be read ({error.strerror})") from error


def _starts(name: str, directory: Path, n_tokens: int) -> Starts | None:
    path = directory / "documents.bin"
    if not path.exists():
        return None
    starts = np.array(_mapped(name, path, np.dtype("<i8")))
    if starts[0] != 0 or (np.diff(starts) < 1).any() or starts[-1] >= n_tokens:
        raise CorpusError(
            f"corpus {name!r}: {path} must hold ascending places from 0 to below {n_tokens}"
        )
    return starts


def _vocabulary_record(vocabulary: Vocabulary) -> dict[str, Any]:
    if isinstance(vocabulary, CharVocabulary):
        return {"kind": "characters", "characters": vocabulary.characters}
    if isinstance(vocabulary, NumberVocabulary):
        return {"kind": "numbers", "size": vocabulary.size}
    return {"kind": "bpe" if isinstance(vocabulary, BpeVocabulary) else "bytes"}


def _vocabulary(name: str, directory: Path, record: Mapping[str, Any]) -> Vocabulary:
    try:
        match record.get("kind"):
            case "characters":
                return CharVocabulary(str(record["characters"]))
            case "numbers":
                return NumberVocabulary(int(record["size"]))
            case "bytes":
                return ByteVocabulary()
            case "bpe":
                path = directory / "tokenizer.json"
                return BpeVocabulary(path.read_text(encoding="utf-8"))
        raise ValueError("kind must be numbers, bytes, characters or bpe")
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise CorpusError(f"corpus {name!r}: vocabulary {dict(record)!r:.80}: {error}") from error


def _check_ids(name: str, tokens: Tokens, size: int) -> None:
    """Refuses ids beyond the vocabulary: jax would clamp them and train on something else."""
    place = 0
    for block in _blocks(tokens):
        if block.max() >= size:
            where = place + int(np.argmax(block >= size))
            raise CorpusError(
                f"corpus {name!r}: token {where} is {tokens[where]}; allowed: 0..{size - 1}, the ids of its vocabulary"
            )
        place += len(block)


def _blocks(tokens: Tokens) -> Iterable[Tokens]:
    for start in range(0, len(tokens), _BLOCK):
        yield tokens[start : start + _BLOCK]
