"""The network: its equations in float64, what may depend on what, and gates that are exactly off."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from attnlab import masks, model, norms, objectives, positions
from attnlab.knobs import Architecture, ModelKnobs
from attnlab.masks import mask_text

T, V = 6, 11
ARCH = Architecture(
    vocab_size=V, input_size=V + 2, context=8, layers=1, width=16, heads=2, kv_heads=2, mlp_width=32
)
TOKENS_BT = np.array([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]], np.int32)

# Every constructor of masks, alone and combined; of the dense ones one can only be dense.
MASKS = (
    "full",
    "causal",
    "causal(offset=-1)",
    "sliding_window(2)",
    "window(left=1, right=1)",
    "window(left=0, right=2)",
    "prefix_lm(3)",
    "chunked(3)",
    "block_causal(2)",
    "key_padding(lengths=[4])",
    "causal & key_padding(starts=[2])",
    "documents([0, 0, 1, 1, 1, -1])",
    "documents([0, 0, 0, 1, 1, 1], causal=False)",
    "key_mask([True, False, True, True, False, True])",
    "graph([[0, 1, 2, 5], [1, 2, 3, 0]], 6)",
    "causal | key_padding(lengths=[2])",
    "~causal",
)


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with tiny.quick_compilation():
        yield


def with_families(arch=ARCH, families=(), qk_norms=(), **changes):
    """The architecture with these families, sorted."""
    return dataclasses.replace(
        arch, position_families=tuple(sorted(families)), qk_norms=tuple(qk_norms), **changes
    )


def knobs(
    arch, families=None, qk_norm=None, center=1.0, scale=0.4, norm=None, placement="pre", **changes
):
    """Gates of the architecture's families: on where named, all positions on by default."""
    on = arch.position_families if families is None else families
    return ModelKnobs(
        positions={f: jnp.float32(f in on) for f in arch.position_families},
        qk_norm={k: jnp.bool_(k == qk_norm) for k in arch.qk_norms},
        norm_center=jnp.float32(center),
        logit_scale=jnp.float32(scale),
        norm={k: jnp.bool_(k == norm) for k in arch.norms},
        placement={k: jnp.bool_(k == placement) for k in arch.placements},
        learned_scale={k: jnp.float32(1) for k in arch.learned_scale},
        **{k: jnp.float32(v) for k, v in changes.items()},
    )


@functools.cache
def random_params(arch, seed=0):
    """Parameters without a special place: gains are not 1, and the scale of each matrix is that of `init`.

    A leaf depends on its path only, so architectures share what they have in common.
    """

    def draw(path, leaf):
        name = "/".join(key.key for key in path)
        rng = np.random.default_rng([seed, *name.encode()])
        x = rng.normal(size=leaf.shape)
        if name.endswith("gain"):
            return jnp.asarray(1 + 0.3 * x, jnp.float32)
        if name.endswith("log_scale"):
            return jnp.asarray(0.5 * x, jnp.float32)
        fan_in = leaf.shape[0] if name.endswith("kernel") else leaf.shape[1]
        return jnp.asarray(x * fan_in**-0.5, jnp.float32)

    shapes = jax.eval_shape(lambda: model.init(arch, jnp.uint32(0)))
    return jax.tree_util.tree_map_with_path(draw, shapes)


@functools.partial(jax.jit, static_argnums=0)
def forward(arch, params, tokens_BT, mask, knobs, positions_BT=None):
    return model.apply(arch, params, tokens_BT, mask, knobs, positions_BT=positions_BT)[0]


# The equations


