"""A token read behind a cache computes what it would in the whole text, and no slot is used twice."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from attnlab import decoding, kv_cache, model
from attnlab.knobs import Architecture, ModelKnobs
from attnlab.masks import mask_text

S = 8
# Every family and QK-norm in one program: which of them is on is data.
ARCH = Architecture(
    vocab_size=11, input_size=13, context=S, layers=2, width=16, heads=4, kv_heads=2, mlp_width=32,
    position_families=("alibi", "learned", "rope", "sinusoidal"), qk_norms=("l2", "rmsnorm"),
)  # fmt: skip
TOKENS_BT = np.random.default_rng(0).integers(0, 11, (2, S), dtype=np.int32)
FAMILIES = ("", "learned", "sinusoidal", "rope", "alibi", "learned+rope")
MASKS = (
    "causal",
    "causal(offset=-1)",
    "sliding_window(3)",
    "sliding_window([[1, 2, 3, 8]])",
    "prefix_lm(3)",
    "chunked(4)",
    "documents([0, 0, 0, 1, 1, 1, 1, 1])",
)


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with tiny.quick_compilation():
        yield


@functools.cache
def params():
    """Gains are not 1 and positions weigh as much as tokens, so that a wrong one shows."""
    rng = np.random.default_rng(3)
    shapes = jax.eval_shape(lambda: model.init(ARCH, jnp.uint32(0)))
    return jax.tree.map(
        lambda x: rng.normal(1.0 if x.ndim == 1 else 0.0, 0.25, x.shape).astype(np.float32), shapes
    )


def knobs(families="", qk_norm=None):
    return ModelKnobs(
        positions={f: jnp.float32(f in families.split("+")) for f in ARCH.position_families},
        qk_norm={k: jnp.bool_(k == qk_norm) for k in ARCH.qk_norms},
        norm_center=jnp.float32(1.0),
        logit_scale=jnp.float32(0.7),
    )


@jax.jit
def forward(params, mask, made):
    return model.apply(ARCH, params, TOKENS_BT, mask, made)[0]


def whole(mask, made):
    return forward(params(), mask, made)


read_jitted = jax.jit(decoding.read, static_argnums=0)


def read(cache, tokens_BT, mask, made):
    return read_jitted(ARCH, params(), made, mask, cache, tokens_BT)


def piecewise(mask, made, pieces=(3, 1, 1, 1, 1, 1)):
    """Logits of all tokens, read a piece at a time."""
    cache, logits, start = kv_cache.empty(ARCH, batch=2, slots=S), [], 0
    for piece in pieces:
        part, cache = read(cache, TOKENS_BT[:, start : start + piece], mask, made)
        start += piece
        logits.append(part)
    assert int(cache.length) == S
    return np.concatenate(logits, axis=1)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("families", FAMILIES)
def test_cached_logits_are_those_of_the_whole_text(families, mask):
    made = knobs(families)
    parsed = mask_text.parse(mask, S).canonical(1, 4)
    np.testing.assert_allclose(piecewise(parsed, made), whole(parsed, made), atol=2e-6)


@pytest.mark.parametrize("qk_norm", ARCH.qk_norms)
def test_cached_keys_are_normalized_once(qk_norm):
    made = knobs("rope", qk_norm)
    parsed = mask_text.parse("sliding_window(3)", S).canonical(1, 4)
    np.testing.assert_allclose(piecewise(parsed, made), whole(parsed, made), atol=2e-6)


def test_families_and_masks_of_one_structure_share_one_program():
    causal = mask_text.parse("causal", S).canonical(1, 4)
    piecewise(causal, knobs("rope"))
    before = read_jitted._cache_size()
    for mask in ("sliding_window(2)", "prefix_lm(3)", "chunked(2)"):
        piecewise(mask_text.parse(mask, S).canonical(1, 4), knobs("alibi"))
    assert read_jitted._cache_size() == before


def test_pieces_of_any_length_give_the_same():
    made, causal = knobs("learned+rope"), mask_text.parse("causal", S).canonical(1, 4)
    np.testing.assert_allclose(
        piecewise(causal, made, (3, 3, 1, 1)), piecewise(causal, made, (1, 1, 3, 3)), atol=2e-6
    )


def test_the_cache_is_kept_in_the_dtype_of_the_activations():
    half = dataclasses.replace(ARCH, activations="bfloat16")
    cache = kv_cache.empty(half, batch=1, slots=S)
    assert {x.dtype for x in cache.keys + cache.values} == {jnp.dtype("bfloat16")}
    causal = mask_text.parse("causal", S)
    read = functools.partial(decoding.read, half)
    logits, after = jax.eval_shape(read, params(), knobs(), causal, cache, TOKENS_BT[:1])
    assert logits.dtype == jnp.float32
    assert {x.dtype for x in after.keys + after.values} == {jnp.dtype("bfloat16")}


def test_a_full_cache_takes_no_further_token():
    causal, made = mask_text.parse("causal", S).canonical(1, 4), knobs()
    full = dataclasses.replace(kv_cache.empty(ARCH, batch=2, slots=S), length=jnp.int32(S - 1))
    rows = causal.rows(S - 2, 2)
    with pytest.raises(ValueError, match="got 2, and 1 of 8 slots"):
        model.apply(ARCH, params(), TOKENS_BT[:, :2], rows, made, cache=full)
    # A length that is traced cannot be refused; the result is no number, not a wrong one.
    logits, _ = read(full, TOKENS_BT[:, :3], causal, made)
    assert np.isnan(logits).all()


def test_positions_beside_a_cache_are_refused():
    cache = kv_cache.empty(ARCH, batch=2, slots=S)
    mask = mask_text.parse("causal", S)
    with pytest.raises(ValueError, match="positions_BT"):
        model.apply(
            ARCH, params(), TOKENS_BT, mask, knobs(), cache=cache,
            positions_BT=jnp.zeros((1, S), jnp.int32),
        )  # fmt: skip


def test_learned_positions_end_with_their_table():
    with pytest.raises(ValueError, match=r"slots: 9 exceed .* 8 rows"):
        kv_cache.empty(ARCH, batch=1, slots=9)
    without = dataclasses.replace(ARCH, position_families=("rope",))
    assert kv_cache.empty(without, batch=1, slots=9).slots == 9
