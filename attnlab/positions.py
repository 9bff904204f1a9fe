"""Position families, each a function of positions, so that packed or cached tokens need no special case.

A family enters the network in one place and is switched by a *gate*, a number: the learned table and the
sinusoid are multiplied by it, rotary frequencies and ALiBi slopes too. A gate of 0 is exactly the absent
family (x + 0, a rotation by angle 0, a bias of 0), so one program holds every arm of a comparison.
"""

import jax
import jax.numpy as jnp
from jax import Array

FAMILIES = ("alibi", "learned", "rope", "sinusoidal")


def parse(text: str) -> frozenset[str]:
    """`"none"`, one family, or several joined by `+` (`"learned+rope"`) -> the set of families.

    Raises:
      ValueError: an unknown or repeated family, or `none` beside a family.
    """
    names = [name.strip() for name in text.split("+")]
    if names == ["none"]:
        return frozenset()
    if set(names) <= set(FAMILIES) and len(set(names)) == len(names):
        return frozenset(names)
    raise ValueError(
        f"positions: got {text!r}; allowed: none, {', '.join(FAMILIES)}, or several joined by '+'"
    )


def sinusoidal(positions_BT: Array, width: int) -> Array:
    """Sinusoid of Vaswani et al. 2017, section 3.5, in the [sin | cos] layout: float32 [B, T, D].

    Values lie in [-1, 1], RMS sqrt(1/2); wavelengths run geometrically from 2 pi to 2 pi 10000.

    Raises:
      ValueError: `width` is odd.
    """
    if width % 2:
        raise ValueError(f"width: sinusoidal positions need an even width, got {width}")
    frequencies = 1e4 ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angles = positions_BT.astype(jnp.float32)[..., None] * frequencies[None, None, :]
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def rope_frequencies(head_dim: int, theta: float = 1e4) -> Array:
    """Angle per position of each rotated pair, theta^(-2j/H) for j < H/2: float32 [H/2] (Su et al. 2021).

    Raises:
      ValueError: `head_dim` is odd.
    """
    if head_dim % 2:
        raise ValueError(
            f"head_dim: rotary positions rotate pairs, so it must be even, got {head_dim}"
        )
    return theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)


def rope_rotation(positions_BT: Array, frequencies: Array) -> tuple[Array, Array]:
    """(cos, sin) of every rotation, float32 [B, T, 1, H/2] each; made once, used by every layer.

    Angles are computed in float32 whatever the activations are: at position 10^4 bfloat16 is off by a turn.
    """
    angles = positions_BT.astype(jnp.float32)[..., None, None] * frequencies[None, None, None, :]
    return jnp.cos(angles), jnp.sin(angles)


def rope(x_BTNH: Array, rotation: tuple[Array, Array]) -> Array:
    """Rotates the pairs (j, j + H/2) of every head (the half-split convention of gemma and HF): [B, T, N, H].

    The interleaved convention (2j, 2j + 1) differs by a fixed permutation of the head dimensions: the same
    model from scratch, another one when weights are loaded.
    """
    cos, sin = (r.astype(x_BTNH.dtype) for r in rotation)
    first, second = jnp.split(x_BTNH, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def alibi_slopes(heads: int) -> Array:
    """ALiBi's slope of each head (Press et al. 2022): float32 [N], 2^(-8(h+1)/N) for N a power of two.

    For other N the published construction: the slopes of the power of two below, then every second slope of
    the power of two above.
    """
    below = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (h + 1) / below) for h in range(below)]
    slopes += [2.0 ** (-4.0 * (h + 1) / below) for h in range(0, 2 * below, 2)][: heads - below]
    return jnp.asarray(slopes, jnp.float32)


def by_index(q_len: int, *, offset: int | jax.Array = 0) -> Array:
    """Positions 0, 1, ... (plus `offset`, the number of cached tokens) of one sequence: int32 [1, T]."""
    return (jnp.arange(q_len, dtype=jnp.int32) + jnp.asarray(offset, jnp.int32))[None, :]