def reference(arch, params, tokens_BT, allowed_TT, knobs):
    """The docstrings' equations in numpy float64, head by head."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    center, scale = float(knobs.norm_center), float(knobs.logit_scale)
    on = {f: float(g) for f, g in knobs.positions.items()}
    kind, norm_kind, placement = (
        next((k for k, g in gates.items() if g), None)
        for gates in (knobs.qk_norm, knobs.norm, knobs.placement)
    )
    N, K, H = arch.heads, arch.kv_heads, arch.head_dim
    T = tokens_BT.shape[1]
    position_T = np.arange(T)

    def norm(x, gain, center=center):
        x = x - center * x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * gain

    def stream_norm(x_BTD, gain):
        if norm_kind is None:
            return norm(x_BTD, gain)
        if norm_kind == "none":
            return x_BTD * gain
        axes = (0,) if norm_kind == "batchnorm_by_position" else (0, 1)
        x_BTD = x_BTD - x_BTD.mean(axes, keepdims=True)
        return x_BTD / np.sqrt((x_BTD**2).mean(axes, keepdims=True) + 1e-5) * gain

    def sublayer(x_BTD, f, gain, second_gain, branch):
        read = x_BTD if placement == "post" else stream_norm(x_BTD, gain)
        out = f(read)
        if placement == "sandwich":
            out = stream_norm(out, second_gain)
        branch, residual = float(branch), float(knobs.residual)
        x_BTD = (1 - branch) * x_BTD + branch * (residual * x_BTD + out)
        return stream_norm(x_BTD, gain) if placement == "post" else x_BTD

    def head(x_TH, gain):
        if kind == "l2":
            x_TH = x_TH / np.sqrt((x_TH**2).sum(-1, keepdims=True) + 1e-6) * gain
        elif kind is not None:
            x_TH = norm(x_TH, gain, center=float(kind == "layernorm"))
        if on.get("rope"):
            angles = position_T[:, None] * 1e4 ** (-np.arange(0, H, 2) / H)
            a, b = x_TH[:, : H // 2], x_TH[:, H // 2 :]
            c, s = np.cos(angles), np.sin(angles)
            x_TH = np.concatenate([a * c - b * s, b * c + a * s], -1)
        return x_TH

    def attention(x_TD, w):
        qkv = (x_TD @ w["qkv_kernel"]).reshape(T, N + 2 * K, H)
        gains = w.get("qk_norm", {"query_gain": 1.0, "key_gain": 1.0})
        out_TNH = np.zeros((T, N, H))
        for n in range(N):
            g = n // (N // K)
            q = head(qkv[:, n], gains["query_gain"])
            k = head(qkv[:, N + g], gains["key_gain"])
            s = scale * np.exp(w.get("scale", {"log_scale": 0.0})["log_scale"]) * q @ k.T
            if on.get("alibi"):
                slope = 2.0 ** (-8 * (n + 1) / N)
                s = s - slope * np.abs(position_T[:, None] - position_T[None, :])
            if arch.softcap is not None:
                s = arch.softcap * np.tanh(s / arch.softcap)
            e = np.where(allowed_TT, np.exp(s), 0.0)
            weights = e / np.maximum(e.sum(-1, keepdims=True), 1e-300)
            out_TNH[:, n] = weights @ qkv[:, N + K + g]
        return out_TNH.reshape(T, N * H) @ w["out_kernel"]

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    def mlp(x_BTD, w):
        return gelu(x_BTD @ w["up_kernel"]) @ w["down_kernel"]

    x = p["embedding"][tokens_BT]
    if on.get("learned"):
        x = x + p["positions"]["table"][:T]
    if on.get("sinusoidal"):
        angles = position_T[:, None] * 1e4 ** (-np.arange(0, arch.width, 2) / arch.width)
        wave = np.concatenate([np.sin(angles), np.cos(angles)], -1)
        x = x + wave * arch.width**-0.5
    for layer in range(arch.layers):
        w = p[f"block_{layer:02d}"]
        for name, f, branch in (
            ("attention", lambda x, w=w: np.stack([attention(e, w["attention"]) for e in x]), knobs.attention),
            ("mlp", lambda x, w=w: mlp(x, w["mlp"]), knobs.mlp),
        ):  # fmt: skip
            second = w.get(f"{name}_sandwich", {"gain": 1.0})["gain"]
            x = sublayer(x, f, w[f"{name}_norm_gain"], second, branch)
    x = x if placement == "post" else stream_norm(x, p["final_norm_gain"])
    return x @ p["head_kernel"]


EVERYTHING = with_families(ARCH, positions.FAMILIES, norms.QK_NORMS, layers=2, heads=4, kv_heads=2)


@pytest.mark.parametrize(
    ("mask", "families", "qk_norm", "center"),
    [
        ("full", (), None, 1.0),
        ("causal", ("learned",), None, 0.0),
        ("causal(offset=-1)", ("sinusoidal",), None, 1.0),
        ("sliding_window(3)", ("rope",), None, 1.0),
        ("causal", ("alibi",), None, 1.0),
        ("window(left=2, right=1)", ("rope", "alibi"), "rmsnorm", 0.0),
        ("prefix_lm(2)", ("rope",), "layernorm", 1.0),
        ("causal", ("learned", "sinusoidal"), "l2", 1.0),
    ],
)
def test_the_network_equals_its_equations_in_float64(mask, families, qk_norm, center):
    """One program for all of these: two layers, grouped queries, every family present and gated."""
    gates = knobs(EVERYTHING, families, qk_norm, center)
    params = random_params(EVERYTHING)
    parsed = mask_text.parse(mask, T)
    logits = forward(EVERYTHING, params, TOKENS_BT, parsed, gates)
    allowed = np.asarray(parsed.as_array())[0, 0]
    expected = reference(EVERYTHING, params, TOKENS_BT, allowed, gates)
    np.testing.assert_allclose(logits, expected, atol=2e-5)


BLOCKS = with_families(
    ARCH, norms=norms.GATED_NORMS, placements=("post", "sandwich"), learned_scale=("learned",),
    softcap=2.0, layers=2,
)  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"placement": "post"},
        {"placement": "sandwich", "center": 0.0},
        {"norm": "none"},
        {"norm": "batchnorm"},
        {"norm": "batchnorm_by_position", "placement": "post"},
        {"residual": 0.0},
        {"attention": 0.0, "mlp": 0.0},
        {"mlp": 0.0, "residual": 0.0},
        {"attention": 0.5, "mlp": 0.25, "residual": 0.7, "placement": "sandwich"},
        {"scale": 0.0},
    ],
    ids=str,
)
def test_every_kind_of_block_equals_its_equations_in_float64(change):
    """One program for all of these: norms and their places, branches, a learned scale and a cap."""
    gates, params, mask = knobs(BLOCKS, **change), random_params(BLOCKS), masks.causal(T)
    logits = forward(BLOCKS, params, TOKENS_BT, mask, gates)
    allowed = np.asarray(mask.as_array())[0, 0]
    expected = reference(BLOCKS, params, TOKENS_BT, allowed, gates)
    np.testing.assert_allclose(logits, expected, atol=2e-5)


def test_positions_beside_tokens_are_a_sum_of_tables_cut_to_their_own_dimensions():
    beside = with_families(ARCH, {"learned"}, concatenation=("learned",))
    params, mask, own = random_params(beside), masks.causal(T), 5

    def logits(dims, params=params, arch=beside):
        gates = knobs(arch)
        if arch.concatenation:
            gates = dataclasses.replace(gates, concatenation={"learned": jnp.int32(dims)})
        return forward(arch, params, TOKENS_BT, mask, gates)

    cut = {
        **params,
        "embedding": params["embedding"].at[:, -own:].set(0),
        "positions": {"table": params["positions"]["table"].at[:, :-own].set(0)},
    }
    np.testing.assert_array_equal(logits(own), logits(0, cut))
    added = with_families(ARCH, {"learned"})
    np.testing.assert_array_equal(logits(0), logits(0, arch=added))
    assert np.abs(logits(own) - logits(0)).max() > 1e-2


def test_without_branches_the_network_is_a_bigram_model():
    gates = knobs(BLOCKS, attention=0.0, mlp=0.0)
    tokens = np.array([[3, 1, 4], [5, 1, 3]], np.int32)
    logits = forward(BLOCKS, random_params(BLOCKS), tokens, masks.causal(3), gates)
    np.testing.assert_array_equal(logits[0, 1], logits[1, 1])
    np.testing.assert_array_equal(logits[0, 0], logits[1, 2])


@pytest.mark.parametrize(
    ("norm", "sees_examples", "sees_future"),
    [(None, False, False), ("batchnorm", True, True), ("batchnorm_by_position", True, False)],
)
def test_only_batchnorm_sees_other_examples_and_over_time_the_future(
    norm, sees_examples, sees_future
):
    def logits(tokens):
        gates = knobs(BLOCKS, norm=norm)
        return np.asarray(forward(BLOCKS, random_params(BLOCKS), tokens, masks.causal(T), gates))

    before, other_example, later_token = TOKENS_BT, TOKENS_BT.copy(), TOKENS_BT.copy()
    other_example[1] = (other_example[1] + 1) % V
    later_token[0, -1] += 1
    moved = logits(other_example)[0] != logits(before)[0]
    assert moved.any() == sees_examples
    moved = logits(later_token)[0, :-1] != logits(before)[0, :-1]
    assert moved.any() == sees_future


@pytest.mark.parametrize("norm", ["batchnorm", "batchnorm_by_position"])
def test_given_statistics_replace_those_of_the_batch(norm):
    """What evaluation mode of BatchNorm is: an example alone gives what it gave among those the statistics are of."""
    gates, params, mask = knobs(BLOCKS, norm=norm), random_params(BLOCKS), masks.causal(T)
    run = jax.jit(lambda tokens, gates: model.apply(BLOCKS, params, tokens, mask, gates))
    together, aux = run(TOKENS_BT, gates)
    fixed = dataclasses.replace(gates, norm_statistics=aux["norm_statistics"])
    alone, _ = run(TOKENS_BT[:1], fixed)
    np.testing.assert_allclose(alone[0], together[0], atol=1e-5)
    assert np.abs(run(TOKENS_BT[:1], gates)[0][0] - together[0]).max() > 1e-2


def test_the_learned_scale_is_trained_where_its_gate_is_on():
    params, mask = random_params(BLOCKS), masks.causal(T)

    @jax.jit
    def gradient(gate):
        gates = dataclasses.replace(knobs(BLOCKS), learned_scale={"learned": gate})
        loss = lambda p: jnp.sum(jnp.sin(model.apply(BLOCKS, p, TOKENS_BT, mask, gates)[0]))  # noqa: E731
        return jax.grad(loss)(params)["block_01"]["attention"]["scale"]["log_scale"]

    assert gradient(0.0) == 0.0
    assert abs(gradient(1.0)) > 1e-4


def test_the_gain_of_the_start_multiplies_kernels_and_nothing_else():
    plain, half = (
        jax.jit(model.init, static_argnums=0)(BLOCKS, jnp.uint32(3), g) for g in (1.0, 0.5)
    )
    for path, leaf in jax.tree_util.tree_leaves_with_path(plain):
        factor = 0.5 if path[-1].key.endswith("_kernel") else 1.0
        other = functools.reduce(lambda tree, key: tree[key.key], path, half)
        np.testing.assert_array_equal(other, factor * leaf, err_msg=str(path))


# What may depend on what

DEPENDENT = with_families(ARCH, ("learned", "rope", "alibi"))


def reachable(mask, depth):
    """[i, j]: output i can depend on input j after `depth` layers; the residual stream reaches itself."""
    hop = np.asarray(mask.as_array())[0, 0] | np.eye(mask.q_len, dtype=bool)
    return np.linalg.matrix_power(hop.astype(int), depth) > 0


@functools.partial(jax.jit, static_argnums=0)
def sensitivity(arch, params, mask):
    """[i, j]: size of the gradient of output i with respect to row j of the position table."""
    direction_V = jax.random.normal(jax.random.key(1), (V,))

    def outputs(table_TD):
        moved = {**params, "positions": {"table": table_TD}}
        logits, _ = model.apply(arch, moved, TOKENS_BT[:1], mask, knobs(arch))
        return logits[0] @ direction_V

    jacobian_TTD = jax.jacrev(outputs)(params["positions"]["table"])
    return jnp.abs(jacobian_TTD).max(-1)


@functools.partial(jax.jit, static_argnums=0)
def perturbed(arch, params, mask):
    """Logits [T + 1, T, V]: of the tokens, then of the tokens with token j changed, by one program."""
    changed = np.tile(TOKENS_BT[0], (T + 1, 1))
    changed[1:][np.eye(T, dtype=bool)] += 1

    def one(tokens_T):
        return model.apply(arch, params, tokens_T[None], mask, knobs(arch))[0][0]

    return jax.lax.map(one, changed)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("text", MASKS)
def test_gradients_flow_exactly_where_the_mask_lets_them(text, depth):
    arch = dataclasses.replace(DEPENDENT, layers=depth)
    mask = mask_text.parse(text, T)
    gradient = np.asarray(sensitivity(arch, random_params(arch), mask))[:, :T]
    expected = reachable(mask, depth)
    np.testing.assert_array_equal(gradient[~expected], 0.0)
    assert (gradient[expected] > 1e-6).all(), "a key that the mask allows has no influence"


@pytest.mark.parametrize("text", MASKS)
def test_changing_a_token_changes_exactly_the_outputs_that_can_reach_it(text):
    arch = dataclasses.replace(DEPENDENT, layers=2)
    mask = mask_text.parse(
        text, T
    ).densify()  # one program; the gradients above take masks as they are
    logits = np.asarray(perturbed(arch, random_params(arch), mask))
    changed = np.abs(logits[1:] - logits[:1]).max(-1).T  # [i, j]
    expected = reachable(mask, 2)
    np.testing.assert_array_equal(changed[~expected], 0.0)
    assert (changed[expected] > 1e-5).all()


def test_a_mask_per_head_is_obeyed_by_its_head():
    """The union of the heads' masks is what the network can reach."""
    heads = [mask_text.parse(text, T) for text in ("causal", "window(left=0, right=1)")]
    gradient = sensitivity(DEPENDENT, random_params(DEPENDENT), masks.Mask.at_heads(heads))
    expected = reachable(heads[0], 1) | reachable(heads[1], 1)
    np.testing.assert_array_equal(np.asarray(gradient)[:, :T] > 1e-6, expected)


