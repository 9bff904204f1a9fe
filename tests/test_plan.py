"""Members become groups; everything a user can get wrong is refused before anything compiles."""

import dataclasses

import numpy as np
import pytest
import tiny

from attnlab import plan as plan_lib
from attnlab.data import corpora
from attnlab.tracking import run_id


def refused(configs, load=tiny.load):
    with pytest.raises(ValueError, match=r"\S") as error:
        plan_lib.plan("tiny", configs, tiny.BASE, load)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_members_that_differ_in_data_only_form_one_group():
    configs = [
        tiny.config(mask=mask, objective=objective, positions=position, steps=steps)
        for mask, objective, position, steps in [
            ("causal", "next_token", "learned", 8),
            ("full", "masked_lm(0.3)", "none", 8),
            ("sliding_window(2)", "next_token(2)", "alibi", 16),
        ]
    ]
    configs += [tiny.config({"model.qk_norm": k, "model.norm": "rmsnorm"}) for k in ("l2", "none")]
    (group,) = tiny.plan(configs)
    assert [m.config for m in group.members] == configs, "members must keep their order"
    assert group.task.architecture.position_families == ("alibi", "learned")
    assert group.task.architecture.qk_norms == ("l2",)
    assert (group.task.inputs.mask_id, group.task.inputs.bos_id) == (17, 18)
    assert group.steps == 16
    assert [m.steps for m in group.members] == [8, 8, 16, 8, 8]


def test_members_that_differ_in_shape_form_groups_in_order_of_appearance():
    widths = [16, 8, 16, 8, 32]
    groups = tiny.plan(
        [tiny.config({"model.width": w, "seed.init": s}) for s, w in enumerate(widths)]
    )
    assert [g.task.architecture.width for g in groups] == [16, 8, 32]
    assert [[m.config["seed"]["init"] for m in g.members] for g in groups] == [[0, 2], [1, 3], [4]]


def test_the_plan_names_the_attention_that_auto_stands_for():
    lengths, asked = (4, 1024, 4), ("auto", "auto", "blockwise")
    groups = tiny.plan(
        [
            tiny.config({"model.attention": a}, context=t)
            for t, a in zip(lengths, asked, strict=True)
        ]
    )
    assert [g.attention for g in groups] == ["dense", "blockwise", "blockwise"]


def test_only_a_group_with_a_shuffled_member_pays_for_shuffling():
    (plain,) = tiny.plan(
        [tiny.config(bos=b, order=o) for b, o in ((True, "constant"), (False, "natural"))]
    )
    (mixed,) = tiny.plan([tiny.config(order=o) for o in ("natural", "shuffled")])
    assert (plain.task.inputs.shuffles, mixed.task.inputs.shuffles) == (False, True)


def test_a_member_brings_no_families_into_the_program_of_another_group():
    groups = tiny.plan(
        [tiny.config(positions="alibi"), tiny.config({"model.width": 32}, positions="rope")]
    )
    assert [g.task.architecture.position_families for g in groups] == [("alibi",), ("rope",)]


def test_a_corpus_is_loaded_once_and_groups_are_split_by_it():
    loads = []

    def load(name, tokenizer):
        loads.append((name, tokenizer))
        return tiny.load(name, tokenizer)

    configs = [
        tiny.config({"seed.init": s}, corpus=c) for c in ("random:17", "random:5") for s in (0, 1)
    ]
    groups = plan_lib.plan("tiny", configs, tiny.BASE, load)
    assert loads == [("random:17", "char"), ("random:5", "char")]
    assert [(g.corpus.name, g.task.architecture.vocab_size) for g in groups] == [
        ("random:17", 17),
        ("random:5", 5),
    ]
    assert [g.task.architecture.input_size for g in groups] == [19, 7]


def test_a_member_is_named_by_arm_and_seed_and_identified_by_its_configuration():
    (group,) = tiny.plan(
        [tiny.config({"seed.init": 3}), tiny.config({"seed.init": 3, "arm": "mine"})]
    )
    assert [m.name for m in group.members] == ["causal next_token learned s3", "mine s3"]
    assert [m.arm for m in group.members] == ["causal next_token learned", "mine"]
    for member in group.members:
        assert member.id == run_id("tiny", member.config)


def test_two_equal_members_are_refused():
    configs = [tiny.config({"seed.init": s}) for s in (0, 1, 0)]
    message = refused(configs)
    assert "members 0 and 2" in message
    assert "causal next_token learned s0" in message
    assert "must differ" in message


def test_a_sweep_without_members_is_refused():
    assert "tiny: it has no members" in refused([])


@pytest.mark.parametrize(
    ("config", "pieces"),
    [
        (tiny.config(maks="full"), ("config.maks", "did you mean mask?")),
        (
            tiny.config({"model.heads": 3, "model.kv_heads": 3}),
            ("config.model.width", "got 16 with model.heads = 3"),
        ),
        (tiny.config(mask="window(left=-1, right=0)"), ("mask", "window(left=-1", "at least 0")),
        (tiny.config(mask="prefix_lm(9)"), ("mask", "prefix_lm(9)", "8")),
        (tiny.config(corpus="shakespear"), ("corpus", "'shakespear'", "did you mean")),
        (tiny.config(corpus="random:1"), ("corpus", "'random:1'", "2 <= V")),
    ],
)
def test_a_bad_member_is_refused_even_behind_good_ones(config, pieces):
    message = refused([tiny.config(), config])
    for piece in pieces:
        assert piece in message


