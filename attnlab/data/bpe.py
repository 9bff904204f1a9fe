"""Byte-level BPE: trained by the `tokenizers` package, with nothing special and nothing lost.

Every byte is a token, so every text can be encoded; there is no normalization, no added space and no special token,
so decoding gives back the text, byte for byte. Words are split as in GPT-2 (Radford et al. 2019) and merges do not
cross them.

Only training and encoding need the package (extra `tokenizers`); decoding needs the table of merges alone.
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from attnlab.data.cache import CorpusError
from attnlab.data.vocabulary import Tokens, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SMALLEST = 257  # the bytes and one merge
LARGEST = 1 << 16
# A pair that occurs once is no regularity of the text.
_MIN_COUNT = 2
_BATCH = 256  # pieces encoded together, by all cores


def package_version() -> str:
    """The version of `tokenizers`; the package is not imported.

    Raises:
      CorpusError: it is not installed.
    """
    try:
        return importlib.metadata.version("tokenizers")
    except importlib.metadata.PackageNotFoundError:
        raise CorpusError(
            "config.tokenizer: bpe needs the package tokenizers, which is not installed; "
            "pip install 'attnlab[tokenizers]' (or pip install tokenizers), or use char or bytes"
        ) from None


@dataclass(frozen=True)
class BpeVocabulary(Vocabulary):
    """Ids of a trained byte-level BPE; `definition` is the JSON text of a `tokenizers` file.

    Raises:
      ValueError: the text is not such a definition.
    """

    definition: str

    def __post_init__(self) -> None:
        try:
            sizes = {len(self._token_bytes), 1 + max(self._ids.values())}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"tokenizer: not a byte-level BPE definition ({error!r})") from None
        if len(sizes) > 1:
            raise ValueError("tokenizer: its ids are not 0..V-1, each once")

    @property
    def size(self) -> int:
        return len(self._token_bytes)

    def encode(self, text: str) -> Tokens:
        """ids[len] of any text. Raises CorpusError where `tokenizers` is not installed."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, self.dtype)

    def encode_pieces(self, pieces: Iterable[str]) -> Iterator[Tokens]:
        """The ids of each piece, in order; all cores work on a few pieces at a time.

        Raises:
          CorpusError: `tokenizers` is not installed.
        """
        for batch in _batches(pieces):
            encodings = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            yield from (np.array(encoding.ids, self.dtype) for encoding in encodings)

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of integer ids[len]; bytes that are not UTF-8 (a cut character) become U+FFFD.

        Raises:
          ValueError: an id is not in 0..V-1.
        """
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def decode_bytes(self, ids: npt.ArrayLike) -> bytes:
        """The bytes of integer ids[len].

        Raises:
          ValueError: an id is not in 0..V-1.
        """
        table = self._token_bytes
        return b"".join([table[i] for i in self._checked(ids).tolist()])

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        vocabulary: dict[str, int] = json.loads(self.definition)["model"]["vocab"]
        return vocabulary

    @functools.cached_property
    def _token_bytes(self) -> list[bytes]:
        """The bytes of each id."""
        byte_of = {character: byte for byte, character in enumerate(_byte_characters())}
        ordered = sorted(self._ids, key=self._ids.__getitem__)
        return [bytes(byte_of[character] for character in token) for token in ordered]

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        package_version()
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.definition)


def train(pieces: Iterable[str], size: int, *, name: str) -> BpeVocabulary:
    """A vocabulary of exactly `size` ids, from the training text; the same text gives the same one.

    Args:
      pieces: the text, as `texts.pieces` cuts it.
      size: V, bytes included.
      name: of the corpus, for errors.

    Raises:
      CorpusError: the text has too few pairs that occur twice to make so many tokens, or `tokenizers` is not installed.
    """
    package_version()
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=_MIN_COUNT,
        initial_alphabet=_byte_characters(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(pieces, trainer)
    reached = tokenizer.get_vocab_size()
    if reached < size:
        bound = f"bpe:{SMALLEST} to bpe:{reached}" if reached >= SMALLEST else "char or bytes"
        raise CorpusError(
            f"config.tokenizer: got 'bpe:{size}', but the training split of corpus {name!r} gives {reached} "
            f"tokens and no more; allowed: {bound}, or a longer text"
        )
    return BpeVocabulary(tokenizer.to_str())


def _batches(pieces: Iterable[str]) -> Iterator[list[str]]:
    iterator = iter(pieces)
    while batch := list(itertools.islice(iterator, _BATCH)):
        yield batch


def _byte_characters() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary (Radford et al. 2019): the byte's own in
    Latin-1 where that is visible, else the next unused one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    unused = itertools.count(0x100)
    return [chr(byte if byte in visible else next(unused)) for byte in range(256)]
