import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.data import corpora, references
from attnlab.data.references import ngram_loss

TINYSHAKESPEARE = Path(__file__).parents[2].parent / "shared" / "data" / "tinyshakespeare.txt"

TRAIN = np.array([0, 1, 0, 1, 1], np.uint8)
VALIDATION = np.array([0, 1, 1], np.uint8)


@pytest.mark.parametrize(
    ("context", "held_out", "in_sample"),
    [
        # counts 2, 3; with alpha 1: p = 3/7, 4/7
        ((), [7 / 3, 7 / 4, 7 / 4], [7 / 3, 7 / 4, 7 / 3, 7 / 4, 7 / 4]),
        # 0 -> 1 twice: p(1|0) = 3/4; 1 -> 0, 1 -> 1: p(.|1) = 1/2
        ((1,), [4 / 3, 2], [4 / 3, 2, 4 / 3, 2]),
        # 0 . 0, 1 . 1, 0 . 1: p(.|0) = 1/2, p(1|1) = 2/3
        ((2,), [2], [2, 3 / 2, 2]),
        # 01 -> 0, 10 -> 1, 01 -> 1: p(.|01) = 1/2, p(1|10) = 2/3
        ((2, 1), [2], [2, 3 / 2, 2]),
    ],
)
def test_worked_values(context, held_out, in_sample):
    loss = ngram_loss(TRAIN, VALIDATION, 2, context=context, alpha=1.0)
    assert loss.held_out == pytest.approx(np.mean(np.log(held_out)), abs=1e-12)
    assert loss.in_sample == pytest.approx(np.mean(np.log(in_sample)), abs=1e-12)


def _by_hand(train, validation, size, context, alpha):
    """The definition, with dictionaries."""
    reach = max(context, default=0)

    def cells(tokens):
        return [
            (tuple(int(tokens[i - d]) for d in context), int(tokens[i]))
            for i in range(reach, len(tokens))
        ]

    pairs, contexts = Counter(cells(train)), Counter(c for c, _ in cells(train))

    def loss(c, x):
        return -math.log((pairs[c, x] + alpha) / (contexts[c] + alpha * size))

    return np.mean([loss(*cell) for cell in cells(validation)])


@given(
    st.lists(st.integers(0, 4), min_size=4, max_size=60),
    st.lists(st.integers(0, 4), min_size=4, max_size=60),
    st.sampled_from([(), (1,), (2,), (3,), (2, 1), (3, 2), (3, 1)]),
    st.floats(0.001, 10),
)
def test_tables_equal_the_definition(train, validation, context, alpha):
    arrays = np.array(train, np.uint8), np.array(validation, np.uint8)
    loss = ngram_loss(*arrays, 5, context=context, alpha=alpha)
    assert loss.held_out == pytest.approx(_by_hand(train, validation, 5, context, alpha))
    assert loss.in_sample == pytest.approx(_by_hand(train, train, 5, context, alpha))


def test_uniform_tokens_cost_ln_v_and_the_trigram_only_memorises():
    losses = references.reference_losses(corpora.load("random:65"))
    assert losses["unigram"].held_out == pytest.approx(math.log(65), abs=1e-3)
    assert losses["bigram"].held_out == pytest.approx(math.log(65), abs=3e-3)
    assert losses["bigram"].held_out > math.log(65)
    assert losses["trigram"].in_sample < math.log(65) < losses["trigram"].held_out


def test_a_trigram_over_too_many_ids_is_left_out_and_refused_when_asked_for():
    corpus = corpora.load("random:257")
    assert list(references.reference_losses(corpus)) == ["unigram", "bigram", "skip_bigram"]
    with pytest.raises(ValueError, match=r"16974593 cells; allowed: at most 16777216"):
        ngram_loss(corpus.train, corpus.validation, 257, context=(2, 1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"alpha": 0.0}, "alpha: must be > 0"),
        ({"alpha": math.inf}, "alpha: must be > 0 and finite"),
        ({"context": (0,)}, "context: distances must be >= 1"),
        ({"context": (1, 1)}, "context: .* all different"),
        ({"context": (3,)}, "validation: 3 tokens are too few .*allowed: at least 4"),
    ],
)
def test_impossible_tables_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        ngram_loss(TRAIN, VALIDATION, 2, **({"context": (1,)} | change))


def test_ids_beyond_the_vocabulary_are_refused_not_wrapped():
    with pytest.raises(ValueError, match=r"train: holds id 2; allowed: 0\.\.1"):
        ngram_loss(np.array([0, 2, 1], np.uint8), VALIDATION, 2, context=(1,))


@pytest.mark.skipif(not TINYSHAKESPEARE.exists(), reason="no copy of tiny Shakespeare here")
@pytest.mark.parametrize(
    ("context", "nats"),
    [((), 3.3473), ((1,), 2.4875), ((2,), 2.9205), ((2, 1), 2.0658), ((3, 2), 2.6725)],
)
def test_tiny_shakespeare_gives_the_documented_losses(context, nats):
    corpus = corpora.load(f"text:{TINYSHAKESPEARE}")
    last_tenth = np.concatenate([corpus.validation, corpus.test])
    loss = ngram_loss(corpus.train, last_tenth, 65, context=context)
    assert loss.held_out == pytest.approx(nats, abs=6e-5)
