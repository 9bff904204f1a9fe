"""Checks as results: when a measurement passes, what a run prints and writes, and that bad flags are refused."""

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from attnlab import checks, compile_cache
from attnlab.checks import (
    Check,
    Erratum,
    Finding,
    Measurement,
    Table,
    at_least,
    at_most,
    check_report,
    equal,
    sampled,
)

NAN = float("nan")


def holds(seed: int) -> Finding:
    """Two is two.

    A second paragraph is no part of the claim.
    """
    table = Table("numbers", ("a", "b"), ((1, 2.5), ("text", math.inf)))
    return Finding((equal("two", 2, 2), at_most("seed", seed, 100)), (table,))


def fails(seed: int) -> Finding:
    """Two is three."""
    return Finding(
        (at_most("small", 0, 1), equal("two", 2, 3, tolerance=0.5), at_least("big", 5, 1))
    )


def breaks(seed: int) -> Finding:
    """This one has a fault."""
    raise RuntimeError("no such thing")


def draw(finding: Finding) -> dict[str, Figure]:
    return {"two": Figure()}


CHECKS = checks.in_order(
    [Check("M1", breaks, "nobody"), Check("I10", fails, "a | b"), Check("I2", holds, "a", draw)]
)
SOURCES = {"a": "A document"}


def flags(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    checks.add_arguments(parser)
    return parser.parse_args(words)


def run(*words: str, errata: tuple[Erratum, ...] = ()) -> int:
    args = flags(*words)
    return checks.run(args, checks.choose(args, CHECKS), errata, SOURCES)


@pytest.fixture(autouse=True)
def no_compile_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compile_cache.OPT_OUT, "off")


@pytest.mark.parametrize(
    ("measurement", "passed"),
    [
        (equal("x", 1.0, 1.0), True),
        (equal("x", 1.0 + 1e-16, 1.0), True),
        (equal("x", 1.1, 1.0), False),
        (equal("x", 1.1, 1.0, tolerance=0.2), True),
        (equal("x", 0.9, 1.0, tolerance=0.05), False),
        (at_most("x", 1.0, 1.0), True),
        (at_most("x", 1.1, 1.0), False),
        (at_least("x", 1.0, 1.0), True),
        (at_least("x", 0.9, 1.0), False),
        (sampled("x", 1.3, 1.0, standard_error=0.1), True),
        (sampled("x", 1.4, 1.0, standard_error=0.1), False),
        (sampled("x", 1.4, 1.0, standard_error=0.1, tolerance=0.5), True),
    ],
)
def test_measurement_meets_its_requirement(measurement: Measurement, passed: bool) -> None:
    assert measurement.passed is passed


@pytest.mark.parametrize("relation", ["=", "<=", ">="])
def test_nan_never_passes(relation: str) -> None:
    assert not Measurement("x", NAN, relation, 1.0, 10.0).passed  # type: ignore[arg-type]
    assert not Measurement("x", 1.0, relation, NAN, 10.0).passed  # type: ignore[arg-type]


def test_sampled_number_says_how_many_standard_errors_off_it_is() -> None:
    measurement = sampled("x", 1.3, 1.0, standard_error=0.1)
    assert measurement.z == pytest.approx(3.0)
    assert measurement.requirement == "= 1 ± 0.35 (z = +3.00)"
    assert at_most("x", 1, 1e-5).requirement == "<= 1e-05"


def test_finding_without_measurements_does_not_pass() -> None:
    assert not Finding(()).passed


def test_checks_are_ordered_by_number_not_by_text() -> None:
    assert [check.id for check in CHECKS] == ["I2", "I10", "M1"]


@pytest.mark.parametrize("ids", [("I1", "I1"), ("i1",), ("claim",)])
def test_ids_that_are_no_ids_or_not_unique_are_refused(ids: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="check id"):
        checks.in_order([Check(id, holds, "a") for id in ids])


def test_claim_without_a_sentence_is_refused() -> None:
    with pytest.raises(ValueError, match="claims nothing"):
        checks.in_order([Check("I1", lambda seed: Finding(()), "a")])


def test_statement_is_the_first_paragraph_only() -> None:
    assert CHECKS[0].statement == "Two is two."


def test_error_in_a_check_is_a_failure_with_its_message() -> None:
    outcome = checks.run_check(CHECKS[2], seed=0)
    assert not outcome.passed
    assert outcome.error == "RuntimeError: no such thing"


