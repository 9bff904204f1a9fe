import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.data.vocabulary import CharVocabulary, NumberVocabulary

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=2).filter(
    lambda text: len(set(text)) > 1
)


@given(TEXTS)
def test_decode_undoes_encode(text):
    vocabulary = CharVocabulary.of(text)
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text
    assert vocabulary.size == len(set(text))
    assert ids.dtype == vocabulary.dtype
    assert ids.max() == vocabulary.size - 1


@given(TEXTS)
def test_ids_follow_code_points_so_equal_texts_get_equal_ids(text):
    vocabulary = CharVocabulary.of(text)
    assert vocabulary.characters == "".join(sorted(set(text)))
    assert vocabulary == CharVocabulary.of(text[::-1])


@given(TEXTS, st.characters(exclude_categories=["Cs"]))
def test_a_character_outside_is_refused_and_named(text, stranger):
    if stranger in text:
        return
    with pytest.raises(ValueError, match=r"^text: .* at position 1 is not in the vocabulary") as e:
        CharVocabulary.of(text).encode(text[0] + stranger + text)
    assert repr(stranger) in str(e.value)


def test_worked_example():
    vocabulary = CharVocabulary.of("banana\n")
    assert vocabulary.characters == "\nabn"
    assert vocabulary.encode("nab").tolist() == [3, 1, 2]
    assert vocabulary.encode("").tolist() == []
    assert vocabulary.decode([2, 1, 0]) == "ba\n"
    assert vocabulary.decode([]) == ""


@pytest.mark.parametrize("vocabulary", [CharVocabulary.of("abc"), NumberVocabulary(3)])
def test_special_ids_are_inputs_only(vocabulary):
    assert (vocabulary.mask_id, vocabulary.bos_id, vocabulary.input_size) == (3, 4, 5)
    for special in (vocabulary.mask_id, vocabulary.bos_id):
        with pytest.raises(ValueError, match=rf"ids: {special} has no text; allowed: 0..2"):
            vocabulary.decode([0, special])


@pytest.mark.parametrize(
    ("size", "dtype"), [(256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")]
)
def test_tokens_take_the_smallest_dtype_that_holds_every_id(size, dtype):
    vocabulary = NumberVocabulary(size)
    assert vocabulary.dtype == dtype
    assert vocabulary.encode(str(size - 1)).tolist() == [size - 1]


@pytest.mark.parametrize("ids", [[-1], [[0]], [0.5], ["a"]])
def test_decode_refuses_what_are_not_ids(ids):
    with pytest.raises(ValueError, match=r"^ids: "):
        CharVocabulary.of("abc").decode(np.array(ids))


@pytest.mark.parametrize("characters", ["", "a", "aa", "ba", "aab"])
def test_characters_must_be_distinct_and_ordered(characters):
    with pytest.raises(ValueError, match=r"^characters: "):
        CharVocabulary(characters)


def test_numbers_round_trip_and_refuse_strangers():
    vocabulary = NumberVocabulary(11)
    assert vocabulary.decode(vocabulary.encode("10 0 3")) == "10 0 3"
    for text in ("11", "-1", "x"):
        with pytest.raises(ValueError, match=rf"text: '{text}' is not in the vocabulary"):
            vocabulary.encode(text)
    with pytest.raises(ValueError, match="count: must be 2 <= V"):
        NumberVocabulary(1)
