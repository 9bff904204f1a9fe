"""Many members in one program: as if each had been trained alone, whatever the others are and wherever they run."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from attnlab import knobs as knobs_lib
from attnlab import optimizer, population, sharding, training
from attnlab.checkpoints import Checkpoints
from attnlab.data import sampling
from attnlab.population import Program
from attnlab.training import NEVER

# One member for every value of every kind of knob that may differ within a group.
MASKS = (
    "full", "causal", "causal(offset=-1)", "sliding_window(3)", "window(left=2, right=1)",
    "prefix_lm(3)", "chunked(4)", "block_causal(2)", "key_padding(lengths=[5])",
    "documents([0, 0, 0, 1, 1, 1, 1, -1])", "causal & key_padding(starts=[2])",
    "sliding_window([[2, 4]])", "causal | key_padding(lengths=[2])", "~causal",
    "graph([[0, 1, 2], [1, 2, 3]], 8, self_loops=True)",
)  # fmt: skip
CYCLES = {
    "objective": ("next_token", "masked_lm(0.4)", "next_token(2)", "next_token(0)"),
    "positions": ("none", "learned", "rope", "alibi", "sinusoidal", "learned+rope"),
    "model.qk_norm": ("none", "rmsnorm", "layernorm", "l2", "none"),
    "model.norm": ("layernorm", "rmsnorm", "rmsnorm"),
    "model.logit_scale": ("inv_sqrt_head_dim", "none", "inv_head_dim", "0.1"),
    "optimizer.learning_rate": (1e-2, 3e-3),
    "steps": (8, 8, 4),
    "seed.init": (0, 1, 2),
    "seed.data": (0, 1, 2, 3),
}
MIXED = [
    tiny.config({name: values[i % len(values)] for name, values in CYCLES.items()}, mask=mask)
    for i, mask in enumerate(MASKS)
]


program_of = functools.cache(Program)


def train(configs, **kwargs):
    """Trains with one program per task and mesh for all tests, instead of one per call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(population, "Program", program_of)
        return tiny.train(configs, **kwargs)


@pytest.fixture(scope="module")
def mixed():
    with tiny.quick_compilation():
        return train(MIXED)


def test_one_trace_for_every_mask_position_objective_norm_and_scale(mixed):
    _, report = mixed
    assert report.traces == {"train": 1, "evaluate": 1}
    assert report.members == len(MASKS)


jitted_chunk = jax.jit(training.train_chunk, static_argnums=0)


