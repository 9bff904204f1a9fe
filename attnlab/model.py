"""The transformer: one block for every mask, position family, norm and place of the norm.

    x = x + Attention(norm(x));  x = x + Mlp(norm(x));  logits = head(norm(x))

That is the block before any gate is turned: pre-norm, both sublayers, the residual stream. Each of these is data
where a sweep asks for it (see `knobs.ModelKnobs`), down to a bigram model: both branches times 0.

Initialisation: every kernel is a truncated normal of variance 1/fan_in (flax `lecun_normal`), so queries and keys
have about unit variance per dimension at the start; token and position tables are normal with standard
deviation width^-1/2; gains are 1. There are no biases. The output head is not tied to the embedding.

This is the only file that knows flax. Modules are thin: parameters are plain nested dicts, `apply` is a pure
function, and intermediates are returned by name, never sown. A parameter that only some architectures have lives
in a module of its own, because flax derives a parameter's key from its module's path and its order within it:
so the same seed gives the same shared parameters whatever families are in the program.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from attnlab import norms, positions, sharding
from attnlab.attention import AttentionStats, attend
from attnlab.attention.bias import Alibi
from attnlab.attention.geometry import query_key_geometry
from attnlab.knobs import Architecture, ModelKnobs
from attnlab.kv_cache import Cache, Held
from attnlab.masks import Mask
from attnlab.recurrence import gru

Params = Mapping[str, Any]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Placement:
    """Where the tokens stand, in the forms that blocks use; made once and read by every block.

    `rotation`: RoPE's (cos, sin), float32 [1|B, T, 1, H/2] each. `bias`: ALiBi. None: not in this program.
    """

    rotation: tuple[Array, Array] | None
    bias: Alibi | None


def place(
    arch: Architecture, knobs: ModelKnobs, positions_BT: Array, cache: Cache | None = None
) -> Placement:
    """The placement of tokens at integer `positions_BT` (1 in place of B when all examples agree).

    With a cache the keys are those of its slots.
    """
    rotation, bias = None, None
    if "rope" in arch.position_families:
        frequencies = positions.rope_frequencies(arch.head_dim) * knobs.positions["rope"]
        rotation = positions.rope_rotation(positions_BT, frequencies)
    if "alibi" in arch.position_families:
        slopes_N = positions.alibi_slopes(arch.heads) * knobs.positions["alibi"]
        keys_BS = positions_BT if cache is None else positions.by_index(cache.slots)
        bias = Alibi(slopes_N, positions_BT, keys_BS)
    return Placement(rotation, bias)


def _kernel(module: nn.Module, name: str, fan_in: int, fan_out: int) -> Array:
    initializer = nn.initializers.lecun_normal()
    return sharding.whole(module.param(name, initializer, (fan_in, fan_out), jnp.float32))


def _gain(module: nn.Module, name: str, width: int) -> Array:
    return sharding.whole(module.param(name, nn.initializers.ones, (width,), jnp.float32))


def _matmul(x_BTD: Array, kernel_DF: Array, dtype: DTypeLike | None = None) -> Array:
    """x @ kernel as one [B*T, D] product: XLA's CPU back end runs a third faster than on [B, T, D].

    `dtype` of the result, by default that of x.
    """
    B, T, D = x_BTD.shape
    kernel = kernel_DF.astype(x_BTD.dtype)
    out = jnp.matmul(x_BTD.reshape(B * T, D), kernel, preferred_element_type=dtype)
    return out.reshape(B, T, -1)


def _times(x_BTD: Array, factor: Array) -> Array:
    """x times a float32 scalar, in the dtype of x."""
    return x_BTD * jnp.asarray(factor, x_BTD.dtype)


@dataclass(frozen=True)
class Norm:
    """The norm of one place: its name, its gain [D], and where the batch's statistics are noted."""

    place: str
    gain: Array
    knobs: ModelKnobs
    noted: dict[str, tuple[Array, Array]]

    def __call__(self, x_BTD: Array) -> Array:
        out_BTD = norms.normalize(x_BTD, center=self.knobs.norm_center)
        for kind, gate in sorted(self.knobs.norm.items()):
            other = x_BTD if kind == "none" else self._over_the_batch(x_BTD, kind)
            out_BTD = jnp.where(gate, other, out_BTD)
        return out_BTD * self.gain.astype(x_BTD.dtype)[None, None, :]

    def _over_the_batch(self, x_BTD: Array, kind: str) -> Array:
        place = f"{self.place}: {kind}"
        statistics = norms.batch_statistics(x_BTD, by_position=kind == "batchnorm_by_position")
        self.noted[place] = statistics
        return norms.batch_normalize(x_BTD, self.knobs.norm_statistics.get(place, statistics))


