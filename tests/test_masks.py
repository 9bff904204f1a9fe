"""Masks against their definition in English, written independently as predicates and loops."""

import inspect
import itertools
import re

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from attnlab import masks
from attnlab.masks import (
    Mask,
    block_causal,
    causal,
    chunked,
    cross_documents,
    dense,
    documents,
    full,
    graph,
    hull,
    key_mask,
    key_padding,
    positions,
    prefix_lm,
    sliding_window,
    window,
)
from attnlab.masks.mask import make

SQUARE = range(1, 8)
RECTANGLES = list(itertools.product(SQUARE, SQUARE))
INT32_MAX = 2**31 - 1


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """Hundreds of integer programs run once each: compiling them is the cost of this file."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


# --- helpers ----------------------------------------------------------------------------------


def pairs(T, S, allowed):
    """bool [T, S] from a predicate of (query, key)."""
    return np.array([[bool(allowed(i, k)) for k in range(S)] for i in range(T)])


def by_bounds(mask):
    """The interval mask as an array, computed here from lo and hi alone."""
    assert mask.dense is None
    k = np.arange(mask.kv_len)
    lo, hi = np.asarray(mask.lo)[..., None], np.asarray(mask.hi)[..., None]
    return (lo <= k) & (k < hi)


def check_invariants(mask):
    lo, hi, S = np.asarray(mask.lo), np.asarray(mask.hi), mask.kv_len
    for bound in (mask.lo, mask.hi):
        assert isinstance(bound, jax.Array)
        assert bound.dtype == jnp.int32
        assert not bound.weak_type
        assert bound.ndim == 3
    assert lo.shape == hi.shape
    assert (lo >= 0).all()
    assert (hi <= S).all()
    assert ((lo < hi) | ((lo == 0) & (hi == 0))).all()
    allowed = np.asarray(mask.as_array())
    assert allowed.dtype == bool
    assert allowed.shape == (*lo.shape, S)
    if mask.dense is not None:
        assert mask.dense.dtype == bool
        assert mask.dense.ndim == 4
    np.testing.assert_array_equal(mask.nonempty, allowed.any(-1))
    np.testing.assert_array_equal(mask.keys_per_row(), allowed.sum(-1))
    # Tight: the first and the last key of the bounds are readable.
    some = allowed.any(-1)
    np.testing.assert_array_equal(lo[some], allowed.argmax(-1)[some])
    np.testing.assert_array_equal(hi[some], S - allowed[..., ::-1].argmax(-1)[some])


def assert_same(a, b):
    """Equal leaves, structure and avals: the very same mask, not just the same pairs."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert jax.typeof(x) == jax.typeof(y)
        np.testing.assert_array_equal(x, y)


# --- the worked values of the specification -----------------------------------------------------

WORKED = [
    # name, mask, lo, hi, keys per row
    ("full", lambda: full(6), "000000", "666666", "666666"),
    ("causal", lambda: causal(6), "000000", "123456", "123456"),
    ("strict", lambda: causal(6, offset=-1), "000000", "012345", "012345"),
    ("sliding_window", lambda: sliding_window(6, 3), "000123", "123456", "123333"),
    ("window_2_0", lambda: window(6, left=2, right=0), "000123", "123456", "123333"),
    ("window_1_1", lambda: window(6, left=1, right=1), "001234", "234566", "233332"),
    ("window_None_2", lambda: window(6, left=None, right=2), "000000", "345666", "345666"),
    ("prefix_3", lambda: prefix_lm(6, 3), "000000", "333456", "333456"),
    ("prefix_0", lambda: prefix_lm(6, 0), "000000", "123456", "123456"),
    ("prefix_1", lambda: prefix_lm(6, 1), "000000", "123456", "123456"),
    ("chunked", lambda: chunked(6, 2), "002244", "123456", "121212"),
    ("block_causal", lambda: block_causal(6, 2), "000000", "224466", "224466"),
    ("documents", lambda: documents([0, 0, 0, 1, 1, -1]), "000330", "123450", "123120"),
    (
        "documents_bidirectional",
        lambda: documents([0, 0, 0, 1, 1, -1], causal=False),
        "000330",
        "333550",
        "333220",
    ),
    (
        "documents_prefix",
        lambda: documents([0, 0, 0, 1, 1, 1], prefix_len=[2, 1]),
        "000333",
        "223456",
        "223123",
    ),
    ("left_pad", lambda: causal(6) & key_padding(6, starts=2), "002222", "003456", "001234"),
    ("right_pad", lambda: causal(6) & key_padding(6, lengths=4), "000000", "123444", "123444"),
    (
        "span_in_causal_text",
        lambda: hull(causal(6), documents([-1, -1, 0, 0, 0, -1], causal=False)),
        "000000",
        "125556",
        "125556",
    ),
    ("top_left_2x5", lambda: causal(2, 5, align="top_left"), "00", "12", "12"),
    ("bottom_right_2x5", lambda: causal(2, 5, align="bottom_right"), "00", "45", "45"),
    ("bottom_right_5x2", lambda: causal(5, 2, align="bottom_right"), "00000", "00012", "00012"),
    ("top_left_5x2", lambda: causal(5, 2, align="top_left"), "00000", "12222", "12222"),
]


@pytest.mark.parametrize(
    ("build", "lo", "hi", "keys"), [row[1:] for row in WORKED], ids=[row[0] for row in WORKED]
)
def test_worked_values(build, lo, hi, keys):
    mask = build()
    assert mask.dense is None
    for found, digits in ((mask.lo, lo), (mask.hi, hi), (mask.keys_per_row(), keys)):
        assert found.shape == (1, 1, len(digits))
        assert found.ravel().tolist() == [int(d) for d in digits]
    check_invariants(mask)