def alone(task, state, made, tokens, updates):
    """Losses of an ordinary single run: one jitted chunk after another, no mesh, no map."""
    losses = []
    with tiny.quick_compilation():
        for _ in range(updates // task.budget.log_every):
            state, metrics = jitted_chunk(task, state, made, tokens)
            losses.append(float(metrics["train/loss"]))
    return losses


@pytest.fixture(scope="module")
def starts(mixed):
    """The states of the mixed population before its first update."""
    group = tiny.group(*MIXED)
    program = program_of(group.task, sharding.make_mesh(len(MIXED)))
    states = jax.device_get(program.init(program.place(group.knobs())))
    return [jax.tree.map(lambda x, i=i: x[i], states) for i in range(len(MIXED))]


def test_members_of_a_population_train_as_they_would_alone(mixed, starts):
    group = tiny.group(*MIXED)
    for i, (made, config) in enumerate(zip(group.knobs(), MIXED, strict=True)):
        losses = alone(group.task, starts[i], made, group.corpus.train, config["steps"])
        found = mixed[0].column(i, "train/loss")[:, 1]
        np.testing.assert_allclose(found, losses, rtol=1e-5, err_msg=MASKS[i])


def test_a_member_trains_as_it_would_without_the_families_of_the_others(mixed, starts):
    index = MASKS.index("full")
    own = tiny.group(MIXED[index])
    assert own.task.architecture.position_families == own.task.architecture.qk_norms == ()
    params = dict(starts[index].params)
    del params["positions"]
    params["block_00"] = {**params["block_00"], "attention": dict(params["block_00"]["attention"])}
    del params["block_00"]["attention"]["qk_norm"]
    start = dataclasses.replace(starts[index], params=params, moments=optimizer.init(params))
    losses = alone(own.task, start, own.knobs()[0], own.corpus.train, own.steps)
    found = mixed[0].column(index, "train/loss")[:, 1]
    np.testing.assert_allclose(found, losses, rtol=2e-5)


def test_rows_come_in_order_and_end_with_the_final_validation(mixed):
    log, _ = mixed
    for i, config in enumerate(MIXED):
        steps = config["steps"]
        row_steps = [row["step"] for row in log.rows[i]]
        assert row_steps == sorted(row_steps)
        assert all(row["tokens"] == row["step"] * 4 * 8 for row in log.rows[i])
        np.testing.assert_array_equal(log.column(i, "train/loss")[:, 0], np.arange(4, steps + 1, 4))
        np.testing.assert_array_equal(np.unique(log.column(i, "val/loss")[:, 0]),
                                      np.arange(0, steps + 1, 4))  # fmt: skip
        status, summary = log.ends[i]
        assert status == "finished"
        assert (summary["step"], summary["tokens"]) == (steps, steps * 32)
        assert summary["val/loss"] == pytest.approx(log.rows[i][-1]["val/loss"])
        assert summary["val/windows"] == 16
        assert len(summary["val/loss_by_position"]) == 8


def test_attention_is_logged_by_layer_and_head(mixed):
    log, _ = mixed
    for row in log.rows[MASKS.index("full")]:
        if "val/loss" in row:
            assert np.isfinite(row["attn/max_logit_l00"])
            assert 0 < row["attn/entropy_l00h00"] <= 1
            assert 0 < row["attn/entropy_l00h01"] <= 1
            assert row["attn/q_norm_l00"] > 0
            assert row["attn/k_norm_l00"] > 0
            assert -1 <= row["attn/qk_cosine_l00"] <= 1


def test_magnitudes_are_logged_by_layer_with_every_chunk(mixed):
    log, _ = mixed
    for name in ("opt/grad_norm_l00", "opt/update_rms_l00", "params/norm_l00"):
        for i, config in enumerate(MIXED):
            logged = log.column(i, name)
            np.testing.assert_array_equal(logged[:, 0], np.arange(4, config["steps"] + 1, 4))
            assert (logged[:, 1] > 0).all()
            assert np.isfinite(logged).all()


# (last training loss, final validation loss) of members of the mixed population.
GOLDEN = {
    "full": (3.0926, 2.9740),
    "causal": (3.1852, 3.0231),
    "causal(offset=-1)": (3.2079, 3.0568),
    "sliding_window(3)": (3.1759, 3.0406),
    "window(left=2, right=1)": (2.7577, 2.8184),
    "prefix_lm(3)": (3.0934, 3.1088),
    "chunked(4)": (3.1021, 3.0696),
    "block_causal(2)": (2.9786, 2.9267),
    "key_padding(lengths=[5])": (3.0107, 2.9998),
    "documents([0, 0, 0, 1, 1, 1, 1, -1])": (2.9471, 3.1948),
    "causal & key_padding(starts=[2])": (3.0587, 3.0190),
    "sliding_window([[2, 4]])": (3.1217, 3.0018),
    "causal | key_padding(lengths=[2])": (3.1427, 3.0357),
    "~causal": (3.0739, 3.1279),
    "graph([[0, 1, 2], [1, 2, 3]], 8, self_loops=True)": (3.1560, 3.0796),
}


def test_numbers_are_those_of_the_last_release(mixed):
    log, _ = mixed
    found = {
        mask: (log.column(i, "train/loss")[-1, 1], log.ends[i][1]["val/loss"])
        for i, mask in enumerate(MASKS)
    }
    text = "\n".join(f'    "{m}": ({a:.4f}, {b:.4f}),' for m, (a, b) in found.items())
    assert found == {m: pytest.approx(pair, abs=2e-3) for m, pair in GOLDEN.items()}, (
        "training gives other numbers than before. If you did not mean to change data, initialisation, model, "
        "objective or optimizer, something broke. If you did, say so in the commit and put these in GOLDEN:\n"
        + text
    )


# One small program, compiled as it is for users and shared: what is compared ran in one executable.

STATIC = {
    "batch_size": 16, "log_every": 10, "eval.every": 20, "eval.windows": 256,
    "eval.final_windows": 512,
}  # fmt: skip
ENDINGS = [
    tiny.config(STATIC, steps=60),
    tiny.config({**STATIC, "seed.init": 1, "seed.data": 1}, steps=20, mask="full"),
    tiny.config(
        {**STATIC, "optimizer.learning_rate": 1e30, "optimizer.warmup_steps": 30}, steps=60
    ),
]


@pytest.fixture(scope="module")
def endings():
    return train(ENDINGS)


def test_a_member_ends_with_its_last_row_and_the_longest_one_sets_the_length(endings):
    log, report = endings
    assert [log.ends[i][0] for i in range(3)] == ["finished", "finished", "diverged"]
    assert [log.ends[i][1]["step"] for i in range(2)] == [60, 20]
    assert [log.rows[i][-1]["step"] for i in range(2)] == [60, 20]
    assert log.column(1, "train/loss")[:, 0].tolist() == [10, 20]
    assert report.members == 3
    assert not report.interrupted


def test_a_diverged_member_is_reported_at_its_step_and_no_row_claims_more(endings):
    log, _ = endings
    summary = log.ends[2][1]
    assert summary["diverged_at"] == summary["step"] == 1
    assert [row["step"] for row in log.rows[2]] == [0, 1], "it was trained for one update"
    assert log.rows[2][-1]["tokens"] == 16 * 8
    assert np.isfinite(summary["val/loss"]), "its parameters are the last good ones"


def stop_at(calls, answer=lambda: True):
    """A `should_stop` that says so from its `calls`-th call on; every call appends to `asked`."""
    asked = []

    def should_stop():
        asked.append(None)
        return len(asked) >= calls and answer()

    should_stop.asked = asked
    return should_stop


def test_a_stop_interrupts_members_that_still_train_and_keeps_their_rows(endings):
    seen = []
    log, report = train(ENDINGS, progress=seen.append, should_stop=lambda: len(seen) >= 3)
    assert report.interrupted
    # The two others had ended, and say how; so do their rows.
    assert {i: status for i, (status, _) in log.ends.items()} == {
        0: "interrupted", 1: "finished", 2: "diverged",
    }  # fmt: skip
    assert log.ends[0][1] == {"step": 40}, "the chunk under way is not thrown away"
    for i in (1, 2):
        assert log.ends[i] == endings[0].ends[i]
        assert log.rows[i] == endings[0].rows[i]
    assert (
        log.rows[0] == [row for row in endings[0].rows[0] if row["step"] <= 40][: len(log.rows[0])]
    )


def test_a_stop_is_noticed_before_every_compilation_chunk_and_block_of_a_validation(endings):
    """Whichever question is answered with yes, everything stops there, and no later row is written."""
    counting = stop_at(10**9)
    complete, _ = train(ENDINGS, should_stop=counting)
    assert complete.rows == endings[0].rows
    # 1 before the first compilation; 6 chunks and the end of the loop; validations of 1 block at 0, 20, 40; last ones of
    # 2 blocks with the validation at 20 (members 1 and 2) and at the end (member 0).
    assert len(counting.asked) == 1 + 6 + 3 + 2 + 2
    lengths = []
    for calls in range(1, len(counting.asked) + 1):
        log, report = train(ENDINGS, should_stop=stop_at(calls))
        assert report.interrupted, calls
        assert log.ends.get(0, ("interrupted",))[0] == "interrupted", calls
        assert log.rows[0] == endings[0].rows[0][: len(log.rows[0])], calls
        lengths.append(len(log.rows[0]))
    assert lengths == sorted(lengths)
    assert lengths[0] == 0
    assert lengths[-1] == len(endings[0].rows[0]) - 1, "all but the last validation"


def test_a_stop_before_anything_is_compiled_leaves_the_members_as_they_were(endings):
    log, report = train(ENDINGS, should_stop=lambda: True)
    assert report.interrupted
    assert report.traces == {"train": 0, "evaluate": 0}
    assert log.ends == {}
    assert log.rows == [[], [], []]


@pytest.mark.parametrize("stop_after", [3, 4], ids=["at 40, a validation", "at 50"])
def test_a_stopped_group_goes_on_from_its_checkpoint_with_the_same_rows_and_ends(
    stop_after, endings, tmp_path
):
    seen = []
    with Checkpoints(tmp_path / "c", every_steps=20) as checkpoints:
        log, _ = train(
            ENDINGS, checkpoints=checkpoints, progress=seen.append,
            should_stop=lambda: len(seen) >= stop_after,
        )  # fmt: skip
    with Checkpoints(tmp_path / "c") as checkpoints:
        again, report = train(ENDINGS, checkpoints=checkpoints)
    assert not report.interrupted
    assert again.ends == endings[0].ends
    for i in range(3):
        new = [row for row in again.rows[i] if row not in log.rows[i]]
        assert log.rows[i] + new == endings[0].rows[i]
    assert min(row["step"] for row in again.rows[0]) >= 40, "nothing is trained twice"


def test_no_checkpoint_is_taken_of_updates_whose_rows_are_not_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(tiny.MemoryLog, "flush", lambda self: False)
    with Checkpoints(tmp_path / "c", every_steps=20) as checkpoints:
        with pytest.warns(UserWarning, match="no checkpoint at 20: the rows up to there"):
            log, _ = train(ENDINGS, checkpoints=checkpoints)
        assert list(checkpoints.steps()) == []
    assert log.ends[0][0] == "finished"


def test_progress_counts_members_steps_and_tokens():
    seen = []
    train(ENDINGS, progress=seen.append)
    steps = [(p.step, p.steps, p.active) for p in seen]
    assert steps == [(10, 60, 3), (20, 60, 2), *((step, 60, 1) for step in (30, 40, 50, 60))]
    assert all(p.tokens_per_second > 0 and np.isfinite(p.loss) for p in seen)


def test_the_same_sweep_twice_gives_the_same_metrics(endings):
    """In one executable; see below for one compiled anew."""
    again, _ = train(ENDINGS)
    assert again.rows == endings[0].rows
    assert again.ends == endings[0].ends


@dataclasses.dataclass
class Small:
    """The program of ENDINGS on a mesh of two devices, and the data of three members that do not diverge."""

    program: Program
    made: list
    tokens: np.ndarray

    def train(self, made, program=None):
        """States and metrics of every member of `made`, on the host, after two chunks."""
        program = program or self.program
        placed, metrics = program.place(made), []
        states = program.place_states(self.start(made))
        tokens = jax.device_put(self.tokens, program.everywhere)
        for _ in range(2):
            states, chunk = program.train(states, placed, tokens)
            metrics.append(chunk)
        stacked = jax.tree.map(lambda *x: np.stack(x), *jax.device_get(metrics))
        return jax.device_get(states), stacked

    def start(self, made):
        """States before the first update, without padding."""
        states = jax.device_get(self.program.init(self.program.place(made)))
        return jax.tree.map(lambda x: x[: len(made)], states)


@pytest.fixture(scope="module")
def small(endings):
    assert jax.device_count() == 2, "conftest.py asks for two host devices"
    group = tiny.group(*ENDINGS)
    third = knobs_lib.knobs(
        tiny.config({**STATIC, "seed.init": 2}, mask="sliding_window(2)", steps=20),
        group.task.architecture,
    )
    program = program_of(group.task, sharding.make_mesh(3))
    return Small(program, [*group.knobs()[:2], third], group.corpus.train)


@pytest.fixture(scope="module")
def three(small):
    """(states, metrics) of the three members; one more place is padding."""
    return small.train(small.made)


def member(result, index):
    states, metrics = result
    return jax.tree.map(lambda x: x[index], states), jax.tree.map(lambda x: x[:, index], metrics)


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def close(a, b):
    """Losses to rounding; parameters less so, because Adam divides small gradients by themselves."""
    np.testing.assert_allclose(a[1]["train/loss"], b[1]["train/loss"], rtol=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-3), a[0].params, b[0].params)