PERMUTATION = np.array([4, 2, 0, 5, 1, 3])


@pytest.mark.parametrize(
    ("text", "families", "equivariant"),
    [
        ("full", (), True),
        ("full", ("learned",), False),
        ("full", ("rope",), False),
        ("full", ("alibi",), False),
        ("full", ("sinusoidal",), False),
        ("causal", (), False),
        ("sliding_window(2)", (), False),
    ],
)
def test_only_a_full_mask_without_positions_is_blind_to_order(text, families, equivariant):
    gates, mask = knobs(EVERYTHING, families), mask_text.parse(text, T)
    params = random_params(EVERYTHING)
    straight = np.asarray(forward(EVERYTHING, params, TOKENS_BT, mask, gates))
    shuffled = np.asarray(forward(EVERYTHING, params, TOKENS_BT[:, PERMUTATION], mask, gates))
    difference = np.abs(shuffled - straight[:, PERMUTATION]).max()
    assert difference < 1e-5 if equivariant else difference > 1e-2


@pytest.mark.parametrize("t", [1, 4])
@pytest.mark.parametrize("text", ["causal", "sliding_window(2)"])
def test_a_causal_network_gives_a_prefix_what_it_gives_the_whole(text, t):
    gates, params = knobs(EVERYTHING), random_params(EVERYTHING)
    whole = forward(EVERYTHING, params, TOKENS_BT, mask_text.parse(text, T), gates)
    prefix = forward(EVERYTHING, params, TOKENS_BT[:, :t], mask_text.parse(text, t), gates)
    np.testing.assert_allclose(prefix, whole[:, :t], atol=2e-6)


