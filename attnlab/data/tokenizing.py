"""From a text to a corpus: split, then encode each split by itself.

Splits are cut by character, before any tokenizer sees the text: so every tokenizer trains and is judged on the same
characters, and none is trained on text it will be judged on.

char      one id per character of the text; its vocabulary is that of all splits
bytes     one id per byte of UTF-8, V = 256
bpe:V     byte-level BPE of V ids, bytes included, trained on the training split (attnlab/data/bpe.py); made once
          and kept as a token file in the cache
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from attnlab.data import bpe, cache, corpus, texts, token_files
from attnlab.data.cache import CorpusError
from attnlab.data.corpus import SPLITS, Corpus
from attnlab.data.texts import Text
from attnlab.data.vocabulary import ByteVocabulary, CharVocabulary

DEFAULT = "char"


def check(tokenizer: str) -> None:
    """Raises ValueError unless `tokenizer` is `char`, `bytes` or `bpe:V`."""
    bpe_size(tokenizer)


def bpe_size(tokenizer: str) -> int | None:
    """V of `bpe:V`, None for `char` and `bytes`.

    Raises:
      ValueError: none of the three, or V out of range.
    """
    if tokenizer in ("char", "bytes"):
        return None
    kind, _, size = tokenizer.partition(":")
    if kind == "bpe" and size.isascii() and size.isdecimal() and len(size) < 9:
        number = int(size)
        if bpe.SMALLEST <= number <= bpe.LARGEST:
            return number
    raise ValueError(
        f"config.tokenizer: got {tokenizer!r}; allowed: char, bytes, or bpe:V with V a whole number "
        f"{bpe.SMALLEST} <= V <= {bpe.LARGEST}"
    )


def tokenize(
    name: str,
    text: Text,
    tokenizer: str = DEFAULT,
    *,
    cache_dir: Path | None = None,
    validation_fraction: float = 0.05,
    test_fraction: float = 0.05,
) -> Corpus:
    """The corpus that `tokenizer` makes of `text`.

    Args:
      cache_dir: where BPE corpora are kept; by default `cache.cache_directory()`.
      validation_fraction, test_fraction: shares of the characters, unless the text says where it is cut.

    Raises:
      ValueError: no such tokenizer, fractions that leave a split empty, or characters all alike.
      CorpusError: `tokenizers` is not installed, the text cannot give so many tokens, or the cache cannot be written.
    """
    size = bpe_size(tokenizer)
    at = text.cuts
    if at is None:
        at_characters = corpus.cuts(
            name, texts.characters(text.raw), "characters",
            validation_fraction=validation_fraction, test_fraction=test_fraction,
        )  # fmt: skip
        at = (
            texts.byte_of_character(text.raw, at_characters[0]),
            texts.byte_of_character(text.raw, at_characters[1]),
        )
    if tokenizer == "char":
        return _characters(name, text, at)
    if size is None:
        return corpus.from_cuts(
            name, text.raw, ByteVocabulary(), text.sha256, at,
            tokenizer=tokenizer, starts=text.starts, text_bytes=_sizes(text, at),
        )  # fmt: skip
    directory = cache.cache_directory() if cache_dir is None else cache_dir
    return _bpe(name, text, size, at, directory)


def _sizes(text: Text, at: tuple[int, int]) -> tuple[int, int, int]:
    """Bytes of the three splits."""
    return at[0], at[1] - at[0], len(text.raw) - at[1]


def _characters(name: str, text: Text, at: tuple[int, int]) -> Corpus:
    string = text.decode()
    if string == string[:1] * len(string):
        raise ValueError(
            f"corpus {name!r}: {len(string)} characters, all alike; allowed: a text of at least 2 "
            f"distinct characters"
        )
    vocabulary = CharVocabulary.of(string)
    places = np.concatenate([text.starts, np.array(at, np.int64)])
    order = np.argsort(places, kind="stable")
    counted = np.empty_like(places)
    counted[order] = texts.characters_before(text.raw, places[order])
    first, second = counted[-2:].tolist()
    return corpus.from_cuts(
        name, vocabulary.encode(string), vocabulary, text.sha256, (first, second),
        tokenizer="char", starts=counted[:-2], text_bytes=_sizes(text, at),
    )  # fmt: skip


def _bpe(name: str, text: Text, size: int, at: tuple[int, int], cache_dir: Path) -> Corpus:
    """From the cache, or made and put there."""
    tokenizer = f"bpe:{size}"
    version = bpe.package_version()
    made_of = {
        "text_sha256": text.sha256,
        "documents_sha256": hashlib.sha256(text.starts.astype("<i8").tobytes()).hexdigest(),
        "cuts": at,
        "tokenizer": tokenizer,
        "tokenizers": version,
        "version": token_files.VERSION,
    }
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:20]
    place = cache_dir / "tokens" / f"bpe{size}-{key}"
    if not place.exists():
        with cache.building(place) as part:
            vocabulary = bpe.train(texts.pieces(text.raw, 0, at[0]), size, name=name)
            _encode(name, text, at, vocabulary, part, made_of)
    try:
        return token_files.read(name, place, tokenizer=tokenizer)
    except CorpusError as error:
        raise CorpusError(f"{error}; delete {place} to make it again") from error


def _encode(
    name: str,
    text: Text,
    at: tuple[int, int],
    vocabulary: bpe.BpeVocabulary,
    place: Path,
    made_of: dict[str, object],
) -> None:
    """Writes the token file of a text, and makes sure that its tokens give the text back."""
    with token_files.Writer(place, vocabulary) as writer:
        for split, start, end in _spans(text, at):
            begins: deque[bool] = deque()
            done = start
            for ids in vocabulary.encode_pieces(_pieces(text, start, end, begins)):
                raw = vocabulary.decode_bytes(ids)
                if raw != text.raw[done : done + len(raw)].tobytes():
                    raise CorpusError(
                        f"corpus {name!r}: the tokens of byte {done} on do not give the text back: this version of "
                        f"tokenizers is not byte-level as expected; use char or bytes"
                    )
                done += len(raw)
                if begins.popleft():
                    writer.begin_document()
                writer.append(split, ids)
        header = {
            "text_sha256": text.sha256,
            "text_bytes": dict(zip(SPLITS, _sizes(text, at), strict=True)),
            "tokenizer": made_of["tokenizer"],
            "source": {"corpus": name, **made_of},
        }
        writer.finish(header, documents=len(text.starts) > 1)


def _spans(text: Text, at: tuple[int, int]) -> Iterator[tuple[str, int, int]]:
    """(split, first byte, end) of the three splits."""
    bounds = (0, *at, len(text.raw))
    yield from zip(SPLITS, bounds, bounds[1:], strict=False)


def _pieces(text: Text, start: int, end: int, begins: deque[bool]) -> Iterator[str]:
    """Pieces of a span, none over the edge of a document; `begins` gets whether each is the first of one."""
    edges = [*(texts.within(text.starts, start, end) + start).tolist(), end]
    for first, last in itertools.pairwise(edges):
        for number, piece in enumerate(texts.pieces(text.raw, first, last)):
            begins.append(number == 0)
            yield piece
