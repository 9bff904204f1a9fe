"""Pre-norm against post-norm at initialisation: how the residual stream and the gradients go with depth."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
from jax import Array
from matplotlib.figure import Figure

from attnlab import masks, model, norms, objectives, plots
from attnlab.checks import Check, Finding, Table, at_least, at_most, equal
from experiments.exact import lab
from experiments.exact.initialisation import ARCH, KNOBS, NETWORKS, NO_PLACEMENT, networks

DEPTHS, LAYERS = (2, 4, 8, 16), 16
INITS = NETWORKS // LAYERS


def _norm(x: Array) -> Array:
    return norms.normalize(x, center=1.0)


def _block(params: Any, x_BTD: Array, post: Array) -> tuple[Array, Array]:
    """One block of a stack, pre-norm or (`post`) post-norm: the stream after it, and the mean square of its last sum."""
    mask = masks.causal(x_BTD.shape[1])

    def residual(x: Array, f: Callable[[Array], Array]) -> Array:
        return x + f(jnp.where(post, x, _norm(x)))

    def after(total: Array) -> Array:
        return jnp.where(post, _norm(total), total)

    def read(x: Array) -> Array:
        module, own = model.Attention(ARCH), {"params": params["attention"]}
        return module.apply(own, x, mask, KNOBS, NO_PLACEMENT, False)[0]

    def think(x: Array) -> Array:
        return model.Mlp(ARCH.mlp_width).apply({"params": params["mlp"]}, x)

    total = residual(after(residual(x_BTD, read)), think)
    return after(total), jnp.mean(total**2)


# Below, S initialisations at once. One program per block, not per depth.
@jax.jit
def _forward(params_S: Any, x_SBTD: Array, post: Array) -> tuple[Array, Array]:
    return jax.vmap(_block, (0, 0, None))(params_S, x_SBTD, post)


@jax.jit
def _backward(
    params_S: Any, x_SBTD: Array, cotangent_SBTD: Array, post: Array
) -> tuple[Array, Array]:
    """Gradient by a block's input, and the norm [S] of that by its down kernel."""

    def one(params: Any, x: Array, cotangent: Array) -> tuple[Array, Array]:
        def of(down: Array, x: Array) -> Array:
            return _block({**params, "mlp": {**params["mlp"], "down_kernel": down}}, x, post)[0]

        by_down, by_x = jax.vjp(of, params["mlp"]["down_kernel"], x)[1](cotangent)
        return by_x, jnp.sqrt(jnp.sum(by_down**2))

    return jax.vmap(one)(params_S, x_SBTD, cotangent_SBTD)


@jax.jit
def _top(head_SDV: Array, x_SBTD: Array, targets_SBT: Array, post: Array) -> Array:
    """Gradient of the loss by the stream below the final norm (pre-norm) or the head (post-norm)."""

    def loss(x: Array, head: Array, targets: Array) -> Array:
        mask = masks.causal(x.shape[1])
        batch = objectives.Batch(targets, targets, jnp.ones(targets.shape), mask)
        total, count = objectives.loss(jnp.where(post, x, _norm(x)) @ head, batch)
        return total / count

    return jax.vmap(jax.grad(loss))(x_SBTD, head_SDV, targets_SBT)


def _stack(
    blocks_LS: list[Any], head: np.ndarray, x: Any, targets: np.ndarray, post: bool
) -> tuple[np.ndarray, ...]:
    """Means over initialisations of the residual sums by layer [L], of the down kernels' gradient norms by layer [L],
    and of the last one's when the stack ends after DEPTHS blocks [C]."""
    flag = np.bool_(post)
    streams, squares = [x], []
    for params in blocks_LS:
        x, square = _forward(params, x, flag)
        streams.append(x)
        squares.append(np.asarray(square).mean())
    last = [
        _backward(blocks_LS[d - 1], streams[d - 1], _top(head, streams[d], targets, flag), flag)[1]
        for d in DEPTHS
    ]
    by_layer, cotangent = [], _top(head, x, targets, flag)
    for params, below in zip(reversed(blocks_LS), reversed(streams[:-1]), strict=True):
        cotangent, size = _backward(params, below, cotangent, flag)
        by_layer.append(np.asarray(size).mean())
    return (
        np.array(squares),
        np.array(by_layer[::-1]),
        np.array([np.asarray(size).mean() for size in last]),
    )


