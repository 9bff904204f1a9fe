"""How large parameters, gradients and updates are, block by block: what tells an exploding layer from a dead one."""

import jax
import jax.numpy as jnp
from jax import Array

from attnlab.model import Params


def norms(tree: Params) -> Array:
    """Euclidean norm of all parameters of each block, or of what is shaped like them: float32 [L].

    One whose square no float32 holds is given as the largest whose square one does. The sums are those that clipping
    needs of a gradient, so that XLA computes them once.
    """
    most = float(jnp.finfo(jnp.float32).max)
    return jnp.stack([jnp.sqrt(jnp.minimum(_square(block), most)) for block in blocks(tree)])


def rms(tree: Params) -> Array:
    """Root mean square over the parameters of each block: float32 [L]. Comparable between widths, as a norm is not."""
    sizes = [sum(x.size for x in jax.tree.leaves(block)) for block in blocks(tree)]
    return norms(tree) / jnp.sqrt(jnp.array(sizes, jnp.float32))


def blocks(tree: Params) -> list[Params]:
    """The parameters of each block, first to last."""
    return [tree[name] for name in sorted(tree) if name.startswith("block_")]


def _square(block: Params) -> Array:
    return sum((jnp.sum(jnp.square(x)) for x in jax.tree.leaves(block)), jnp.float32(0.0))
