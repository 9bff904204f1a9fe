"""How a configuration splits: what changes shapes is static, what changes arithmetic is data.

config -> (Architecture, Budget)   static and hashable: one compiled program for each distinct pair
       -> Knobs                    a pytree of arrays: one value per member of the population
"""

import dataclasses
import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attnlab import norms, positions, sharding
from attnlab.attention.api import IMPLEMENTATIONS
from attnlab.data import tokenizing
from attnlab.masks import Mask, mask_text
from attnlab.objectives import ORDERS, Objective
from attnlab.optimizer import OptimizerKnobs

ACTIVATIONS = ("float32", "bfloat16")
PACKINGS = ("none", "documents")
REMAT = ("none", "dots", "block")
MIXERS = ("attention", "gru")
ONE: Any = np.float32(1.0)
LOGIT_SCALES = ("inv_sqrt_head_dim", "inv_head_dim", "inv_sqrt_width", "none", "uniform")
# Fields of Architecture that list what a group's members differ in, a gate each.
FAMILIES = (
    "position_families", "qk_norms", "norms", "placements", "learned_scale", "concatenation",
)  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    """Everything that fixes shapes and program structure.

    `position_families` and `qk_norms` are those that some member of the group uses; the others are not in the
    program at all.
    """

    vocab_size: int  # V: classes the model predicts
    input_size: int  # ids it can read: V and the special ones ([MASK], [BOS])
    context: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    mlp_width: int
    mixer: str = "attention"  # what tokens see each other through
    attention: str = "auto"
    activations: str = "float32"
    remat: str = "none"
    softcap: float | None = None
    position_families: tuple[str, ...] = ()
    qk_norms: tuple[str, ...] = ()
    norms: tuple[str, ...] = ()  # of `norms.GATED_NORMS`
    placements: tuple[str, ...] = ()  # of `norms.PLACEMENTS`, without "pre"
    learned_scale: tuple[str, ...] = ()  # ("learned",) or nothing
    concatenation: tuple[str, ...] = ()  # ("learned",) or nothing: of learned positions

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def recurrent_width(self) -> int:
        """G of a GRU whose kernels, 3 D G + 3 G^2 + G D, are as many numbers as attention's 4 D^2."""
        return 2 * self.width // 3


@dataclass(frozen=True)
class Budget:
    """The static side of training: sizes of a batch, of a call and of an evaluation."""

    corpus: str
    batch_size: int
    log_every: int
    eval_every: int
    eval_windows: int
    final_eval_windows: int
    accumulation: int = 1
    data_devices: int = 1  # that share one member
    sharding: str = "replicated"
    tokenizer: str = "char"
    packing: str = "none"

    @property
    def packed(self) -> bool:
        """Documents in a window do not see each other."""
        return self.packing == "documents"

    @property
    def data(self) -> tuple[str, str]:
        """Which corpus, through which tokenizer."""
        return self.corpus, self.tokenizer


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ModelKnobs:
    """Gates and scales inside the network; every leaf a scalar, one gate per family of the architecture.

    `positions`: float32, 1 on and 0 off. `qk_norm`: bool. `norm_center`: float32, 1 LayerNorm and 0 RMSNorm.
    `logit_scale`: float32, multiplies q.k, and is where a learned scale starts. `attention`, `mlp`: float32,
    multiply the output of each sublayer, and 0 leaves the stream as it is. `residual`: float32, multiplies the stream
    that the output of a sublayer is added to. `norm`, `placement`: bool. `learned_scale`: float32, 1 on, 0 off.
    `concatenation`: int32, the last so many dimensions are the positions' and the others the tokens'; 0, they are added.
    `norm_statistics`: what BatchNorm uses instead of the batch at hand, by place; empty in training.
    """

    positions: dict[str, Array]
    qk_norm: dict[str, Array]
    norm_center: Array
    logit_scale: Array
    residual: Array = ONE
    attention: Array = ONE
    mlp: Array = ONE
    norm: dict[str, Array] = dataclasses.field(default_factory=dict)
    placement: dict[str, Array] = dataclasses.field(default_factory=dict)
    learned_scale: dict[str, Array] = dataclasses.field(default_factory=dict)
    concatenation: dict[str, Array] = dataclasses.field(default_factory=dict)
    norm_statistics: dict[str, tuple[Array, Array]] = dataclasses.field(default_factory=dict)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Knobs:
    """One member's data. Stacked along a leading axis they are a population's."""

    mask: Mask
    objective: Objective
    model: ModelKnobs
    optimizer: OptimizerKnobs
    init_gain: Array  # float32, multiplies every kernel at the start
    seed_init: Array  # uint32
    seed_data: Array  # uint32


