"""How a configuration splits into static and data, and the bad values refused before anything compiles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from attnlab import knobs as knobs_lib
from attnlab.knobs import Architecture, Budget


def split(config):
    arch = knobs_lib.architecture(config, vocab_size=17, input_size=19)
    return arch, knobs_lib.budget(config), knobs_lib.knobs(config, arch)


DATA = [
    {"mask": "full"},
    {"mask": "sliding_window(3)"},
    {"mask": "key_padding(lengths=[5])"},
    {"objective": "masked_lm"},
    {"steps": 12},
    {"model.norm": "rmsnorm"},
    {"objective": "prefix_lm(3)"},
    {"bos": True},
    {"order": "shuffled"},
    {"model.residual": 0.0},
    {"model.attention_branch": 0.0},
    {"model.mlp_branch": 0.5},
    {"model.init_gain": 0.577},
    {"model.logit_scale": "uniform"},
    {"model.logit_scale": "none"},
    {"model.logit_scale": "0.37"},
    {"optimizer.learning_rate": 1.0},
    {"optimizer.warmup_steps": 0},
    {"optimizer.final_fraction": 0.0},
    {"optimizer.weight_decay": 0.0},
    {"optimizer.clip_norm": 1e9},
    {"optimizer.b1": 0.0},
    {"optimizer.b2": 0.5},
    {"seed.init": 7},
    {"seed.data": 2**32 - 1},
]
FAMILIES = [
    {"positions": "none"},
    {"positions": "rope+alibi"},
    {"model.qk_norm": "l2"},
    {"model.norm": "batchnorm"},
    {"model.norm_placement": "post"},
    {"model.learn_logit_scale": True},
    {"model.position_dims": 4},
]
STATIC = [
    {"context": 4},
    {"tokenizer": "bytes"},
    {"packing": "documents"},
    {"batch_size": 8},
    {"accumulation": 2},
    {"mesh.data": 2},
    {"mesh.sharding": "fsdp"},
    {"model.layers": 2},
    {"model.width": 32},
    {"model.heads": 1, "model.kv_heads": 1},
    {"model.kv_heads": 1},
    {"model.mlp_ratio": 2},
    {"model.mixer": "gru", "model.width": 12},
    {"model.attention": "dense"},
    {"model.softcap": "30"},
    {"model.activations": "bfloat16"},
    {"model.remat": "block"},
    {"log_every": 2},
    {"eval.every": 8},
    {"eval.windows": 16},
    {"eval.final_windows": 32},
]


def name(change):
    return " ".join(f"{k}={v}" for k, v in change.items())


@pytest.mark.parametrize("change", DATA, ids=name)
def test_a_data_knob_changes_leaves_only(change):
    arch, budget, knobs = split(tiny.config())
    other_arch, other_budget, other_knobs = split(tiny.config(change))
    assert (arch, budget) == (other_arch, other_budget)
    assert jax.tree.structure(knobs) == jax.tree.structure(other_knobs)
    pairs = list(zip(jax.tree.leaves(knobs), jax.tree.leaves(other_knobs), strict=True))
    assert all((a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type) for a, b in pairs)
    assert any((np.asarray(a) != np.asarray(b)).any() for a, b in pairs), "the knob has no reader"


@pytest.mark.parametrize("change", STATIC, ids=name)
def test_a_static_knob_changes_the_program(change):
    arch, budget, _ = split(tiny.config())
    assert (arch, budget) != split(tiny.config(change))[:2]


@pytest.mark.parametrize("change", FAMILIES, ids=name)
def test_members_with_other_families_still_share_a_program(change):
    """Families differ in structure, but the union of both architectures holds both members."""
    configs = [tiny.config(), tiny.config(change)]
    archs = [split(c)[0] for c in configs]
    assert archs[0] != archs[1]
    assert knobs_lib.without_families(archs[0]) == knobs_lib.without_families(archs[1])
    both = knobs_lib.union(archs)
    structures = {jax.tree.structure(knobs_lib.knobs(c, both)) for c in configs}
    assert len(structures) == 1


def test_every_knob_of_the_base_configuration_is_classified():
    """A new knob has to be listed above, so that it cannot be read by nobody."""
    flat = {key for key, _ in knobs_lib.flatten(tiny.BASE)}
    listed = {key for change in DATA + STATIC + FAMILIES for key in change}
    assert flat - listed == {"arm", "corpus"}
    assert listed <= flat


def test_gates_of_the_families_a_member_does_not_use_are_zero():
    archs = [split(tiny.config(positions=p))[0] for p in ("none", "alibi", "learned+rope")]
    both = knobs_lib.union([*archs, split(tiny.config({"model.qk_norm": "l2"}))[0]])
    assert both.position_families == ("alibi", "learned", "rope")
    assert both.qk_norms == ("l2",)
    made = knobs_lib.knobs(tiny.config(positions="rope"), both).model
    assert {k: float(v) for k, v in made.positions.items()} == {
        "alibi": 0.0, "learned": 0.0, "rope": 1.0,
    }  # fmt: skip
    assert {k: bool(v) for k, v in made.qk_norm.items()} == {"l2": False}


def test_static_parts_are_hashable_and_equal_by_value():
    assert len({split(tiny.config())[:2] for _ in range(2)}) == 1
    assert isinstance(hash(split(tiny.config())[0]), int)


def test_architecture_and_budget_hold_the_numbers_of_the_config():
    arch, budget, _ = split(tiny.config({"model.mlp_ratio": 3}, positions="rope+learned"))
    assert arch == Architecture(
        vocab_size=17, input_size=19, context=8, layers=1, width=16, heads=2, kv_heads=2,
        mlp_width=48, attention="auto", activations="float32",
        position_families=("learned", "rope"), qk_norms=(),
    )  # fmt: skip
    assert arch.head_dim == 8
    assert budget == Budget(
        corpus="random:17", batch_size=4, log_every=4, eval_every=4, eval_windows=8,
        final_eval_windows=16, accumulation=1, data_devices=1, sharding="replicated",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("inv_sqrt_head_dim", 1 / 4),  # by head_dim 16, not by width 64: that would be 1/8
        ("inv_head_dim", 1 / 16),
        ("inv_sqrt_width", 1 / 8),
        ("none", 1.0),
        ("0.25", 0.25),
        ("1e-3", 1e-3),
    ],
)
def test_logit_scales_multiply_and_are_numbers(text, value):
    assert knobs_lib.parse_logit_scale(text, head_dim=16, width=64) == pytest.approx(value)


def test_mup_scale_at_head_dim_64():
    assert knobs_lib.parse_logit_scale("inv_head_dim", head_dim=64, width=256) == 1 / 64


BAD = [
    ({"model.position_dims": 16}, ("config.model.position_dims", "got 16", "allowed: 0 to 15")),
    (
        {"model.position_dims": 4, "positions": "rope"},
        ("config.model.position_dims", "got 4 with positions 'rope'", "allowed: 0, or learned"),
    ),
    (
        {"model.position_dims": 4, "positions": "learned+sinusoidal"},
        ("config.model.position_dims", "'learned+sinusoidal'", "without a sinusoid"),
    ),
    # change, pieces of the message: field, value, what is allowed
    ({"context": 0}, ("config.context", "at least 1", "got 0")),
    ({"batch_size": -1}, ("config.batch_size", "at least 1", "got -1")),
    ({"accumulation": 0}, ("config.accumulation", "at least 1", "got 0")),
    (
        {"accumulation": 3},
        ("config.batch_size", "multiple of accumulation", "got 4 with accumulation = 3"),
    ),
    ({"steps": 0}, ("config.steps", "at least 1", "got 0")),
    ({"log_every": 0}, ("config.log_every", "at least 1", "got 0")),
    ({"eval.every": 0}, ("config.eval.every", "at least 1", "got 0")),
    ({"eval.windows": 0}, ("config.eval.windows", "at least 1", "got 0")),
    ({"eval.final_windows": 0}, ("config.eval.final_windows", "at least 1", "got 0")),
    ({"model.layers": 0}, ("config.model.layers", "at least 1", "got 0")),
    ({"model.width": 0}, ("config.model.width", "at least 1", "got 0")),
    ({"model.heads": 0}, ("config.model.heads", "at least 1", "got 0")),
    ({"model.kv_heads": 0}, ("config.model.kv_heads", "at least 1", "got 0")),
    ({"model.mlp_ratio": 0}, ("config.model.mlp_ratio", "at least 1", "got 0")),
    (
        {"model.width": 16, "model.heads": 3, "model.kv_heads": 3},
        ("config.model.width", "multiple of model.heads", "got 16 with model.heads = 3"),
    ),
    (
        {"model.heads": 4, "model.kv_heads": 3},
        ("config.model.heads", "multiple of model.kv_heads", "got 4 with model.kv_heads = 3"),
    ),
    ({"steps": 9}, ("config.steps", "multiple of log_every", "got 9 with log_every = 4")),
    ({"eval.every": 6}, ("config.eval.every", "multiple of log_every", "got 6")),
    ({"eval.windows": 6}, ("config.eval.windows", "multiple of batch_size", "got 6")),
    ({"eval.final_windows": 12}, ("config.eval.final_windows", "multiple of eval.windows")),
    ({"model.norm": "groupnorm"}, ("config.model.norm", "'groupnorm'", "layernorm, rmsnorm")),
    ({"model.qk_norm": "on"}, ("config.model.qk_norm", "'on'", "none, l2, layernorm, rmsnorm")),
    ({"model.activations": "f32"}, ("config.model.activations", "'f32'", "float32, bfloat16")),
    ({"mesh.data": 0}, ("config.mesh.data", "at least 1", "got 0")),
    ({"mesh.data": 3}, ("config.mesh.data", "divide a micro-batch", "got 3", "accumulation = 4")),
    (
        {"mesh.data": 4, "accumulation": 2},
        ("config.mesh.data", "divide a micro-batch", "got 4", "accumulation = 2"),
    ),
    ({"mesh.sharding": "zero"}, ("config.mesh.sharding", "'zero'", "replicated, fsdp")),
    ({"model.remat": "full"}, ("config.model.remat", "'full'", "none, dots, block")),
    ({"model.attention": "flash"}, ("config.model.attention", "'flash'", "auto, dense")),
    ({"model.logit_scale": "sqrt"}, ("config.model.logit_scale", "'sqrt'", "inv_sqrt_head_dim")),
    ({"model.logit_scale": "0"}, ("config.model.logit_scale", "'0'", "a number > 0")),
    ({"model.logit_scale": "nan"}, ("config.model.logit_scale", "'nan'", "a number > 0")),
    ({"model.logit_scale": "inf"}, ("config.model.logit_scale", "'inf'", "a number > 0")),
    ({"optimizer.learning_rate": -1.0}, ("config.optimizer.learning_rate", ">= 0", "got -1.0")),
    ({"optimizer.learning_rate": float("nan")}, ("config.optimizer.learning_rate", "got nan")),
    ({"optimizer.learning_rate": float("inf")}, ("config.optimizer.learning_rate", "got inf")),
    ({"optimizer.weight_decay": -0.1}, ("config.optimizer.weight_decay", ">= 0", "got -0.1")),
    ({"optimizer.final_fraction": 1.5}, ("config.optimizer.final_fraction", "between 0 and 1")),
    ({"optimizer.b1": 1.0}, ("config.optimizer.b1", "0 <= b1 < 1", "got 1.0")),
    ({"optimizer.b2": -0.1}, ("config.optimizer.b2", "0 <= b2 < 1", "got -0.1")),
    ({"optimizer.warmup_steps": -1}, ("config.optimizer.warmup_steps", "at least 0", "got -1")),
    ({"optimizer.clip_norm": 0.0}, ("config.optimizer.clip_norm", "> 0", "got 0.0")),
    ({"optimizer.clip_norm": float("inf")}, ("config.optimizer.clip_norm", "finite", "got inf")),
    ({"optimizer.clip_norm": float("nan")}, ("config.optimizer.clip_norm", "> 0", "got nan")),
    ({"seed.init": -1}, ("config.seed.init", "0 <= seed < 2^32", "got -1")),
    ({"seed.data": 2**32}, ("config.seed.data", "0 <= seed < 2^32", "got 4294967296")),
    ({"positions": "rotary"}, ("positions", "'rotary'", "none, alibi, learned, rope, sinusoidal")),
    (
        {"positions": "rope", "model.width": 6, "model.heads": 2},
        ("config.model.width", "rope needs an even head_dim", "got 3", "6 / 2 heads"),
    ),
    (
        {"positions": "sinusoidal", "model.width": 15, "model.heads": 1, "model.kv_heads": 1},
        ("config.model.width", "sinusoidal positions need an even width", "got 15"),
    ),
    ({"objective": "next_token(7)"}, ("objective", "0..2", "got 7")),
    ({"objective": "prefix_lm(9)"}, ("objective", "prefix_lm(9)", "at most 8")),
    ({"order": "random"}, ("config.order", "'random'", "natural, shuffled, constant")),
    ({"objective": "mlm"}, ("objective", "'mlm'", "next_token", "masked_lm(rate)")),
    (
        {"model.norm_placement": "mid"},
        ("config.model.norm_placement", "'mid'", "pre, post, sandwich"),
    ),
    ({"model.residual": -1.0}, ("config.model.residual", "at least 0", "got -1.0")),
    ({"model.init_gain": float("nan")}, ("config.model.init_gain", "finite", "got nan")),
    ({"model.softcap": "0"}, ("config.model.softcap", "'0'", "none, or a number > 0")),
    ({"model.softcap": "cap"}, ("config.model.softcap", "'cap'", "none, or a number > 0")),
    ({"model.logit_scale": "0"}, ("config.model.logit_scale", "'0'", "uniform", "a number > 0")),
    ({"mask": "sliding_window(0)"}, ("mask", "sliding_window(0)", "at least 1")),
    ({"mask": "prefix_lm(9)"}, ("mask", "prefix_lm(9)", "8")),
    ({"mask": "casual"}, ("mask", "'casual'", "did you mean 'causal'")),
    # Windows are drawn at random: nothing makes the first example of a mask the first of a batch.
    (
        {"mask": "causal & key_padding(lengths=[8, 4])"},
        ("config.mask", "lengths=[8, 4]", "2 examples", "allowed: 1 example"),
    ),
    ({"mask": "sliding_window([2, 3])"}, ("config.mask", "2 examples", "allowed: 1 example")),
    ({"mask": "sliding_window([[1, 2, 3]])"}, ("config.mask", "3 heads", "1 or model.heads = 2")),
]


@pytest.mark.parametrize(("change", "pieces"), BAD, ids=[name(change) for change, _ in BAD])
def test_a_bad_value_is_refused_by_field_value_and_what_is_allowed(change, pieces):
    with pytest.raises(ValueError, match=r"^\S") as error:
        knobs_lib.check_values(tiny.config(change))
    for piece in pieces:
        assert piece in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("change", DATA + STATIC + FAMILIES, ids=name)
def test_good_values_pass(change):
    knobs_lib.check_keys(tiny.config(change), tiny.BASE)
    knobs_lib.check_values(tiny.config(change))


def without(key):
    config = tiny.config()
    *sections, leaf = key.split(".")
    section = config
    for part in sections:
        section = section[part]
    del section[leaf]
    return config


@pytest.mark.parametrize(
    ("config", "pieces"),
    [
        (tiny.config(maks="full"), ("config.maks", "unknown key", "did you mean mask?")),
        (
            tiny.config({"optimizer.learning_rat": 1.0}),
            ("config.optimizer.learning_rat", "did you mean optimizer.learning_rate?"),
        ),
        (
            tiny.config(zzz=1),
            ("config.zzz", "unknown key", "allowed: accumulation, arm, batch_size"),
        ),
        (without("mask"), ("config.mask", "missing")),
        (without("model.width"), ("config.model.width", "missing")),
        (without("model"), ("config.model", "missing")),
        (tiny.config(model=3), ("config.model", "must be a section", "got 3")),
        (tiny.config(steps="8"), ("config.steps", "must be int", "got '8' (str)")),
        (tiny.config(steps=8.0), ("config.steps", "must be int", "got 8.0 (float)")),
        (tiny.config(steps=True), ("config.steps", "must be int", "got True (bool)")),
        (tiny.config(mask=None), ("config.mask", "must be str", "got None (NoneType)")),
        (
            tiny.config({"optimizer.weight_decay": True}),
            ("config.optimizer.weight_decay", "must be float", "got True (bool)"),
        ),
        (
            tiny.config({"optimizer.weight_decay": "0"}),
            ("config.optimizer.weight_decay", "must be float", "got '0' (str)"),
        ),
    ],
)
def test_a_config_of_another_form_is_refused(config, pieces):
    with pytest.raises(ValueError, match=r"^config\.") as error:
        knobs_lib.check_keys(config, tiny.BASE)
    for piece in pieces:
        assert piece in str(error.value)


def test_a_whole_number_may_stand_for_a_float():
    knobs_lib.check_keys(tiny.config({"optimizer.weight_decay": 0}), tiny.BASE)


def test_flatten_gives_dotted_keys_in_sorted_order():
    nested = {"b": {"d": 1, "c": {"e": 2}}, "a": 3}
    assert list(knobs_lib.flatten(nested)) == [("a", 3), ("b.c.e", 2), ("b.d", 1)]


def test_set_flat_sets_one_leaf():
    config = tiny.config()
    knobs_lib.set_flat(config, "model.width", 32)
    assert config == tiny.config({"model.width": 32})


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("model.widht", r"config\.model\.widht: unknown key; did you mean model\.width\?"),
        ("mask.width", r"config\.mask\.width: unknown key"),
        ("zzz", r"config\.zzz: unknown key; allowed: accumulation, arm, batch_size"),
    ],
)
def test_set_flat_refuses_a_key_that_does_not_exist(key, message):
    config = tiny.config()
    with pytest.raises(ValueError, match=message):
        knobs_lib.set_flat(config, key, 1)
    assert config == tiny.config()


def test_seeds_use_all_of_uint32():
    made = split(tiny.config({"seed.data": 2**32 - 1}))[2]
    assert made.seed_data.dtype == jnp.uint32
    assert int(made.seed_data) == 2**32 - 1