def test_members_start_as_they_would_alone(small):
    init = jax.jit(training.init_state, static_argnums=0)
    states = small.start(small.made)
    with tiny.quick_compilation():
        for i, made in enumerate(small.made):
            alone = init(small.program.task, made)
            jax.tree.map(
                lambda x, y, i=i: np.testing.assert_allclose(x[i], y, atol=1e-6), states, alone
            )


def test_final_validation_equals_that_of_a_run_alone(small, three, endings):
    """Of the member that ended at step 20; by the blocks of its final validation."""
    budget = small.program.task.budget
    windows = sampling.evaluation_windows(
        tiny.load("random:17").validation, count=budget.final_eval_windows, length=10
    )
    evaluate = jax.jit(training.evaluate, static_argnums=0)
    state, _ = member(three, 1)
    with tiny.quick_compilation():
        parts = [
            evaluate(small.program.task, state, small.made[1], block, np.int32(b))
            for b, block in enumerate(np.asarray(windows).reshape(-1, budget.eval_windows, 10))
        ]
    total, count = (sum(float(np.sum(part[name])) for part in parts) for name in training.SUMMED)
    assert endings[0].ends[1][1]["val/loss"] == pytest.approx(total / count, rel=1e-5)


def test_members_that_do_not_fill_the_devices_are_padded_with_idle_ones(three):
    states, metrics = three
    assert states.step.tolist() == [20, 20, 20, 0]
    assert metrics["updates"].tolist() == [[10, 10, 10, 0]] * 2


