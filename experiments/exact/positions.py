"""What a mask tells about order when nothing else does: networks without position embeddings."""

import jax
import jax.numpy as jnp
import numpy as np

from attnlab import masks, model
from attnlab.checks import Check, Finding, Table, at_least, equal
from experiments.exact import lab

T = lab.LENGTH


def encoder_is_permutation_equivariant(seed: int) -> Finding:
    """With a full mask and no positions, shuffled tokens give shuffled outputs at any depth: f(Px) = P f(x)."""
    rng = lab.generator(seed)
    params, tokens, p = (
        lab.random_params(lab.NETWORK, rng),
        lab.distinct_tokens(rng),
        lab.derangement(rng, T),
    )

    def of_both(mask: masks.Mask, **how: object) -> tuple[np.ndarray, np.ndarray]:
        plain, shuffled = lab.logits(params, np.stack([tokens, tokens[p]]), mask, **how)
        return shuffled, plain[p]

    full = masks.full(T)
    return Finding(
        (
            *(
                lab.same(f"max |f(Px) - P f(x)|, {lab.layers(d)}", *of_both(full, depth=d))
                for d in lab.DEPTHS
            ),
            lab.differs(
                "the same under a causal mask, 1 layer", *of_both(masks.causal(T), depth=1)
            ),
            lab.differs("the same with learned positions", *of_both(full, positions=["learned"])),
            lab.differs("the same with rotary positions", *of_both(full, positions=["rope"])),
        )
    )


def shuffling_the_mask_too_changes_nothing(seed: int) -> Finding:
    """Attention commutes with a shuffle of tokens and mask together: attend(Px, P M P') = P attend(x, M)."""
    rng = lab.generator(seed)
    q, k, v = lab.qkv(rng)
    p = lab.derangement(rng, T)
    edges = rng.integers(0, T, (2, 4 * T))
    measurements = []
    for name, mask in {
        "causal": masks.causal(T),
        "sliding window": masks.sliding_window(T, 3),
        "prefix-LM": masks.prefix_lm(T, 5),
        "random graph": lab.graph_mask(edges),
    }.items():
        plain = lab.attention(q, k, v, mask)[:, p]
        allowed = np.asarray(mask.as_array())[0, 0]
        shuffled_mask = masks.dense(allowed[np.ix_(p, p)])
        together = lab.attention(q[:, p], k[:, p], v[:, p], shuffled_mask)
        alone = lab.attention(q[:, p], k[:, p], v[:, p], mask)
        measurements += [
            lab.same(f"{name}: tokens and mask shuffled", together, plain),
            lab.differs(f"{name}: tokens alone shuffled", alone, plain),
        ]
    return Finding(tuple(measurements))


def counting_predecessors_is_no_signal(seed: int) -> Finding:
    """A causal stack without positions gives all positions of a constant sequence one output: the number of
    predecessors is normalised away.

    One token that differs, such as [BOS], is enough to count: its weight, 1 / (1 + i exp c), falls with i.
    """
    rng = lab.generator(seed)
    params = lab.random_params(lab.NETWORK, rng)
    constant = np.full(T, rng.integers(0, lab.VOCAB))
    with_bos = np.concatenate([[lab.BOS], constant[1:]])
    plain, bos = lab.logits(params, np.stack([constant, with_bos]), masks.causal(T))
    q, k = (
        lab.normal(rng, 1, 1, lab.HEADS, lab.HEAD_DIM),
        lab.normal(rng, 1, 2, lab.KV_HEADS, lab.HEAD_DIM),
    )
    keys = np.concatenate([k[:, :1], np.repeat(k[:, 1:], T - 1, axis=1)], axis=1)
    bos_weight_TN = lab.weights(np.repeat(q, T, axis=1), keys, masks.causal(T))[0, :, :, 0]
    excess_N1 = np.diff(lab.scores(q, k)[0, :, 0], axis=-1)
    law_TN = 1 / (1 + np.arange(T)[:, None] * np.exp(excess_N1.T))
    rises = np.sum(np.diff(bos_weight_TN, axis=0) >= 0)
    return Finding(
        (
            lab.same(
                "constant sequence: spread over positions, 4 layers",
                plain,
                np.tile(plain[:1], (T, 1)),
            ),
            lab.differs(
                "after a [BOS]: spread over the other positions",
                bos[1:],
                np.tile(bos[1:2], (T - 1, 1)),
            ),
            equal("positions at which the weight on [BOS] does not fall", rises, 0),
            lab.same("weight on [BOS] - 1 / (1 + i exp c)", bos_weight_TN, law_TN),
        )
    )


