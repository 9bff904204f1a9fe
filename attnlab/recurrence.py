"""What attention is compared with: a gated recurrent unit (GRU), which reads a sequence one token after the other."""

import jax
import jax.numpy as jnp
from jax import Array


def gru(
    inputs_BT3G: Array,
    recurrent_G3G: Array,
    candidate_bias_G: Array,
    *,
    start_BG: Array | None = None,
) -> Array:
    """The hidden states of a GRU, [B, T, G] in the dtype of the inputs.

        r = sigmoid(a_r + h U_r);  z = sigmoid(a_z + h U_z);  n = tanh(a_n + r * (h U_n + b))
        h' = (1 - z) n + z h

    `inputs_BT3G`: a = x W for all steps, in the order r, z, n: one matrix product for the whole sequence, because only
    h U has to wait for the step before. `start_BG`: the state before the first token, zeros when None. The form with
    the reset gate behind the product, as cuDNN, PyTorch and flax have it (Cho et al. 2014, arXiv 1406.1078, have it
    before).

    Raises:
      ValueError: shapes that do not belong together.
    """
    B, _, three_G = inputs_BT3G.shape
    G = candidate_bias_G.shape[0]
    if recurrent_G3G.shape != (G, 3 * G) or three_G != 3 * G:
        raise ValueError(
            f"recurrent_G3G: got {recurrent_G3G.shape} with inputs of {three_G} and a bias of {G}; "
            f"allowed: ({G}, {3 * G}) and inputs of {3 * G}"
        )
    state_BG = jnp.zeros((B, G), inputs_BT3G.dtype) if start_BG is None else start_BG
    bias_1G = candidate_bias_G[None, :].astype(inputs_BT3G.dtype)
    recurrent = recurrent_G3G.astype(inputs_BT3G.dtype)

    def step(h_BG: Array, a_B3G: Array) -> tuple[Array, Array]:
        u_r, u_z, u_n = jnp.split(h_BG @ recurrent, 3, axis=-1)
        a_r, a_z, a_n = jnp.split(a_B3G, 3, axis=-1)
        reset, update = jax.nn.sigmoid(a_r + u_r), jax.nn.sigmoid(a_z + u_z)
        candidate = jnp.tanh(a_n + reset * (u_n + bias_1G))
        h_BG = (1 - update) * candidate + update * h_BG
        return h_BG, h_BG

    _, states_TBG = jax.lax.scan(step, state_BG, inputs_BT3G.swapaxes(0, 1))
    return states_TBG.swapaxes(0, 1)
