"""Public bug reports about attention, each as the smallest input that would show the fault here.

The ids are those of the bug bank; the thread is where the fault was reported. Every entry runs with every
implementation. The halves of these reports that are about masks alone are in test_bugbank_masks.
"""

import functools

import attention_oracle as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks
from attnlab.attention import accelerators, attend
from attnlab.masks import Mask

IMPLEMENTATIONS = {
    "dense": {"impl": "dense"},
    "blockwise": {"impl": "blockwise", "block_q": 3, "block_k": 2},
}


@functools.cache
def compiled(**options):
    def forward(q, k, v, mask):
        return attend(q, k, v, mask, **options)

    def loss(q, k, v, mask):
        return jnp.sum(attend(q, k, v, mask, **options).astype(jnp.float32) ** 2)

    return jax.jit(forward), jax.jit(jax.grad(loss, argnums=(0, 1, 2)))


def run(q, k, v, mask, **options):
    return compiled(**{"scale": 0.5} | options)[0](q, k, v, mask.canonical(q.shape[0]))


def gradients(q, k, v, mask, **options):
    return compiled(**{"scale": 0.5} | options)[1](q, k, v, mask.canonical(q.shape[0]))


def arrays(T, S=None, B=1, dtype=jnp.float32, seed=0):
    rng = np.random.default_rng(seed)
    shapes = (B, T, 1, 4), (B, S or T, 1, 4), (B, S or T, 1, 4)
    return [jnp.asarray(rng.normal(size=s), dtype) for s in shapes]


def finite(tree):
    return all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(tree))


def an_empty_row_leaves_the_other_gradients_as_if_it_were_not_there(impl):
    q, k, v = arrays(4)
    allowed = np.tril(np.ones((4, 4), bool))
    allowed[1] = False
    out = run(q, k, v, masks.dense(allowed), **impl)
    dq, dk, dv = gradients(q, k, v, masks.dense(allowed), **impl)
    assert not out[0, 1].any()
    assert not dq[0, 1].any()
    rest = np.array([0, 2, 3])
    want = gradients(q[:, rest], k, v, masks.dense(allowed[rest]), **impl)
    for got, expected in zip((dq[:, rest], dk, dv), want, strict=True):
        assert finite(got)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def padding_does_not_spread_to_real_tokens_in_the_next_layer(impl):
    x = arrays(4)[0]
    padded = jnp.concatenate([jnp.full((1, 2, 1, 4), 3.0), x], axis=1)
    mask = masks.causal(6) & masks.key_padding(6, starts=2)
    alone, among = x, padded
    for _ in range(2):
        alone = alone + run(alone, alone, alone, masks.causal(4), **impl)
        among = among + run(among, among, among, mask, **impl)
    assert finite(among)
    np.testing.assert_allclose(among[:, 2:], alone, rtol=1e-6, atol=1e-6)


def empty_rows_of_a_combined_mask_are_zero(impl):
    q, k, v = arrays(4)
    left_padded = masks.causal(4) & masks.key_padding(4, starts=2)
    out = run(q, k, v, left_padded, **impl)
    assert not out[0, :2].any()
    assert finite(gradients(q, k, v, left_padded, **impl))
    keep = masks.key_mask(4, [False, True, True, True]) & masks.causal(4)
    out = run(q, k, v, keep, **impl)
    assert not out[0, 0].any()
    np.testing.assert_allclose(out[0, 1], v[0, 1], rtol=1e-6)


def more_queries_than_keys_bottom_right_starts_with_zeros(impl):
    q, k, v = arrays(5, 2)
    out = run(q, k, v, masks.causal(5, 2, align="bottom_right"), **impl)
    assert not out[0, :3].any()
    np.testing.assert_allclose(out[0, 3], v[0, 0], rtol=1e-6)


def empty_rows_are_zero_in_every_dtype(impl):
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        q, k, v = arrays(4, dtype=dtype)
        mask = masks.causal(4, offset=-1) & masks.key_padding(4, lengths=3)
        out = run(q, k, v, mask, **impl)
        assert out.dtype == dtype
        assert not out[0, 0].any()
        assert finite((out, gradients(q, k, v, mask, **impl)))


