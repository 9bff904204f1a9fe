"""Public bug reports about masks, each as the smallest input that would show the fault here.

The ids are those of the bug bank; the thread is where the fault was reported. The halves of these
reports that need attention, a model or data are in the files that test those.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.masks import (
    Mask,
    causal,
    cross_documents,
    dense,
    documents,
    full,
    hull,
    key_mask,
    key_padding,
    positions,
    prefix_lm,
    sliding_window,
    window,
)


def rows(mask):
    """[lo, hi, keys per row] of an unbatched mask, as lists."""
    return [np.asarray(x).ravel().tolist() for x in (mask.lo, mask.hi, mask.keys_per_row())]


def readable(mask):
    """For each query the set of keys it may read."""
    return [set(np.flatnonzero(row).tolist()) for row in np.asarray(mask.as_array())[0, 0]]


def left_padding_and_causal_leave_defined_empty_rows():
    mask = causal(4) & key_padding(4, starts=2)
    assert rows(mask) == [[0, 0, 2, 2], [0, 0, 3, 4], [0, 0, 1, 2]]
    assert mask.nonempty.ravel().tolist() == [False, False, True, True]


def intersection_may_be_empty_though_neither_mask_is():
    mask = key_mask(4, [False, True, True, True]) & causal(4)
    assert readable(mask) == [set(), {1}, {1, 2}, {1, 2, 3}]
    assert rows(mask)[:2] == [[0, 1, 1, 1], [0, 2, 3, 4]]


def rectangle_needs_a_corner():
    assert rows(causal(2, 5, align="top_left"))[1] == [1, 2]
    assert rows(causal(2, 5, align="bottom_right"))[1] == [4, 5]
    for build in (causal, lambda *n: sliding_window(n[0], 2, n[1])):
        with pytest.raises(ValueError, match="ambiguous"):
            build(2, 5)


def more_queries_than_keys_bottom_right_starts_with_empty_rows():
    mask = causal(5, 2, align="bottom_right")
    assert rows(mask) == [[0] * 5, [0, 0, 0, 1, 2], [0, 0, 0, 1, 2]]
    assert mask.nonempty.ravel().tolist() == [False, False, False, True, True]


def new_tokens_behind_a_cache_read_the_cache():
    cached, new = 3, 2
    by_align = causal(new, cached + new, align="bottom_right")
    by_offset = causal(new, cached + new, offset=jnp.asarray(cached))
    by_rows = causal(cached + new).rows(cached, new)
    for mask in (by_align, by_offset, by_rows):
        assert rows(mask)[1] == [4, 5]


def padding_does_not_remove_causality():
    assert rows(causal(4) & key_padding(4, lengths=3))[1] == [1, 2, 3, 3]


def prefix_lm_boundary():
    mask = readable(prefix_lm(10, 6))
    assert mask[:6] == [set(range(6))] * 6
    assert mask[6:] == [set(range(i + 1)) for i in range(6, 10)]
    assert rows(prefix_lm(10, 0)) == rows(prefix_lm(10, 1)) == rows(causal(10))
    assert rows(prefix_lm(10, 10)) == rows(full(10))


def prefix_restarts_with_each_document():
    mask = documents([0, 0, 0, 1, 1, 1], prefix_len=[2, 1])
    assert rows(mask)[:2] == [[0, 0, 0, 3, 3, 3], [2, 2, 3, 4, 5, 6]]


def sliding_window_holds_exactly_its_size():
    assert rows(sliding_window(6, 3)) == [
        [0, 0, 0, 1, 2, 3],
        [1, 2, 3, 4, 5, 6],
        [1, 2, 3, 3, 3, 3],
    ]


def window_over_everything_before_is_causal():
    assert rows(window(8, left=7, right=0)) == rows(causal(8))


def window_longer_than_the_text_stays_causal():
    assert rows(sliding_window(8, 16)) == rows(causal(8))


def two_names_for_two_meanings_of_window():
    assert rows(window(7, left=1, right=1))[2] == [2, 3, 3, 3, 3, 3, 2]
    assert rows(sliding_window(7, 2))[2] == [1, 2, 2, 2, 2, 2, 2]


def window_of_a_rectangle_counts_from_the_query():
    mask = window(4, 12, left=2, right=0, offset=8)
    assert rows(mask) == [[6, 7, 8, 9], [9, 10, 11, 12], [3, 3, 3, 3]]


def packed_documents_do_not_read_each_other():
    ids = [0, 0, 0, 1, 1]
    assert readable(documents(ids)) == [{0}, {0, 1}, {0, 1, 2}, {3}, {3, 4}]
    assert readable(documents(ids, causal=False)) == [{0, 1, 2}] * 3 + [{3, 4}] * 2
    assert positions(ids).tolist() == [0, 1, 2, 0, 1]


def padding_does_not_read_padding():
    ids = [0, 0, -1, -1]
    for mask in (documents(ids), documents(ids, causal=False), cross_documents(ids, ids)):
        allowed = np.asarray(mask.as_array())[0, 0]
        assert not allowed[2:].any()
        assert not allowed[:, 2:].any()
        assert allowed[:2, :2].diagonal().all()


def one_document_per_example_is_causal():
    mask = documents(np.zeros((2, 5), int))
    expected = causal(5).canonical(batch=2)
    np.testing.assert_array_equal(mask.lo, expected.lo)
    np.testing.assert_array_equal(mask.hi, expected.hi)


def end_of_text_belongs_to_the_document_it_ends():
    # tokens a, b, EOS, c: the mask that the segment ids [0, 0, 0, 1] give
    assert readable(documents([0, 0, 0, 1])) == [{0}, {0, 1}, {0, 1, 2}, {3}]


def key_padding_acts_on_keys():
    keep = [True, True, False]
    for mask in (key_mask(2, keep, kv_len=3), key_padding(2, lengths=2, kv_len=3)):
        assert rows(mask)[:2] == [[0, 0], [2, 2]]
    with pytest.raises(ValueError, match="keep covers 2 keys; kv_len is 3"):
        key_mask(2, [True, True], kv_len=3)
    with pytest.raises(ValueError, match="kv_len 2 does not match kv_len 3"):
        key_mask(2, [True, True]) & full(2, 3)


def mask_of_another_length_is_refused():
    for combine in (lambda a, b: a & b, lambda a, b: a | b, hull):
        with pytest.raises(ValueError, match="kv_len 1024 does not match kv_len 512"):
            jax.eval_shape(combine, full(4, 1024), full(4, 512))


def numbers_are_not_booleans():
    array = np.tri(3, dtype=bool)
    for wrong in (array.astype(np.float32), array.astype(int), np.where(array, 0.0, -np.inf)):
        with pytest.raises(TypeError, match="must be boolean"):
            dense(wrong)
        with pytest.raises(TypeError, match="must be boolean"):
            jax.jit(dense)(wrong)
    assert readable(dense(array)) == readable(causal(3))


def lengths_are_not_arrays():
    with pytest.raises(
        TypeError, match=r"q_len .* must be a Python int, not .* of shape \(2, 5, 3\)"
    ):
        causal(jnp.ones((2, 5, 3)))


def every_documented_rank_is_broadcast():
    square = np.tri(3, dtype=bool)
    for leading in ((), (1, 1), (2, 1), (1, 4), (2, 4)):
        mask = dense(np.broadcast_to(square, (*leading, 3, 3)))
        assert mask.dense.shape == ((*leading, 3, 3) if leading else (1, 1, 3, 3))
        assert mask.lo.shape == mask.dense.shape[:-1]
        assert mask.canonical(batch=2, heads=4).as_array().shape == (2, 4, 3, 3)
    with pytest.raises(ValueError, match="batch, heads"):
        dense(np.broadcast_to(square, (2, 3, 3)))


def union_with_nothing_keeps_the_other():
    assert readable(causal(3) | dense(np.zeros((3, 3), bool))) == readable(causal(3))


def mask_as_static_argument_says_what_to_do():
    static = jax.jit(lambda mask: mask.keys_per_row(), static_argnames="mask")
    with pytest.raises((TypeError, ValueError), match="not through static_argnums"):
        static(mask=causal(4))
    assert jax.jit(Mask.keys_per_row)(causal(4)).ravel().tolist() == [1, 2, 3, 4]


def weakly_typed_bounds_do_not_retrace():
    T, traces = 6, []

    @jax.jit
    def consume(mask):
        traces.append(mask)
        return mask.keys_per_row()

    weak = jnp.full((), 3)
    assert weak.weak_type
    consume(key_padding(T, lengths=jnp.full((1,), T)))
    consume(key_padding(T, lengths=(jnp.arange(T) + 1)[-1:]))
    consume(sliding_window(T, weak))
    consume(jax.jit(lambda size: sliding_window(T, size))(3))
    consume(prefix_lm(T, np.int64(3)))
    assert len(traces) == 1


def a_long_mask_costs_its_bounds_only():
    mask = causal(96_000)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(mask)) == 768_000
    combined = (mask & sliding_window(96_000, 256)).rows(90_000, 6_000)
    assert combined.dense is None
    assert int(combined.keys_per_row().min()) == 256


ROWS = [
    ("A04", "unslothai/unsloth#9848", left_padding_and_causal_leave_defined_empty_rows),
    ("A07", "tracel-ai/burn#4697", intersection_may_be_empty_though_neither_mask_is),
    ("B01", "pytorch/pytorch#108108", rectangle_needs_a_corner),
    ("B02", "NVIDIA/cutlass#2336", more_queries_than_keys_bottom_right_starts_with_empty_rows),
    ("B05", "pytorch/pytorch#110144", new_tokens_behind_a_cache_read_the_cache),
    ("B08", "huggingface/candle#3567", padding_does_not_remove_causality),
    ("B14", "bigscience-workshop/Megatron-DeepSpeed#167", prefix_lm_boundary),
    ("B16", "bigscience-workshop/Megatron-DeepSpeed#52", prefix_restarts_with_each_document),
    ("C01", "huggingface/transformers#39408", sliding_window_holds_exactly_its_size),
    ("C04", "Dao-AILab/flash-attention#1133", window_over_everything_before_is_causal),
    ("C05", "tlc-pack/libflash_attn#11", window_longer_than_the_text_stays_causal),
    ("C07", "huggingface/transformers, masking_utils", two_names_for_two_meanings_of_window),
    ("C10", "openxla/tokamax, api.py", window_of_a_rectangle_counts_from_the_query),
    ("D01", "huggingface/nanoVLM#201", packed_documents_do_not_read_each_other),
    ("D03", "AI-Hypercomputer/maxtext#4908", padding_does_not_read_padding),
    ("D04", "AI-Hypercomputer/maxtext#4929", one_document_per_example_is_causal),
    ("D05", "marin-community/marin#7087", end_of_text_belongs_to_the_document_it_ends),
    ("D12", "keras-team/keras-io#1046", key_padding_acts_on_keys),
    ("D13", "meta-pytorch/attention-gym#31", mask_of_another_length_is_refused),
    ("E02", "huggingface/transformers#41443", numbers_are_not_booleans),
    ("E03", "google/flax#1520", lengths_are_not_arrays),
    ("E05", "google/flax#4505", every_documented_rank_is_broadcast),
    ("E07", "haliax, mask algebra", union_with_nothing_keeps_the_other),
    ("H02", "jax-ml/jax#4712", mask_as_static_argument_says_what_to_do),
    ("H03", "google-deepmind/mujoco#2306", weakly_typed_bounds_do_not_retrace),
    ("H08", "pytorch/pytorch#134756", a_long_mask_costs_its_bounds_only),
]


@pytest.mark.parametrize(
    ("thread", "check"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_bugbank(thread, check):
    check()  # pytest shows `thread` beside the failing line