def test_a_full_mask_does_not_give_a_prefix_what_it_gives_the_whole():
    gates, params = knobs(EVERYTHING), random_params(EVERYTHING)
    whole = forward(EVERYTHING, params, TOKENS_BT, masks.full(T), gates)
    prefix = forward(EVERYTHING, params, TOKENS_BT[:, :4], masks.full(4), gates)
    assert np.abs(prefix - whole[:, :4]).max() > 1e-2


def test_examples_of_a_batch_do_not_see_each_other():
    gates, params = knobs(EVERYTHING), random_params(EVERYTHING)
    other = TOKENS_BT.copy()
    other[1] = (other[1] + 3) % V
    a = np.asarray(forward(EVERYTHING, params, TOKENS_BT, masks.full(T), gates))
    b = np.asarray(forward(EVERYTHING, params, other, masks.full(T), gates))
    np.testing.assert_array_equal(a[0], b[0])
    assert np.abs(a[1] - b[1]).max() > 1e-2


# Positions


@pytest.mark.parametrize(
    ("families", "shift_invariant"),
    [((), True), (("rope",), True), (("alibi",), True), (("learned",), False),
     (("sinusoidal",), False)],
)  # fmt: skip
def test_relative_families_ignore_a_common_shift_of_positions(families, shift_invariant):
    gates, params = knobs(EVERYTHING, families), random_params(EVERYTHING)
    at, mask = positions.by_index(T), masks.causal(T)
    here = forward(EVERYTHING, params, TOKENS_BT, mask, gates, at)
    there = forward(EVERYTHING, params, TOKENS_BT, mask, gates, at + 2)
    difference = np.abs(here - there).max()
    assert difference < 1e-5 if shift_invariant else difference > 1e-2


