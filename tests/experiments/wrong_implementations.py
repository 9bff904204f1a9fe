"""Deliberately wrong implementations, and the means to put one in the place of the right one everywhere."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlab import attention, knobs, masks, model, norms, objectives, positions
from experiments.exact import attention as attention_checks
from experiments.exact import batch, biases, initialisation, lab
from experiments.exact import masks as mask_checks

right_attend = attention.attend


@dataclass(frozen=True)
class Mutant:
    """`original` is replaced by `wrong`; each claim of `caught_by` must then fail."""

    original: Any
    wrong: Any
    caught_by: tuple[str, ...]
    # Jitted functions of the ledger that look the original up: they go on with it unless they are traced again.
    # None: any of them may. Masks are data, made outside, so their mutants need no new trace.
    retraced: tuple[Any, ...] | None = None


@contextlib.contextmanager
def replaced(mutant: Mutant) -> Iterator[None]:
    """Every name in attnlab and in the ledger that stands for the original stands for the wrong one."""
    places = [
        (module, name)
        for module in _modules("attnlab", "experiments.exact")
        for name, value in list(vars(module).items())
        if value is mutant.original
    ]
    assert places, f"{mutant.original} is used nowhere"
    retraced = _jitted() if mutant.retraced is None else mutant.retraced
    try:
        for module, name in places:
            setattr(module, name, mutant.wrong)
        for function in retraced:
            function.clear_cache()
        yield
    finally:
        for module, name in places:
            setattr(module, name, mutant.original)
        for function in retraced:
            function.clear_cache()


def _modules(*packages: str) -> list[ModuleType]:
    found = [(name, module) for name, module in sys.modules.items() if name.startswith(packages)]
    return [module for _, module in sorted(found)]


def _jitted() -> list[Any]:
    values = [v for module in _modules("experiments.exact") for v in vars(module).values()]
    return [v for v in values if hasattr(v, "clear_cache")]


def _pairs(mask: masks.Mask) -> jax.Array:
    return jnp.moveaxis(mask.as_array(), 1, 2)  # [1|B, T, 1|N, S], as the weights of `_weights`


def _weights(q: Any, k: Any, mask: masks.Mask, scale: Any) -> jax.Array:
    S = k.shape[1]
    unit = jnp.broadcast_to(jnp.eye(S, dtype=q.dtype)[None, :, None], (*k.shape[:3], S))
    return right_attend(q, k, unit, mask, scale=scale)


def _mix(weights_BTNS: jax.Array, v: Any) -> jax.Array:
    v_BSNH = jnp.repeat(v, weights_BTNS.shape[2] // v.shape[2], axis=2)
    return jnp.einsum("btns,bsnh->btnh", weights_BTNS, v_BSNH)


def _with_stats(out: Any, stats: bool, *args: Any, **how: Any) -> Any:
    return (out, right_attend(*args, stats=True, **how)[1]) if stats else out


def mask_after_softmax(
    q: Any, k: Any, v: Any, mask: Any, *, scale: Any, stats: bool = False, **how: Any
) -> Any:
    weights = _weights(q, k, masks.full(q.shape[1], k.shape[1]), scale) * _pairs(mask)
    return _with_stats(_mix(weights, v), stats, q, k, v, mask, scale=scale)


def softmax_over_queries(
    q: Any, k: Any, v: Any, mask: Any, *, scale: Any, stats: bool = False, **how: Any
) -> Any:
    k_BSNH = jnp.repeat(k, q.shape[2] // k.shape[2], axis=2)
    logits_BTNS = jnp.einsum("btnh,bsnh->btns", q, k_BSNH) * scale
    exponentials = jnp.where(_pairs(mask), jnp.exp(logits_BTNS), 0)
    sums = jnp.sum(exponentials, axis=1, keepdims=True)
    weights = exponentials / jnp.where(sums > 0, sums, 1)
    return _with_stats(_mix(weights, v), stats, q, k, v, mask, scale=scale)


def uniform_on_empty_rows(q: Any, k: Any, v: Any, mask: Any, **how: Any) -> Any:
    out = right_attend(q, k, v, mask, **how)
    if isinstance(out, tuple):
        return out
    mean = jnp.repeat(jnp.mean(v, axis=1, keepdims=True), q.shape[2] // v.shape[2], axis=2)
    return jnp.where(jnp.moveaxis(mask.nonempty, 1, 2)[..., None], out, mean)


def logits_doubled(q: Any, k: Any, v: Any, mask: Any, *, scale: Any, **how: Any) -> Any:
    return right_attend(q, k, v, mask, scale=2 * scale, **how)


def later_keys_count_less(q: Any, k: Any, v: Any, mask: Any, *, scale: Any, **how: Any) -> Any:
    one = jnp.ones((*q.shape[:3], 1), q.dtype)
    index = jnp.broadcast_to(
        -0.3 * jnp.arange(k.shape[1], dtype=k.dtype)[None, :, None, None], (*k.shape[:3], 1)
    )
    q, k = jnp.concatenate([q, one], -1), jnp.concatenate([k, index], -1)
    return right_attend(q, k, v, mask, scale=scale, **how)


def values_choose_too(q: Any, k: Any, v: Any, mask: Any, **how: Any) -> Any:
    return right_attend(
        q,
        k
        + 0.3
        * jnp.mean(v, axis=-1, keepdims=True)
        * jnp.cos(jnp.arange(k.shape[-1]))[None, None, None],
        v,
        mask,
        **how,
    )


def softmax_one(q: Any, k: Any, v: Any, mask: Any, **how: Any) -> Any:
    """A null key of score 0 and value 0, which every query may read."""
    k, v = (jnp.pad(x, ((0, 0), (1, 0), (0, 0), (0, 0))) for x in (k, v))
    allowed = jnp.pad(mask.as_array(), ((0, 0), (0, 0), (0, 0), (1, 0)), constant_values=True)
    how.pop("bias", None)
    return right_attend(q, k, v, masks.dense(allowed), **how)


def causal_off_by_one(
    q_len: int, kv_len: int | None = None, *, offset: Any = None, align: Any = None
) -> Any:
    shift = (
        offset
        if offset is not None
        else ((kv_len or q_len) - q_len if align == "bottom_right" else 0)
    )
    if kv_len not in (None, q_len) and offset is None and align is None:
        raise ValueError("ambiguous")
    return masks.window(q_len, kv_len, left=None, right=0, offset=shift + 1)


def full_is_causal(q_len: int, kv_len: int | None = None) -> Any:
    return masks.window(q_len, kv_len, left=None, right=0, align="top_left")


right_sliding_window, right_window = masks.sliding_window, masks.window
right_prefix_lm, right_key_padding, right_graph = masks.prefix_lm, masks.key_padding, masks.graph
right_rope, right_loss, right_init = positions.rope, objectives.loss, model.init


def window_too_wide(q_len: int, size: int, *args: Any, **how: Any) -> Any:
    return right_sliding_window(q_len, size + 1, *args, **how)


def prefix_too_short(q_len: int, prefix_len: int) -> Any:
    return right_prefix_lm(q_len, prefix_len - 1)


def reads_one_pad(
    q_len: int, *, lengths: Any = None, starts: Any = None, kv_len: int | None = None
) -> Any:
    if lengths is not None:
        lengths = np.minimum(np.asarray(lengths) + 1, kv_len or q_len)
    return right_key_padding(q_len, lengths=lengths, starts=starts, kv_len=kv_len)


def edges_reversed(edge_index: Any, num_nodes: int, self_loops: bool = False) -> Any:
    return right_graph(edge_index[::-1], num_nodes, self_loops)


def documents_joined(segment_ids: Any, **how: Any) -> Any:
    return masks.causal(len(segment_ids))


def normalize_over_positions(x: jax.Array, *, center: Any, eps: float = 1e-6) -> jax.Array:
    """Statistics by column, over the positions of an example and of the next one."""
    both = jnp.concatenate([x, jnp.roll(x, -1, axis=0)], axis=-2)
    mean, variance = (f(both, axis=-2, keepdims=True) for f in (jnp.mean, jnp.var))
    return (x - mean) / jnp.sqrt(variance + eps)


def no_qk_norm(x: jax.Array, gain: Any, gates: Any) -> jax.Array:
    return x


def rope_of_even_positions(x: jax.Array, rotation: Any) -> jax.Array:
    even = np.arange(x.shape[1]) // 2 * 2
    return right_rope(x, tuple(r[:, even] for r in rotation))


def no_rope(x: jax.Array, rotation: Any) -> jax.Array:
    return x


class PositionsFromOne(model.LearnedPositions):
    """Looks up the row after the right one."""

    def __call__(self, positions_BT: Any, width: int) -> Any:
        return super().__call__(jnp.asarray(positions_BT) % (self.context - 1) + 1, width)


def width_for_head_dim(text: str, *, head_dim: int, width: int) -> float:
    return head_dim**-0.5


class PositionsClamped(model.LearnedPositions):
    """Looks up the nearest row there is."""

    def __call__(self, positions_BT: Any, width: int) -> Any:
        return super().__call__(jnp.clip(jnp.asarray(positions_BT), 0, self.context - 1), width)


def mean_over_all_places(logits: Any, batch: Any) -> Any:
    total, _ = right_loss(logits, batch)
    return total, jnp.float32(batch.weights.size)


def torch_initialiser(arch: Any, seed: Any) -> Any:
    """Kernels of variance 1 / (3 fan_in)."""

    def shrink(path: Any, leaf: Any) -> Any:
        return leaf * 3**-0.5 if path[-1].key.endswith("kernel") else leaf

    return jax.tree_util.tree_map_with_path(shrink, right_init(arch, seed))


MUTANTS = {
    "causal leaks by one": Mutant(
        masks.causal, causal_off_by_one, ("I12", "I22", "I25", "I29", "I32"), ()
    ),
    "full is causal": Mutant(masks.full, full_is_causal, ("I1", "I8", "I28"), ()),
    "sliding_window is too wide": Mutant(
        masks.sliding_window, window_too_wide, ("I7", "I24", "I32"), ()
    ),
    "prefix_lm is too short": Mutant(masks.prefix_lm, prefix_too_short, ("I6", "I32"), ()),
    "key_padding lets one pad through": Mutant(
        masks.key_padding, reads_one_pad, ("I26", "I31"), ()
    ),
    "graph reverses its edges": Mutant(masks.graph, edges_reversed, ("I27",), (lab._graph,)),
    "documents are one": Mutant(masks.documents, documents_joined, ("I32",), ()),
    "norms go by column": Mutant(
        norms.normalize,
        normalize_over_positions,
        ("I15", "I16", "I17", "I32", "I33"),
        (lab._logits, batch._normalize),
    ),
    "QK-norm does nothing": Mutant(norms.qk_norm, no_qk_norm, ("I9",), (biases._outputs,)),
    "rope does nothing": Mutant(positions.rope, no_rope, ("I19",), (attention_checks._rotated,)),
    "rope knows even positions only": Mutant(
        positions.rope, rope_of_even_positions, ("I19",), (attention_checks._rotated,)
    ),
    "learned positions start at 1": Mutant(model.LearnedPositions, PositionsFromOne, ("I38",), ()),
    "learned positions are clamped": Mutant(model.LearnedPositions, PositionsClamped, ("I39",), ()),
    "width and head size are mixed up": Mutant(
        knobs.parse_logit_scale, width_for_head_dim, ("M4",), ()
    ),
    "loss divides by all places": Mutant(
        objectives.loss, mean_over_all_places, ("I31",), (mask_checks._mean_loss,)
    ),
    "kernels start like torch's": Mutant(
        model.init, torch_initialiser, ("M3", "M6", "M7", "M8"), (initialisation._init,)
    ),
    # Last, because these have every program of the ledger traced again.
    "attend masks after the softmax": Mutant(
        right_attend, mask_after_softmax, ("I11", "I12", "I13", "I30")
    ),
    "attend normalises over queries": Mutant(
        right_attend, softmax_over_queries, ("I14", "I23", "I27")
    ),
    "attend is uniform on empty rows": Mutant(right_attend, uniform_on_empty_rows, ("I22", "I27")),
    "attend doubles the logits": Mutant(
        right_attend,
        logits_doubled,
        ("I13", "I19", "I20", "I26", "I36", "I37", "M1", "M2", "M4", "M5", "M9"),
    ),
    "attend discounts later keys": Mutant(
        right_attend,
        later_keys_count_less,
        ("I1", "I2", "I3", "I4", "I5", "I6", "I14", "I28"),
    ),
    "attend lets values choose": Mutant(right_attend, values_choose_too, ("I18",)),
    "attend may decline": Mutant(
        right_attend, softmax_one, ("I10", "I11", "I21", "I34", "I35", "M10")
    ),
}