def test_the_order_of_members_changes_no_bit(small, three):
    order = [2, 0, 1]
    shuffled = small.train([small.made[i] for i in order])
    for place, index in enumerate(order):
        same(member(shuffled, place), member(three, index))


def test_a_program_compiled_anew_changes_no_bit(small, three):
    again = Program(small.program.task, small.program.mesh)
    result = small.train(small.made, program=again)
    same(member(result, 0), member(three, 0))
    same(member(result, 2), member(three, 2))


def poisoned(made):
    bad = dataclasses.replace(made.model, logit_scale=jnp.float32(np.nan))
    return dataclasses.replace(made, model=bad)


def test_a_diverging_member_changes_no_bit_of_the_others(small, three):
    """It runs on the first device, before a good member; the others as if it had never been there."""
    result = small.train([poisoned(small.made[0]), *small.made])
    assert result[0].diverged_at.tolist() == [0, NEVER, NEVER, NEVER]
    assert result[1]["updates"].tolist() == [[0, 10, 10, 10]] * 2
    for i in range(3):
        same(member(result, i + 1), member(three, i))


def test_a_member_that_ends_early_changes_no_bit_of_the_others(small, three):
    short = dataclasses.replace(small.made[0].optimizer, total_steps=jnp.int32(10))
    made = [dataclasses.replace(small.made[0], optimizer=short), *small.made[1:]]
    states, metrics = result = small.train(made)
    assert states.step.tolist() == [10, 20, 20, 0]
    assert metrics["updates"].tolist() == [[10, 10, 10, 0], [0, 10, 10, 0]]
    for i in (1, 2):
        same(member(result, i), member(three, i))


