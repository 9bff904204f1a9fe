"""Fused kernels: what they may be asked for, that the calls lower for their platform, and numbers where they can run."""

import sys
import types

import attention_oracle as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks
from attnlab.attention import Alibi, accelerators, attend
from attnlab.attention.accelerators import Band, fit_band, fit_flags
from attnlab.masks import Mask


def band(mask):
    return fit_band(np.asarray(mask.lo)[0, 0], np.asarray(mask.hi)[0, 0])


def test_a_band_is_found_where_there_is_one_and_only_there():
    assert band(masks.full(6)) == Band(None, None, 6)
    assert band(masks.causal(6)) == Band(None, 0, 6)
    assert band(masks.causal(6, offset=-1)) == Band(None, -1, 5)  # no row reads key 5
    assert band(masks.causal(4, 6, align="bottom_right")) == Band(None, 2, 6)
    assert band(masks.sliding_window(6, 3)) == Band(2, 0, 6)
    assert band(masks.sliding_window(6, 6)) == Band(None, 0, 6)  # dao-AILab/flash-attention#1133
    assert band(masks.window(6, left=1, right=2)) == Band(1, 2, 6)
    assert band(masks.key_padding(6, lengths=4)) == Band(None, None, 4)
    assert band(masks.causal(6) & masks.key_padding(6, lengths=4)) == Band(None, 0, 4)
    for other in (masks.prefix_lm(6, 3), masks.chunked(6, 2), masks.block_causal(6, 2)):
        assert band(other) is None
    assert band(masks.causal(6) & masks.key_padding(6, starts=2)) is None
    assert band(masks.documents([0, 0, 0, 1, 1, -1])) is None


@pytest.mark.parametrize("T", [1, 2, 5])
def test_every_band_that_is_fitted_gives_the_bounds_back(T):
    S = T + 1
    for left in (None, *range(S)):
        for right in (None, *range(-1, S)):
            for length in range(1, S + 1):
                i = np.arange(T)
                lo = np.zeros(T, int) if left is None else np.maximum(i - left, 0)
                hi = np.full(T, length) if right is None else np.minimum(i + right + 1, length)
                hi = np.maximum(hi, 0)
                fitted, rows = fit_band(lo, hi), lo < hi
                if fitted is None:
                    assert not rows.any()
                    continue
                again = masks.key_padding(T, lengths=fitted.length, kv_len=S)
                key = np.arange(S)
                allowed = np.asarray(again.as_array())[0, 0]
                if fitted.left is not None:
                    allowed = allowed & (key >= i[:, None] - fitted.left)
                if fitted.right is not None:
                    allowed = allowed & (key <= i[:, None] + fitted.right)
                want = (key >= lo[:, None]) & (key < hi[:, None])
                np.testing.assert_array_equal(allowed[rows], want[rows])


def test_flags_are_causal_windows_or_lengths():
    def flags(mask):
        found = fit_flags("cudnn", mask, 2)
        return found.is_causal, found.local_window_size, found.lengths

    assert flags(masks.full(6)) == (False, None, None)
    assert flags(masks.causal(6)) == (True, None, None)
    assert flags(masks.sliding_window(6, 3)) == (True, (2, 0), None)
    assert flags(masks.key_padding(6, lengths=[4, 6])) == (False, None, (4, 6))
    assert flags(masks.causal(6) & masks.key_padding(6, lengths=4)) == (True, None, (4, 4))


