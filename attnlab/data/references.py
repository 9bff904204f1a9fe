"""Losses a corpus offers for nothing: n-gram models counted from the corpus itself.

A claim such as "it trains" needs a number that attention must beat. The reference is an n-gram
table counted on the training split and evaluated on the validation split, like the models it is
compared with. Counts are smoothed by adding `alpha` to every cell,

    p(next | context) = (count(context, next) + alpha) / (count(context) + alpha * V),

with alpha = 0.01 by default: almost the maximum-likelihood table, yet finite on pairs the training
split never showed. On tiny Shakespeare, counted on its first 90 % and evaluated on its last 10 %,
this gives unigram 3.3473, bigram 2.4875, skip-bigram 2.9205 and trigram 2.0658 nats. The bigram
moves by less than 0.01 for any alpha from 0.001 to 1; the trigram's best value is 0.02 lower, near
alpha = 0.1. Counting on the validation split itself would give 2.3735 (bigram) and 1.7915
(trigram): a bound that no model is asked to reach, because it has seen the answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attnlab.data.corpora import Corpus
from attnlab.data.vocabulary import Tokens

ALPHA = 0.01

# Context = distances back from the predicted token, farthest first.
CONTEXTS: dict[str, tuple[int, ...]] = {
    "unigram": (),
    "bigram": (1,),
    "skip_bigram": (2,),
    "trigram": (2, 1),
}

_MAX_CELLS = 1 << 24
_BLOCK_TOKENS = 1 << 24


@dataclass(frozen=True)
class NGramLoss:
    """Mean negative log likelihood in nats per token of one n-gram table.

    `held_out` is on the validation split: the reference. `in_sample` is the same table on the
    training split it was counted on: the difference says how far the table has overfitted.
    """

    held_out: float
    in_sample: float


def ngram_loss(
    train: Tokens,
    validation: Tokens,
    vocabulary_size: int,
    *,
    context: tuple[int, ...],
    alpha: float = ALPHA,
) -> NGramLoss:
    """The loss of predicting a token from those `context` distances before it.

    `()` is the unigram, `(1,)` the bigram, `(2,)` predicts x[i + 2] from x[i], `(2, 1)` is the
    trigram. Every token with a whole context in its own split is counted or evaluated once.

    Args:
      train, validation: integer[n], ids below `vocabulary_size`.
      vocabulary_size: V; the table has V ** (1 + len(context)) cells.
      context: distances, at least 1, all different.
      alpha: added to every cell of the counts; above 0.

    Raises:
      ValueError: a split too short for the context, a table above 2^24 cells, alpha not above 0,
        distances below 1 or repeated, or an id that is not below V.
    """
    if not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(f"alpha: must be > 0 and finite, got {alpha}")
    if min(context, default=1) < 1 or len(set(context)) < len(context):
        raise ValueError(f"context: distances must be >= 1 and all different, got {context}")
    if _cells(vocabulary_size, context) > _MAX_CELLS:
        raise ValueError(
            f"context: {context} over {vocabulary_size} ids needs "
            f"{_cells(vocabulary_size, context)} cells; allowed: at most {_MAX_CELLS}"
        )
    counts_CV = _counts("train", train, vocabulary_size, context)
    smoothed_CV = counts_CV + alpha
    loss_CV = np.log(smoothed_CV.sum(1, keepdims=True)) - np.log(smoothed_CV)
    held_out_CV = _counts("validation", validation, vocabulary_size, context)
    return NGramLoss(
        held_out=float((held_out_CV * loss_CV).sum() / held_out_CV.sum()),
        in_sample=float((counts_CV * loss_CV).sum() / counts_CV.sum()),
    )


def reference_losses(
    corpus: Corpus, *, split: str = "validation", alpha: float = ALPHA
) -> dict[str, NGramLoss]:
    """Unigram, bigram, skip-bigram and trigram losses on a split of a corpus, in nats per token.

    A table above 2^24 cells (a trigram over more than 256 ids) is left out of the dictionary.

    Raises:
      ValueError: as `ngram_loss`.
    """
    size, held_out = corpus.vocabulary.size, getattr(corpus, split)
    return {
        name: ngram_loss(corpus.train, held_out, size, context=context, alpha=alpha)
        for name, context in CONTEXTS.items()
        if _cells(size, context) <= _MAX_CELLS
    }


def _cells(vocabulary_size: int, context: tuple[int, ...]) -> int:
    return vocabulary_size ** (1 + len(context))


def _counts(
    split: str, tokens: Tokens, vocabulary_size: int, context: tuple[int, ...]
) -> npt.NDArray[np.integer[Any]]:
    """int[contexts, V]: how often each token follows each context."""
    reach = max(context, default=0)
    n = len(tokens) - reach
    if n < 1:
        raise ValueError(
            f"{split}: {len(tokens)} tokens are too few for context {context}; allowed: at least "
            f"{reach + 1}"
        )
    if tokens.max() >= vocabulary_size:
        raise ValueError(
            f"{split}: holds id {tokens.max()}; allowed: 0..{vocabulary_size - 1} "
            f"(vocabulary_size = {vocabulary_size})"
        )
    counts = np.zeros(_cells(vocabulary_size, context), np.int64)
    # Block by block, because the tokens may be a memory map larger than memory.
    for first in range(0, n, _BLOCK_TOKENS):
        cell = np.zeros(min(_BLOCK_TOKENS, n - first), np.int64)
        for distance in (*context, 0):
            cell *= vocabulary_size  # in place: a third faster
            cell += tokens[first + reach - distance :][: len(cell)]
        counts += np.bincount(cell, minlength=len(counts))
    return counts.reshape(-1, vocabulary_size)