def test_positions_are_the_indices_unless_given():
    gates, params = knobs(EVERYTHING), random_params(EVERYTHING)
    default = forward(EVERYTHING, params, TOKENS_BT, masks.causal(T), gates)
    given = forward(EVERYTHING, params, TOKENS_BT, masks.causal(T), gates, positions.by_index(T))
    np.testing.assert_allclose(default, given, atol=1e-6)


def test_left_padding_with_its_positions_equals_no_padding():
    """Two padding tokens in front, positions [0, 0, 0, 1, 2, 3] (ndif-team/nnsight#673)."""
    gates, params = knobs(EVERYTHING), random_params(EVERYTHING)
    mask = masks.causal(T) & masks.key_padding(T, starts=2)
    at = jnp.array([[0, 0, 0, 1, 2, 3]], jnp.int32)
    padded = forward(EVERYTHING, params, TOKENS_BT, mask, gates, at)
    bare = forward(EVERYTHING, params, TOKENS_BT[:, 2:], masks.causal(T - 2), gates)
    np.testing.assert_allclose(padded[:, 2:], bare, atol=2e-6)


def test_tokens_beyond_the_learned_table_are_refused():
    with pytest.raises(ValueError, match=r"length 9 exceeds .* 8 rows.*at most context"):
        logits_shape(with_families(ARCH, ("learned",)), length=9)