def prenorm_grows_and_its_last_gradient_falls(seed: int) -> Finding:
    """Pre-norm streams grow with depth, (1 + l/2) d <= E|x_l|^2 <= (1 + 3l/2) d, and the gradient of the last MLP falls as
    L^-1/2; with post-norm it does not depend on the depth."""
    rng, shape = lab.generator(seed), (INITS, 2, ARCH.context)
    params = networks(seed)
    block = {part: params["block_00"][part] for part in ("attention", "mlp")}
    blocks = [jax.tree.map(lambda p, i=i: p[i::LAYERS], block) for i in range(LAYERS)]
    head, x = params["head_kernel"][:INITS], lab.normal(rng, *shape, ARCH.width)
    targets = rng.integers(0, ARCH.vocab_size, shape).astype(np.int32)
    squares, by_layer, last = {}, {}, {}
    for name in ("pre-norm", "post-norm"):
        squares[name], by_layer[name], last[name] = _stack(
            blocks, head, x, targets, name == "post-norm"
        )
    slope = {
        name: np.polyfit(np.log(DEPTHS), np.log(values), 1)[0] for name, values in last.items()
    }
    measurements = []
    for l in (2, 6, 12):  # noqa: E741 - the symbol of the lemma
        size = squares["pre-norm"][l - 1]
        measurements += [
            at_least(f"pre-norm: E|x_{l}|^2 / d", size, 1 + l / 2),
            at_most(f"pre-norm: E|x_{l}|^2 / d", size, 1 + 3 * l / 2),
        ]
    # E gelu(z)^2 for a standard normal z: what an MLP of unit variance adds. With ReLU it would be 1/2.
    activation = np.asarray(jax.nn.gelu(np.linspace(-8, 8, 4001, dtype=np.float32)))
    z = np.linspace(-8, 8, 4001)
    added = np.sum(activation**2 * np.exp(-(z**2) / 2)) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    per_layer = [*by_layer.values(), *squares.values()]
    return Finding(
        (
            *measurements,
            equal(
                "post-norm: E|x + MLP|^2 / d, mean over layers, against 1 + E gelu^2",
                squares["post-norm"].mean(), 1 + added, tolerance=0.05,
            ),
            equal("slope of log |gradient of the last MLP| on log L, pre-norm", slope["pre-norm"], -0.5, tolerance=0.2),
            equal("slope of log |gradient of the last MLP| on log L, post-norm", slope["post-norm"], 0.0, tolerance=0.15),
        ),
        (
            Table(
                f"by layer of {LAYERS}, mean of {INITS} initialisations",
                ("layer", *(f"gradient norm, {name}" for name in by_layer), *(f"|x|^2 / d, {name}" for name in squares)),
                tuple((i + 1, *(float(x[i]) for x in per_layer)) for i in range(LAYERS)),
            ),
            Table(
                "gradient norm of the last MLP by depth", ("layers", *last),
                tuple((depth, *(float(x[i]) for x in last.values())) for i, depth in enumerate(DEPTHS)),
            ),
        ),
    )  # fmt: skip


def gradient_figure(finding: Finding) -> dict[str, Figure]:
    """Gradient norm by layer at initialisation, pre-norm and post-norm."""
    table = np.array(finding.tables[0].rows, np.float64)
    with mpl.rc_context(plots.STYLE):
        figure = Figure(figsize=(5.0, 3.4), layout="constrained")
        axis = figure.subplots()
        for i, name in enumerate(("pre-norm", "post-norm")):
            axis.plot(
                table[:, 0],
                table[:, 1 + i],
                color=plots.COLOURS[i],
                linestyle=plots.DASHES[i],
                marker="o",
                label=name,
            )
        axis.set_title(f"second kernel of each MLP, mean of {INITS} initialisations", loc="left")
        axis.set(xlabel="layer", ylabel="gradient norm", ylim=(0, None))
        axis.set_xticks(table[::3, 0])
        axis.legend()
    return {"gradient_by_layer": figure}


CHECKS = (
    Check("M8", prenorm_grows_and_its_last_gradient_falls, "Xiong et al. 2020, arXiv 2002.04745, Lemma 2 and Theorem 1; On paper L28", gradient_figure),
)  # fmt: skip
