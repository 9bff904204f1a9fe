"""The decision: an interval against the claimed region."""

import numpy as np
import pytest

from attnlab import statistics
from attnlab.claims.rules import (
    Verdict,
    above,
    below,
    between,
    conjunction,
    equivalent,
    negative,
    positive,
)
from attnlab.statistics import Interval


def interval(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, low, high, 0.95, "by hand", 3)


@pytest.mark.parametrize(
    ("rule", "low", "high", "verdict"),
    [
        (above(0.5), 0.51, 0.9, Verdict.REPRODUCED),
        (above(0.5), 0.5, 0.9, Verdict.INCONCLUSIVE),  # "above" is strict
        (above(0.5), 0.3, 0.9, Verdict.INCONCLUSIVE),
        (above(0.5), 0.3, 0.6, Verdict.INCONCLUSIVE),  # the mean is below, the interval is not
        (above(0.5), 0.3, 0.5, Verdict.NOT_REPRODUCED),
        (above(0.5), 0.5, 0.5, Verdict.NOT_REPRODUCED),
        (below(0.5), 0.1, 0.4, Verdict.REPRODUCED),
        (below(0.5), 0.1, 0.5, Verdict.INCONCLUSIVE),
        (below(0.5), 0.6, 0.7, Verdict.NOT_REPRODUCED),
        (equivalent(0.03), -0.02, 0.029, Verdict.REPRODUCED),
        (equivalent(0.03), -0.02, 0.031, Verdict.INCONCLUSIVE),
        (equivalent(0.03), -0.04, 0.04, Verdict.INCONCLUSIVE),
        (equivalent(0.03), 0.03, 0.05, Verdict.NOT_REPRODUCED),
        (equivalent(0.03), -0.05, -0.031, Verdict.NOT_REPRODUCED),
    ],
)
def test_interval_decides(rule, low, high, verdict):
    assert rule.decide(interval(low, high)) is verdict


def test_p_value_tests_the_claimed_side():
    values_S = np.array([0.6, 0.7, 0.65])
    assert above(0.5).p_value(values_S) < 0.05 < 0.95 < below(0.5).p_value(values_S)
    close_S = np.array([-0.01, 0.0, 0.012])
    assert equivalent(0.03).p_value(close_S) == statistics.tost(close_S, 0.03).p_value


def test_border_is_the_nearest_one():
    assert above(0.5).border(9.0) == 0.5
    assert equivalent(0.03).border(0.01) == 0.03
    assert equivalent(0.03).border(-0.01) == -0.03


def test_rule_reads_as_words():
    assert [str(r) for r in (above(0.5), below(-1), equivalent(0.03))] == [
        "above 0.5",
        "below -1",
        "between -0.03 and 0.03",
    ]


@pytest.mark.parametrize("delta", [0.0, -0.03, float("inf")])
def test_equivalence_without_a_margin_is_refused(delta):
    with pytest.raises(ValueError, match="delta"):
        equivalent(delta)


@pytest.mark.parametrize(
    ("verdicts", "together"),
    [
        (["REPRODUCED", "REPRODUCED"], "REPRODUCED"),
        (["REPRODUCED", "INCONCLUSIVE"], "INCONCLUSIVE"),
        (["INCONCLUSIVE", "INVALID"], "INVALID"),
        (["INVALID", "NOT REPRODUCED", "REPRODUCED"], "NOT REPRODUCED"),
    ],
)
def test_one_refuted_part_refutes_the_whole_and_one_unanswered_part_leaves_it_open(
    verdicts, together
):
    assert conjunction(Verdict(v) for v in verdicts) is Verdict(together)


def test_conjunction_of_nothing_is_refused():
    with pytest.raises(ValueError, match="verdicts"):
        conjunction([])


def test_sign_rules_look_at_zero_and_between_at_both_borders():
    assert (str(positive()), str(negative())) == ("above 0", "below 0")
    assert str(between(0.95, 1.05)) == "between 0.95 and 1.05"
    with pytest.raises(ValueError, match=r"low, high.*1\.05 and 0\.95"):
        between(1.05, 0.95)
    with pytest.raises(ValueError, match="finite"):
        between(0.0, float("inf"))