def test_a_network_without_a_table_reads_beyond_its_context():
    assert logits_shape(with_families(ARCH, ("rope",)), length=9) == (1, 9, V)


def logits_shape(arch, length):
    tokens = np.zeros((1, length), np.int32)
    arguments = random_params(arch), tokens, masks.causal(length), knobs(arch)
    return jax.eval_shape(functools.partial(forward, arch), *arguments).shape


@pytest.mark.parametrize("position", [8, -1])
def test_a_traced_position_beyond_the_table_cannot_pass_unseen(position):
    arch = with_families(ARCH, ("learned",))
    at = np.array([[0, 1, 2, 3, 4, position]], np.int32)
    mask = masks.causal(T)
    logits = np.asarray(forward(arch, random_params(arch), TOKENS_BT, mask, knobs(arch), at))
    assert np.isnan(logits[:, 5]).all()


# Gates

FAMILIES_AND_KINDS = [
    *(((f,), ()) for f in positions.FAMILIES),
    *(((), (k,)) for k in norms.QK_NORMS),
]


@pytest.mark.parametrize(("families", "kinds"), FAMILIES_AND_KINDS)
def test_gated_off_equals_absent_bit_for_bit_without_jit(families, kinds):
    present, mask = with_families(ARCH, families, kinds), masks.causal(T)
    off, _ = model.apply(present, random_params(present), TOKENS_BT, mask, knobs(present, ()))
    absent, _ = model.apply(ARCH, random_params(ARCH), TOKENS_BT, mask, knobs(ARCH))
    np.testing.assert_array_equal(
        np.asarray(off).view(np.uint32), np.asarray(absent).view(np.uint32)
    )


@pytest.mark.parametrize(("families", "kinds"), [((), ()), *FAMILIES_AND_KINDS])
def test_under_jit_a_gate_turns_on_its_family_and_nothing_else(families, kinds):
    every = with_families(ARCH, positions.FAMILIES, norms.QK_NORMS)
    alone = with_families(ARCH, families, kinds)
    mask = masks.causal(T)
    gated = forward(every, random_params(every), TOKENS_BT, mask, knobs(every, families, *kinds))
    present = reference(alone, random_params(alone), TOKENS_BT, np.tri(T, dtype=bool),
                        knobs(alone, families, *kinds))  # fmt: skip
    np.testing.assert_allclose(gated, present, atol=5e-6)
    if families or kinds:
        absent = forward(every, random_params(every), TOKENS_BT, mask, knobs(every, ()))
        assert np.abs(gated - absent).max() > 1e-3, "the gate does nothing"