class SandwichNorm(nn.Module):
    """The gain of the second norm of a sandwich."""

    @nn.compact
    def __call__(self, width: int) -> Array:
        return _gain(self, "gain", width)


class LearnedScale(nn.Module):
    """A factor of the logits that starts at 1, learned by its logarithm: it stays positive."""

    @nn.compact
    def __call__(self, gate: Array) -> Array:
        return jnp.exp(gate * self.param("log_scale", nn.initializers.zeros, (), jnp.float32))


class QKNorm(nn.Module):
    """Normalizes queries and keys per head; the gains are shared by the heads of a layer."""

    @nn.compact
    def __call__(
        self, q_BTNH: Array, k_BTKH: Array, gates: dict[str, Array]
    ) -> tuple[Array, Array]:
        H = q_BTNH.shape[-1]
        q_gain, k_gain = _gain(self, "query_gain", H), _gain(self, "key_gain", H)
        return norms.qk_norm(q_BTNH, q_gain, gates), norms.qk_norm(k_BTKH, k_gain, gates)


class Attention(nn.Module):
    """Multi-head attention; QK-norm before RoPE, the scale applied once, inside `attend`.

    `held`: this block's part of a cache. The keys of the tokens at hand join it as they are compared, normalized and
    rotated, and the queries meet all slots. `noted`: where lengths and cosine of queries and keys go, if statistics
    are asked for.
    """

    arch: Architecture

    @nn.compact
    def __call__(
        self,
        x_BTD: Array,
        mask: Mask,
        knobs: ModelKnobs,
        placement: Placement,
        stats: bool,
        held: Held | None = None,
        noted: dict[str, Array] | None = None,
    ) -> tuple[Array, AttentionStats | None, Held | None]:
        a = self.arch
        B, T, D = x_BTD.shape
        N, K, H = a.heads, a.kv_heads, a.head_dim
        qkv = _matmul(x_BTD, _kernel(self, "qkv_kernel", D, (N + 2 * K) * H))
        q_BTNH, k_BTKH, v_BTKH = jnp.split(qkv.reshape(B, T, N + 2 * K, H), (N, N + K), axis=2)
        if a.qk_norms:
            q_BTNH, k_BTKH = QKNorm(name="qk_norm")(q_BTNH, k_BTKH, knobs.qk_norm)
        if placement.rotation is not None:
            q_BTNH = positions.rope(q_BTNH, placement.rotation)
            k_BTKH = positions.rope(k_BTKH, placement.rotation)
        scale = knobs.logit_scale
        if a.learned_scale:
            scale = scale * LearnedScale(name="scale")(knobs.learned_scale["learned"])
        k_BSKH, v_BSKH = k_BTKH, v_BTKH
        if held is not None:
            held = held.extended(k_BTKH, v_BTKH)
            k_BSKH, v_BSKH = held.keys, held.values
        out = attend(
            q_BTNH, k_BSKH, v_BSKH, mask,
            scale=scale, softcap=a.softcap, bias=placement.bias, impl=a.attention, stats=stats,
        )  # fmt: skip
        out_BTNH, attention_stats = out if isinstance(out, tuple) else (out, None)
        if attention_stats is not None and noted is not None:
            seen_BNT = attention_stats.visible_keys
            noted.update(query_key_geometry(q_BTNH, k_BSKH, mask, seen_BNT))
        out_BTD = _matmul(out_BTNH.reshape(B, T, N * H), _kernel(self, "out_kernel", N * H, D))
        return out_BTD, attention_stats, held