def test_one_device_gives_what_two_give(small, three):
    """To rounding: the program for one device is another one."""
    one = Program(small.program.task, sharding.make_mesh(1))
    with tiny.quick_compilation():
        result = small.train(small.made, program=one)
    assert result[0].step.tolist() == [20, 20, 20]
    for i in range(3):
        close(member(result, i), member(three, i))


def test_members_vmapped_as_on_accelerators_equal_members_mapped(small, three, monkeypatch):
    monkeypatch.setattr(population, "_mapped", jax.vmap)
    monkeypatch.setattr(population, "_skip_inactive", lambda chunk: chunk)
    vmapped = Program(small.program.task, small.program.mesh)
    made = [*small.made, poisoned(small.made[0])]
    with tiny.quick_compilation():
        result = small.train(made, program=vmapped)
    assert result[0].step.tolist() == [20, 20, 20, 0]
    assert result[0].diverged_at.tolist() == [NEVER, NEVER, NEVER, 0]
    for i in range(3):
        close(member(result, i), member(three, i))


def test_a_mesh_has_no_more_devices_than_members():
    assert sharding.make_mesh(1).size == 1
    assert sharding.make_mesh(2).size == 2
    assert sharding.make_mesh(100).size == jax.device_count()


# Leaks

LEAK = {**STATIC, "optimizer.warmup_steps": 10, "optimizer.weight_decay": 0.0, "steps": 200}
TIGHT = [("causal", "next_token"), ("causal", "next_token(2)"), ("sliding_window(3)", "next_token"),
         ("full", "masked_lm(0.3)")]  # fmt: skip
