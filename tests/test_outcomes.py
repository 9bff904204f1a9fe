"""What is printed and stored: complete, parseable, and honest about what failed."""

import json
from dataclasses import replace

import pytest
from fake_runs import fake_run, runs_ending_at
from test_claims import FINALS, make_claim

from attnlab.claims import outcomes
from attnlab.claims.rules import above, equivalent
from attnlab.results import Results


def outcome_of(*rules, runs=None):
    return make_claim(*rules).judge(Results(runs_ending_at(FINALS) if runs is None else runs))


def with_diverged(arm: str):
    runs = [r for r in runs_ending_at(FINALS) if r.id != f"{arm}-s1"]
    return [*runs, fake_run(arm, 1, [4.2, 3.0], status="diverged")]


def test_table_of_arms():
    rows = outcomes.arm_rows(outcome_of(above(0.5), runs=with_diverged("other")).arms)
    assert all(len(row) == len(outcomes.ARM_COLUMNS) for row in rows)
    assert rows[0] == ("treated", "2.650", "2.526 to 2.774", "2.600 to 2.700", "14.15", "3")
    assert rows[2][0] == "other"
    assert rows[2][-1] == "2 of 3 (1 diverged)"


def test_table_row_of_an_arm_where_nothing_finished():
    runs = [
        replace(r, status="diverged") if r.id.startswith("other") else r
        for r in runs_ending_at(FINALS)
    ]
    rows = outcomes.arm_rows(outcome_of(above(0.5), runs=runs).arms)
    assert rows[2] == ("other", "-", "-", "-", "-", "0 of 3 (3 diverged)")


def test_lines_give_verdict_reason_number_and_effect_in_perplexity():
    text = "\n".join(outcomes.verdict_lines(outcome_of(above(0.5))))
    assert text.startswith("S0 REPRODUCED: Treatment costs more.")
    assert "treated - plain = 0.700 nats, 95 % CI 0.576 to 0.824 (3 seeds, paired t)" in text
    assert "claimed: above 0.5" in text
    assert "2.01" in text  # exp(0.7)
    assert "Holm" in text


def test_lines_name_every_diverged_run_even_where_it_is_not_needed():
    lines = outcomes.verdict_lines(outcome_of(above(0.5), runs=with_diverged("other")))
    assert lines[-1] == "diverged: other seed 1 diverged after step 4"


def test_verdict_file_round_trips_and_holds_what_a_reader_needs(tmp_path):
    path = tmp_path / "verdict.json"
    outcomes.write_verdict(outcome_of(above(0.5), equivalent(0.03)), path)
    stored = json.loads(path.read_text())
    assert stored["verdicts"] == {"S0": "REPRODUCED", "S1": "NOT REPRODUCED"}
    first, second = stored["judgements"]
    assert (first["low"], first["high"]) == (0.5, None)  # JSON has no infinity
    assert (second["low"], second["high"]) == (-0.03, 0.03)
    assert first["values"] == pytest.approx({"0": 0.7, "1": 0.65, "2": 0.75})
    assert first["interval"]["n"] == 3
    assert stored["references"]["bigram"] == 2.4875
    assert stored["arms"][0]["overrides"] == {"x": 1}
    assert [c["passed"] for c in stored["controls"]] == [True, True]
    assert list(tmp_path.iterdir()) == [path], "no half-written file stays behind"


def test_keys_are_the_same_whatever_the_verdict():
    good, bad = (
        outcomes.as_dict(outcome_of(above(0.5), runs=runs))
        for runs in (None, with_diverged("plain"))
    )
    assert bad["verdicts"] == {"S0": "INVALID"}
    assert good.keys() == bad.keys()
    assert good["judgements"][0].keys() == bad["judgements"][0].keys()
    assert json.dumps(bad, allow_nan=False)


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "verdict.json"
    path.write_text("old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        outcomes.write_verdict(outcome_of(above(0.5)), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
