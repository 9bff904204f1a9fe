"""What is measured on trained members beside their loss: computed here, written where `measurements` reads it.

Every arm of one corpus and context is measured on the same sequences of the validation split, so that differences
between arms are paired. A member that has its file is not measured again.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from attnlab import model, norm_modes, objectives, probes, timing, training, windowed_sampling
from attnlab.claims import Measurement
from attnlab.data.corpus import Corpus
from attnlab.data.ngrams import NGramModel
from attnlab.data.sampling import Windows
from attnlab.data.vocabulary import Tokens
from attnlab.masks import mask_text
from attnlab.measurements import LossByLength, Probes, ProbesBeyondReach, ShuffledPrefix
from attnlab.measurements.context import PositionShare, Reach, Samples, TruncatedContext
from attnlab.measurements.norms import NormModes
from attnlab.measurements.times import AttentionTime, UpdateTime
from attnlab.members import Trained, load_all
from attnlab.probes import attention_maps, context_use
from attnlab.results import FINISHED, Run, arm_of

# Of the draws behind all measurements: sequences, orders, probes.
SEED = 20_221_104
SEQUENCES = 512
LENGTHS = (1.0, 1.5, 2.0)  # of the context that was trained with
LAST = 64  # targets that every length predicts, at most half of the context
PROBE = probes.Settings(steps=500)
PROBE_SEEDS = 3
PROBE_TRAIN, PROBE_TEST = 1024, 256  # sequences, of the training and of the validation split
TEXTS, SAMPLED = 64, 300  # texts of a member, and tokens of each
GRADIENTS = 128  # sequences whose gradients or attention weights are averaged
WEIGHTS = 1 << 26  # attention weights in memory at once


@dataclass(frozen=True)
class Kind:
    """A measurement: the file it leaves in a run's directory, and how it is made."""

    file: str
    measure: Callable[[Trained], Any]


