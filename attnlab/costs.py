"""What a program costs, counted before anything compiles.

Counts are analytic: XLA's own `cost_analysis` is wrong under `scan` and for custom calls (jax#18672).
"""

import math

import jax

from attnlab import model
from attnlab.knobs import Architecture
from attnlab.training import Task


def parameter_count(arch: Architecture) -> int:
    """Number of float32 parameters of one member, embeddings and tables included."""
    shapes = jax.eval_shape(lambda: model.init(arch, jax.numpy.uint32(0)))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def flops_per_update(task: Task) -> int:
    """Floating-point operations of the matrix products of one update (forward, and twice that backward).

    Attention counts the whole T x T rectangle, because that is what the dense implementation computes.
    """
    a = task.architecture
    qkv_and_out = (2 * a.heads + 2 * a.kv_heads) * a.head_dim * a.width
    per_layer = qkv_and_out + 2 * a.width * a.mlp_width + 2 * a.context * a.heads * a.head_dim
    multiply_adds = a.layers * per_layer + a.width * a.vocab_size
    tokens = task.budget.batch_size * a.context
    return 3 * 2 * multiply_adds * tokens


def state_bytes(arch: Architecture) -> int:
    """Bytes of one member's parameters and Adam moments."""
    return 3 * 4 * parameter_count(arch)
