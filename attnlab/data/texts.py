"""Texts before they are tokens: UTF-8 bytes, and where each document begins.

A text is one array of bytes, in memory or memory-mapped, so that a text larger than memory is cut,
counted and encoded piece by piece. Documents stand one after another with nothing between them.
"""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnlab.data.cache import CorpusError

Bytes = npt.NDArray[np.uint8]
Starts = npt.NDArray[np.int64]

SUFFIXES = (".md", ".txt")  # what counts as text in a directory
_BLOCK_BYTES = 1 << 24
_PIECE_BYTES = 1 << 11  # longer strings are slower per byte: 16 KiB take twice as long
_ALLOWED = (
    "allowed: text:PATH of a UTF-8 text file, of a directory that holds some "
    f"({', '.join('*' + s for s in SUFFIXES)}, searched through), or of a quoted glob pattern"
)


@dataclass(frozen=True, eq=False)
class Text:
    """Valid UTF-8.

    Attributes:
      raw: uint8[n], the bytes.
      starts: int64[D], the first byte of each document; ascending, the first is 0.
      sha256: of the bytes, hexadecimal.
      cuts: the bytes at which validation and test begin, where the source says so.
    """

    raw: Bytes
    starts: Starts
    sha256: str
    cuts: tuple[int, int] | None = None

    @classmethod
    def of(cls, documents: Sequence[str]) -> Text:
        """The documents one after another; none of them empty."""
        return from_bytes([document.encode() for document in documents])

    def decode(self) -> str:
        """All of it as one string."""
        return str(self.raw.data, "utf-8")


def from_bytes(documents: Sequence[bytes]) -> Text:
    """A text in memory; the documents are valid UTF-8 and none of them is empty."""
    joined = b"".join(documents)
    lengths = np.array([len(document) for document in documents], np.int64)
    raw = np.frombuffer(joined, np.uint8)
    return Text(raw, np.cumsum(lengths) - lengths, hashlib.sha256(joined).hexdigest())


def read(name: str, argument: str) -> Text:
    """The files that `argument` names, each a document, in the order of their paths.

    Args:
      name: of the corpus, for errors.
      argument: a file; a directory, whose `*.txt` and `*.md` are taken at any depth, but nothing hidden;
        or a glob pattern (`src/**/*.py`). Bytes are taken as they are: line ends and byte order marks too.

    Raises:
      CorpusError: no such file, no text in the directory, a file that cannot be read, is empty, or is not UTF-8
        (with the offset of the first bad byte).
    """
    return from_bytes([_document(name, path) for path in _files(name, argument)])


def _files(name: str, argument: str) -> list[Path]:
    path = Path(argument).expanduser()
    try:
        if path.is_dir():
            found = [p for p in path.rglob("*") if _is_text(p.relative_to(path)) and p.is_file()]
        elif not path.exists() and glob.has_magic(argument):
            found = [Path(p) for p in glob.glob(str(path), recursive=True) if Path(p).is_file()]
        else:
            return [path]
    except OSError as error:
        raise _unreadable(name, path, error) from error
    if not found:
        raise CorpusError(f"corpus {name!r}: no text file there; {_ALLOWED}")
    return sorted(found, key=lambda p: p.as_posix())


def _is_text(path: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.parts)
    return path.suffix.lower() in SUFFIXES and not hidden


def _document(name: str, path: Path) -> bytes:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise _unreadable(name, path, error) from error
    if not raw:
        raise CorpusError(
            f"corpus {name!r}: the file is empty ({path}); allowed: files of at least one character"
        )
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"corpus {name!r}: {path}: byte {error.start} is not UTF-8 ({error.reason}); allowed: UTF-8 "
            f"text (convert it first, say with iconv)"
        ) from error
    return raw


def _unreadable(name: str, path: Path, error: OSError) -> CorpusError:
    return CorpusError(f"corpus {name!r}: {path} cannot be read ({error.strerror}); {_ALLOWED}")


def characters(raw: Bytes) -> int:
    """How many characters (code points) the bytes hold."""
    return sum(int(np.count_nonzero(_first_bytes(block))) for block in _blocks(raw))


def byte_of_character(raw: Bytes, index: int) -> int:
    """The byte at which character number `index` begins; their number gives the length of `raw`."""
    left = index
    for number, block in enumerate(_blocks(raw)):
        first = _first_bytes(block)
        here = int(np.count_nonzero(first))
        if left < here:
            return number * _BLOCK_BYTES + int(np.flatnonzero(first)[left])
        left -= here
    return len(raw)


def characters_before(raw: Bytes, places: Starts) -> Starts:
    """int64, shaped like `places`: the characters that begin before each of these ascending bytes."""
    counts = np.zeros(len(places), np.int64)
    for number, block in enumerate(_blocks(raw)):
        before = np.concatenate([[0], np.cumsum(_first_bytes(block), dtype=np.int64)])
        counts += before[np.clip(places - number * _BLOCK_BYTES, 0, len(block))]
    return counts


def pieces(raw: Bytes, start: int, end: int) -> Iterator[str]:
    """The text of bytes `start` to `end` in pieces of some 2 KiB: what a tokenizer is given at once.

    A piece ends in front of a space or newline that follows a visible ASCII character. Byte-level BPE splits words
    there whatever stands around, so the pieces have the tokens of the whole.
    """
    while start < end:
        cut = _cut(raw, start + _PIECE_BYTES, end)
        yield str(raw[start:cut].data, "utf-8")
        start = cut


def _cut(raw: Bytes, at: int, end: int) -> int:
    """The first place from `at` on where a piece may end."""
    while at < end:
        window = raw[at - 1 : min(at + _PIECE_BYTES, end)]
        space = (window[1:] == ord(" ")) | (window[1:] == ord("\n"))
        visible = (window[:-1] > ord(" ")) & (window[:-1] < 0x7F)
        found = np.flatnonzero(space & visible)
        if len(found):
            return at + int(found[0])
        at += _PIECE_BYTES
    return end


def _blocks(raw: Bytes) -> Iterator[Bytes]:
    for start in range(0, len(raw), _BLOCK_BYTES):
        yield raw[start : start + _BLOCK_BYTES]


def _first_bytes(raw: Bytes) -> npt.NDArray[np.bool_]:
    """Which bytes begin a character: all but those of the form 10xxxxxx."""
    return np.asarray((raw & 0xC0) != 0x80)


def within(starts: npt.NDArray[Any], start: int, end: int) -> Starts:
    """The starts of documents in `[start, end)`, counted from `start`; the first is 0, also where it cuts one."""
    inside = starts[(starts > start) & (starts < end)].astype(np.int64)
    return np.concatenate([np.zeros(1, np.int64), inside - start])