REFUSED = {
    "two-sided window": (masks.window(6, left=1, right=1), "windows are causal"),
    "window without causal": (masks.window(6, left=2, right=None), "windows are causal"),
    "rectangle": (masks.causal(6, 8, align="bottom_right"), "windows are causal"),
    "rectangle top left": (masks.causal(6, 8, align="top_left"), "6 x 8"),
    "prefix": (masks.prefix_lm(6, 3), "no causal mask"),
    "documents": (masks.documents([0, 0, 0, 1, 1, 1]), "no causal mask"),
    "dense": (masks.dense(np.ones((6, 6), bool)), "dense"),
    "heads": (Mask.at_heads([masks.causal(6), masks.full(6)]), "all examples and heads"),
    "window and lengths": (
        masks.sliding_window(6, 3) & masks.key_padding(6, lengths=5),
        "together with lengths",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_masks_that_flags_cannot_express_are_refused_with_the_way_out(name):
    mask, why = REFUSED[name]
    with pytest.raises(ValueError, match=why) as error:
        fit_flags("cudnn", mask, 2)
    assert "impl='blockwise'" in str(error.value)


def test_traced_bounds_are_refused_because_flags_are_not_data():
    def call(mask):
        return jnp.zeros(()) if fit_flags("cudnn", mask, 1) else None

    with pytest.raises(ValueError, match="traced"):
        jax.jit(call)(masks.causal(6))
    mask = masks.causal(6)
    assert jax.jit(lambda: call(mask))() == 0


@pytest.mark.parametrize("impl", ["cudnn", "splash"])
def test_a_kernel_of_another_platform_is_refused_at_the_door(impl):
    x = jnp.ones((1, 128, 1, 8))
    with pytest.raises(ValueError, match=r"runs on a (gpu|tpu), and this process runs on a cpu"):
        attend(x, x, x, masks.causal(128), scale=1.0, impl=impl)


def test_statistics_biases_and_blocks_are_refused():
    x = jnp.ones((1, 6, 1, 8))
    alibi = Alibi(jnp.ones(1), jnp.arange(6), jnp.arange(6))
    for options, why in (
        ({"stats": True}, "no statistics"),
        ({"bias": alibi}, "bias"),
        ({"block_q": 2}, "no blocks"),
    ):
        with pytest.raises(ValueError, match=why):
            attend(x, x, x, masks.causal(6), scale=1.0, impl="tokamax", **options)


# cuDNN


def half(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


CUDNN = {
    "full": (masks.full(64), "NO_MASK"),
    "causal": (masks.causal(64), "CAUSAL"),
    "window": (masks.sliding_window(64, 8), '"sliding_window_length": 8'),
    "lengths": (masks.key_padding(64, lengths=[3, 64]), "PADDING"),
}


@pytest.mark.parametrize("name", CUDNN)
def test_cudnn_calls_lower_for_a_gpu_forward_and_backward(name, monkeypatch):
    """Lowered, not run. The version is looked up on the machine, so the test supplies one."""
    from jax._src.cudnn import fused_attention_stablehlo

    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(fused_attention_stablehlo, "check_compute_capability", lambda _: True)
    mask, in_text = CUDNN[name]

    def loss(q, k, v):
        out = accelerators.cudnn(q, k, v, mask, scale=0.125, softcap=None)
        return jnp.sum(out.astype(jnp.float32))

    q, k = half(2, 64, 4, 64), half(2, 64, 2, 64)
    traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(q, k, k)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "__cudnn$fmhaSoftmaxBackward" in text
    assert in_text in text.replace("\\22", '"')


def test_cudnn_refuses_what_it_does_not_have():
    x, mask = jnp.ones((1, 8, 1, 8), jnp.bfloat16), masks.causal(8)
    with pytest.raises(ValueError, match="softcap"):
        accelerators.cudnn(x, x, x, mask, scale=1.0, softcap=3.0)
    x = x.astype(jnp.float32)
    with pytest.raises(ValueError, match="float32"):
        accelerators.cudnn(x, x, x, mask, scale=1.0, softcap=None)


# Splash


SPLASH = {
    "full": (masks.full(128), 2, 2),
    "window": (masks.window(128, left=5, right=2), 4, 2),
    "per head": (Mask.at_heads([masks.causal(128), masks.sliding_window(128, 7)]), 2, 2),
}


@pytest.mark.parametrize("name", SPLASH)
def test_splash_in_interpret_mode_equals_dense(name):
    mask, N, K = SPLASH[name]
    rng = np.random.default_rng(0)
    q = jnp.asarray(rng.normal(size=(1, 128, N, 128)), jnp.float32)
    k, v = jnp.asarray(rng.normal(size=(2, 1, 128, K, 128)), jnp.float32)
    got = accelerators.splash(q, k, v, mask, scale=0.1, softcap=4.0, interpret=True)
    want = attend(q, k, v, mask, scale=0.1, softcap=4.0, impl="dense")
    np.testing.assert_allclose(got, want, atol=2e-5)


def test_splash_lowers_for_a_tpu_forward_and_backward():
    mask, x = masks.causal(256), half(2, 256, 2, 128)

    def loss(q, k, v):
        out = accelerators.splash(q, k, v, mask, scale=0.125, softcap=None)
        return jnp.sum(out.astype(jnp.float32))

    lowered = jax.jit(jax.grad(loss)).trace(x, x, x).lower(lowering_platforms=("tpu",))
    assert "tpu_custom_call" in lowered.as_text()


@pytest.mark.parametrize(
    ("mask", "why"),
    [
        (masks.causal(100), "multiples of 128"),
        (masks.causal(128, offset=-1), "sees no key"),
        (masks.key_padding(128, lengths=100), "segment ids"),
        (masks.key_padding(128, lengths=[128, 100]), "all examples"),
        (masks.prefix_lm(128, 30), "no causal mask"),
    ],
)
def test_splash_refuses_what_it_cannot_express(mask, why):
    x = jnp.ones((2, mask.q_len, 2, 128))
    with pytest.raises(ValueError, match=why):
        accelerators.splash(x, x, x, mask, scale=1.0, softcap=None)


# tokamax


def test_tokamax_missing_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokamax", None)
    x = jnp.ones((1, 6, 1, 8))
    with pytest.raises(ValueError, match=r"attnlab\[tokamax\]"):
        attend(x, x, x, masks.causal(6), scale=1.0, impl="tokamax")


@pytest.mark.parametrize("name", sorted(oracle.named_masks(6, 6)))
def test_tokamax_is_handed_the_same_mask_as_flags_or_as_an_array(name, monkeypatch):
    """With jax.nn in its place, which has the interface that tokamax extends, and means the same by it."""

    def stand_in(q, k, v, *, logits_soft_cap, **options):
        assert logits_soft_cap is None
        return jax.nn.dot_product_attention(q, k, v, implementation="xla", **options)

    module = types.SimpleNamespace(dot_product_attention=stand_in)
    monkeypatch.setitem(sys.modules, "tokamax", module)
    mask, allowed = oracle.named_masks(6, 6)[name]
    rng = np.random.default_rng(1)
    q, k, v = (jnp.asarray(rng.normal(size=(2, 6, 2, 4)), jnp.float32) for _ in range(3))
    got = attend(q, k, v, mask, scale=0.5, impl="tokamax")
    np.testing.assert_allclose(got, oracle.attention(q, k, v, allowed, scale=0.5).out, atol=1e-5)


def test_the_real_tokamax_equals_dense():
    pytest.importorskip("tokamax")
    rng = np.random.default_rng(1)
    q, k, v = (jnp.asarray(rng.normal(size=(2, 6, 2, 16)), jnp.float32) for _ in range(3))
    for mask in (masks.sliding_window(6, 3), masks.prefix_lm(6, 3), masks.causal(6, offset=-1)):
        got = attend(q, k, v, mask, scale=0.5, softcap=3.0, impl="tokamax")
        want = attend(q, k, v, mask, scale=0.5, softcap=3.0, impl="dense")
        np.testing.assert_allclose(got, want, atol=1e-5)
