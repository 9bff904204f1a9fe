"""An n-gram model that is never at a loss: how likely a text is, token by token, whoever wrote it.

`references` counts whole tables, which end at trigrams. This model keeps only what occurred and goes up to any order: it
mixes the estimates of all orders by the rule of Witten and Bell (1991, IEEE Trans. Inf. Theory 37),

    p(w | h) = (count(h w) + kinds(h) p(w | h')) / (count(h) + kinds(h)),

h' the context h without its farthest token, kinds(h) how many different tokens were seen after h, and the uniform
distribution below the unigram. There is nothing to tune, and no token has probability 0. It scores sampled text: a
number that does not come from the model that wrote it.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from attnlab.data.vocabulary import Tokens

_Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Order:
    """What was seen of n-grams of one length: codes in ascending order, their counts; the same for their contexts."""

    grams: _Counts
    counts: _Counts
    contexts: _Counts
    context_counts: _Counts
    kinds: _Counts

    def mixed(
        self, codes: _Counts, size: int, lower: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """p(w | h) of n-grams by code, given that of the next lower order."""
        count = _found(self.grams, self.counts, codes)
        of_context = _found(self.contexts, self.context_counts, codes // size)
        kinds = _found(self.contexts, self.kinds, codes // size)
        total = of_context + kinds
        return np.where(total > 0, (count + kinds * lower) / np.maximum(total, 1), lower)


@dataclass(frozen=True)
class NGramModel:
    """Counts of all n-grams up to an order; made by `fit`."""

    vocabulary_size: int
    orders: tuple[_Order, ...]

    @classmethod
    def fit(cls, tokens: Tokens, vocabulary_size: int, order: int = 5) -> Self:
        """Counts a text, integer [n], ids below `vocabulary_size`.

        Raises:
          ValueError: an order below 1 or one whose codes exceed 63 bits, fewer tokens than the order, an id that is
            not below `vocabulary_size`.
        """
        if order < 1 or vocabulary_size**order >= 2**63:
            raise ValueError(
                f"order: got {order} over {vocabulary_size} ids; allowed: at least 1, and fewer than 2^63 n-grams"
            )
        if len(tokens) < order:
            raise ValueError(f"tokens: {len(tokens)} are too few; allowed: at least {order}")
        _check_ids(tokens, vocabulary_size)
        return cls(
            vocabulary_size,
            tuple(
                _counted(_codes(tokens[None], vocabulary_size, n)[0], vocabulary_size)
                for n in range(1, order + 1)
            ),
        )

    def losses(self, tokens_KT: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """-log p of each token behind those before it in its own row, nats, float64 [K, T].

        Raises:
          ValueError: not two axes, or an id that is not below `vocabulary_size`.
        """
        tokens = np.asarray(tokens_KT)
        if tokens.ndim != 2:
            raise ValueError(f"tokens_KT: must have two axes, got shape {tokens.shape}")
        _check_ids(tokens, self.vocabulary_size)
        p_KT = np.full(tokens.shape, 1.0 / self.vocabulary_size)
        for n, order in enumerate(self.orders, start=1):
            if tokens.shape[1] < n:
                break
            codes = _codes(tokens, self.vocabulary_size, n)
            p_KT[:, n - 1 :] = order.mixed(codes, self.vocabulary_size, p_KT[:, n - 1 :])
        return -np.log(p_KT)


def _codes(tokens_KT: npt.NDArray[np.integer], size: int, n: int) -> _Counts:
    """One number per n-gram, int64 [K, T - n + 1]: its tokens as digits in base `size`."""
    length = tokens_KT.shape[1] - n + 1
    codes = np.zeros((len(tokens_KT), length), np.int64)
    for place in range(n):
        codes *= size
        codes += tokens_KT[:, place : place + length]
    return codes


def _counted(codes: _Counts, size: int) -> _Order:
    grams, counts = np.unique(codes, return_counts=True)
    contexts, first = np.unique(grams // size, return_index=True)
    kinds = np.diff(np.append(first, len(grams)))
    return _Order(grams, counts, contexts, np.add.reduceat(counts, first), kinds)


def _found(keys: _Counts, values: _Counts, wanted: _Counts) -> _Counts:
    """Values by key; 0 for a key that is not there."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)


def _check_ids(tokens: npt.NDArray[np.integer], size: int) -> None:
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < size:
        raise ValueError(
            f"tokens: hold ids {tokens.min()} to {tokens.max()}; allowed: 0..{size - 1}"
        )