LEAKY = [("full", "next_token"), ("prefix_lm(4)", "next_token"), ("causal", "next_token(0)")]


@pytest.fixture(scope="module")
def leaks():
    """Validation of models trained on independent uniform tokens, which nobody can predict."""
    found = {}
    for arms in (TIGHT, LEAKY):  # two groups of the size whose program is compiled already
        log, _ = train([tiny.config(LEAK, mask=m, objective=o) for m, o in arms])
        for i, arm in enumerate(arms):
            found[arm] = log.column(i, "val/loss")[:, 1], log.ends[i][1]
    return found


@pytest.mark.parametrize("arm", TIGHT, ids=" ".join)
def test_uniform_random_tokens_cannot_be_predicted_without_a_leak(leaks, arm):
    losses, summary = leaks[arm]
    targets = 256 * 8 * (0.3 if "masked" in arm[1] else 1)
    # A model that predicts anything but the uniform pays for it, so the mean is at least ln V; per target the
    # loss of such a model varies by less than half a nat.
    assert losses.min() > np.log(17) - 4 * 0.5 / targets**0.5
    assert losses[-1] < np.log(17) + 0.05, "it has not learned that the tokens are uniform"
    assert summary["val/loss"] == losses[-1]


def test_a_full_mask_lets_next_token_read_the_answer(leaks):
    by_position = np.array(leaks["full", "next_token"][1]["val/loss_by_position"])
    assert (by_position[:-1] < 0.5).all()
    # The last target stands outside of the window.
    assert by_position[-1] > np.log(17) - 0.1


def test_a_prefix_leaks_up_to_its_last_token_but_one(leaks):
    by_position = np.array(leaks["prefix_lm(4)", "next_token"][1]["val/loss_by_position"])
    assert (by_position[:3] < 0.5).all()
    assert (by_position[3:] > np.log(17) - 0.1).all()


def test_offset_zero_asks_for_what_is_given(leaks):
    assert leaks["causal", "next_token(0)"][1]["val/loss"] < 0.1