def check_keys(config: Mapping[str, Any], reference: Mapping[str, Any], prefix: str = "") -> None:
    """Refuses keys of `config` that `reference` lacks, missing ones, and values of another type.

    Raises:
      ValueError: naming the key, with the nearest known one.
    """
    for key in config:
        if key not in reference:
            near = difflib.get_close_matches(key, list(reference), n=1)
            hint = (
                f"did you mean {prefix}{near[0]}?"
                if near
                else f"allowed: {', '.join(sorted(reference))}"
            )
            raise ValueError(f"config.{prefix}{key}: unknown key; {hint}")
    for key, expected in reference.items():
        if key not in config:
            raise ValueError(f"config.{prefix}{key}: missing")
        value = config[key]
        if isinstance(expected, Mapping):
            if not isinstance(value, Mapping):
                raise ValueError(f"config.{prefix}{key}: must be a section, got {value!r}")
            check_keys(value, expected, f"{prefix}{key}.")
        elif not _same_type(value, expected):
            kind = type(expected).__name__
            raise ValueError(
                f"config.{prefix}{key}: must be {kind}, got {value!r} ({type(value).__name__})"
            )


def _same_type(value: Any, expected: Any) -> bool:
    if isinstance(expected, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is type(expected)


def check_values(config: Mapping[str, Any]) -> None:
    """Refuses impossible values, field by field, in one line that names field, value and what is allowed.

    Raises:
      ValueError: the first fault found.
    """
    flat = dict(flatten(config))
    for field in (
        "context",
        "batch_size",
        "accumulation",
        "mesh.data",
        "steps",
        "log_every",
        "model.layers",
        "model.width",
        "model.heads",
        "model.kv_heads",
        "model.mlp_ratio",
        "eval.every",
        "eval.windows",
        "eval.final_windows",
    ):
        if flat[field] < 1:
            raise ValueError(f"config.{field}: must be at least 1, got {flat[field]}")
    _check_divides(flat, "model.heads", "model.width")
    _check_divides(flat, "model.kv_heads", "model.heads")
    _check_divides(flat, "log_every", "steps")
    _check_divides(flat, "log_every", "eval.every")
    _check_divides(flat, "accumulation", "batch_size")
    _check_divides(flat, "batch_size", "eval.windows")
    _check_divides(flat, "eval.windows", "eval.final_windows")
    _check_choice("model.norm", flat["model.norm"], norms.NORMS)
    _check_choice("model.norm_placement", flat["model.norm_placement"], norms.PLACEMENTS)
    for gain in ("residual", "attention_branch", "mlp_branch", "init_gain"):
        if not 0 <= flat[f"model.{gain}"] < math.inf:
            raise ValueError(
                f"config.model.{gain}: must be finite and at least 0, got {flat[f'model.{gain}']}"
            )
    _check_softcap(flat["model.softcap"])
    _check_choice("model.qk_norm", flat["model.qk_norm"], ("none", *norms.QK_NORMS))
    _check_choice("model.activations", flat["model.activations"], ACTIVATIONS)
    _check_choice("mesh.sharding", flat["mesh.sharding"], sharding.KINDS)
    if flat["batch_size"] // flat["accumulation"] % flat["mesh.data"]:
        raise ValueError(
            f"config.mesh.data: must divide a micro-batch, got {flat['mesh.data']}; allowed: divisors of "
            f"batch_size / accumulation = {flat['batch_size'] // flat['accumulation']}"
        )
    _check_choice("model.remat", flat["model.remat"], REMAT)
    _check_choice("model.attention", flat["model.attention"], ("auto", *IMPLEMENTATIONS))
    _check_mixer(flat)
    _check_optimizer(flat)
    for field in ("seed.init", "seed.data"):
        if not 0 <= flat[field] < 2**32:
            raise ValueError(f"config.{field}: must be 0 <= seed < 2^32, got {flat[field]}")
    families = positions.parse(flat["positions"])
    head_dim = flat["model.width"] // flat["model.heads"]
    if "rope" in families and head_dim % 2:
        raise ValueError(
            f"config.model.width: rope needs an even head_dim, got {head_dim} "
            f"({flat['model.width']} / {flat['model.heads']} heads)"
        )
    if "sinusoidal" in families and flat["model.width"] % 2:
        raise ValueError(
            f"config.model.width: sinusoidal positions need an even width, got {flat['model.width']}"
        )
    _check_position_dims(flat, families)
    parse_logit_scale(flat["model.logit_scale"], head_dim=head_dim, width=flat["model.width"])
    tokenizing.check(flat["tokenizer"])
    _check_packing(flat)
    _check_objective(flat)
    _check_mask(flat)


def _check_position_dims(flat: Mapping[str, Any], families: frozenset[str]) -> None:
    dims, width = flat["model.position_dims"], flat["model.width"]
    if not 0 <= dims < width:
        raise ValueError(
            f"config.model.position_dims: got {dims}; allowed: 0 to {width - 1}, fewer than the width"
        )
    if dims and ("learned" not in families or "sinusoidal" in families):
        raise ValueError(
            f"config.model.position_dims: got {dims} with positions {flat['positions']!r}; allowed: 0, or learned "
            "positions without a sinusoid"
        )


def _check_mixer(flat: Mapping[str, Any]) -> None:
    """A GRU reads from the first token to the last, and knows neither masks nor logits."""
    _check_choice("model.mixer", flat["model.mixer"], MIXERS)
    if flat["model.mixer"] == "attention":
        return
    only = {
        "mask": ("causal",),
        "packing": ("none",),
        "positions": ("none", "learned", "sinusoidal"),
        "model.qk_norm": ("none",),
        "model.softcap": ("none",),
        "model.logit_scale": ("inv_sqrt_head_dim",),
        "model.learn_logit_scale": (False,),
        "model.kv_heads": (flat["model.heads"],),
    }
    for field, allowed in only.items():
        if flat[field] not in allowed:
            raise ValueError(
                f"config.{field}: got {flat[field]!r} with model.mixer = gru; allowed: {', '.join(map(str, allowed))}"
            )
    if flat["model.width"] % 3:
        raise ValueError(
            f"config.model.width: got {flat['model.width']} with model.mixer = gru; allowed: multiples of 3, so that a "
            "GRU two thirds as wide has as many parameters as attention"
        )


def _check_optimizer(flat: Mapping[str, Any]) -> None:
    limits = {
        "learning_rate": (0.0, math.inf, "a finite number >= 0"),
        "final_fraction": (0.0, 1.0, "between 0 and 1"),
        "weight_decay": (0.0, math.inf, "a finite number >= 0"),
        "b1": (0.0, 1.0 - 1e-9, "0 <= b1 < 1"),
        "b2": (0.0, 1.0 - 1e-9, "0 <= b2 < 1"),
        "warmup_steps": (0, math.inf, "at least 0"),
        "clip_norm": (1e-30, math.inf, "finite and > 0 (1e9 never clips)"),
    }
    for name, (low, high, allowed) in limits.items():
        value = flat[f"optimizer.{name}"]
        if not (low <= value <= high and math.isfinite(value)):
            raise ValueError(f"config.optimizer.{name}: must be {allowed}, got {value}")


def _check_mask(flat: Mapping[str, Any]) -> None:
    """One mask for all examples: windows are drawn at random, so that example b of a batch means nothing."""
    examples, heads, _ = mask_text.parse(flat["mask"], flat["context"]).lo.shape
    if examples != 1 or heads not in (1, flat["model.heads"]):
        raise ValueError(
            f"config.mask: got {flat['mask']!r}, made for {examples} examples and {heads} heads; "
            f"allowed: 1 example, and 1 or model.heads = {flat['model.heads']} heads"
        )


def _check_objective(flat: Mapping[str, Any]) -> None:
    prefix = int(Objective.parse(flat["objective"]).prefix)
    if prefix > flat["context"]:
        raise ValueError(
            f"config.objective: got {flat['objective']!r}, which leaves no target in a context of {flat['context']}; "
            f"allowed: a prefix of at most {flat['context']}"
        )
    _check_choice("order", flat["order"], ORDERS)


def _check_packing(flat: Mapping[str, Any]) -> None:
    _check_choice("packing", flat["packing"], PACKINGS)
    if flat["packing"] != "none" and flat["order"] != "natural":
        raise ValueError(
            f"config.order: got {flat['order']!r} with packing = {flat['packing']!r}, but documents in another order are "
            f"none; allowed: natural, or packing none"
        )


def _check_divides(flat: Mapping[str, Any], divisor: str, of: str) -> None:
    if flat[of] % flat[divisor]:
        raise ValueError(
            f"config.{of}: must be a multiple of {divisor}, got {flat[of]} with {divisor} = {flat[divisor]}"
        )


def _check_choice(field: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"config.{field}: got {value!r}; allowed: {', '.join(allowed)}")


def _check_softcap(text: str) -> None:
    try:
        fine = text == "none" or 0 < float(text) < math.inf
    except ValueError:
        fine = False
    if not fine:
        raise ValueError(f"config.model.softcap: got {text!r}; allowed: none, or a number > 0")


def parse_logit_scale(text: str, *, head_dim: int, width: int) -> float:
    """The number that multiplies q.k.

    Raises:
      ValueError: neither a name of `LOGIT_SCALES` nor a positive finite number.
    """
    named = {
        "inv_sqrt_head_dim": head_dim**-0.5,  # Vaswani et al. 2017
        "inv_head_dim": 1.0 / head_dim,  # muP
        "inv_sqrt_width": width**-0.5,  # the common mistake: width for head_dim
        "none": 1.0,
        "uniform": 0.0,  # every key that may be read weighs the same
    }
    try:
        value = named[text] if text in named else float(text)
        if text not in named and not 0 < value < math.inf:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"config.model.logit_scale: got {text!r}; allowed: {', '.join(LOGIT_SCALES)}, or a number > 0"
        ) from None
    return value


