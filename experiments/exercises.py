"""The exercises of "Six notes on attention", solved with attnlab.

    python -m experiments.exercises mask            break the mask on purpose (about a minute)
    python -m experiments.exercises variance        measure the variance argument
    python -m experiments.exercises cross           turn a head into a cross-attention head
    ... --figures DIR                               also draw what there is to draw

The fourth question of the first exercise, whether a causal mask leaks when the targets are two places ahead, is
answered by its third arm and exactly by `attnlab check I25`: it does not, because position i never reads i + 2.
"""

import argparse
import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
from jax import Array, lax
from matplotlib.figure import Figure

from attnlab import compile_cache, knobs, masks, model, plots, training
from attnlab.attention import attend
from attnlab.checks import Check, number
from attnlab.data import corpora, sampling
from attnlab.knobs import Architecture, ModelKnobs
from attnlab.masks import Mask
from attnlab.objectives import Inputs, window_length
from configs import base
from experiments.exact import CHECKS

# Exercise 1. The arms differ in data only, so all of them train in one compiled program.
ARMS: Mapping[str, Mapping[str, str]] = {
    "causal": {"mask": "causal", "objective": "next_token"},
    "no mask": {"mask": "full", "objective": "next_token"},
    "causal, two ahead": {"mask": "causal", "objective": "next_token(2)"},
}
SMALL: Mapping[str, Any] = {
    "model.layers": 2,
    "model.width": 32,
    "context": 32,
    "batch_size": 32,
    "log_every": 50,
    "eval.windows": 512,
}
SAMPLED = 300  # characters, as the exercise asks


@dataclass(frozen=True)
class MaskRun:
    """One arm after training: losses in nats, validation loss by position [T], and what the model writes by itself."""

    train_loss: float
    validation_loss: float
    by_position: np.ndarray
    sample: str


def break_the_mask(
    corpus_name: str = "shakespeare",
    *,
    steps: int = 600,
    seed: int = 0,
    overrides: Mapping[str, Any] | None = None,
) -> dict[str, MaskRun]:
    """Trains every arm on the same windows for the same number of updates.

    Expect without the mask: a loss near 0 everywhere but at the last position, whose target is not in the input, so
    validation is fooled as well; and text that is far worse than the causal arm's, because there is nothing to copy
    from when one generates. When loss and samples disagree, trust the samples. Seen with the defaults (validation, nats
    per character): causal 2.29; no mask 0.08, but 2.52 at the last position; causal and two ahead 2.84.

    Raises:
      ValueError: an unknown corpus, or overrides that the configuration does not have.
    """
    corpus = corpora.load(corpus_name)
    tokens = jnp.asarray(corpus.train)
    runs = {}
    for arm, flags in ARMS.items():
        config = base.get_config().to_dict()
        settings = {
            **SMALL,
            "corpus": corpus_name,
            "steps": steps,
            "seed.init": seed,
            "seed.data": seed,
        }
        for key, value in {**settings, **flags, **(overrides or {})}.items():
            knobs.set_flat(config, key, value)
        knobs.check_values(config)
        arch = knobs.architecture(
            config, vocab_size=corpus.vocabulary.size, input_size=corpus.vocabulary.input_size
        )
        vocabulary = corpus.vocabulary
        inputs = Inputs(vocabulary.mask_id, vocabulary.bos_id)
        task = training.Task(arch, knobs.budget(config), inputs)
        runs[arm] = _train(task, knobs.knobs(config, arch), tokens, corpus)
    return runs


_init = jax.jit(training.init_state, static_argnums=0)
_chunk = jax.jit(training.train_chunk, static_argnums=0)
_evaluate = jax.jit(training.evaluate, static_argnums=0)


def _train(
    task: training.Task, member: knobs.Knobs, tokens: Array, corpus: corpora.Corpus
) -> MaskRun:
    state, metrics = _init(task, member), {}
    for _ in range(int(member.optimizer.total_steps) // task.budget.log_every):
        state, metrics = _chunk(task, state, member, tokens)
    length = window_length(task.architecture.context)
    windows = sampling.evaluation_windows(
        corpus.validation, count=task.budget.eval_windows, length=length
    )
    result = _evaluate(task, state, member, windows, jnp.int32(0))
    sums, counts = (np.asarray(result[name]) for name in training.SUMMED)
    ids = generate(
        task.architecture, state.params, member.model, member.mask, seed=0, count=SAMPLED
    )
    return MaskRun(
        train_loss=float(metrics["train/loss"]),
        validation_loss=float(sums.sum() / counts.sum()),
        by_position=sums / counts,
        sample=corpus.vocabulary.decode(np.asarray(ids)),
    )


@functools.partial(jax.jit, static_argnames=("arch", "count"))
def generate(
    arch: Architecture,
    params: model.Params,
    gates: ModelKnobs,
    mask: Mask,
    *,
    seed: Array | int,
    count: int,
) -> Array:
    """`count` tokens, each drawn from the model's prediction after the last `context` ones: int32 [count].

    The first token of the context is 0. Places that are not written yet are padding: the mask hides them from
    everybody, whatever else it allows.
    """
    T = arch.context

    def step(carry: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], Array]:
        window_T, written = carry
        visible = mask & masks.key_padding(T, lengths=written)
        logits_BTV, _ = model.apply(arch, params, window_T[None], visible, gates)
        token = jax.random.categorical(key, logits_BTV[0, written - 1])
        full = written == T
        window_T = jnp.where(full, jnp.roll(window_T, -1), window_T)
        window_T = window_T.at[jnp.where(full, T - 1, written)].set(token)
        return (window_T, jnp.minimum(written + 1, T)), token

    start = jnp.zeros(T, jnp.int32), jnp.int32(1)
    _, tokens = lax.scan(step, start, jax.random.split(jax.random.key(seed), count))
    return tokens


