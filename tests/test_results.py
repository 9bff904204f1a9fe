"""Runs seen as arms and seeds: what is paired with what, and what must never go missing in silence."""

import numpy as np
import pytest
from fake_runs import FakeRun, fake_run, runs_ending_at

from attnlab import results as results_lib
from attnlab.results import Results


def two_arms(**changes) -> Results:
    """Arms a and b, seeds 0 and 1, where run b-s1 has the changes."""
    return Results(
        [
            fake_run("a", 0, [3.0, 2.0]),
            fake_run("a", 1, [3.0, 2.5]),
            fake_run("b", 0, [3.0, 1.0]),
            fake_run("b", 1, [3.0, 1.5], **changes),
        ]
    )


def test_final_is_the_last_validation_and_not_a_training_row():
    assert two_arms().final("val/loss", "a") == {0: 2.0, 1: 2.5}


def test_pairing_keeps_seeds_in_step_whatever_the_order_of_the_runs():
    runs = runs_ending_at({"a": [1.0, 2.0, 3.0], "b": [10.0, 20.0, 30.0]})
    seeds, loss = Results(runs[::-1]).paired("val/loss", ("a", "b"))
    assert seeds == (0, 1, 2)
    np.testing.assert_array_equal(loss["b"], [10.0, 20.0, 30.0])
    np.testing.assert_array_equal(loss["a"], [1.0, 2.0, 3.0])


def test_runs_that_saw_other_data_are_not_a_pair():
    with pytest.raises(ValueError, match=r"data seed: must be equal in all arms of seed 1"):
        two_arms(data_seed=7).paired("val/loss", ("a", "b"))


def test_runs_of_unequal_budget_are_not_a_pair():
    with pytest.raises(ValueError, match=r"tokens: must be equal in all arms of seed 1"):
        two_arms(tokens_per_row=500).paired("val/loss", ("a", "b"))


@pytest.mark.parametrize("status", ["diverged", "interrupted", "running"])
def test_run_that_did_not_finish_is_in_no_pair_and_is_named(status):
    results = two_arms(status=status)
    assert results.final("val/loss", "b") == {0: 1.0}
    assert results.complete(("a", "b")) == (0,)
    assert results.paired("val/loss", ("a", "b"))[0] == (0,)
    words = {"diverged": "diverged after step 4"}.get(status, f"is {status} after step 4")
    assert results.gaps(("a", "b")) == (f"b seed 1 {words}",)
    assert len(results.diverged()) == (status == "diverged")


def test_seeds_that_only_one_arm_was_planned_with_take_no_part():
    results = Results(runs_ending_at({"a": [1.0, 2.0, 3.0], "b": [1.0, 4.0]}))
    assert results.seeds(("a", "b")) == results.complete(("a", "b")) == (0, 1)
    assert results.gaps(("a", "b")) == ()
    assert results.seeds(("a",)) == (0, 1, 2)
    np.testing.assert_array_equal(results.paired("val/loss", ("a", "b"))[1]["a"], [1.0, 2.0])


def test_step_of_divergence_comes_from_the_summary():
    run = fake_run("a", 0, [3.0], status="diverged")
    run.summary["diverged_at"] = 17
    assert Results([run]).diverged() == ("a seed 0 diverged at step 17",)


def test_run_without_rows_is_a_gap_and_not_an_error():
    empty = FakeRun(
        "b-s0",
        {"arm": "b", "seed": {"init": 0, "data": 0}},
        {"step": np.array([])},
        status="waiting",
    )
    results = Results([fake_run("a", 0, [3.0]), empty])
    assert results.gaps(("a", "b")) == ("b seed 0 is waiting before its first row",)
    assert results.final("val/loss", "b") == {}


@pytest.mark.parametrize("losses", [[3.0, np.nan], [3.0, np.inf]])
def test_finished_run_that_ends_in_no_number_is_refused(losses):
    with pytest.raises(ValueError, match=r"val/loss: run a-s0 is finished, with no finite value"):
        Results([fake_run("a", 0, losses)]).final("val/loss", "a")


