"""The n-gram model that scores samples: a distribution, right by hand, and better with a longer context."""

import numpy as np
import pytest

from attnlab.data.ngrams import NGramModel


def test_bigrams_by_hand():
    # After 0: 1 twice, 2 once. Unigrams: 0 three times, 1 twice, 2 once, of 3 kinds.
    model = NGramModel.fit(np.array([0, 1, 0, 1, 0, 2], np.uint8), vocabulary_size=4, order=2)
    unigram = [(count + 3 * 0.25) / (6 + 3) for count in (3, 2, 1, 0)]
    after_0 = [(count + 2 * p) / (3 + 2) for count, p in zip((0, 2, 1, 0), unigram, strict=True)]
    losses = model.losses([[0, w] for w in range(4)])
    np.testing.assert_allclose(np.exp(-losses[:, 0]), unigram[0])
    np.testing.assert_allclose(np.exp(-losses[:, 1]), after_0)
    # Nothing was ever seen after 2 or 3: the unigram decides.
    np.testing.assert_allclose(np.exp(-model.losses([[2, 1], [3, 1]])[:, 1]), unigram[1])


def test_probabilities_of_any_context_sum_to_1():
    text = np.random.default_rng(0).integers(0, 7, 2000)
    model = NGramModel.fit(text, 7)
    for context in ([0, 0, 0, 0], list(text[50:54]), [6, 5]):
        rows = np.array([[*context, w] for w in range(7)])
        assert np.exp(-model.losses(rows)[:, -1]).sum() == pytest.approx(1.0)


def test_longer_contexts_help_where_the_text_has_a_memory():
    # Each token is fixed by the three before it; two are not enough.
    text = [0, 0, 1]
    for _ in range(4000):
        text.append((text[-3] + 2 * text[-1]) % 5)
    rng = np.random.default_rng(1)
    noisy = np.where(rng.random(len(text)) < 0.02, rng.integers(0, 5, len(text)), text)
    train, held_out = noisy[:3000], noisy[3000:][None]
    by_order = [NGramModel.fit(train, 5, order=n).losses(held_out).mean() for n in (1, 2, 4)]
    assert by_order[2] < by_order[1] - 0.3
    assert by_order[2] < by_order[0] - 0.3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NGramModel.fit(np.zeros(9, int), 4, order=0), "order: got 0"),
        (lambda: NGramModel.fit(np.zeros(9, int), 10**6, order=5), "fewer than 2"),
        (lambda: NGramModel.fit(np.zeros(2, int), 4, order=3), "2 are too few"),
        (lambda: NGramModel.fit(np.full(9, 4), 4), "ids 4 to 4; allowed: 0..3"),
        (lambda: NGramModel.fit(np.zeros(9, int), 4).losses([0, 1]), "two axes"),
        (lambda: NGramModel.fit(np.zeros(9, int), 4).losses([[0, 9]]), "ids 0 to 9"),
    ],
)
def test_impossible_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