def one_layer_is_blind_to_the_order_of_predecessors(seed: int) -> Finding:
    """One causal layer without positions cannot tell "dogs" from "gods" at the last letter; two layers can."""
    rng = lab.generator(seed)
    params = lab.random_params(lab.NETWORK, rng)
    d, o, g, s, *rest = lab.distinct_tokens(rng)
    words = np.array([[d, o, g, s, *rest], [g, o, d, s, *rest]])
    last = {
        depth: lab.logits(params, words, masks.causal(T), depth=depth)[:, 3] for depth in lab.DEPTHS
    }
    return Finding(
        (
            lab.same("dogs against gods at s, 1 layer", *last[1]),
            lab.differs("dogs against gods at s, 2 layers", *last[2]),
            lab.differs("dogs against gods at s, 4 layers", *last[4]),
        )
    )


def causal_mask_tells_abc_from_cba(seed: int) -> Finding:
    """Already one causal layer without positions tells "abc" from "cba"; under a full mask no depth does."""
    rng = lab.generator(seed)
    params = lab.random_params(lab.NETWORK, rng)
    a, b, c, *rest = lab.distinct_tokens(rng)
    words = np.array([[a, b, c, *rest], [c, b, a, *rest], [b, a, c, *rest]])

    def read(mask: masks.Mask, depth: int) -> np.ndarray:
        return lab.logits(params, words, mask & masks.key_padding(T, lengths=3), depth=depth)[:, :3]

    abc, cba, bac = read(masks.causal(T), 1)
    measurements = [
        lab.differs("causal, 1 layer: cba, read backwards, against abc", cba[::-1], abc),
        lab.same("causal, 1 layer: bac against abc at c", bac[2], abc[2]),
    ]
    for depth in lab.DEPTHS:
        abc, cba, _ = read(masks.full(T), depth)
        measurements.append(
            lab.same(f"full, {lab.layers(depth)}: cba, read backwards, against abc", cba[::-1], abc)
        )
    return Finding(tuple(measurements))


def prefix_order_is_invisible_to_the_suffix(seed: int) -> Finding:
    """Under a prefix-LM mask without positions, permuting the prefix changes no suffix output at any depth.

    The strongest single test that order comes from the causal mask: there, from two layers on, the same
    permutation is seen.
    """
    rng = lab.generator(seed)
    P = 6
    params, tokens = lab.random_params(lab.NETWORK, rng), lab.distinct_tokens(rng)
    p = np.concatenate([lab.derangement(rng, P), np.arange(P, T)])

    def suffixes(mask: masks.Mask, depth: int) -> np.ndarray:
        return lab.logits(params, np.stack([tokens[p], tokens]), mask, depth=depth)[:, P:]

    prefix, causal = masks.prefix_lm(T, P), masks.causal(T)
    return Finding(
        (
            *(
                lab.same(f"prefix-LM, {lab.layers(d)}: suffix outputs", *suffixes(prefix, d))
                for d in lab.DEPTHS
            ),
            lab.same("causal, 1 layer: suffix outputs", *suffixes(causal, 1)),
            lab.differs("causal, 2 layers: suffix outputs", *suffixes(causal, 2)),
            lab.differs("causal, 4 layers: suffix outputs", *suffixes(causal, 4)),
        )
    )