def architecture(config: Mapping[str, Any], *, vocab_size: int, input_size: int) -> Architecture:
    """The static part of one member, with the families that this member alone uses."""
    model = config["model"]
    return Architecture(
        vocab_size=vocab_size,
        input_size=input_size,
        context=config["context"],
        layers=model["layers"],
        width=model["width"],
        heads=model["heads"],
        kv_heads=model["kv_heads"],
        mlp_width=model["width"] * model["mlp_ratio"],
        mixer=model["mixer"],
        attention=model["attention"],
        activations=model["activations"],
        remat=model["remat"],
        position_families=tuple(sorted(positions.parse(config["positions"]))),
        softcap=None if model["softcap"] == "none" else float(model["softcap"]),
        qk_norms=() if model["qk_norm"] == "none" else (model["qk_norm"],),
        norms=(model["norm"],) if model["norm"] in norms.GATED_NORMS else (),
        placements=() if model["norm_placement"] == "pre" else (model["norm_placement"],),
        learned_scale=("learned",) if model["learn_logit_scale"] else (),
        concatenation=("learned",) if model["position_dims"] else (),
    )


def union(architectures: Sequence[Architecture]) -> Architecture:
    """The architecture of a group: the members' own, with every family that one of them uses."""
    families: dict[str, Any] = {
        name: tuple(sorted({f for a in architectures for f in getattr(a, name)}))
        for name in FAMILIES
    }
    return dataclasses.replace(architectures[0], **families)


