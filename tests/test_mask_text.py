"""The text form of masks: what it accepts, what it means, and how it refuses."""

import inspect
import re
import textwrap

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given, settings

from attnlab import masks
from attnlab.masks import mask_text
from attnlab.masks.mask_text import parse, render

MEANINGS = {
    # text: (mask, q_len, kv_len)
    "full": (masks.full(6), 6, None),
    "full()": (masks.full(6), 6, None),
    "causal": (masks.causal(6), 6, None),
    " causal ( offset = -1 ) ": (masks.causal(6, offset=-1), 6, None),
    "sliding_window(3)": (masks.sliding_window(6, 3), 6, None),
    "sliding_window(size=3, offset=1)": (masks.sliding_window(6, 3, offset=1), 6, None),
    "window(left=2, right=0)": (masks.window(6, left=2, right=0), 6, None),
    "window(right=2,left=None)": (masks.window(6, left=None, right=2), 6, None),
    "prefix_lm(3)": (masks.prefix_lm(6, 3), 6, None),
    "chunked(2)": (masks.chunked(6, 2), 6, None),
    "block_causal(block=2)": (masks.block_causal(6, 2), 6, None),
    "key_padding(lengths=[2, 3])": (masks.key_padding(6, lengths=[2, 3]), 6, None),
    "key_padding(starts=1)": (masks.key_padding(2, starts=1, kv_len=5), 2, 5),
    "key_mask([True, False, True])": (masks.key_mask(2, [True, False, True]), 2, 3),
    "documents([0,0,0,1,1,-1], causal=False)": (
        masks.documents([0, 0, 0, 1, 1, -1], causal=False),
        6,
        None,
    ),
    "documents([0,0,0,1,1,1], prefix_len=[2,1])": (
        masks.documents([0, 0, 0, 1, 1, 1], prefix_len=[2, 1]),
        6,
        None,
    ),
    "cross_documents([0,1],[0,0,1])": (masks.cross_documents([0, 1], [0, 0, 1]), 2, 3),
    "graph([[0,1],[1,2]], 3, self_loops=True)": (
        masks.graph([[0, 1], [1, 2]], 3, self_loops=True),
        3,
        None,
    ),
    "graph([[],[]], 3)": (masks.graph([[], []], 3), 3, None),
    "dense([[True, False], [True, True]])": (masks.dense([[True, False], [True, True]]), 2, None),
    "causal(align=bottom_right)": (masks.causal(2, 5, align="bottom_right"), 2, 5),
    "causal & sliding_window(2)": (masks.sliding_window(6, 2), 6, None),
    "~causal": (~masks.causal(6), 6, None),
    "(causal)": (masks.causal(6), 6, None),
    "((causal & (full)))": (masks.causal(6), 6, None),
}


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("text", MEANINGS)
def test_text_means_the_constructor_it_names(text):
    mask, q_len, kv_len = MEANINGS[text]
    assert_same(parse(text, q_len, kv_len), mask)


def test_every_constructor_has_a_text_form():
    named = {re.search(r"[a-z_]+", text)[0] for text in MEANINGS}
    assert named == set(masks.__all__) - {"Mask", "hull", "positions"}


EXPRESSIONS = st.recursive(
    st.sampled_from(["causal", "window(left=0, right=1)", "chunked(2)", "prefix_lm(2)"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["&", "|"]), inner).map(" ".join),
        inner.map(lambda text: f"~({text})"),
        inner.map(lambda text: f"({text})"),
    ),
    max_leaves=6,
)
ATOMS = {
    text: np.asarray(parse(text, 3).as_array())[0, 0]
    for text in ("causal", "window(left=0, right=1)", "chunked(2)", "prefix_lm(2)")
}


@settings(max_examples=100, deadline=None, derandomize=True)
@given(EXPRESSIONS)
def test_precedence_and_parentheses_are_those_of_python(text):
    python = text
    for n, atom in enumerate(ATOMS):
        python = python.replace(atom, f"m{n}")
    names = {f"m{n}": array for n, array in enumerate(ATOMS.values())}
    expected = eval(python, {}, names)  # the texts are built above from four masks
    np.testing.assert_array_equal(parse(text, 3).as_array()[0, 0], expected)