def a_forbidden_logit_as_large_as_it_likes_weighs_nothing(impl):
    q = jnp.ones((1, 1, 1, 4))
    k = jnp.zeros((1, 2, 1, 4)).at[0, 1].set(1e4)
    v = jnp.arange(8.0).reshape(1, 2, 1, 4)
    mask = masks.causal(1, 2, align="top_left")
    np.testing.assert_array_equal(run(q, k, v, mask, **impl)[0, 0], v[0, 0])
    dq, dk, dv = gradients(q, k, v, mask, **impl)
    assert finite((dq, dk, dv))
    assert not dk[0, 1].any()
    assert not dv[0, 1].any()


def padding_inside_a_block_has_finite_gradients(impl):
    """T = 7 leaves padded rows in every block size but 7 and 1."""
    q, k, v = arrays(7)
    whole = gradients(q, k, v, masks.causal(7), impl="blockwise", block_q=7, block_k=7)
    for block in (3, 4):
        options = impl if "block_q" not in impl else impl | {"block_q": block}
        got = gradients(q, k, v, masks.causal(7), **options)
        for a, b in zip(got, whole, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def an_isolated_node_gives_zero_and_a_self_loop_its_value(impl):
    q, k, v = arrays(1)
    none = np.zeros((2, 0), np.int32)
    assert not run(q, k, v, masks.graph(none, 1), **impl).any()
    out = run(q, k, v, masks.graph(none, 1, self_loops=True), **impl)
    np.testing.assert_allclose(out, v, rtol=1e-6)


def rectangles_both_ways_equal_the_oracle(impl):
    for T, S in ((4, 12), (12, 4)):
        q, k, v = arrays(T, S)
        want = oracle.attention(q, k, v, lambda b, n, i, j: True, scale=0.5).out
        got = run(q, k, v, masks.full(T, S), **impl)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def new_tokens_behind_a_cache_equal_the_last_rows_of_the_whole(impl):
    q, k, v = arrays(5)
    whole = run(q, k, v, masks.causal(5), **impl)
    step = run(q[:, 3:], k, v, masks.causal(5).rows(3, 2), **impl)
    np.testing.assert_allclose(step, whole[:, 3:], rtol=1e-6, atol=1e-6)


def asking_for_statistics_does_not_lose_the_mask(impl):
    q, k, v = arrays(4)
    for mask in (masks.causal(4), masks.causal(4).densify()):
        plain = attend(q, k, v, mask, scale=0.5, **impl)
        with_stats, stats = attend(q, k, v, mask, scale=0.5, stats=True, **impl)
        np.testing.assert_allclose(with_stats, plain, rtol=1e-6, atol=1e-6)
        assert stats.diagonal_mass[0, 0, 0] == 1


def a_missing_mask_is_an_error(impl):
    q, k, v = arrays(4)
    with pytest.raises(TypeError, match="mask"):
        attend(q, k, v, scale=0.5, **impl)
    with pytest.raises(TypeError, match="no default"):
        attend(q, k, v, None, scale=0.5, **impl)


def only_the_mask_decides_who_reads_whom(impl):
    """One compiled call: under `full` the first query reads the last key, under `causal` it does not."""
    q, k, v = arrays(4)
    moved = v.at[0, 3].add(1.0)
    for mask, reads in ((masks.full(4), True), (masks.causal(4), False), (masks.full(4), True)):
        before, after = run(q, k, v, mask, **impl), run(q, k, moved, mask, **impl)
        assert bool((before[0, 0] != after[0, 0]).any()) == reads


def a_batch_of_one_is_masked_like_a_batch_of_two(impl):
    q, k, v = arrays(4, B=2)
    both = run(q, k, v, masks.causal(4), **impl)
    for b in range(2):
        one = run(q[b : b + 1], k[b : b + 1], v[b : b + 1], masks.causal(4), **impl)
        np.testing.assert_allclose(one[0], both[b], rtol=1e-6, atol=1e-6)


def without_positions_a_full_mask_permutes_and_a_causal_one_does_not(impl):
    x = arrays(5)[0]
    order = np.array([3, 0, 4, 1, 2])

    def moves_along(mask):
        a = run(x, x, x, mask, **impl)[:, order]
        b = run(x[:, order], x[:, order], x[:, order], mask, **impl)
        return np.allclose(a, b, atol=1e-6)

    assert moves_along(masks.full(5))
    assert not moves_along(masks.causal(5))


def a_causal_window_is_asked_of_cudnn_as_causal(impl):
    flags = accelerators.fit_flags("cudnn", masks.window(8, left=2, right=0), 1)
    assert flags.is_causal
    assert flags.local_window_size == (2, 0)  # inclusive: three keys with the query's own
    sliding = accelerators.fit_flags("cudnn", masks.sliding_window(8, 3), 1)
    assert sliding == flags
    with pytest.raises(ValueError, match="windows are causal"):
        accelerators.fit_flags("cudnn", masks.window(8, left=2, right=None), 1)


def a_document_is_computed_as_if_alone(impl):
    q, k, v = arrays(5)
    packed = masks.documents([0, 0, 0, 1, 1])
    before = run(q, k, v, packed, **impl)
    changed = [x.at[0, 0].add(5.0) for x in (q, k, v)]
    np.testing.assert_array_equal(run(*changed, packed, **impl)[0, 3:], before[0, 3:])
    alone = run(q[:, 3:], k[:, 3:], v[:, 3:], masks.causal(2), **impl)
    np.testing.assert_allclose(before[:, 3:], alone, rtol=1e-6, atol=1e-6)


def an_example_does_not_depend_on_its_neighbours_padding(impl):
    q, k, v = arrays(6, B=2)
    mask = masks.causal(6) & masks.key_padding(6, lengths=[4, 6])
    among = run(q, k, v, mask, **impl)[0, :4]
    alone = run(q[:1, :4], k[:1, :4], v[:1, :4], masks.causal(4), **impl)[0]
    np.testing.assert_allclose(among, alone, rtol=1e-6, atol=1e-6)


def every_example_has_its_own_packing(impl):
    q, k, v = arrays(6, B=2)
    ids = np.array([[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 2]])
    both = run(q, k, v, masks.documents(ids), **impl)
    for b in range(2):
        one = run(q[b : b + 1], k[b : b + 1], v[b : b + 1], masks.documents(ids[b]), **impl)
        np.testing.assert_allclose(one[0], both[b], rtol=1e-6, atol=1e-6)


def cross_attention_is_padded_by_the_keys(impl):
    q, k, v = arrays(2, 3)
    out = run(q, k, v, masks.key_padding(2, lengths=2, kv_len=3), **impl)
    want = run(q, k[:, :2], v[:, :2], masks.full(2, 2), **impl)
    np.testing.assert_allclose(out, want, rtol=1e-6, atol=1e-6)


def a_mask_of_another_length_is_refused(impl):
    q, k, v = arrays(4)
    with pytest.raises(ValueError, match="kv_len 8"):
        attend(q, k, v, masks.full(4, 8), scale=0.5, **impl)


def a_traced_mask_is_refused_before_any_kernel_is_built(impl):
    x = jnp.ones((1, 128, 1, 128))

    def call(mask):
        return accelerators.splash(x, x, x, mask, scale=1.0, softcap=None)

    with pytest.raises(ValueError, match="traced"):
        jax.jit(call)(masks.causal(128))


def forbidden_weights_are_exactly_zero(impl):
    """Not 1e-9: a value of 1e30 behind the mask leaves no trace."""
    q, k, v = arrays(4)
    np.testing.assert_array_equal(
        run(q, k, v.at[0, 3].set(1e30), masks.causal(4), **impl)[0, :3],
        run(q, k, v, masks.causal(4), **impl)[0, :3],
    )


def softmax_is_float32_in_every_code_path(impl):
    """Logits near 36: a bfloat16 softmax would be off by tenths."""
    q, k, v = (3 * x for x in arrays(6, dtype=jnp.bfloat16, seed=3))
    want = oracle.attention(q, k, v, lambda b, n, i, j: j <= i, scale=1.0).out
    plain = run(q, k, v, masks.causal(6), scale=1.0, **impl)
    with_stats, _ = attend(q, k, v, masks.causal(6), scale=1.0, stats=True, **impl)
    scale = np.abs(want).max()
    for out in (plain, with_stats):
        assert np.abs(np.asarray(out, np.float64) - want).max() < 2**-7 * scale


def both_passes_accumulate_in_float32(impl):
    """2048 keys of one value: a bfloat16 sum stops growing at 256."""
    S = 2048
    q = jnp.zeros((1, 1, 1, 4), jnp.bfloat16)
    k = v = jnp.ones((1, S, 1, 4), jnp.bfloat16)
    options = impl | ({"block_k": 512} if "block_k" in impl else {})
    out = run(q, k, v, masks.full(1, S), **options)
    np.testing.assert_allclose(np.asarray(out, np.float32), 1.0, rtol=2**-7)
    q, v = jnp.zeros((1, S, 1, 4), jnp.bfloat16), jnp.ones((1, 1, 1, 4), jnp.bfloat16)
    options = impl | ({"block_q": 512} if "block_q" in impl else {})
    dv = gradients(q, v, v, masks.full(S, 1), **options)[2]
    np.testing.assert_allclose(np.asarray(dv, np.float32), 2.0 * S, rtol=2**-7)


def a_cap_comes_before_the_mask(impl):
    q = k = jnp.zeros((1, 2, 1, 4))
    v = jnp.zeros((1, 2, 1, 4)).at[0, 1].set(1.0)
    assert not run(q, k, v, masks.causal(2), softcap=1.0, **impl)[0, 0].any()


def a_cap_of_zero_is_refused_and_a_cap_has_an_effect(impl):
    q, k, v = arrays(4)
    with pytest.raises(ValueError, match="softcap"):
        attend(q, k, v, masks.causal(4), scale=0.5, softcap=0.0, **impl)
    plain = run(q, k, v, masks.causal(4), scale=9.0, **impl)
    capped = run(q, k, v, masks.causal(4), scale=9.0, softcap=2.0, **impl)
    assert float(jnp.abs(plain - capped).max()) > 1e-2


def the_scale_multiplies_the_logits_once(impl):
    q, k, v = arrays(4)
    want = oracle.attention(q, k, v, lambda b, n, i, j: j <= i, scale=0.25).out
    got = run(q, k, v, masks.causal(4), scale=0.25, **impl)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    _, stats = attend(q, k, v, masks.causal(4), scale=0.25, stats=True, **impl)
    np.testing.assert_allclose(stats.lse[0, 0, 0], 0.25 * (q[0, 0, 0] @ k[0, 0, 0]), rtol=1e-5)


def weights_sum_to_one_whatever_the_scale(impl):
    q, k, v = arrays(4)
    out = run(q, k, jnp.ones_like(v), masks.causal(4), scale=0.125, **impl)
    np.testing.assert_allclose(out, jnp.ones_like(v), rtol=1e-6)


def twenty_masks_are_one_trace(impl):
    q, k, v = arrays(6)
    traces = []

    @jax.jit
    def call(mask):
        traces.append(1)
        return attend(q, k, v, mask, scale=0.5, **impl)

    for mask in [masks.sliding_window(6, n) for n in range(1, 7)]:
        call(mask)
    for n in range(7):
        call(masks.prefix_lm(6, np.int64(n)))
        call(masks.key_padding(6, lengths=jnp.asarray(n)))
    assert len(traces) == 1


def masks_mapped_over_give_what_a_loop_gives(impl):
    q, k, v = arrays(6)
    members = [masks.sliding_window(6, 1), masks.full(6), masks.causal(6, offset=-1)]
    mapped = jax.jit(jax.vmap(lambda m: attend(q, k, v, m, scale=0.5, **impl)))
    for got, mask in zip(mapped(Mask.stack(members)), members, strict=True):
        np.testing.assert_allclose(got, run(q, k, v, mask, **impl), rtol=1e-6, atol=1e-6)


def a_poisoned_tail_behind_the_last_key_is_never_read(impl):
    """130 keys in blocks of 64, in a buffer whose rest is NaN."""
    S, T = 130, 3
    q, k, v = arrays(T, S)
    poisoned = [
        jnp.pad(x, ((0, 0), (0, 62), (0, 0), (0, 0)), constant_values=jnp.nan) for x in (k, v)
    ]
    options = impl | ({"block_k": 64} if "block_k" in impl else {})
    out = run(q, *(x[:, :S] for x in poisoned), masks.full(T, S), **options)
    want = oracle.attention(q, k, v, lambda b, n, i, j: True, scale=0.5).out
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)