def without_families(arch: Architecture) -> Architecture:
    """What two members must share to train in one program."""
    none: dict[str, Any] = dict.fromkeys(FAMILIES, ())
    return dataclasses.replace(arch, **none)


def budget(config: Mapping[str, Any]) -> Budget:
    """The static part of training of one member."""
    return Budget(
        corpus=config["corpus"],
        batch_size=config["batch_size"],
        log_every=config["log_every"],
        eval_every=config["eval"]["every"],
        eval_windows=config["eval"]["windows"],
        final_eval_windows=config["eval"]["final_windows"],
        accumulation=config["accumulation"],
        data_devices=config["mesh"]["data"],
        sharding=config["mesh"]["sharding"],
        tokenizer=config["tokenizer"],
        packing=config["packing"],
    )


def knobs(config: Mapping[str, Any], arch: Architecture) -> Knobs:
    """The data part of one member, with a gate for each family of the group's architecture."""
    model, optimizer = config["model"], config["optimizer"]
    families = positions.parse(config["positions"])
    scale = parse_logit_scale(model["logit_scale"], head_dim=arch.head_dim, width=arch.width)
    return Knobs(
        mask=mask_text.parse(config["mask"], config["context"]).canonical(),
        objective=Objective.parse(config["objective"]).on(bos=config["bos"], order=config["order"]),
        model=ModelKnobs(
            positions={f: jnp.float32(f in families) for f in arch.position_families},
            qk_norm={k: jnp.bool_(k == model["qk_norm"]) for k in arch.qk_norms},
            norm_center=jnp.float32(model["norm"] == "layernorm"),
            logit_scale=jnp.float32(scale),
            residual=jnp.float32(model["residual"]),
            attention=jnp.float32(model["attention_branch"]),
            mlp=jnp.float32(model["mlp_branch"]),
            norm={k: jnp.bool_(k == model["norm"]) for k in arch.norms},
            placement={k: jnp.bool_(k == model["norm_placement"]) for k in arch.placements},
            learned_scale={k: jnp.float32(model["learn_logit_scale"]) for k in arch.learned_scale},
            concatenation={k: jnp.int32(model["position_dims"]) for k in arch.concatenation},
        ),
        optimizer=OptimizerKnobs(
            learning_rate=jnp.float32(optimizer["learning_rate"]),
            warmup_steps=jnp.int32(optimizer["warmup_steps"]),
            total_steps=jnp.int32(config["steps"]),
            final_fraction=jnp.float32(optimizer["final_fraction"]),
            weight_decay=jnp.float32(optimizer["weight_decay"]),
            clip_norm=jnp.float32(optimizer["clip_norm"]),
            b1=jnp.float32(optimizer["b1"]),
            b2=jnp.float32(optimizer["b2"]),
        ),
        init_gain=jnp.float32(model["init_gain"]),
        seed_init=jnp.uint32(config["seed"]["init"]),
        seed_data=jnp.uint32(config["seed"]["data"]),
    )


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`{"model": {"width": 64}}` -> `("model.width", 64)`, in sorted order."""
    for key in sorted(config):
        value = config[key]
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def set_flat(config: dict[str, Any], key: str, value: Any) -> None:
    """`set_flat(config, "model.width", 128)` on nested dicts.

    Raises:
      ValueError: no such key, with the nearest known one.
    """
    section, leaf = _find(config, key)
    section[leaf] = value


def set_from_text(config: dict[str, Any], key: str, text: str) -> None:
    """`set_flat` with a value from a command line, read as the type that the key has.

    Raises:
      ValueError: no such key, or a text that is no such value.
    """
    section, leaf = _find(config, key)
    kind = type(section[leaf])
    try:
        section[leaf] = kind(text)
    except ValueError:
        raise ValueError(f"config.{key}: must be {kind.__name__}, got {text!r}") from None


def _find(config: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """The section that holds a key, and its name there."""
    *sections, leaf = key.split(".")
    place: Any = config
    for section in sections:
        place = place.get(section) if isinstance(place, dict) else None
    if isinstance(place, dict) and leaf in place and not isinstance(place[leaf], dict):
        return place, leaf
    known = [name for name, _ in flatten(config)]
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(known)}"
    raise ValueError(f"config.{key}: unknown key; {hint}")