REFUSED = {
    # text: (column, part of the message)
    "": (1, "expected a mask, found 'the end'"),
    "   ": (1, "expected a mask"),
    "causal &": (9, "expected a mask, found 'the end'"),
    "& causal": (1, "expected a mask, found '&'"),
    "causal && full": (9, "expected a mask, found '&'"),
    "causal causal": (8, "expected '&', '|' or the end, found 'causal'"),
    "(causal": (8, "expected ')', found 'the end'"),
    "causal)": (7, "expected '&', '|' or the end, found ')'"),
    "casual": (1, "unknown mask 'casual', did you mean 'causal'? allowed: full, causal, window,"),
    "full & sliding_windw(3)": (8, "did you mean 'sliding_window'?"),
    "hull": (1, "unknown mask 'hull'"),
    "Mask": (1, "unknown mask 'Mask'"),
    "3": (1, "expected a mask, found '3'"),
    "causal(ofset=1)": (8, "unknown argument of causal 'ofset', did you mean 'offset'?"),
    "causal(q_len=9)": (8, "unknown argument of causal 'q_len'; allowed: offset, align"),
    "full(kv_len=9)": (6, "unknown argument of full 'kv_len'; allowed: none"),
    "full(6)": (6, "full takes nothing without a name"),
    "window(2, 0)": (8, "window takes nothing without a name"),
    "sliding_window(3, 4)": (19, "sliding_window takes size without a name"),
    "sliding_window(size=3, size=4)": (24, "sliding_window is given size twice"),
    "sliding_window(3, size=4)": (19, "sliding_window is given size twice"),
    "sliding_window": (1, "sliding_window needs size"),
    "window(left=1)": (1, "window needs right"),
    "sliding_window(0)": (1, "size is 0; it must be at least 1"),
    "full & prefix_lm(7)": (8, "prefix_len is 7; it must be at least 0 and at most 6"),
    "window(left=-1, right=0)": (1, "left is -1; it must be at least 0"),
    "causal(align=middle)": (14, "unknown value 'middle'; allowed: None, True, False, top_left"),
    "causal(align=True)": (1, "align is True; it must be 'top_left'"),
    "causal(offset=1.5)": (16, "unexpected character '.'"),
    "causal(offset='1')": (15, 'unexpected character "\'"'),
    "causal(offset=)": (15, "expected a number, a name or a list, found ')'"),
    "causal(offset 1)": (8, "causal takes nothing without a name"),
    "causal(,)": (8, "causal takes nothing without a name"),
    "prefix_lm(,)": (11, "expected a number, a name or a list, found ','"),
    "prefix_lm(3,)": (13, "prefix_lm takes prefix_len without a name"),
    "prefix_lm(3": (12, "expected ',' or ')', found 'the end'"),
    "prefix_lm([3": (13, "expected ',' or ']', found 'the end'"),
    "prefix_lm(True)": (1, "prefix_len must hold integers, not bool"),
    "documents([0, 1])": (1, "documents has q_len 2, not 6"),
    "documents([0,1,0,0,0,0])": (1, "id 0 appears in separate runs"),
    "causal ^ full": (8, "unexpected character '^'"),
    "causal; full": (7, "unexpected character ';'"),
    "caus\u0430l": (5, "unexpected character"),
    "__import__(1)": (1, "unknown mask '__import__'"),
    "causal.as_array": (7, "unexpected character '.'"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_bad_text_is_refused_with_column_and_way_out(text):
    column, problem = REFUSED[text]
    with pytest.raises(ValueError, match="column") as caught:
        parse(text, 6)
    message = str(caught.value)
    assert message.startswith(f"mask {text!r}, column {column}: ")
    assert problem in message
    assert "\n" not in message


def test_rectangles_are_refused_where_the_constructor_is_square():
    with pytest.raises(ValueError, match="prefix_lm has kv_len 4, not 6"):
        parse("prefix_lm(2)", 4, 6)
    with pytest.raises(ValueError, match="ambiguous"):
        parse("causal", 4, 6)


@pytest.mark.parametrize("text", ["(" * 5000, "~" * 5000, "prefix_lm(" + "[" * 5000])
def test_deep_nesting_is_refused_not_a_crash(text):
    with pytest.raises(ValueError, match="nested too deeply"):
        parse(text, 6)


def test_only_text_is_parsed():
    with pytest.raises(TypeError, match="not Mask"):
        parse(masks.causal(6), 6)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(alphabet="causlfw(){}[]=,&|~ -01N_.'\"\n", max_size=24))
def test_any_text_gives_a_mask_or_a_one_line_valueerror(text):
    problem, mask = None, None
    try:
        mask = parse(text, 3)
    except ValueError as error:
        problem = str(error)
    assert (mask is None) != (problem is None)
    if mask is None:
        assert re.fullmatch(r"mask .*, column \d+: .+", problem)
    else:
        assert (mask.q_len, mask.kv_len) == (3, 3)


def test_nothing_is_evaluated():
    source = inspect.getsource(mask_text)
    assert "eval(" not in source
    assert "exec(" not in source


def test_render_draws_the_matrix_with_bounds_and_counts():
    drawn = render(
        masks.causal(4, 12, align="bottom_right") & masks.sliding_window(4, 3, 12, offset=8)
    )
    assert drawn == textwrap.dedent("""\
        i  012345678901    lo   hi keys
        0  ......xxx...     6    9    3
        1  .......xxx..     7   10    3
        2  ........xxx.     8   11    3
        3  .........xxx     9   12    3""")


def test_render_shows_gaps_and_empty_rows():
    gaps = masks.dense(np.array([[True, False, True], [False, False, False]]))
    assert render(gaps) == textwrap.dedent("""\
        i  012    lo   hi keys
        0  x.x     0    3    2
        1  ...     0    0    0""")


def test_render_names_batch_and_head_where_there_are_several():
    drawn = render(masks.key_padding(1, lengths=np.array([[1, 2], [0, 1]]), kv_len=2))
    headings = [line for line in drawn.splitlines() if line.startswith("batch")]
    assert headings == ["batch 0, head 0", "batch 0, head 1", "batch 1, head 0", "batch 1, head 1"]
    rows = [line.split()[1] for line in drawn.splitlines() if line.startswith("0 ")]
    assert rows == ["x.", "xx", "..", "x."]