def test_gated_off_equals_absent_under_jit():
    every = with_families(ARCH, positions.FAMILIES, norms.QK_NORMS)
    off = forward(every, random_params(every), TOKENS_BT, masks.causal(T), knobs(every, ()))
    absent = forward(ARCH, random_params(ARCH), TOKENS_BT, masks.causal(T), knobs(ARCH))
    np.testing.assert_allclose(off, absent, atol=1e-6)


@functools.cache
def gain_gradients():
    """Of a network with every kind, as a function of the gates."""
    arch = with_families(ARCH, (), norms.QK_NORMS)

    def objective(params, gates):
        logits, _ = model.apply(arch, params, TOKENS_BT, masks.causal(T), gates)
        return jnp.sum(jnp.sin(logits))

    gradient = jax.jit(jax.grad(objective))

    def gains(qk_norm):
        grads = gradient(random_params(arch), knobs(arch, qk_norm=qk_norm))
        return jax.device_get(grads["block_00"]["attention"]["qk_norm"])

    return gains


@pytest.mark.parametrize("kind", norms.QK_NORMS)
def test_qk_norm_gains_are_trained(kind):
    """lucidrains/x-transformers#352: created, and used by nothing."""
    for name, gradient in gain_gradients()(kind).items():
        assert (np.abs(gradient) > 1e-7).all(), name


def test_qk_norm_gains_get_no_gradient_when_it_is_off():
    for name, gradient in gain_gradients()(None).items():
        np.testing.assert_array_equal(gradient, 0.0, err_msg=name)


# Scale, statistics, dtypes


def test_statistics_come_by_layer_and_the_scale_is_applied_once():
    arch = dataclasses.replace(ARCH, layers=2)

    @jax.jit
    def max_logits(scale):
        gates = dataclasses.replace(knobs(arch), logit_scale=scale)
        _, aux = model.apply(
            arch, random_params(arch), TOKENS_BT, masks.causal(T), gates, stats=True
        )
        assert len(aux["attention"]) == 2
        return aux["attention"][0].max_logit

    # The first layer's queries and keys do not depend on the scale.
    once = max_logits(jnp.float32(0.25))
    assert once.shape == (2, 2, T)
    np.testing.assert_allclose(max_logits(jnp.float32(0.5)), 2 * once, rtol=1e-6)
    silent = jax.eval_shape(
        lambda p: model.apply(arch, p, TOKENS_BT, masks.causal(T), knobs(arch))[1],
        random_params(arch),
    )
    assert silent["attention"] == []
    assert {name: x.shape for name, x in silent["residual"].items()} == dict.fromkeys(
        ["after embedding", "after block_00", "after block_01"], (2, T, 16)
    )


def test_bfloat16_activations_give_float32_logits():
    arch = with_families(ARCH, ("rope",), activations="bfloat16")
    params = random_params(arch)
    logits = forward(arch, params, TOKENS_BT, masks.causal(T), knobs(arch))
    assert logits.dtype == jnp.float32
    rounded = logits.astype(jnp.bfloat16).astype(jnp.float32)
    assert np.mean(logits == rounded) < 0.2, "logits were rounded to bfloat16 on their way"
    exact = reference(arch, params, TOKENS_BT, np.tri(T, dtype=bool), knobs(arch))
    np.testing.assert_allclose(logits, exact, atol=0.15)


def test_gradients_of_bfloat16_activations_are_float32():
    arch = with_families(EVERYTHING, positions.FAMILIES, norms.QK_NORMS, activations="bfloat16")

    def objective(params):
        logits, _ = model.apply(arch, params, TOKENS_BT, masks.causal(T), knobs(arch))
        return logits.sum()

    grads = jax.eval_shape(jax.grad(objective), random_params(arch))
    assert {leaf.dtype for leaf in jax.tree.leaves(grads)} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize(
    "arch",
    [
        ARCH,
        EVERYTHING,
        with_families(ARCH, ("learned",), width=32, heads=8, kv_heads=1),
        with_families(ARCH, ("alibi",), heads=4, kv_heads=4, layers=3),
        with_families(ARCH, ("rope",), ("rmsnorm",), activations="bfloat16", attention="dense"),
    ],
    ids=lambda a: f"{a.layers}x{a.width} {a.heads}/{a.kv_heads} {a.position_families}",
)
def test_shapes_and_dtypes_of_an_architecture(arch):
    def run(tokens):
        return model.apply(
            arch, model.init(arch, jnp.uint32(0)), tokens, masks.causal(T), knobs(arch), stats=True
        )

    logits, aux = jax.eval_shape(run, jax.ShapeDtypeStruct((3, T), jnp.int32))
    assert (logits.shape, logits.dtype) == ((3, T, V), jnp.float32)
    assert len(aux["attention"]) == arch.layers
    assert aux["attention"][0].max_logit.shape == (3, arch.heads, T)