class Recurrence(nn.Module):
    """A GRU in the place of attention, with as many parameters in its kernels; what it is compared with."""

    recurrent_width: int

    @nn.compact
    def __call__(self, x_BTD: Array) -> Array:
        D, G = x_BTD.shape[-1], self.recurrent_width
        inputs_BT3G = _matmul(x_BTD, _kernel(self, "input_kernel", D, 3 * G))
        recurrent_G3G = _kernel(self, "recurrent_kernel", G, 3 * G)
        states_BTG = gru(inputs_BT3G, recurrent_G3G, jnp.zeros(G, x_BTD.dtype))
        return _matmul(states_BTG, _kernel(self, "out_kernel", G, D))


class Mlp(nn.Module):
    """Two matrices with a GELU (tanh form) between them."""

    mlp_width: int

    @nn.compact
    def __call__(self, x_BTD: Array) -> Array:
        D = x_BTD.shape[-1]
        hidden_BTF = nn.gelu(_matmul(x_BTD, _kernel(self, "up_kernel", D, self.mlp_width)))
        return _matmul(hidden_BTF, _kernel(self, "down_kernel", self.mlp_width, D))


class Block(nn.Module):
    """Attention and MLP; returns the stream and, by name, what else the block has to say."""

    arch: Architecture

    @nn.compact
    def __call__(
        self,
        x_BTD: Array,
        mask: Mask,
        knobs: ModelKnobs,
        placement: Placement,
        stats: bool,
        held: Held | None = None,
    ) -> tuple[Array, dict[str, Any]]:
        noted: dict[str, tuple[Array, Array]] = {}
        geometry: dict[str, Array] = {}
        mlp = Mlp(self.arch.mlp_width, name="mlp")
        read, norm = self._before("attention", x_BTD, knobs, noted)
        if self.arch.mixer == "gru":
            out_BTD, attention_stats = self._recurrence(read, held), None
        else:
            attention = Attention(self.arch, name="attention")
            out_BTD, attention_stats, held = attention(
                read, mask, knobs, placement, stats, held, geometry
            )
        x_BTD = self._after("attention", x_BTD, out_BTD, knobs.attention, knobs, norm)
        read, norm = self._before("mlp", x_BTD, knobs, noted)
        x_BTD = self._after("mlp", x_BTD, mlp(read), knobs.mlp, knobs, norm)
        return x_BTD, {
            "attention": attention_stats,
            "queries_and_keys": geometry,
            "held": held,
            "norm_statistics": noted,
        }

    def _recurrence(self, read_BTD: Array, held: Held | None) -> Array:
        if held is not None:
            raise ValueError("cache: holds keys and values, of which a GRU has none; allowed: None")
        return Recurrence(self.arch.recurrent_width, name="recurrence")(read_BTD)

    def _before(
        self, name: str, x_BTD: Array, knobs: ModelKnobs, noted: dict[str, tuple[Array, Array]]
    ) -> tuple[Array, Norm]:
        """What the sublayer reads, and its norm."""
        gain_D = _gain(self, f"{name}_norm_gain", x_BTD.shape[-1])
        norm = Norm(f"{self.name}/{name}", gain_D, knobs, noted)
        read = norm(x_BTD)
        if "post" in knobs.placement:
            read = jnp.where(knobs.placement["post"], x_BTD, read)
        return read, norm

    def _after(
        self, name: str, x_BTD: Array, out_BTD: Array, branch: Array, knobs: ModelKnobs, norm: Norm
    ) -> Array:
        """The stream with the sublayer's output in it."""
        if "sandwich" in knobs.placement:
            gain_D = SandwichNorm(name=f"{name}_sandwich")(x_BTD.shape[-1])
            second = replace(norm, place=f"{norm.place} out", gain=gain_D)
            out_BTD = jnp.where(knobs.placement["sandwich"], second(out_BTD), out_BTD)
        # A branch that is off leaves the stream alone, with or without a residual path.
        x_BTD = _times(x_BTD, 1 - branch * (1 - knobs.residual)) + _times(out_BTD, branch)
        if "post" in knobs.placement:
            after = replace(norm, place=f"{norm.place} sum")
            x_BTD = jnp.where(knobs.placement["post"], after(x_BTD), x_BTD)
        return x_BTD