def sliding_window_is_translation_invariant(seed: int) -> Finding:
    """Without positions, L layers with a sliding window of W read the last L(W-1)+1 tokens and not where they are."""
    rng = lab.generator(seed)
    params, W = lab.random_params(lab.NETWORK, rng), 3
    measurements = []
    for depth in (2, 4):
        reach = depth * (W - 1) + 1
        early, late, swapped = rng.integers(0, lab.VOCAB, (3, T))
        end = reach  # the tail stands at 1 .. reach in one sequence, at the very end in another
        late[-reach:] = lab.distinct_tokens(rng, reach)
        early[1 : end + 1] = late[-reach:]
        swapped[:] = late
        swapped[[-3, -2]] = late[[-2, -3]]
        tokens = np.stack([early, late, swapped])
        windowed = lab.logits(params, tokens, masks.sliding_window(T, W), depth=depth)
        causal = lab.logits(params, tokens, masks.causal(T), depth=depth)
        measurements += [
            lab.same(
                f"{depth} layers, W = {W}: same last {reach} tokens at two places",
                windowed[0, end],
                windowed[1, -1],
            ),
            lab.differs(f"{depth} layers, causal: the same", causal[0, end], causal[1, -1]),
            lab.differs(
                f"{depth} layers, W = {W}: two of these tokens swapped",
                windowed[2, -1],
                windowed[1, -1],
            ),
        ]
    return Finding(tuple(measurements))


def masked_places_are_indistinguishable(seed: int) -> Finding:
    """With a full mask and no positions, all [MASK] places of a sequence get the same prediction.

    So the loss of such an encoder is floored by the entropy of the multiset of hidden tokens.
    """
    rng = lab.generator(seed)
    params, tokens = lab.random_params(lab.NETWORK, rng), lab.distinct_tokens(rng)
    places = np.array([2, 7, 11])
    tokens[places] = lab.MASKED

    def at_masks(mask: masks.Mask, **how: object) -> tuple[np.ndarray, np.ndarray]:
        out = lab.logits(params, tokens[None], mask, **how)[0, places]
        return out, np.tile(out[:1], (len(places), 1))

    full = masks.full(T)
    return Finding(
        (
            lab.same("spread over the [MASK] places, 4 layers", *at_masks(full)),
            lab.differs("the same with learned positions", *at_masks(full, positions=["learned"])),
            lab.differs("the same under a causal mask", *at_masks(masks.causal(T))),
        )
    )


def decoder_cannot_see_the_order_of_its_source(seed: int) -> Finding:
    """With no positions in the encoder, a decoder's cross-attention output does not depend on the order of the source."""
    rng = lab.generator(seed)
    params, tokens, p = (
        lab.random_params(lab.NETWORK, rng),
        lab.distinct_tokens(rng),
        lab.derangement(rng, T),
    )
    q = lab.normal(rng, 2, 5, lab.HEADS, lab.HEAD_DIM)
    to_keys = lab.normal(rng, lab.VOCAB, lab.KV_HEADS, lab.HEAD_DIM) * np.float32(lab.VOCAB**-0.5)
    to_values = lab.normal(rng, lab.VOCAB, lab.KV_HEADS, T) * np.float32(lab.VOCAB**-0.5)

    def read(mask: masks.Mask, **how: object) -> np.ndarray:
        memory = lab.logits(params, np.stack([tokens, tokens[p]]), mask, **how)
        k, v = (np.einsum("bsv,vkh->bskh", memory, to) for to in (to_keys, to_values))
        return lab.attention(np.tile(q[:1], (2, 1, 1, 1)), k, v, masks.full(5, T))

    full = masks.full(T)
    return Finding(
        (
            lab.same("source shuffled", *read(full)),
            lab.differs(
                "source shuffled, learned positions in the encoder",
                *read(full, positions=["learned"]),
            ),
            lab.differs("source shuffled, causal encoder", *read(masks.causal(T))),
        )
    )