PICTURES = {
    "full": [full(6)],
    "causal": [causal(6), causal(6, offset=-1)],
    "window": [window(6, left=1, right=1), window(6, left=None, right=2)],
    "sliding_window": [sliding_window(6, 3)],
    "prefix_lm": [prefix_lm(6, 3)],
    "chunked": [chunked(6, 2)],
    "block_causal": [block_causal(6, 2)],
    "key_padding": [causal(6) & key_padding(6, lengths=4), causal(6) & key_padding(6, starts=2)],
    "documents": [
        documents([0, 0, 0, 1, 1, -1]),
        documents([0, 0, 0, 1, 1, -1], causal=False),
        documents([0, 0, 0, 1, 1, 1], prefix_len=[2, 1]),
    ],
    "cross_documents": [cross_documents([0, 0, 1, 1, 2, -1], [0, 1, 1, 1, 2, 2])],
    "dense": [dense(jnp.arange(6)[:, None] % 2 == jnp.arange(6)[None, :] % 2)],
    "key_mask": [key_mask(6, [True, False, True, True, False, True])],
    "graph": [
        graph([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]], 6),
        graph([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]], 6, self_loops=True),
    ],
    "hull": [hull(causal(6), documents([-1, -1, 0, 0, 0, -1], causal=False))],
}


def test_every_constructor_has_a_picture():
    not_masks = {"Mask", "positions"}
    assert set(PICTURES) == set(masks.__all__) - not_masks


@pytest.mark.parametrize("name", PICTURES)
def test_docstring_picture_is_the_mask(name):
    lines = re.findall(r"^ *((?:[x.]{6} *)+)$", inspect.getdoc(getattr(masks, name)), re.MULTILINE)
    assert len(lines) == 6
    columns = zip(*(line.split() for line in lines), strict=True)
    for picture, mask in zip(columns, PICTURES[name], strict=True):
        drawn = np.array([[cell == "x" for cell in row] for row in picture])
        np.testing.assert_array_equal(drawn, mask.as_array()[0, 0])


# --- exhaustive comparison with the English definitions -----------------------------------------


@pytest.mark.parametrize("left_known", [True, False])
@pytest.mark.parametrize("right_known", [True, False])
def test_window_over_all_small_shapes_and_offsets(left_known, right_known):
    sides = list(itertools.product(range(4), range(4), range(-3, 4)))
    left, right, offset = (np.array(x) for x in zip(*sides, strict=True))
    for T, S in RECTANGLES:
        mask = window(
            T,
            S,
            left=left if left_known else None,
            right=right if right_known else None,
            offset=offset,
        )
        found = np.broadcast_to(by_bounds(mask), (len(sides), 1, T, S))
        for b, (L, R, o) in enumerate(sides):

            def may_read(i, k, L=L, R=R, o=o):
                distance = (i + o) - k  # keys behind the query's own place
                return (not left_known or distance <= L) and (not right_known or -distance <= R)

            np.testing.assert_array_equal(found[b, 0], pairs(T, S, may_read))


def test_causal_over_all_small_shapes_and_offsets():
    for T, S in RECTANGLES:
        for o in range(-3, 4):
            expected = pairs(T, S, lambda i, k, o=o: k - i <= o)
            np.testing.assert_array_equal(by_bounds(causal(T, S, offset=o))[0, 0], expected)
        first = pairs(T, S, lambda i, k: k <= i)
        np.testing.assert_array_equal(by_bounds(causal(T, S, align="top_left"))[0, 0], first)
        # Counted from the end, query and key of the same distance are the same token.
        last = pairs(T, S, lambda i, k, T=T, S=S: S - k >= T - i)
        np.testing.assert_array_equal(by_bounds(causal(T, S, align="bottom_right"))[0, 0], last)


def test_sliding_window_over_all_small_shapes_sizes_and_offsets():
    cases = list(itertools.product(range(1, 9), range(-3, 4)))
    sizes, offsets = (np.array(x) for x in zip(*cases, strict=True))
    for T, S in RECTANGLES:
        found = by_bounds(sliding_window(T, sizes, S, offset=offsets))
        for b, (size, o) in enumerate(cases):

            def may_read(i, k, size=size, o=o):
                latest = range(i + o, i + o - size, -1)
                return k in latest

            np.testing.assert_array_equal(found[b, 0], pairs(T, S, may_read))


def test_prefix_lm_over_all_lengths():
    for T in SQUARE:
        for P in range(T + 1):
            expected = pairs(T, T, lambda i, k, P=P: k <= i or (i < P and k < P))
            np.testing.assert_array_equal(by_bounds(prefix_lm(T, P))[0, 0], expected)