def _rematerialized(remat: str) -> type[Block]:
    """The block, and what of it the backward pass computes again instead of keeping (Chen et al. 2016).

    "dots" keeps the outputs of matrix products with parameters, so that attention and elementwise work is repeated;
    "block" keeps the residual stream alone. The numbers are the same; parameters keep their names.
    """
    if remat == "none":
        return Block
    policies = jax.checkpoint_policies
    policy = policies.dots_with_no_batch_dims_saveable if remat == "dots" else None
    wrapped: Any = nn.remat(Block, policy=policy, static_argnums=(5,))  # 0 is self, 5 is stats
    return wrapped


class LearnedPositions(nn.Module):
    """A table with one row per position of the context.

    A position beyond the table is refused when it is known (JAX would clamp the index and read the last row);
    traced positions beyond it, and negative ones, give NaN, so that they cannot pass unseen.
    """

    context: int

    @nn.compact
    def __call__(self, positions_BT: Array, width: int) -> Array:
        table_TD = self.param(
            "table", nn.initializers.normal(width**-0.5), (self.context, width), jnp.float32
        )
        # "fill" would count negative positions from the end of the table.
        rows_BT = jnp.where(positions_BT < 0, self.context, positions_BT)
        return jnp.take(sharding.whole(table_TD), rows_BT, axis=0, mode="fill")


class Transformer(nn.Module):
    """Token ids int32 [B, T] -> (logits float32 [B, T, V], intermediates by name).

    With a `cache` the tokens are those that follow the ones it holds, and `mask` is [T, S]: their rows against all
    slots. Tokens beyond the last slot are refused when that is known; traced, their logits are NaN (the write itself
    would be moved back in silence).

    Intermediates: "residual", the stream [B, T, D] after the embedding and after each block; "attention", the
    statistics of each layer when asked for, and "queries_and_keys" with them; "norm_statistics", BatchNorm's of this batch by place; "cache", the cache
    with the tokens in it. What nobody reads is not computed.
    """

    arch: Architecture

    @nn.compact
    def __call__(
        self,
        tokens_BT: Array,
        mask: Mask,
        knobs: ModelKnobs,
        *,
        positions_BT: Array | None = None,
        stats: bool = False,
        cache: Cache | None = None,
    ) -> tuple[Array, dict[str, Any]]:
        a = self.arch
        if cache is not None:
            if positions_BT is not None:
                raise ValueError(
                    "positions_BT: a cache says where its next tokens stand; allowed: None"
                )
            positions_BT = cache.following(tokens_BT.shape[1])
        if positions_BT is None:
            if "learned" in a.position_families and tokens_BT.shape[1] > a.context:
                raise ValueError(
                    f"tokens: length {tokens_BT.shape[1]} exceeds the learned position table of "
                    f"{a.context} rows; allowed: at most context tokens"
                )
            positions_BT = positions.by_index(tokens_BT.shape[1])
        x_BTD = self._embed(tokens_BT, positions_BT, knobs).astype(a.activations)
        placement = place(a, knobs, positions_BT, cache)
        residual, layers = {"after embedding": x_BTD}, []
        noted: dict[str, tuple[Array, Array]] = {}
        block = _rematerialized(a.remat)
        for layer in range(a.layers):
            name = f"block_{layer:02d}"
            held = None if cache is None else cache.block(layer)
            x_BTD, notes = block(a, name=name)(x_BTD, mask, knobs, placement, stats, held)
            residual[f"after {name}"] = x_BTD
            noted.update(notes["norm_statistics"])
            layers.append(notes)
        norm = Norm("final", _gain(self, "final_norm_gain", a.width), knobs, noted)
        normed_BTD = norm(x_BTD)
        if "post" in knobs.placement:
            normed_BTD = jnp.where(knobs.placement["post"], x_BTD, normed_BTD)
        # A loss of logits rounded to bfloat16 comes in steps (optax#1020), so they leave the product as float32.
        head = _kernel(self, "head_kernel", a.width, a.vocab_size)
        logits_BTV = _matmul(normed_BTD, head, jnp.float32)
        seen = stats and a.mixer == "attention"
        aux: dict[str, Any] = {
            "residual": residual,
            "attention": [notes["attention"] for notes in layers] if seen else [],
            "queries_and_keys": [notes["queries_and_keys"] for notes in layers] if seen else [],
            "norm_statistics": noted,
            "cache": None,
        }
        if cache is not None:
            aux["cache"] = Cache.of([notes["held"] for notes in layers])
            logits_BTV = jnp.where(aux["cache"].fits(), logits_BTV, jnp.nan)
        return logits_BTV, aux

    def _embed(self, tokens_BT: Array, positions_BT: Array, knobs: ModelKnobs) -> Array:
        a = self.arch
        table_VD = self.param(
            "embedding", nn.initializers.normal(a.width**-0.5), (a.input_size, a.width), jnp.float32
        )
        x_BTD = sharding.whole(table_VD)[tokens_BT]
        if "learned" in a.position_families:
            learned = LearnedPositions(a.context, name="positions")(positions_BT, a.width)
            if a.concatenation:
                # A sum of vectors that keep to their own dimensions is their concatenation.
                dims = knobs.concatenation["learned"]
                of_token_11D = (jnp.arange(a.width) < a.width - dims)[None, None]
                x_BTD = jnp.where(of_token_11D, x_BTD, 0.0)
                learned = jnp.where(of_token_11D & (dims > 0), 0.0, learned)
            x_BTD = x_BTD + knobs.positions["learned"] * learned
        if "sinusoidal" in a.position_families:
            # Vaswani et al. scale the tokens up by sqrt(D) instead; the ratio of the two is the same.
            wave = positions.sinusoidal(positions_BT, a.width) * a.width**-0.5
            x_BTD = x_BTD + knobs.positions["sinusoidal"] * wave
        return x_BTD


