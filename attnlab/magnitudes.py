"""How large parameters, gradients and updates are, block by block: what tells an exploding layer from a dead one."""

import jax
import jax.numpy as jnp
from jax import Array

from attnlab.model import Params


def norms(tree: Params) -> Array:
    """Euclidean norm of all parameters of each block, or of what is shaped like them: float32 [L]."""
    return jnp.stack([_norm(jax.tree.leaves(block)) for block in blocks(tree)])


def rms(tree: Params) -> Array:
    """Root mean square over the parameters of each block: float32 [L]. Comparable between widths, as a norm is not."""
    sizes = [sum(x.size for x in jax.tree.leaves(block)) for block in blocks(tree)]
    return norms(tree) / jnp.sqrt(jnp.array(sizes, jnp.float32))


def blocks(tree: Params) -> list[Params]:
    """The parameters of each block, first to last."""
    return [tree[name] for name in sorted(tree) if name.startswith("block_")]


def _norm(leaves: list[Array]) -> Array:
    """In units of the largest entry, whose square alone may be more than a float32 holds."""
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(x)) for x in leaves]))
    unit = jnp.where(largest > 0, largest, 1.0)
    total = sum((jnp.sum(jnp.square(x / unit)) for x in leaves), jnp.float32(0.0))
    return unit * jnp.sqrt(total)
