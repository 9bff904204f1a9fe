"""Bad arguments of attend() are refused at trace time, with the argument, the value and what is allowed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks
from attnlab.attention import Alibi, RelativeBuckets, attend

T, S, N, K, H = 4, 4, 2, 2, 8


def call(**changes):
    arguments = {
        "q_BTNH": jnp.ones((2, T, N, H)),
        "k_BSKH": jnp.ones((2, S, K, H)),
        "v_BSKH": jnp.ones((2, S, K, H)),
        "mask": masks.causal(T),
        "scale": 0.5,
    } | changes
    return attend(**arguments)


BAD = {
    "no float": (TypeError, "q_BTNH.*int32", {"q_BTNH": jnp.ones((2, T, N, H), jnp.int32)}),
    "list": (TypeError, "q_BTNH.*list", {"q_BTNH": [1.0]}),
    "rank": (ValueError, "k_BSKH.*four", {"k_BSKH": jnp.ones((S, K, H))}),
    "empty": (ValueError, "k_BSKH.*non-empty", {"k_BSKH": jnp.ones((2, 0, K, H))}),
    "dtypes": (TypeError, "bfloat16", {"v_BSKH": jnp.ones((2, S, K, H), jnp.bfloat16)}),
    "batch": (ValueError, "batch 3", {"k_BSKH": jnp.ones((3, S, K, H))}),
    "head_dim": (ValueError, "head_dim 4", {"k_BSKH": jnp.ones((2, S, K, 4))}),
    "kv_len": (ValueError, "v_BSKH", {"v_BSKH": jnp.ones((2, 5, K, H))}),
    "heads": (
        ValueError,
        "multiple of the 3 kv heads",
        {"k_BSKH": jnp.ones((2, S, 3, H)), "v_BSKH": jnp.ones((2, S, 3, H))},
    ),
    "mask None": (TypeError, "no default", {"mask": None}),
    "mask array": (TypeError, "mask", {"mask": jnp.ones((T, S), bool)}),
    "mask q_len": (ValueError, "q_len 5", {"mask": masks.causal(5, 4, offset=0)}),
    "mask kv_len": (ValueError, "kv_len 5", {"mask": masks.full(4, 5)}),
    "mask batch": (ValueError, "mask: shape", {"mask": masks.key_padding(T, lengths=[1, 2, 3])}),
    "scale text": (TypeError, "scale", {"scale": "auto"}),
    "scale None": (TypeError, "scale", {"scale": None}),
    "scale nan": (ValueError, "finite", {"scale": float("nan")}),
    "scale shape": (ValueError, r"\(2,\)", {"scale": jnp.ones((3,))}),
    "softcap 0": (ValueError, "softcap", {"softcap": 0.0}),
    "softcap negative": (ValueError, "softcap", {"softcap": -1.0}),
    "softcap array": (TypeError, "softcap", {"softcap": jnp.ones(())}),
    "bias array": (TypeError, "bias", {"bias": jnp.ones((T, S))}),
    "bias heads": (
        ValueError,
        "slopes_N",
        {"bias": Alibi(jnp.ones((3,)), jnp.arange(T), jnp.arange(S))},
    ),
    "bias length": (
        ValueError,
        "kv_positions_BS",
        {"bias": Alibi(jnp.ones((N,)), jnp.arange(T), jnp.arange(5))},
    ),
    "buckets": (
        ValueError,
        "multiple of 4",
        {"bias": RelativeBuckets(jnp.ones((N, 6)), jnp.arange(T), jnp.arange(S), True)},
    ),
    "impl": (ValueError, "impl.*'flash'", {"impl": "flash"}),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_argument_is_refused_by_name(name):
    error, message, changes = BAD[name]
    with pytest.raises(error, match=message):
        call(**changes)


def test_mask_and_scale_have_no_default():
    x = jnp.ones((1, 2, 1, 4))
    with pytest.raises(TypeError, match="mask"):
        attend(x, x, x, scale=1.0)
    with pytest.raises(TypeError, match="scale"):
        attend(x, x, x, masks.full(2))


def test_a_traced_softcap_is_refused():
    with pytest.raises(TypeError, match="static"):
        jax.jit(lambda c: call(softcap=c))(1.0)


def test_numpy_arguments_are_arrays_too():
    x = np.ones((1, 3, 1, 4), np.float32)
    np.testing.assert_array_equal(attend(x, x, x, masks.causal(3), scale=1), x)