def measure(
    workdir: Path,
    runs: Iterable[Run],
    wanted: Sequence[Measurement],
    base: Mapping[str, Any],
    *,
    say: Callable[[str], None],
    should_stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Measures what the finished runs still lack of `wanted`; False if it was stopped before the end.

    `base`: the configuration that holds every knob. `say`: told what is being measured.

    Raises:
      ValueError: a kind that does not exist, or a member that cannot be read back.
    """
    todo: dict[str, list[str]] = {}
    for measurement in wanted:
        kind = _kind(measurement.kind)
        for run in runs:
            ended = run.status == FINISHED and arm_of(run.config) in measurement.arms
            if ended and not (run.path / kind.file).exists():
                todo.setdefault(run.id, []).append(measurement.kind)
    for index, trained in enumerate(load_all(workdir, list(todo), base)):
        for name in todo[trained.id]:
            if should_stop():
                return False
            say(f"measuring {index + 1}/{len(todo)}: {name} of {trained.name}")
            KINDS[name].measure(trained).write(workdir / "runs" / trained.id)
    return True


def shuffled_prefix(trained: Trained) -> ShuffledPrefix:
    """Loss of the target behind a whole context, as it stands in the text and with the context before it shuffled."""
    arch, fixed = trained.architecture, int(bool(trained.knobs.objective.bos))
    sequences = _sequences(trained, arch.context + 1)
    shuffled = context_use.shuffled_prefix(sequences, SEED, fixed=fixed)

    def of(sequences_KW: np.ndarray) -> np.ndarray:
        given = (trained.params, trained.knobs.model, trained.knobs.mask, sequences_KW)
        return np.asarray(_last_losses(arch, *given), np.float64)[:, 0]

    return ShuffledPrefix(intact=of(sequences), shuffled=of(shuffled))


def loss_by_length(trained: Trained) -> LossByLength:
    """Loss of the same last targets behind longer and longer contexts; a learned table ends where training did."""
    arch, config = trained.architecture, trained.config
    last = min(LAST, arch.context // 2)
    has_table = "learned" in arch.position_families
    lengths = [round(x * arch.context) for x in (LENGTHS[:1] if has_table else LENGTHS)]
    sequences = _sequences(trained, round(LENGTHS[-1] * arch.context) + 1, bos=False)
    loss = context_use.losses_by_length(
        arch, trained.params, trained.knobs.model,
        lambda n: mask_text.parse(config["mask"], n).canonical(),
        sequences, lengths, last=last,
        bos_id=trained.vocabulary.bos_id if bool(trained.knobs.objective.bos) else None,
    )  # fmt: skip
    return LossByLength(arch.context, np.array(lengths), loss.mean(axis=1))


def position_probes(trained: Trained) -> Probes:
    """The position probe of every layer, with what its error is compared to."""
    N = trained.architecture.context
    count = PROBE_TRAIN + PROBE_TEST
    splits = ((trained.corpus.train, PROBE_TRAIN), (trained.corpus.validation, PROBE_TEST))
    text = np.concatenate([_windows(trained, tokens, N, n) for tokens, n in splits])
    iid = probes.independent_tokens(trained.corpus.validation, count, N, SEED)
    if bool(trained.knobs.objective.bos):
        iid = probes.behind_bos(iid, trained.vocabulary.bos_id)
    fresh = _init(trained.architecture, trained.knobs.seed_init, trained.knobs.init_gain)
    states = {
        Probes.TRAINED: _states(trained, trained.params, text),
        "random init": _states(trained, fresh, text),
        "trained, i.i.d. tokens": _states(trained, trained.params, iid),
        "bag of prefix": probes.bag_of_prefix(text, trained.architecture.input_size)[None],
    }
    curves = {label: _errors(x) for label, x in states.items()}
    orders = probes.shuffled_labels(count, N, SEED)
    curves["labels shuffled"] = _errors(states[Probes.TRAINED][-1:], orders)
    return Probes(positions=N, curves=curves)


def probes_beyond_reach(trained: Trained) -> ProbesBeyondReach:
    """The probe of the positions that the first token cannot reach.

    Raises:
      ValueError: there are not two of them.
    """
    arch = trained.architecture
    first = context_use.reach_of_first(trained.knobs.mask, arch.layers)
    N = arch.context - first
    if N < 2:
        raise ValueError(
            f"{trained.name}: {arch.layers} layers of {trained.config['mask']} see the first of {arch.context} tokens "
            f"from {first} positions; allowed: a mask out of whose reach 2 positions lie"
        )
    splits = ((trained.corpus.train, PROBE_TRAIN), (trained.corpus.validation, PROBE_TEST))
    text = np.concatenate([_windows(trained, x, arch.context, n) for x, n in splits])
    states = _states(trained, trained.params, text)[:, :, first:]
    return ProbesBeyondReach(positions=N, curves={Probes.TRAINED: _errors(states)})


def truncated_context(trained: Trained) -> TruncatedContext:
    """Loss by position as it is trained, and with nothing behind the position to be read."""
    _refuse_masked_lm(trained)
    length = objectives.window_length(trained.architecture.context)
    windows = Windows(_sequences(trained, length, bos=False))
    key = jax.random.key(SEED, impl="threefry2x32")
    batch = training.batch_of(trained.task, trained.knobs, windows, key)
    logits, _ = _logits(trained.task, trained.params, trained.knobs, batch)
    truncated = _without_future(
        trained.architecture, trained.params, trained.knobs.model, trained.knobs.mask,
        batch.inputs, batch.targets,
    )  # fmt: skip
    whole = optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets)
    return TruncatedContext(*(np.asarray(x, np.float64).mean(axis=0) for x in (whole, truncated)))


def samples(trained: Trained) -> Samples:
    """Texts of the member, scored by 5-grams of the training text."""
    T, corpus = trained.architecture.context, trained.corpus
    real = probes.consecutive_tokens(corpus.validation, TEXTS, 1 + SAMPLED, SEED)
    drawn = windowed_sampling.texts(
        trained.task, trained.params, trained.knobs, real[:, 0], SAMPLED, SEED
    )
    scores, of_real = (_five_grams(corpus).losses(x)[:, 1:] for x in (drawn, real))
    filled = T - int(bool(trained.knobs.objective.bos))  # tokens that a window has room for
    return Samples(
        text=trained.vocabulary.decode(drawn[0]),
        score=float(scores.mean()),
        filling=float(scores[:, : filled - 1].mean()),
        full=float(scores[:, filled - 1 :].mean()),
        real=float(of_real.mean()),
    )


def reach(trained: Trained) -> Reach:
    """How far back the prediction behind a whole context depends on its tokens."""
    _refuse_masked_lm(trained)
    arch = trained.architecture
    sequences = _sequences(trained, arch.context + 1)[:GRADIENTS]
    given = (trained.params, trained.knobs.model, trained.knobs.mask, sequences)
    return Reach(np.asarray(_receptive_field(arch, *given), np.float64))


def position_share(trained: Trained) -> PositionShare:
    """How much of each head's weights position alone explains, on whole contexts of validation text."""
    arch, objective = trained.architecture, trained.knobs.objective
    if float(objective.mask_rate) > 0:
        raise ValueError(f"{trained.name}: masked_lm hides tokens; allowed: next_token, prefix_lm")
    fitting = WEIGHTS // (arch.layers * arch.heads * arch.context**2)
    tokens = _sequences(trained, arch.context)[: min(max(fitting, 2), GRADIENTS)]
    given = (trained.params, trained.knobs.model, trained.knobs.mask, tokens)
    return PositionShare(np.asarray(_position_share(arch, *given)))


KINDS: Mapping[str, Kind] = {
    "shuffled_prefix": Kind(ShuffledPrefix.FILE, shuffled_prefix),
    "loss_by_length": Kind(LossByLength.FILE, loss_by_length),
    "probes": Kind(Probes.FILE, position_probes),
    "probes_beyond_reach": Kind(ProbesBeyondReach.FILE, probes_beyond_reach),
    "truncated_context": Kind(TruncatedContext.FILE, truncated_context),
    "samples": Kind(Samples.FILE, samples),
    "reach": Kind(Reach.FILE, reach),
    "position_share": Kind(PositionShare.FILE, position_share),
    "norm_modes": Kind(NormModes.FILE, norm_modes.norm_modes),
    "update_time": Kind(UpdateTime.FILE, timing.update_time),
    "attention_time": Kind(AttentionTime.FILE, timing.attention_time),
}


_last_losses = jax.jit(context_use.last_losses, static_argnums=0)
_init = jax.jit(model.init, static_argnums=0)
_logits = jax.jit(training.logits_of, static_argnums=0)
_without_future = jax.jit(context_use.losses_without_future, static_argnums=0)
_position_share = jax.jit(
    lambda arch, params, knobs, mask, tokens_BT: attention_maps.position_share(
        attention_maps.weights(arch, params, knobs, mask, tokens_BT), mask
    ),
    static_argnums=0,
)
_receptive_field = jax.jit(context_use.receptive_field, static_argnums=0)


@functools.lru_cache(maxsize=1)
def _five_grams(corpus: Corpus) -> NGramModel:
    return NGramModel.fit(corpus.train, corpus.vocabulary.size)


def _refuse_masked_lm(trained: Trained) -> None:
    if float(trained.knobs.objective.mask_rate) > 0:
        raise ValueError(
            f"{trained.name}: masked_lm asks for hidden tokens from both sides; allowed: next_token, prefix_lm"
        )


def _kind(name: str) -> Kind:
    if name not in KINDS:
        raise ValueError(f"measurement: got {name!r}; allowed: {', '.join(KINDS)}")
    return KINDS[name]


def _sequences(trained: Trained, length: int, *, bos: bool | None = None) -> np.ndarray:
    """The windows of the validation split that all members are measured on, int32 [SEQUENCES, length] at most."""
    tokens = trained.corpus.validation
    return _windows(trained, tokens, length, min(SEQUENCES, len(tokens) - length + 1), bos=bos)


def _windows(
    trained: Trained, tokens: Tokens, length: int, count: int, *, bos: bool | None = None
) -> np.ndarray:
    """Windows at random places of a split, behind [BOS] where the member was trained so."""
    windows = probes.consecutive_tokens(tokens, count, length, SEED)
    if bool(trained.knobs.objective.bos) if bos is None else bos:
        return probes.behind_bos(windows, trained.vocabulary.bos_id)
    return windows


def _states(trained: Trained, params: model.Params, tokens_QT: np.ndarray) -> np.ndarray:
    """The residual stream of one member: float32 [L + 1, Q, T, D]."""
    member = (params, trained.knobs.model, trained.knobs.mask)
    params_1, knobs_1, mask_1 = jax.tree.map(lambda x: np.asarray(x)[None], member)
    return probes.states_of_members(trained.architecture, params_1, knobs_1, mask_1, tokens_QT)[0]


def _errors(states_LQND: np.ndarray, labels_QN: np.ndarray | None = None) -> np.ndarray:
    """Mean absolute distance by probe seed and layer, float64 [P, L], tested on sequences the probe has not seen."""
    train, test = slice(None, PROBE_TRAIN), slice(PROBE_TRAIN, None)
    labels = (None, None) if labels_QN is None else (labels_QN[train], labels_QN[test])
    return probes.position_errors(
        states_LQND[:, train], states_LQND[:, test], PROBE, seeds=PROBE_SEEDS,
        train_labels_QN=labels[0], test_labels_RN=labels[1],
    ).median_PX  # fmt: skip