@pytest.mark.parametrize(
    ("pattern", "ids"),
    [
        (None, ["I2", "I10", "M1"]),
        ("i2", ["I2"]),
        ("I*", ["I2", "I10"]),
        ("TEST_CHECKS", ["I2", "I10", "M1"]),
    ],
)
def test_pattern_selects_by_id_or_topic(pattern: str | None, ids: list[str]) -> None:
    assert [check.id for check in checks.select(CHECKS, pattern)] == ids


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["Z9"], "nothing matches 'Z9'.*I2 to M1.*test_checks"),
        (["--seed", "-1"], "--seed: must be at least 0, got -1"),
    ],
)
def test_impossible_flags_are_refused_in_one_line(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checks.choose(flags(*words), CHECKS)


def test_exit_code_says_whether_all_passed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("I2") == 0
    assert "1 passed, 0 failed, seed 0" in capsys.readouterr().out
    assert run() == 1
    assert "1 passed, 2 failed, seed 0" in capsys.readouterr().out


def test_failure_says_what_it_got_what_was_required_and_how_to_run_it_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("--seed", "3")
    out = capsys.readouterr().out
    assert "FAIL two: got 2, required = 3 ± 0.5" in out
    assert "again: attnlab check I10 --seed 3" in out
    assert "raised RuntimeError: no such thing" in out
    assert "again: attnlab check M1 --seed 3" in out
    assert "attnlab check I2" not in out


def test_table_shows_the_measurement_that_failed() -> None:
    row = check_report.rows([checks.run_check(CHECKS[1], 0)])[0]
    assert dict(zip(check_report.COLUMNS, row, strict=True)) == {
        "id": "I10",
        "claim": "Two is three.",
        "source": "a | b",
        "measured": "two: 2",
        "required": "= 3 ± 0.5, and 2 more",
        "verdict": "FAIL",
    }


def test_json_holds_every_measurement_and_survives_numbers_that_are_not_finite(
    tmp_path: Path,
) -> None:
    file = tmp_path / "deep" / "checks.json"
    run("--json", str(file))
    found = json.loads(file.read_text())
    assert found["passed"] is False
    two, three, fault = found["checks"]
    assert [m["measured"] for m in two["measurements"]] == [2.0, 0.0]
    assert two["tables"][0]["rows"] == [[1, 2.5], ["text", "inf"]]
    assert [m["passed"] for m in three["measurements"]] == [True, False, True]
    assert fault["error"] == "RuntimeError: no such thing"
    assert {"schema", "date", "commit"} <= set(found)


def test_markdown_is_written_between_the_markers_and_nothing_else_is_touched(
    tmp_path: Path,
) -> None:
    file = tmp_path / "README.md"
    file.write_text(f"above\n{check_report.BEGIN}\nold\n{check_report.END}\nbelow\n")
    run("--markdown", str(file))
    text = file.read_text()
    assert text.startswith(f"above\n{check_report.BEGIN}\n| id | claim |")
    assert text.endswith(f"{check_report.END}\nbelow\n")
    assert "old" not in text
    assert "a \\| b" in text  # a pipe would open a column
    assert len([line for line in text.splitlines() if line.startswith("| ")]) == 1 + len(CHECKS)


def test_markdown_makes_a_new_file_that_can_be_written_again(tmp_path: Path) -> None:
    file = tmp_path / "new.md"
    run("--markdown", str(file))
    first = file.read_text()
    run("--markdown", str(file))
    assert file.read_text() == first


def test_markdown_never_overwrites_a_file_without_markers(tmp_path: Path) -> None:
    file = tmp_path / "notes.md"
    file.write_text("mine")
    with pytest.raises(ValueError, match="without the markers"):
        checks.choose(flags("--markdown", str(file)), CHECKS)
    assert file.read_text() == "mine"


def test_figures_are_written_for_the_checks_that_have_some(tmp_path: Path) -> None:
    run("--figures", str(tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["I2_two.png", "I2_two.svg"]


def test_errata_are_listed_without_running_anything(capsys: pytest.CaptureFixture[str]) -> None:
    erratum = Erratum("E1", "a L1", "two is three", "two is two", ("I2",), "counting")
    assert run("--errata", errata=(erratum,)) == 0
    out = capsys.readouterr().out
    assert "two is three" in out
    assert "attnlab check I2; counting" in " ".join(out.split())
    assert "passed" not in out


CACHE_PROBE = """
import jax
from attnlab import compile_cache
print(compile_cache.enable())
jax.jit(lambda x: x * 2 + 1)(3.0)
"""


def cached(tmp_path: Path, **env: str) -> tuple[str, list[Path]]:
    clean = {
        k: v
        for k, v in os.environ.items()
        if k not in (compile_cache.OPT_OUT, "JAX_COMPILATION_CACHE_DIR")
    }
    done = subprocess.run(
        [sys.executable, "-c", CACHE_PROBE], capture_output=True, text=True, check=True,
        env={**clean, "ATTNLAB_CACHE": str(tmp_path), **env},
    )  # fmt: skip
    return done.stdout.strip(), [p for p in tmp_path.rglob("*") if p.is_file()]


def test_compiled_programs_are_kept_in_the_cache_directory(tmp_path: Path) -> None:
    place, files = cached(tmp_path)
    assert Path(place).parent == tmp_path / "xla"
    assert files


def test_compile_cache_can_be_switched_off(tmp_path: Path) -> None:
    assert cached(tmp_path, **{compile_cache.OPT_OUT: "off"}) == ("None", [])


def test_directory_given_to_jax_is_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    place, _ = cached(tmp_path, JAX_COMPILATION_CACHE_DIR=str(theirs))
    assert place == "None"
    assert not (tmp_path / "xla").exists()