BANK = [
    (
        "A01",
        "pytorch/pytorch#41508",
        an_empty_row_leaves_the_other_gradients_as_if_it_were_not_there,
    ),
    ("A03", "pytorch/pytorch#110213", padding_does_not_spread_to_real_tokens_in_the_next_layer),
    ("A04", "unslothai/unsloth#9848", empty_rows_of_a_combined_mask_are_zero),
    ("A12", "pytorch/pytorch#109517", empty_rows_are_zero_in_every_dtype),
    ("A16", "deepmodeling/deepmd-kit#5715", a_forbidden_logit_as_large_as_it_likes_weighs_nothing),
    ("A17", "AI-Hypercomputer/maxtext#4924", padding_inside_a_block_has_finite_gradients),
    (
        "A19",
        "pyg-team/pytorch_geometric#1129",
        an_isolated_node_gives_zero_and_a_self_loop_its_value,
    ),
    ("B02", "NVIDIA/cutlass#2336", more_queries_than_keys_bottom_right_starts_with_zeros),
    ("B03", "jax-ml/jax#24491", rectangles_both_ways_equal_the_oracle),
    ("B05", "pytorch/pytorch#110144", new_tokens_behind_a_cache_equal_the_last_rows_of_the_whole),
    ("B06", "keras-team/keras#23038", asking_for_statistics_does_not_lose_the_mask),
    ("B10", "osaurus-ai/vmlx-swift#185", a_missing_mask_is_an_error),
    ("B12", "huggingface/transformers#46077", only_the_mask_decides_who_reads_whom),
    ("B13", "McGill-NLP/llm2vec#74", a_batch_of_one_is_masked_like_a_batch_of_two),
    (
        "B19",
        "ArcInstitute/state#227",
        without_positions_a_full_mask_permutes_and_a_causal_one_does_not,
    ),
    ("C03", "jax-ml/jax#39576", a_causal_window_is_asked_of_cudnn_as_causal),
    ("D01", "huggingface/nanoVLM#201", a_document_is_computed_as_if_alone),
    ("D06", "pytorch/torchtune#901", an_example_does_not_depend_on_its_neighbours_padding),
    ("D07", "meta-pytorch/attention-gym#98", every_example_has_its_own_packing),
    ("D11", "huggingface/transformers#35032", cross_attention_is_padded_by_the_keys),
    ("D13", "meta-pytorch/attention-gym#31", a_mask_of_another_length_is_refused),
    ("E09", "keras-team/keras#21808", a_traced_mask_is_refused_before_any_kernel_is_built),
    ("E12", "PetarV-/GAT#39", forbidden_weights_are_exactly_zero),
    ("F02", "flax nnx, two softmax dtypes", softmax_is_float32_in_every_code_path),
    ("F05", "jax-ml/jax#24047", both_passes_accumulate_in_float32),
    ("F07", "Dao-AILab/flash-attention#1025", a_cap_comes_before_the_mask),
    ("F08", "NVIDIA/Megatron-LM#6590", a_cap_of_zero_is_refused_and_a_cap_has_an_effect),
    ("G03", "esceptico/perceiver-io#9", the_scale_multiplies_the_logits_once),
    ("G07", "FrancescoSaverioZuppichini/ViT#2", weights_sum_to_one_whatever_the_scale),
    ("H01", "vllm-project/vllm#27178", twenty_masks_are_one_trace),
    ("H06", "jax-ml/jax#8409", masks_mapped_over_give_what_a_loop_gives),
    ("H11", "PaddlePaddle/Paddle#76951", a_poisoned_tail_behind_the_last_key_is_never_read),
]
WITHOUT_AN_IMPLEMENTATION = {"C03", "E09"}
CASES = [
    pytest.param(check, options, id=f"{row}-{name}")
    for row, _, check in BANK
    for name, options in IMPLEMENTATIONS.items()
    if name == "dense" or row not in WITHOUT_AN_IMPLEMENTATION
]


@pytest.mark.parametrize(("check", "impl"), CASES)
def test_bugbank(check, impl):
    check(impl)