def test_curve_aligns_seeds_by_tokens_and_leaves_gaps():
    runs = [fake_run("a", 1, [3.0, 2.0]), fake_run("a", 0, [4.0, np.inf, 1.0], status="diverged")]
    tokens_T, values_ST = Results(runs).curve("val/loss", "a")
    np.testing.assert_array_equal(tokens_T, [2000, 4000, 6000])
    np.testing.assert_array_equal(values_ST, [[4.0, np.nan, 1.0], [3.0, 2.0, np.nan]])


def test_reference_is_read_from_the_summaries():
    assert two_arms().reference("bigram") == 2.4875


def test_runs_of_two_corpora_are_refused():
    with pytest.raises(ValueError, match=r"references\.bigram: run b-s1 has 2\.5"):
        two_arms(references={"bigram": 2.5})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: r.final("val/los", "a"), "did you mean 'val/loss'"),
        (lambda r: r.curve("val/los", "a"), "did you mean 'val/loss'"),
        (lambda r: r.reference("bigrams"), "did you mean 'bigram'"),
        (lambda r: r.runs("c"), "no run of 'c'; the sweep has a, b"),
    ],
)
def test_wrong_name_is_answered_with_what_there_is(call, message):
    with pytest.raises(ValueError, match=message):
        call(two_arms())


def test_two_runs_of_one_seed_are_refused():
    with pytest.raises(ValueError, match="a-s0 and a-s0 are both seed 0 of arm 'a'"):
        Results([fake_run("a", 0, [1.0]), fake_run("a", 0, [2.0])])


def test_nothing_to_judge_is_refused():
    with pytest.raises(ValueError, match="there are none"):
        Results([])


def test_arm_without_a_label_is_named_by_what_defines_it():
    config = {"arm": "", "mask": "causal", "objective": "next_token", "positions": "none"}
    assert results_lib.arm_of(config) == "causal next_token none"


def test_run_without_a_row_has_a_curve_of_its_own_and_breaks_no_other():
    empty = FakeRun("a-s1", fake_run("a", 1, []).config, {"step": np.array([])}, status="waiting")
    tokens_T, values_ST = Results([fake_run("a", 0, [3.0, 2.0]), empty]).curve("val/loss", "a")
    np.testing.assert_array_equal(tokens_T, [2000, 4000])
    np.testing.assert_array_equal(values_ST, [[3.0, 2.0], [np.nan, np.nan]])


def test_runs_that_did_not_end_are_listed_apart_from_diverged_ones():
    runs = [
        fake_run("a", 0, [3.0]),
        fake_run("a", 1, [3.0], status="diverged"),
        fake_run("a", 2, [3.0], status="interrupted"),
    ]
    assert Results(runs).unfinished() == ("a seed 2 is interrupted after step 2",)


def test_configuration_of_an_arm_is_flat():
    assert Results([fake_run("a", 3, [1.0])]).config("a") == {
        "arm": "a",
        "seed.init": 3,
        "seed.data": 3,
    }


def test_loss_is_capped_by_the_loss_before_training_which_is_what_a_diverged_run_counts_as():
    results = Results(
        [
            fake_run("a", 0, [3.0, 2.0], initial=4.2),
            fake_run("a", 1, [3.0, 9.0], initial=4.3),
            fake_run("a", 2, [3.0, 2.5], initial=4.4, status="diverged"),
            fake_run("a", 3, [3.0, 2.5], initial=4.4, status="interrupted"),
        ]
    )
    assert results.capped("val/loss", "a") == {0: 2.0, 1: 4.3, 2: 4.4}
    assert results.initial("val/loss", "a") == {0: 4.2, 1: 4.3, 2: 4.4, 3: 4.4}
    assert results.reached("val/loss", "a") == {0: 2.0, 1: 9.0, 2: 2.5}


def test_run_that_was_not_validated_before_training_has_no_loss_to_fall_back_on():
    with pytest.raises(ValueError, match="run a-s0 has no finite value before its first update"):
        Results([fake_run("a", 0, [3.0])]).capped("val/loss", "a")


def test_diverged_runs_are_complete_only_where_they_may_be():
    results = two_arms(status="diverged")
    assert results.complete(("a", "b"), may_diverge=("b",)) == (0, 1)
    assert results.complete(("a", "b"), may_diverge=("a",)) == (0,)
    assert results.gaps(("a", "b"), may_diverge=("b",)) == ()
    assert results.diverged(("a",)) == ()