def loss_by_position_figure(runs: Mapping[str, MaskRun]) -> Figure:
    """Validation loss by position, a line per arm: the fingerprint of a leak is a drop everywhere but at the end."""
    with mpl.rc_context(plots.STYLE):
        figure = Figure(figsize=(5.4, 3.4), layout="constrained")
        axis = figure.subplots()
        for i, (arm, run) in enumerate(runs.items()):
            places = np.arange(1, len(run.by_position) + 1)
            axis.plot(
                places,
                run.by_position,
                color=plots.COLOURS[i],
                linestyle=plots.DASHES[i],
                label=arm,
            )
        axis.set(xlabel="position", ylabel="validation loss, nats per token", ylim=(0, None))
        axis.legend()
    return figure


# Exercise 3. Head and CrossHead differ in the argument of two projections.
@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Head:
    """One attention head without biases: kernels [D, H]."""

    query: Array
    key: Array
    value: Array

    def __call__(self, x_BTD: Array, mask: Mask) -> tuple[Array, Array]:
        """Self-attention: (output [B, T, H], weights [B, T, T])."""
        return self.cross(x_BTD, x_BTD, mask)

    def cross(self, x_BTD: Array, context_BSC: Array, mask: Mask) -> tuple[Array, Array]:
        """Queries from `x`, keys and values from `context`: (output [B, T, H], weights [B, T, S])."""
        q, k, v = x_BTD @ self.query, context_BSC @ self.key, context_BSC @ self.value
        one_head = [y[:, :, None] for y in (q, k, v)]
        scale = q.shape[-1] ** -0.5
        out = attend(*one_head, mask, scale=scale)
        unit = jnp.broadcast_to(jnp.eye(k.shape[1])[None, :, None], (*k.shape[:2], 1, k.shape[1]))
        weights = attend(*one_head[:2], unit, mask, scale=scale)
        return out[:, :, 0], weights[:, :, 0]


def cross_attention(seed: int = 0) -> dict[str, tuple[int, ...]]:
    """Shapes of a head that reads itself and of one that reads another stream, asserted.

    A lower triangle of T_q x T_q does not fit T_q x T_kv; `masks.causal` refuses the rectangle until it is told through
    which corner the diagonal runs.
    """
    B, T_q, T_kv, D, H = 2, 5, 9, 16, 8
    rng = np.random.default_rng(seed)
    kernels = rng.standard_normal((3, D, H), np.float32) * np.float32(D**-0.5)
    head = Head(*(jnp.asarray(kernel) for kernel in kernels))
    x, context = (jnp.asarray(rng.standard_normal((B, n, D), np.float32)) for n in (T_q, T_kv))
    own_out, own_weights = jax.jit(Head.__call__)(head, x, masks.causal(T_q))
    out, weights = jax.jit(Head.cross)(head, x, context, masks.full(T_q, T_kv))
    assert own_weights.shape == (B, T_q, T_q)
    assert weights.shape == (B, T_q, T_kv), "one row per query, one column per key"
    assert out.shape == own_out.shape == (B, T_q, H), "the output has the length of the queries"
    return {"self": own_weights.shape, "cross": weights.shape, "output": out.shape}


def _check(id: str) -> Check:
    return next(check for check in CHECKS if check.id == id)


def _mask_exercise(figures: Path | None) -> None:
    runs = break_the_mask()
    print(
        f"{'arm':20}{'train':>8}{'val':>8}{'first':>8}{'middle':>8}{'last':>8}   nats per character"
    )
    for arm, run in runs.items():
        by = run.by_position
        columns = (run.train_loss, run.validation_loss, by[0], by[len(by) // 2], by[-1])
        print(f"{arm:20}" + "".join(f"{x:8.3f}" for x in columns))
    for arm, run in runs.items():
        print(f"\n--- {SAMPLED} characters, {arm}\n{run.sample}")
    if figures:
        _save(figures, {"loss_by_position": loss_by_position_figure(runs)})


def _variance_exercise(figures: Path | None) -> None:
    for id in ("M1", "M2"):
        check = _check(id)
        finding = check.measure(0)
        for table in finding.tables:
            print(f"\n{table.title}\n" + "  ".join(table.columns))
            for row in table.rows:
                print("  ".join(x if isinstance(x, str) else number(x) for x in row))
        if figures and check.figures:
            _save(figures, check.figures(finding))


def _cross_exercise(figures: Path | None) -> None:
    del figures
    for name, shape in cross_attention().items():
        print(f"{name:8}{shape}")
    try:
        masks.causal(5, 9)
    except ValueError as error:
        print(f"masks.causal(5, 9): {error}")


def _save(directory: Path, figures: Mapping[str, Figure]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for stem, figure in figures.items():
        print(plots.save(figure, directory / f"{stem}.png")[0])


EXERCISES: Mapping[str, Callable[[Path | None], None]] = {
    "mask": _mask_exercise,
    "variance": _variance_exercise,
    "cross": _cross_exercise,
}


def main(argv: list[str] | None = None) -> int:
    """Runs one exercise."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.exercises", description=__doc__.split("\n")[0]
    )
    parser.add_argument("exercise", choices=tuple(EXERCISES))
    parser.add_argument("--figures", type=Path, metavar="DIR")
    args = parser.parse_args(argv)
    compile_cache.enable()
    EXERCISES[args.exercise](args.figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