def test_chunked_and_block_causal_over_all_sizes():
    for T, size in itertools.product(SQUARE, range(1, 9)):
        part = [i // size for i in range(T)]
        same = pairs(T, T, lambda i, k, part=part: part[i] == part[k] and k <= i)
        np.testing.assert_array_equal(by_bounds(chunked(T, size))[0, 0], same)
        across = pairs(T, T, lambda i, k, part=part: part[k] <= part[i])
        np.testing.assert_array_equal(by_bounds(block_causal(T, size))[0, 0], across)


def test_full_and_key_padding_over_all_shapes():
    for T, S in RECTANGLES:
        assert by_bounds(full(T, S)).all()
        for start, end in itertools.product(range(S + 1), repeat=2):
            expected = pairs(T, S, lambda i, k, start=start, end=end: start <= k < end)
            mask = key_padding(T, starts=start, lengths=end, kv_len=S)
            np.testing.assert_array_equal(by_bounds(mask)[0, 0], expected)


def packings(T):
    """Every way to cut T tokens into runs, each run a document or padding."""
    for cuts in itertools.product([False, True], repeat=T - 1):
        runs = np.cumsum([0, *cuts])
        for padding in itertools.product([False, True], repeat=int(runs[-1]) + 1):
            yield [-1 if padding[r] else int(r) for r in runs]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_documents_over_all_packings_of_five_tokens(bidirectional):
    ids = np.array(list(packings(5)))
    found = by_bounds(documents(ids, causal=not bidirectional))
    for b, row in enumerate(ids):

        def may_read(i, k, row=row):
            return row[i] >= 0 and row[i] == row[k] and (bidirectional or k <= i)

        np.testing.assert_array_equal(found[b, 0], pairs(5, 5, may_read))


@pytest.mark.parametrize("prefix", [0, 1, 2, 9])
def test_documents_with_a_prefix_over_all_packings_of_five_tokens(prefix):
    ids = np.array(list(packings(5)))
    scalar = by_bounds(documents(ids, prefix_len=prefix))
    per_document = by_bounds(documents(ids, prefix_len=np.full(5, prefix)))
    np.testing.assert_array_equal(scalar, per_document)
    for b, row in enumerate(ids):

        def may_read(i, k, row=row):
            start = list(row).index(row[i])
            in_prefix = i - start < prefix and k - start < prefix
            return row[i] >= 0 and row[i] == row[k] and (k <= i or in_prefix)

        np.testing.assert_array_equal(scalar[b, 0], pairs(5, 5, may_read))


def test_documents_prefix_is_looked_up_by_id_and_example():
    mask = documents([[3, 3, 3, 0, 0], [0, 0, 1, 1, 1]], prefix_len=[[1, 9, 9, 2], [2, 3, 9, 9]])
    assert mask.hi[:, 0].tolist() == [[2, 2, 3, 4, 5], [2, 2, 5, 5, 5]]


def test_cross_documents_over_all_key_packings_of_four():
    kv_ids = np.array(list(packings(4)))
    q_ids = np.array([[2, -1, 0], [1, 1, 9], [3, 0, 1]])
    for q in q_ids:
        found = by_bounds(cross_documents(q, kv_ids))
        for b, kv in enumerate(kv_ids):
            expected = pairs(3, 4, lambda i, k, q=q, kv=kv: q[i] >= 0 and q[i] == kv[k])
            np.testing.assert_array_equal(found[b, 0], expected)


def test_cross_documents_does_not_need_sorted_keys_only_contiguous_ones():
    mask = cross_documents([0, 7, 3], [7, 7, -1, 0, 3, 3])
    assert list(zip(*map(np.ravel, (mask.lo, mask.hi)), strict=True)) == [(3, 4), (0, 2), (4, 6)]


def test_positions_restart_per_document_and_are_zero_on_padding():
    assert positions([0, 0, 0, 1, 1, -1]).tolist() == [0, 1, 2, 0, 1, 0]
    assert positions([-1, -1, 0, 0, 0]).tolist() == [0, 0, 0, 1, 2]  # left padding
    ids = np.array(list(packings(5)))
    found = positions(ids)
    assert found.shape == ids.shape
    assert found.dtype == jnp.int32
    for row, place in zip(ids, np.asarray(found), strict=True):
        expected = [0 if row[i] < 0 else i - list(row).index(row[i]) for i in range(5)]
        assert place.tolist() == expected


def test_graph_lets_the_target_read_the_source():
    mask = graph([[0], [2]], 3)
    assert np.argwhere(np.asarray(mask.as_array())[0, 0]).tolist() == [[2, 0]]
    looped = graph(np.array([[0], [2]]), 3, self_loops=True)
    assert np.argwhere(np.asarray(looped.as_array())[0, 0]).tolist() == [
        [0, 0],
        [1, 1],
        [2, 0],
        [2, 2],
    ]


@pytest.mark.parametrize("empty", [np.zeros((2, 0), np.int32), [[], []]])
def test_graph_without_edges_reads_nothing_or_itself(empty):
    assert not graph(empty, 3).nonempty.any()
    np.testing.assert_array_equal(graph(empty, 3, self_loops=True).as_array()[0, 0], np.eye(3))


def test_graph_drops_padding_edges_and_traced_edges_out_of_range():
    edges = np.array([[[0, -1], [1, 2]], [[2, 1], [-1, 0]]])
    mask = graph(edges, 3)
    assert mask.lo.shape == (2, 1, 3)
    assert np.argwhere(np.asarray(mask.as_array())).tolist() == [[0, 0, 1, 0], [1, 0, 0, 1]]
    traced = jax.jit(lambda e: graph(e, 3))(np.array([[0, 3, 1], [1, 0, 3]]))
    assert np.argwhere(np.asarray(traced.as_array())[0, 0]).tolist() == [[1, 0]]


def test_key_mask_with_a_gap_differs_per_example():
    keep = np.array([[True, False, True], [False, False, False]])
    mask = key_mask(2, keep, kv_len=3)
    assert mask.lo.shape == (2, 1, 2)
    np.testing.assert_array_equal(mask.as_array()[:, 0, 0], keep)
    np.testing.assert_array_equal(mask.as_array()[:, 0, 1], keep)


# --- the algebra --------------------------------------------------------------------------------

T_LAW, S_LAW = 3, 4


@st.composite
def any_mask(draw):
    """Raw bounds beyond both ends, one per example; and-ed with a shared array or not."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lo, hi = (rng.integers(-2, S_LAW + 3, (2, 1, T_LAW), np.int32) for _ in range(2))
    bounds = make(lo, hi, None, S_LAW)
    return bounds & dense(rng.random((T_LAW, S_LAW)) < 0.5) if draw(st.booleans()) else bounds


def array_of(mask):
    return np.asarray(mask.as_array())


laws = settings(max_examples=60, deadline=None, derandomize=True)


# One small program per law and pair of structures, so that a hundred examples cost one compilation;
# the operators are traced here and run untraced elsewhere in this file.
@jax.jit
def algebra(a, b):
    results = {
        "a": a, "b": b, "a&b": a & b, "a|b": a | b, "~a": ~a, "~~a": ~~a, "a&a": a & a,
        "~(a&b)": ~(a & b), "~a|~b": ~a | ~b, "~(a|b)": ~(a | b), "~a&~b": ~a & ~b,
        "hull": hull(a, b), "densify": a.densify(), "densify twice": a.densify().densify(),
        "a&full": a & full(T_LAW, S_LAW),
        "a&empty": a & key_padding(T_LAW, lengths=0, kv_len=S_LAW),
        "a|empty": a | key_padding(T_LAW, lengths=0, kv_len=S_LAW),
        "wide": a.canonical(heads=2),
    }  # fmt: skip
    return results, jax.tree.map(Mask.as_array, results, is_leaf=lambda x: isinstance(x, Mask))


def check_invariants_of(mask, allowed):
    """check_invariants without compiling anything: `allowed` is the mask as an array."""
    lo, hi, some = np.asarray(mask.lo), np.asarray(mask.hi), allowed.any(-1)
    np.testing.assert_array_equal(lo, np.where(some, allowed.argmax(-1), 0))
    last = S_LAW - allowed[..., ::-1].argmax(-1)
    np.testing.assert_array_equal(hi, np.where(some, last, 0))
    assert (mask.lo.dtype, mask.lo.weak_type) == (mask.hi.dtype, mask.hi.weak_type) == ("int32", 0)


@laws
@given(any_mask(), any_mask())
def test_algebra_laws(a, b):
    results, arrays = algebra(a, b)
    arrays = {name: np.asarray(x) for name, x in arrays.items()}
    for name, mask in results.items():
        check_invariants_of(mask, arrays[name])

    def same(left, right):
        np.testing.assert_array_equal(arrays[left], arrays[right])

    np.testing.assert_array_equal(arrays["a&b"], arrays["a"] & arrays["b"])
    np.testing.assert_array_equal(arrays["a|b"], arrays["a"] | arrays["b"])
    np.testing.assert_array_equal(arrays["~a"], ~arrays["a"])
    same("~(a&b)", "~a|~b")
    same("~(a|b)", "~a&~b")
    same("~~a", "a")
    same("a|empty", "densify")
    same("densify", "a")
    assert not arrays["a&empty"].any()
    assert_same(results["a&full"], results["a"])
    assert_same(results["a&a"], results["a"])
    assert_same(results["densify twice"], results["densify"])
    np.testing.assert_array_equal(
        arrays["wide"], np.broadcast_to(arrays["a"], (2, 2, T_LAW, S_LAW))
    )


@laws
@given(any_mask(), any_mask())
def test_structures_do_not_depend_on_values(a, b):
    results, _ = algebra(a, b)
    interval = {name for name, mask in results.items() if mask.dense is None}
    of_a = {"a", "a&a", "a&full", "a&empty", "wide"} if a.dense is None else set()
    of_b = {"b"} if b.dense is None else set()
    both = {"a&b"} if of_a and of_b else set()
    assert interval == of_a | of_b | both | {"hull"}


@laws
@given(any_mask(), any_mask())
def test_hull_is_the_smallest_covering_interval(a, b):
    _, arrays = algebra(a, b)
    union, cover = np.asarray(arrays["a|b"]), np.asarray(arrays["hull"])
    for row, covered in zip(
        union.reshape(-1, S_LAW),
        np.broadcast_to(cover, union.shape).reshape(-1, S_LAW),
        strict=True,
    ):
        keys = np.flatnonzero(row)
        expected = range(keys[0], keys[-1] + 1) if keys.size else []
        assert np.flatnonzero(covered).tolist() == list(expected)


@pytest.mark.parametrize("structure", ["interval", "dense"])
def test_slices_of_the_mask_are_slices_of_the_array(structure):
    T, S, n = 4, 5, 2
    slices = jax.jit(lambda m, i: (m.rows(i, n), m.keys(i, n)))
    for seed in range(12):
        rng = np.random.default_rng(seed)
        mask = make(*rng.integers(-2, S + 3, (2, 2, 1, T), np.int32), None, S)
        if structure == "dense":
            mask = mask & dense(rng.random((T, S)) < 0.5)
        array = array_of(mask)
        for start in range(T - n + 1):
            rows, keys = slices(mask, start)
            assert (rows.q_len, rows.kv_len, keys.q_len, keys.kv_len) == (n, S, T, n)
            assert jax.tree.structure(rows) == jax.tree.structure(mask)
            np.testing.assert_array_equal(array_of(rows), array[:, :, start : start + n])
            np.testing.assert_array_equal(array_of(keys), array[..., start : start + n])
            assert_same(mask.rows(start, n), rows)
            assert_same(mask.keys(start, n), keys)
        check_invariants(rows)
        check_invariants(keys)


def test_operators_broadcast_over_batch_and_heads_only():
    per_example = key_padding(3, lengths=[1, 4], kv_len=4)
    per_head = window(3, 4, left=np.array([[0, 2]]), right=1, offset=0)
    for mask, expected in (
        (per_example & per_head, array_of(per_example) & array_of(per_head)),
        (per_example | per_head, array_of(per_example) | array_of(per_head)),
    ):
        assert mask.lo.shape == (2, 2, 3)
        np.testing.assert_array_equal(array_of(mask), expected)
        check_invariants(mask)
    assert hull(per_example, per_head).lo.shape == (2, 2, 3)


@laws
@given(any_mask(), any_mask())
def test_at_heads_and_stack_keep_every_member(a, b):
    heads, stacked = Mask.at_heads([a, b]), Mask.stack([a, b])
    lanes = jax.tree.map(lambda x: x[0], stacked), jax.tree.map(lambda x: x[1], stacked)
    arrays = [array_of(m) for m in (a, b)]
    batch = max(x.shape[0] for x in arrays)
    wide = [np.broadcast_to(x, (batch, *x.shape[1:])) for x in arrays]
    np.testing.assert_array_equal(array_of(heads), np.concatenate(wide, axis=1))
    for lane, array in zip(lanes, arrays, strict=True):
        found = array_of(lane)
        np.testing.assert_array_equal(found, np.broadcast_to(array, found.shape))


def test_at_heads_gives_each_head_its_own_mask():
    mask = Mask.at_heads([causal(4), sliding_window(4, 2), full(4)])
    assert mask.dense is None
    assert mask.lo.shape == (1, 3, 4)
    assert mask.keys_per_row()[0].tolist() == [[1, 2, 3, 4], [1, 2, 2, 2], [4, 4, 4, 4]]


def test_union_of_separated_intervals_is_not_filled_in():
    mask = key_padding(2, lengths=1, kv_len=5) | key_padding(2, starts=4, kv_len=5)
    np.testing.assert_array_equal(mask.as_array()[0, 0, 0], [1, 0, 0, 0, 1])
    both = hull(key_padding(2, lengths=1, kv_len=5), key_padding(2, starts=4, kv_len=5))
    assert both.keys_per_row().ravel().tolist() == [5, 5]


def test_dense_array_shared_by_a_batch_is_not_copied_per_example():
    mask = dense(np.eye(4, dtype=bool)) & key_padding(4, lengths=np.arange(1, 4))
    assert mask.dense.shape == (1, 1, 4, 4)
    assert mask.lo.shape == (3, 1, 4)
    check_invariants(mask)


# --- numbers as data ----------------------------------------------------------------------------

# A function of one number, and values for it.
NUMBERS = {
    "causal_offset": (lambda x: causal(6, offset=x), [-2, 0, 3]),
    "causal_rectangle_offset": (lambda x: causal(6, 6, offset=x), [-7, 4, 99]),
    "window_left": (lambda x: window(6, left=x, right=0), [0, 2, 9]),
    "window_right": (lambda x: window(6, left=1, right=x), [0, 2, 9]),
    "window_offset": (lambda x: window(6, left=1, right=1, offset=x), [-1, 0, 2]),
    "sliding_window": (lambda x: sliding_window(6, x), [1, 3, 9]),
    "sliding_window_offset": (lambda x: sliding_window(6, 2, offset=x), [-1, 0, 2]),
    "prefix_lm": (lambda x: prefix_lm(6, x), [0, 3, 6]),
    "chunked": (lambda x: chunked(6, x), [1, 4, 9]),
    "block_causal": (lambda x: block_causal(6, x), [1, 4, 9]),
    "key_lengths": (lambda x: key_padding(6, lengths=x), [0, 3, 6]),
    "key_starts": (lambda x: key_padding(6, starts=x), [0, 3, 6]),
    "documents_prefix": (lambda x: documents([0, 0, 0, 1, 1, -1], prefix_len=x), [0, 2, 9]),
    "rows": (lambda x: sliding_window(8, 3, 6, offset=0).rows(x, 6), [0, 1, 2]),
    "keys": (lambda x: sliding_window(6, 3, 8, offset=1).keys(x, 6), [0, 1, 2]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_traced_batched_and_mapped_numbers_mean_what_known_ones_mean(name):
    build, values = NUMBERS[name]
    known = [build(x) for x in values]
    for mask in known:
        check_invariants(mask)
    jitted = jax.jit(build)
    for x, mask in zip(values, known, strict=True):
        assert_same(jitted(x), mask)
        assert_same(build(jnp.full((), x)), mask)
        assert_same(build(np.int64(x)), mask)
    lanes = jax.vmap(build)(jnp.array(values))
    assert_same(lanes, Mask.stack(known))
    if name not in ("rows", "keys", "documents_prefix"):
        batched = build(np.array(values))
        assert_same(batched, jax.tree.map(lambda *x: jnp.concatenate(x), *known))
        per_head = build(np.array([values]))
        assert_same(per_head, Mask.at_heads(known))


@pytest.mark.parametrize(
    "build",
    [
        lambda ids: documents(ids),
        lambda ids: documents(ids, causal=False),
        lambda ids: documents(ids, prefix_len=[2, 1, 3]),
        lambda ids: cross_documents(ids, [0, 0, 1, 2, 2]),
        lambda ids: cross_documents([2, 1, 0], ids),
        lambda ids: graph(jnp.stack([ids, ids[::-1]]), 5),
        lambda ids: dense(ids[:, None] == ids[None, :]),
        lambda ids: key_mask(3, ids > 0),
        lambda ids: positions(ids),
    ],
)
def test_traced_arrays_mean_what_known_ones_mean(build):
    packed = jnp.array([[0, 0, 1, 1, 1], [2, -1, 0, 0, -1], [1, 1, 1, 1, 1]])
    known = [build(ids) for ids in np.asarray(packed)]
    jitted = jax.jit(build)
    for ids, expected in zip(packed, known, strict=True):
        assert_same(jitted(ids), expected)
    assert_same(jax.vmap(build)(packed), jax.tree.map(lambda *x: jnp.stack(x), *known))


def test_traced_numbers_out_of_range_are_clipped_as_documented():
    def keys(build, x):
        return jax.jit(build)(x).keys_per_row().ravel().tolist()

    assert keys(lambda x: prefix_lm(4, x), 9) == [4, 4, 4, 4]
    assert keys(lambda x: prefix_lm(4, x), -9) == [1, 2, 3, 4]
    assert keys(lambda x: sliding_window(4, x), 0) == [0, 0, 0, 0]
    assert keys(lambda x: chunked(4, x), 0) == [1, 1, 1, 1]
    assert keys(lambda x: block_causal(4, x), -3) == [1, 2, 3, 4]
    assert keys(lambda x: key_padding(4, lengths=x), 9) == [4, 4, 4, 4]
    assert keys(lambda x: key_padding(4, starts=x), -9) == [4, 4, 4, 4]
    assert keys(lambda x: documents(x, prefix_len=[2]), jnp.array([0, 0, 1, 1])) == [2, 2, 1, 2]
    # The inequality as written: left=-1 forbids the query's own key.
    assert keys(lambda x: window(4, left=x, right=1), -1) == [1, 1, 1, 0]
    assert keys(lambda x: full(4).rows(x, 2), 3) == [4, 0]
    assert keys(lambda x: full(4).rows(x, 2), -1) == [0, 4]
    assert keys(lambda x: full(2, 4).keys(x, 3), 2) == [2, 2]
    assert keys(lambda x: (full(2, 4) | full(2, 4)).keys(x, 3), -1) == [2, 2]


EXTREMES = [-(2**31), -(2**31) + 1, -5, -1, 0, 1, 5, 2**31 - 2, INT32_MAX]


@pytest.mark.parametrize("traced", [False, True])
def test_extreme_numbers_clip_and_never_wrap(traced):
    sides = [x for x in EXTREMES if x >= 0]
    cases = list(itertools.product(sides, sides, EXTREMES))
    left, right, offset = (np.array(x, np.int32) for x in zip(*cases, strict=True))

    def build(left, right, offset):
        return window(4, 4, left=left, right=right, offset=offset)

    found = by_bounds((jax.jit(build) if traced else build)(left, right, offset))
    for b, (L, R, o) in enumerate(cases):
        expected = pairs(4, 4, lambda i, k, L=L, R=R, o=o: i + o - L <= k <= i + o + R)
        np.testing.assert_array_equal(found[b, 0], expected)


@pytest.mark.parametrize(
    "value", [INT32_MAX, 2**31, 2**40, 2**70, np.uint32(2**32 - 1), np.int64(2**40)]
)
def test_numbers_beyond_int32_are_large_not_negative(value):
    assert_same(sliding_window(5, value), causal(5))
    assert_same(window(5, left=value, right=value), full(5))
    assert_same(causal(5, offset=value), full(5))
    assert_same(block_causal(5, value), full(5))
    assert_same(chunked(5, value), causal(5))
    if not isinstance(value, np.uint32):
        assert not causal(5, offset=-value).nonempty.any()


def test_bounds_stay_int32_when_64_bit_types_are_on():
    with jax.enable_x64(True):
        ids = jnp.array([0, 0, 1, 1, -1])
        assert ids.dtype == jnp.int64
        size = jnp.asarray(2**40)
        for mask in (
            sliding_window(5, size),
            jax.jit(lambda s: sliding_window(5, s))(size),
            documents(ids, prefix_len=jnp.asarray(2)),
            cross_documents(ids, ids),
            graph(jnp.stack([ids, ids]), 5),
            ~causal(5),
            causal(5) | full(5),
            causal(5).rows(jnp.asarray(1), 3),
            causal(5).keys(jnp.asarray(1), 3),
            hull(causal(5), full(5)),
        ):
            check_invariants(mask)
        assert jax.jit(lambda s: sliding_window(5, s))(size).hi.ravel().tolist() == [1, 2, 3, 4, 5]


# --- one structure, one trace ---------------------------------------------------------------------


def interval_masks():
    ids = [[0, 0, 0, 1, 1, 1, -1, -1], [0] * 8]
    yield full(8)
    yield full(8, 8)
    yield causal(8)
    yield causal(8, align="bottom_right")
    yield causal(8, offset=jnp.full((), 2))
    yield window(8, left=np.int64(2), right=None)
    yield window(8, left=None, right=None)
    yield sliding_window(8, 3)
    yield sliding_window(8, jnp.asarray(3))
    yield sliding_window(8, jnp.full((2,), 3))
    yield jax.jit(lambda s: sliding_window(8, s))(3)
    yield prefix_lm(8, np.array([2, 5]))
    yield chunked(8, 3)
    yield block_causal(8, np.int64(3))
    yield key_padding(8, lengths=jnp.array([3, 8]))
    yield key_padding(8, starts=np.array([[3], [8]]))
    yield documents(ids)
    yield documents(np.array(ids), causal=False)
    yield documents(jnp.array(ids), prefix_len=2)
    yield cross_documents(ids, ids)
    yield causal(8) & key_padding(8, lengths=[3, 8])
    yield hull(causal(8), documents(ids))
    yield full(16, 8).rows(4, 8)
    yield full(8, 16).keys(jnp.asarray(4), 8)
    yield jax.device_put(causal(8), jax.devices()[0])
    yield jax.tree.map(np.asarray, causal(8))


def dense_masks():
    yield dense(np.eye(8, dtype=bool))
    yield dense(jnp.ones((2, 1, 8, 8), bool))
    yield graph(np.array([[0, 1], [1, 2]]), 8)
    yield key_mask(8, np.arange(8) % 2 == 0)
    yield ~causal(8)
    yield causal(8) | full(8)
    yield causal(8).densify()
    yield dense(np.eye(8, dtype=bool)) & key_padding(8, lengths=[3, 8])


@pytest.mark.parametrize("family", [interval_masks, dense_masks])
def test_all_constructors_share_one_trace_per_structure(family):
    traces = []

    @jax.jit
    def consume(mask):
        traces.append(mask)
        return mask.keys_per_row()

    seen = 0
    for mask in family():
        consume(mask.canonical(batch=2))
        seen += 1
    assert seen >= 8
    assert len(traces) == 1


def shapes_in(jaxpr):
    for eqn in jaxpr.eqns:
        for var in (*eqn.invars, *eqn.outvars):
            yield tuple(var.aval.shape)
        for parameter in eqn.params.values():
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from shapes_in(inner)


def test_interval_masks_never_hold_a_value_of_queries_by_keys():
    T, S, B = 29, 31, 3

    def everything(size, lengths, q_ids, kv_ids, i0):
        mask = window(T, S, left=size, right=size, offset=size)
        mask = mask & sliding_window(T, size, S, offset=1) & full(T, S)
        mask = hull(mask, cross_documents(q_ids, kv_ids))
        mask = mask & key_padding(T, lengths=lengths, kv_len=S)
        sliced = mask.rows(i0, T - 1).keys(i0, S - 1)
        rest = documents(q_ids, prefix_len=size), prefix_lm(T, size), chunked(T, size)
        return mask.canonical(batch=B, heads=2), sliced, rest, sliced.keys_per_row()

    ids = (jnp.zeros((B, T), jnp.int32), jnp.zeros((B, S), jnp.int32))
    jaxpr = jax.make_jaxpr(everything)(2, jnp.ones(B, jnp.int32), *ids, 1)
    squares = [s for s in shapes_in(jaxpr.jaxpr) if len({T, T - 1} & {*s}) and {S, S - 1} & {*s}]
    assert squares == []
    # The search does find such a value where there is one.
    found = shapes_in(jax.make_jaxpr(lambda: full(T, S).as_array())().jaxpr)
    assert (1, 1, T, S) in set(found)


# --- the object ---------------------------------------------------------------------------------


def test_repr_counts_what_is_known_and_survives_what_is_not():
    assert repr(causal(4)) == (
        "Mask(1x1 of 4x4, interval, 1 to 4 keys per row, 10 of 16 pairs, 0 empty rows)"
    )
    assert repr(~causal(2, 3, offset=0)) == (
        "Mask(1x1 of 2x3, dense, 1 to 2 keys per row, 3 of 6 pairs, 0 empty rows)"
    )
    texts = []

    def look(mask):
        texts.append(repr(mask))
        return mask

    jax.jit(look)(causal(4))
    jax.vmap(look)(Mask.stack([~causal(4), causal(4)]))
    texts.append(repr(jax.eval_shape(lambda: causal(4))))
    texts.append(repr(jax.tree.map(lambda x: "leaf", causal(4))))
    texts.append(repr(Mask(None, None, None, 4)))
    assert all(text.startswith("Mask(") for text in texts)
    assert "4x4, interval, values not known" in texts[0]
    assert "4x4, dense, values not known" in texts[1]
    assert "2x1x1 of 4x4, interval, 1 to 4" in repr(Mask.stack([causal(4), causal(4)]))


def test_masks_refuse_hash_and_equality_with_the_way_out():
    with pytest.raises(TypeError, match="ordinary traced argument"):
        hash(causal(4))
    with pytest.raises(TypeError, match="as_array"):
        assert causal(4) == causal(4)
    mask = causal(4)
    assert mask == mask
    assert mask != "causal"


def test_pytree_has_two_structures_and_static_length():
    interval, other = jax.tree.structure(causal(4)), jax.tree.structure(~causal(4))
    assert interval == jax.tree.structure(full(4)) == jax.tree.structure(documents([0, 0, 1, 1]))
    assert interval != other
    assert interval != jax.tree.structure(full(4, 5))
    assert len(jax.tree.leaves(causal(4))) == 2
    assert len(jax.tree.leaves(~causal(4))) == 3


def test_q_len_and_kv_len_are_python_ints():
    mask = causal(2, 5, offset=0)
    assert (mask.q_len, mask.kv_len) == (2, 5)
    assert type(mask.q_len) is type(mask.kv_len) is int


# --- bad input ------------------------------------------------------------------------------------

BAD = {
    "length_zero": (lambda: full(0), ValueError, "q_len is 0; it must be at least 1"),
    "length_float": (lambda: full(4.0), TypeError, "q_len sets a shape"),
    "length_bool": (lambda: full(True), TypeError, "q_len sets a shape"),
    "length_array": (lambda: causal(np.ones((2, 3))), TypeError, r"ndarray of shape \(2, 3\)"),
    "length_traced": (lambda: jax.jit(causal)(4), TypeError, "q_len sets a shape"),
    "kv_len_negative": (lambda: full(4, -1), ValueError, "kv_len is -1"),
    "rectangle": (lambda: causal(4, 6), ValueError, r"bottom_right' \(offset 2\)"),
    "rectangle_window": (lambda: window(4, 6, left=1, right=1), ValueError, "ambiguous"),
    "rectangle_sliding": (lambda: sliding_window(4, 2, 6), ValueError, "ambiguous"),
    "align_unknown": (lambda: causal(4, 6, align="bottom"), ValueError, "'top_left' or"),
    "align_and_offset": (lambda: causal(4, align="top_left", offset=0), ValueError, "give one"),
    "window_negative": (lambda: window(4, left=-1, right=0), ValueError, "left is -1; it must be"),
    "window_right": (lambda: window(4, left=0, right=[0, -2]), ValueError, "right is -2"),
    "window_float": (lambda: window(4, left=1.5, right=0), TypeError, "integers, not float64"),
    "size_zero": (lambda: sliding_window(4, 0), ValueError, "size is 0; it must be at least 1"),
    "size_bool": (lambda: sliding_window(4, True), TypeError, "integers, not bool"),
    "size_none": (lambda: sliding_window(4, None), TypeError, "size must hold integers"),
    "size_traced_float": (
        lambda: jax.jit(lambda s: sliding_window(4, s))(2.0),
        TypeError,
        "integers, not float32",
    ),
    "prefix_long": (lambda: prefix_lm(4, 5), ValueError, "prefix_len is 5; .* at most 4"),
    "prefix_negative": (lambda: prefix_lm(4, -1), ValueError, "prefix_len is -1"),
    "prefix_rank": (lambda: prefix_lm(4, np.ones((1, 1, 1), int)), ValueError, "has shape"),
    "prefix_ragged": (lambda: prefix_lm(4, [[1], 2]), ValueError, "rows differ in length"),
    "chunk_zero": (lambda: chunked(4, 0), ValueError, "chunk is 0"),
    "block_zero": (lambda: block_causal(4, 0), ValueError, "block is 0"),
    "padding_missing": (lambda: key_padding(4), ValueError, "lengths, starts or both"),
    "padding_long": (lambda: key_padding(4, lengths=[4, 5]), ValueError, "lengths is 5"),
    "padding_start": (lambda: key_padding(4, starts=-1), ValueError, "starts is -1"),
    "keep_numbers": (lambda: key_mask(2, [1, 0]), TypeError, "keep must be boolean.*int64"),
    "keep_length": (lambda: key_mask(2, [True] * 3, kv_len=4), ValueError, "keep covers 3 keys"),
    "keep_rank": (lambda: key_mask(2, np.ones((1, 2, 3), bool)), ValueError, "keep has shape"),
    "dense_int": (lambda: dense(np.eye(3, dtype=int)), TypeError, "allowed != 0"),
    "dense_additive": (lambda: dense(jnp.zeros((3, 3))), TypeError, "additive"),
    "dense_traced": (
        lambda: jax.jit(dense)(np.eye(3, dtype=np.float32)),
        TypeError,
        "allowed must be boolean",
    ),
    "dense_rank": (lambda: dense(np.ones((2, 3, 3), bool)), ValueError, r"allowed\[:, None\]"),
    "dense_mask": (lambda: dense(causal(3)), TypeError, "allowed must be boolean"),
    "ids_split": (lambda: documents([0, 1, 0]), ValueError, "id 0 appears in separate runs"),
    "ids_split_by_padding": (lambda: documents([2, -1, 2]), ValueError, "id 2 appears"),
    "ids_split_second_row": (lambda: positions([[0, 0, 1], [1, 0, 1]]), ValueError, "id 1"),
    "ids_float": (lambda: documents([0.0, 1.0]), TypeError, "segment_ids must hold integers"),
    "ids_rank": (lambda: documents(np.zeros((1, 1, 3), int)), ValueError, "segment_ids has shape"),
    "ids_empty": (lambda: documents([]), ValueError, "segment_ids has shape"),
    "ids_causal": (lambda: documents([0, 0], causal=1), TypeError, "causal must be True or False"),
    "ids_prefix_bidirectional": (
        lambda: documents([0], causal=False, prefix_len=1),
        ValueError,
        "needs causal=True",
    ),
    "ids_prefix_short": (
        lambda: documents([0, 1], prefix_len=[1]),
        ValueError,
        "given for 1 documents; segment id 1",
    ),
    "ids_prefix_negative": (lambda: documents([0], prefix_len=-1), ValueError, "prefix_len is -1"),
    "cross_split": (lambda: cross_documents([0], [0, 1, 0]), ValueError, "kv_segment_ids: id 0"),
    "cross_batch": (
        lambda: cross_documents(np.zeros((2, 3), int), np.zeros((3, 3), int)),
        ValueError,
        "2 rows of q_segment_ids do not match 3",
    ),
    "edges_range": (lambda: graph([[0], [3]], 3), ValueError, "edge_index is 3; .* at most 2"),
    "edges_shape": (lambda: graph([[0, 1, 2]], 3), ValueError, r"\[2, edges\]"),
    "edges_float": (lambda: graph(np.zeros((2, 1)), 3), TypeError, "edge_index must hold integers"),
    "edges_loops": (lambda: graph([[0], [1]], 3, self_loops="yes"), TypeError, "self_loops"),
    "and_q_len": (lambda: causal(4) & causal(5), ValueError, "q_len 4 does not match q_len 5"),
    "and_kv_len": (lambda: full(4, 5) & full(4, 6), ValueError, "kv_len 5 does not match"),
    "or_kv_len": (lambda: full(4, 5) | full(4, 6), ValueError, "kv_len 5 does not match"),
    "hull_kv_len": (lambda: hull(full(4, 5), full(4, 6)), ValueError, "hull: kv_len 5"),
    "and_batch": (
        lambda: full(4).canonical(batch=2) & full(4).canonical(batch=3),
        ValueError,
        "batch 2 does not match batch 3",
    ),
    "and_array": (lambda: causal(4) & np.eye(4, dtype=bool), TypeError, "a Mask and a ndarray"),
    "and_traced": (
        lambda: jax.jit(lambda a, b: a & b)(causal(4), causal(5)),
        ValueError,
        "q_len 4 does not match",
    ),
    "canonical_batch": (
        lambda: full(4).canonical(batch=2).canonical(batch=3),
        ValueError,
        "the mask has batch 2",
    ),
    "stack_empty": (lambda: Mask.stack([]), ValueError, "at least one mask"),
    "at_heads_mixed_lengths": (lambda: Mask.at_heads([full(4), full(5)]), ValueError, "q_len 4"),
    "rows_too_many": (lambda: full(4).rows(0, 5), ValueError, "n is 5; q_len is only 4"),
    "rows_outside": (lambda: full(4).rows(3, 2), ValueError, "i0 is 3; .* at most 2"),
    "keys_outside": (lambda: full(4).keys(-1, 2), ValueError, "k0 is -1"),
    "keys_many_starts": (lambda: full(4).keys([0, 1], 2), ValueError, "jax.vmap"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_names_argument_value_and_what_is_allowed(name):
    build, error, message = BAD[name]
    with pytest.raises(error, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)