def test_a_bad_value_is_refused_before_any_corpus_is_loaded():
    def load(name, tokenizer):
        raise AssertionError(f"{name} was loaded")

    assert "config.steps" in refused([tiny.config(steps=0)], load)


def text(tmp_path, length):
    path = tmp_path / "text.txt"
    path.write_text("".join(np.random.default_rng(0).choice(list("abcde"), length)))
    return f"text:{path}"


def test_a_text_shorter_than_a_window_is_refused(tmp_path):
    # 100 characters leave 5 for validation; a window of context 8 needs 10.
    message = refused([tiny.config(corpus=text(tmp_path, 100))])
    assert "validation split has 5 tokens, fewer than one window of 10" in message
    assert message.endswith("allowed: a longer text"), (
        "16 different windows do not fit whatever the context"
    )


@pytest.mark.parametrize(("windows", "length"), [(1, 200), (4, 260)])
def test_the_context_named_for_a_short_text_is_the_largest_that_works(tmp_path, windows, length):
    short = {"corpus": text(tmp_path, length), "batch_size": windows,
             "eval.windows": windows, "eval.final_windows": windows}  # fmt: skip
    message = refused([tiny.config({**short, "context": 40})])
    most = int(message.rpartition(" ")[2])
    assert len(tiny.plan([tiny.config({**short, "context": most})])) == 1
    refused([tiny.config({**short, "context": most + 1})])


def test_members_with_other_tokenizers_are_other_programs_on_the_same_text(tmp_path):
    name = text(tmp_path, 2000)
    groups = tiny.plan([tiny.config(corpus=name, tokenizer=t) for t in ("char", "bytes")])
    assert [g.task.architecture.vocab_size for g in groups] == [5, 256]
    assert [g.corpus.record()["sha256"] for g in groups] == [groups[0].corpus.sha256] * 2


@pytest.mark.parametrize(
    "tokenizer", ["", "words", "bpe", "bpe:", "bpe:256", "bpe:65537", "bpe:1e3"]
)
def test_a_tokenizer_that_is_none_is_refused_before_the_text_is_read(tokenizer):
    message = refused([tiny.config(corpus="text:/nowhere", tokenizer=tokenizer)])
    assert f"config.tokenizer: got {tokenizer!r}; allowed: char, bytes, or bpe:V" in message


def test_a_corpus_too_large_for_its_starts_is_refused_before_anything_is_written():
    small = tiny.load("random:17")
    huge = dataclasses.replace(small, train=np.broadcast_to(small.train[:1], 2**31))
    message = refused([tiny.config()], lambda *_: huge)
    assert "train split has 2147483648 tokens; allowed: fewer than 2147483648" in message


def test_a_tokenizer_for_a_corpus_of_tokens_is_refused():
    message = refused([tiny.config(tokenizer="bytes")])
    assert "config.tokenizer: got 'bytes', but corpus 'random:17' holds tokens already" in message


def test_a_text_with_too_few_different_validation_windows_is_refused(tmp_path):
    # 400 characters leave 20 for validation: 11 different windows of 10, and 16 are asked for.
    message = refused([tiny.config(corpus=text(tmp_path, 400))])
    assert "config.eval.final_windows: " in message
    assert "got 16" in message
    assert "at most 11" in message


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("text:/nowhere/at/all.txt", ("text:/nowhere/at/all.txt", "cannot be read")),
        ("EMPTY", ("the file is empty",)),
    ],
)
def test_an_unreadable_or_empty_text_is_refused(tmp_path, name, pieces):
    if name == "EMPTY":
        (tmp_path / "empty.txt").touch()
        name = f"text:{tmp_path / 'empty.txt'}"
    message = refused([tiny.config(corpus=name)], corpora.load)
    for piece in pieces:
        assert piece in message


def test_interval_and_dense_masks_share_a_group():
    """A union of intervals has no interval form; the others are then made dense, so that leaves stack."""
    group = tiny.group(tiny.config(), tiny.config(mask="causal | key_padding(lengths=[2])"))
    made = [k.mask for k in group.knobs()]
    assert all(m.dense is not None for m in made)
    np.testing.assert_array_equal(made[0].as_array()[0, 0], np.tri(8, dtype=bool))


def test_interval_masks_stay_intervals():
    group = tiny.group(tiny.config(), tiny.config(mask="full"))
    assert all(k.mask.dense is None for k in group.knobs())


def test_masks_per_head_share_a_group_with_masks_for_all_heads():
    group = tiny.group(tiny.config(), tiny.config(mask="sliding_window([[2, 3]])"))
    shared, per_head = (np.asarray(k.mask.lo) for k in group.knobs())
    assert shared.shape == per_head.shape == (1, 2, 8)
    np.testing.assert_array_equal(per_head[0, :, -1], [6, 5])
    np.testing.assert_array_equal(shared, 0)