# Parameters


def test_parameter_names_and_shapes_are_frozen():
    """A checkpoint is found by these names. If you mean to change them, say so in the release notes."""
    shapes = jax.eval_shape(lambda: model.init(EVERYTHING, jnp.uint32(0)))
    found = {
        "/".join(key.key for key in path): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)
    }
    block = {
        "attention/qkv_kernel": (16, 32),
        "attention/out_kernel": (16, 16),
        "attention/qk_norm/query_gain": (4,),
        "attention/qk_norm/key_gain": (4,),
        "attention_norm_gain": (16,),
        "mlp/up_kernel": (16, 32),
        "mlp/down_kernel": (32, 16),
        "mlp_norm_gain": (16,),
    }
    assert found == {
        "embedding": (13, 16),
        "positions/table": (8, 16),
        "final_norm_gain": (16,),
        "head_kernel": (16, 11),
        **{f"block_{i:02d}/{name}": shape for i in (0, 1) for name, shape in block.items()},
    }
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(shapes))


@functools.cache
def initial_params(arch, seed=0):
    return jax.device_get(jitted_init(arch, np.uint32(seed)))


jitted_init = jax.jit(model.init, static_argnums=0)
TWO_LAYERS = dataclasses.replace(ARCH, layers=2)
ALL_FAMILIES = with_families(TWO_LAYERS, positions.FAMILIES, norms.QK_NORMS)


def initial(arch, seed=0):
    """{name: leaf}"""
    return {
        "/".join(key.key for key in path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(initial_params(arch, seed))
    }


def test_a_seed_gives_the_same_shared_parameters_whatever_families_are_there():
    alone, among = initial(TWO_LAYERS), initial(ALL_FAMILIES)
    extra = {"positions/table"} | {
        f"block_{i:02d}/attention/qk_norm/{which}_gain"
        for i in (0, 1)
        for which in ("query", "key")
    }
    assert set(among) - set(alone) == extra
    for name, leaf in alone.items():
        np.testing.assert_array_equal(leaf, among[name], err_msg=name)


def test_seeds_and_places_draw_different_parameters():
    drawn = [
        leaf.ravel()[:8].tobytes()
        for seed in (0, 1)
        for name, leaf in initial(ALL_FAMILIES, seed).items()
        if not name.endswith("gain")
    ]
    assert len(set(drawn)) == len(drawn) == 2 * (3 + 2 * 4)


def test_initial_scales_are_those_of_the_docstring():
    for name, leaf in initial(ALL_FAMILIES).items():
        if name.endswith("gain"):
            np.testing.assert_array_equal(leaf, 1.0, err_msg=name)
        else:
            fan_in = leaf.shape[0] if name.endswith("kernel") else leaf.shape[1]
            # A standard deviation from n draws has a standard error of about std / sqrt(2 n).
            tolerance = 4 / np.sqrt(2 * leaf.size)
            assert leaf.std() * fan_in**0.5 == pytest.approx(1.0, abs=tolerance), name


@pytest.mark.parametrize("seed", [0, 1])
def test_the_loss_starts_half_a_nat_above_ln_v(seed):
    """Logits of unit variance: E ln sum exp exceeds ln V by 1/2. Far more means a wrong scale somewhere."""
    tokens = np.random.default_rng(0).integers(0, V, (64, 8)).astype(np.int32)
    params, mask = initial_params(TWO_LAYERS, seed), masks.causal(8)
    logits = forward(TWO_LAYERS, params, tokens, mask, knobs(TWO_LAYERS, scale=8**-0.5))
    shuffled = np.random.default_rng(1).permutation(tokens.ravel()).reshape(tokens.shape)
    batch = objectives.Batch(tokens, shuffled, jnp.ones((64, 8)), mask)
    total, count = objectives.loss(logits, batch)
    assert float(total / count) == pytest.approx(np.log(V) + 0.5, abs=0.25)
