"""Norms and root mean squares by block, whatever else the tree holds."""

import jax.numpy as jnp
import numpy as np

from attnlab import magnitudes


def test_blocks_come_in_order_and_nothing_else_is_counted():
    tree = {
        "head_kernel": jnp.full((2, 2), 100.0),
        "block_01": {"mlp": {"kernel": jnp.array([[3.0, 4.0]])}, "gain": jnp.zeros(2)},
        "block_00": {"gain": jnp.array([2.0])},
    }
    np.testing.assert_allclose(magnitudes.norms(tree), [2.0, 5.0])
    np.testing.assert_allclose(magnitudes.rms(tree), [2.0, 2.5])


def test_square_that_no_float_holds_gives_a_finite_norm_and_nan_stays():
    for value, wanted in ((1e30, np.sqrt(np.finfo(np.float32).max)), (np.nan, np.nan), (0.0, 0.0)):
        tree = {"block_00": {"kernel": jnp.full((2, 2), value, jnp.float32)}}
        np.testing.assert_allclose(magnitudes.norms(tree), [wanted], rtol=1e-6)