def learned_positions_are_added(seed: int) -> Finding:
    """A learned table is looked up by place and added: d in "dog" is [1.1, 0], the same d in "god" [1.3, 0]."""
    del seed  # an example worked by hand
    d, g = np.array([1.0, 0.0]), np.array([2.0, 1.0])
    table = np.array([[0.1, 0.0], [0.0, 0.7], [0.3, 0.0]], np.float32)
    places = np.arange(3, dtype=np.int32)[None]
    added = model.LearnedPositions(context=3).apply({"params": {"table": table}}, places, 2)
    first, _, third = np.asarray(added)[0]
    worked = {
        "dog: d": (d + first, [1.1, 0.0]),
        "dog: g": (g + third, [2.3, 1.0]),
        "god: g": (g + first, [2.1, 1.0]),
        "god: d": (d + third, [1.3, 0.0]),
    }
    rows = tuple(
        (name, f"[{x[0]:.1f}, {x[1]:.1f}]", str(want)) for name, (x, want) in worked.items()
    )
    return Finding(
        (
            *(
                lab.same(f"{name} against {want}", x, np.array(want))
                for name, (x, want) in worked.items()
            ),
            at_least("distance of d in dog from d in god", lab.largest(third - first), 0.1),
        ),
        (Table("token + position", ("letter", "computed", "worked by hand"), rows),),
    )


def learned_table_ends_where_training_did(seed: int) -> Finding:
    """A learned table has a row for each position of the context and no more: a longer text is refused, and positions
    that are not known before give NaN beyond either end; a plain lookup would read its last row in silence."""
    rng = lab.generator(seed)
    table_TD = lab.normal(rng, T, 4)
    module = model.LearnedPositions(context=T)

    @jax.jit
    def rows(places_BT: jax.Array) -> jax.Array:
        return module.apply({"params": {"table": table_TD}}, places_BT, 4)

    def looked_up(places: list[int]) -> np.ndarray:
        return np.asarray(rows(np.array([places], np.int32)))[0]

    tokens = np.tile(lab.distinct_tokens(rng)[:1], (1, T + 1))
    try:
        lab.logits(lab.random_params(lab.NETWORK, rng), tokens, masks.causal(T + 1))
        refused = False
    except ValueError as error:
        refused = f"{T} rows" in str(error)
    beyond, before = looked_up([T, T + 1, 2 * T]), looked_up([-1, -T])
    clamped = np.asarray(jnp.asarray(table_TD)[jnp.array([T, 2 * T])])
    return Finding(
        (
            equal(f"{T + 1} tokens refused, and the {T} rows named", refused, True),
            equal("traced positions from T on: share that is NaN", np.isnan(beyond).mean(), 1.0),
            equal("traced positions below 0: share that is NaN", np.isnan(before).mean(), 1.0),
            lab.identical("traced positions 0 to T - 1 against the table", looked_up(list(range(T))), table_TD),
            lab.identical(
                "plain lookup at T and 2T against the last row", clamped, np.stack([table_TD[-1]] * 2)
            ),
        )
    )  # fmt: skip


CHECKS = (
    Check("I1", encoder_is_permutation_equivariant, 'Six notes L31: "shuffle the tokens and the outputs come back shuffled the same way"'),
    Check("I2", shuffling_the_mask_too_changes_nothing, 'Six notes L122: "shuffle your tokens and shuffle tril identically, you get the same answers"'),
    Check("I3", counting_predecessors_is_no_signal, 'against Six notes L35: "token i can attend to exactly i+1 predecessors"; DroPE, arXiv 2512.12167, Prop. 3.2; Gu et al. 2410.10781, Prop. 1'),
    Check("I4", one_layer_is_blind_to_the_order_of_predecessors, 'One line changed L168: "Position 3 of dogs and of gods ... exactly the same result" (true of one layer)'),
    Check("I5", causal_mask_tells_abc_from_cba, 'against Six notes L33: "literally cannot tell "abc" from "cba""'),
    Check("I6", prefix_order_is_invisible_to_the_suffix, "attnlab: follows from I1 and the shape of the mask"),
    Check("I7", sliding_window_is_translation_invariant, "attnlab: follows from the reach of a window (I24)"),
    Check("I8", masked_places_are_indistinguishable, "attnlab: follows from I1; the control of Haviv et al. 2022, arXiv 2203.16634"),
    Check("I28", decoder_cannot_see_the_order_of_its_source, "attnlab: follows from I1"),
    Check("I38", learned_positions_are_added, "One line changed L177: dog and god in miniature"),
    Check("I39", learned_table_ends_where_training_did, 'One line changed L184: "has only block_size rows and cannot look past them"'),
)  # fmt: skip