def init(arch: Architecture, seed: Array, gain: Array | float = 1.0) -> Params:
    """Parameters of one member from its uint32 seed: a nested dict of float32 arrays.

    `gain` multiplies every kernel: sqrt(1/3) gives the variance of PyTorch's Linear. Both may be traced.
    """
    zero = jnp.float32(0.0)
    knobs = ModelKnobs(
        positions=dict.fromkeys(arch.position_families, zero),
        qk_norm=dict.fromkeys(arch.qk_norms, jnp.bool_(False)),
        norm_center=zero,
        logit_scale=zero,
        norm=dict.fromkeys(arch.norms, jnp.bool_(False)),
        placement=dict.fromkeys(arch.placements, jnp.bool_(False)),
        learned_scale=dict.fromkeys(arch.learned_scale, zero),
        concatenation=dict.fromkeys(arch.concatenation, jnp.int32(0)),
    )
    tokens = jnp.zeros((1, 1), jnp.int32)
    one = jnp.ones((1, 1, 1), jnp.int32)
    mask = Mask(lo=one - 1, hi=one, dense=None, kv_len=1)
    key = jax.random.key(seed, impl="threefry2x32")
    params = Transformer(arch).init(key, tokens, mask, knobs)["params"]

    def scaled(path: tuple[jax.tree_util.DictKey, ...], leaf: Array) -> Array:
        return leaf * gain if str(path[-1].key).endswith("_kernel") else leaf

    return jax.tree_util.tree_map_with_path(scaled, params)


def apply(
    arch: Architecture,
    params: Params,
    tokens_BT: Array,
    mask: Mask,
    knobs: ModelKnobs,
    *,
    positions_BT: Array | None = None,
    stats: bool = False,
    cache: Cache | None = None,
) -> tuple[Array, dict[str, Any]]:
    """Runs the network: see `Transformer`."""
    # Any, because flax types the result as if changed variables might come with it.
    network: Any = Transformer(arch)
    return network.apply(
        {"params": params}, tokens_BT, mask, knobs, positions_BT=positions_BT, stats=stats,
        cache=cache,
    )  # fmt: skip
