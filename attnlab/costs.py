"""What a program costs, counted before anything compiles.

Counts are analytic: XLA's own `cost_analysis` is wrong under `scan` and for custom calls (jax#18672).
"""

import math
from dataclasses import dataclass

import jax

from attnlab import model
from attnlab.attention.api import choose_impl
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
    if a.mixer == "gru":
        G = a.recurrent_width
        mixing = 3 * a.width * G + 3 * G * G + G * a.width
    else:
        qkv_and_out = (2 * a.heads + 2 * a.kv_heads) * a.head_dim * a.width
        mixing = qkv_and_out + 2 * a.context * a.heads * a.head_dim
    per_layer = mixing + 2 * a.width * a.mlp_width
    multiply_adds = a.layers * per_layer + a.width * a.vocab_size
    tokens = task.budget.batch_size * a.context
    return 3 * 2 * multiply_adds * tokens


def state_bytes(arch: Architecture) -> int:
    """Bytes of one member's parameters and Adam moments."""
    return 3 * 4 * parameter_count(arch)


@dataclass(frozen=True)
class Memory:
    """Bytes on one device while one member is updated."""

    parameters: int
    moments: int
    gradients: int
    activations: int

    @property
    def state(self) -> int:
        """What stays between updates."""
        return self.parameters + self.moments

    @property
    def working(self) -> int:
        """What an update needs besides."""
        return self.gradients + self.activations


def memory(task: Task) -> Memory:
    """An estimate from the shapes, to a factor of about 1.5 (XLA's own plan of a float32 update on CPU is the yardstick).

    Parameters, moments and gradients are float32; FSDP divides them by the devices that share a member, but where
    nothing is rematerialised by block the gathered parameters live until the backward pass is through.
    """
    arch, budget = task.architecture, task.budget
    size, share = 4 * parameter_count(arch), 1
    if budget.sharding == "fsdp":
        share = budget.data_devices
    gathered = 0 if share == 1 else size // (arch.layers if arch.remat == "block" else 1)
    accumulators = 2 if budget.accumulation > 1 else 1
    return Memory(
        parameters=size // share,
        moments=2 * size // share,
        gradients=accumulators * size // share + gathered,
        activations=_activation_bytes(task),
    )


def _activation_bytes(task: Task) -> int:
    """What the backward pass of one micro-batch reads again, on one device."""
    arch, budget = task.architecture, task.budget
    examples = budget.batch_size // budget.accumulation // budget.data_devices
    tokens, T = examples * arch.context, arch.context
    element = 2 if arch.activations == "bfloat16" else 4
    D, F, NH = arch.width, arch.mlp_width, arch.heads * arch.head_dim
    qkv = NH + 2 * arch.kv_heads * arch.head_dim
    products = tokens * (qkv + D + F + D) * element  # outputs of the four matrices of a block
    # Both norms' inputs and outputs, the residual stream twice, attention's result, the MLP's tanh and GELU.
    elementwise = tokens * (6 * D + NH + 2 * F) * element
    dense = choose_impl(T, T, impl=arch.attention) == "dense"
    # Logits and weights in float32; else operands and results of the tiles, in the order of those.
    inside = 2 * examples * arch.heads * T * T * 4 if dense else 8 * tokens * NH * 4
    if arch.mixer == "gru":
        inside = 8 * tokens * arch.recurrent_width * element  # gates and states of every step
    block = products + elementwise + inside
    kept = {"none": block, "dots": products + tokens * D * element, "block": tokens * D * element}
    once_more = 0 if arch.remat == "none" else block
    logits = 3 * tokens * arch.vocab_size * 4  # logits, their softmax and its gradient
    return arch.layers * kept[arch.remat] + once_more + logits
