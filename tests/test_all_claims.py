"""Every claim at once: what it costs, what was found, and that one that fails does not hide the others."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from fake_sweep import CLAIM, toy_members, write_sweep

from attnlab import cli, sweeps
from attnlab.claims import EXPERIMENTS
from attnlab.claims.outcomes import write_verdict
from attnlab.commands import all_claims
from attnlab.results import Results
from attnlab.tracking import read_runs

OTHER = replace(CLAIM, name="other", statement="Something else holds.")
CLAIMS = {"toy": CLAIM, "other": OTHER}


def write(workdir: Path, name: str = "toy-quick") -> None:
    """A finished and judged sweep."""
    write_sweep(workdir, toy_members(), name)
    write_verdict(CLAIM.judge(Results(read_runs(workdir))), workdir / "verdict.json")


def test_cost_is_that_of_the_plan():
    cost = all_claims.cost("nope", "smoke")
    file = cli.CHECKOUT / "configs" / "nope.py"
    planned = cli._plan_of(f"{file}:smoke", [], "nope", None)
    assert cost.members == len(planned.members) == 18
    assert cost.programs == len(planned.groups)
    assert cost.updates == sum(member.steps for member in planned.members)
    assert str(replace(cost, operations=2.5e18)).endswith("2.5 EFLOP")
    assert str(replace(cost, operations=2.5e9, programs=1)).endswith(
        "1 program, 360 updates, 2.5 GFLOP"
    )


def test_every_preset_of_every_claim_can_be_costed_and_its_arms_are_the_claims():
    for name, claim in cli._every_claim().items():
        assert claim.name == name
        for preset in claim.presets:
            assert all_claims.cost(name, preset).members > 0
            file = cli.CHECKOUT / "configs" / f"{name}.py"
            members = cli._config_file(f"{file}:{preset}", []).members(name)
            assert {m["arm"] for m in members} <= set(claim.arms), (name, preset)


def test_claims_are_listed_with_cost_and_last_verdict(tmp_path: Path, capsys):
    write(tmp_path / "old", "nope-quick")
    write(tmp_path / "all" / "nope", "nope-quick")
    os.utime(tmp_path / "old" / "verdict.json", (0, 0))
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "verdict.json").write_text("{")
    assert cli.main(["claims", "--runs", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert all(f"attnlab reproduce {name} --preset quick" in told for name in EXPERIMENTS)
    assert "18 members in 2 programs, 12,600 updates" in told
    assert "last here: REPRODUCED (F1 REPRODUCED, F3 REPRODUCED), 20" in told
    assert str(tmp_path / "all" / "nope") in told
    assert "1970" not in told


def test_claim_that_fails_does_not_keep_the_others_from_running(tmp_path: Path, capsys):
    def one(name: str, workdir: Path) -> int:
        if name == "toy":
            raise ValueError("model: too large")
        write(workdir, "other-quick")
        return 0

    assert all_claims.reproduce(CLAIMS, "quick", tmp_path, one) == 1
    told = capsys.readouterr().out
    assert "toy: failed: model: too large" in told
    page = (tmp_path / "index.html").read_text()
    assert "2 claims: 1 REPRODUCED, 1 not judged." in page
    assert "not run" in page
    assert (tmp_path / "claims_forest.png").stat().st_size > 10_000
    table = (tmp_path / "claims.md").read_text().splitlines()
    assert len(table) == 2 + len(OTHER.subclaims)
    assert table[2].startswith("| other F1: It goes more than half of the way")
    assert "| `attnlab reproduce other --preset quick` | REPRODUCED: 0.7" in table[2]
    assert "claimed above 0.5 |" in table[2]
    assert table[2].endswith("| 0123456+ |")
    assert "| the same run | REPRODUCED: 0.7" in table[3]
    assert " nats (" in table[3]


def test_signal_ends_all_of_them_and_its_code_is_passed_on(tmp_path: Path):
    ran: list[str] = []

    def one(name: str, workdir: Path) -> int:
        ran.append(name)
        return 143

    assert all_claims.reproduce(CLAIMS, "quick", tmp_path, one) == 143
    assert ran == ["toy"]


def test_claim_without_the_preset_is_passed_over_and_said(tmp_path: Path, capsys):
    small = replace(OTHER, presets={"smoke": "for tests"})

    def one(name: str, workdir: Path) -> int:
        write(workdir)
        return 0

    assert all_claims.reproduce({"toy": CLAIM, "other": small}, "quick", tmp_path, one) == 0
    assert "other: has no preset 'quick'" in capsys.readouterr().out


def test_index_shows_an_unfinished_sweep_as_invalid_and_links_to_reports(tmp_path: Path):
    members = toy_members()
    write_sweep(
        tmp_path / "toy", [*members[:-1], replace(members[-1], status="interrupted", rows=3)]
    )
    (tmp_path / "toy" / "report").mkdir()
    (tmp_path / "toy" / "report" / "report.html").touch()
    entry, missing = (all_claims.entry(claim, tmp_path) for claim in CLAIMS.values())
    assert entry.outcome is not None
    assert entry.outcome.verdict == "INVALID"
    assert entry.report == "toy/report/report.html"
    assert (missing.outcome, missing.why) == (None, "not run")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["reproduce"], "name one claim, or give --all"),
        (["reproduce", "nope", "--all"], "name one claim, or give --all"),
        (["reproduce", "--all", "--preset", "quikc"], "preset: got 'quikc'; allowed: smoke, quick"),
        (["reproduce", "--all", "--seeds", "1"], "seeds: a verdict needs at least 2, got 1"),
        (["reproduce", "--all", "--resume"], "--resume: needs --workdir"),
    ],
)
def test_wrong_words_are_refused(words: list[str], told: str, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == cli.BAD_INPUT
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_all_claims_are_run_each_in_its_directory(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(cli, "_every_claim", lambda: {"nope": cli._claim("nope")})
    ran: list[tuple[str, Path]] = []

    def reproduce(claim, session, measured, base) -> int:
        ran.append((claim.name, session.settings.workdir))
        session.directory.close()
        return 0

    monkeypatch.setattr(sweeps, "reproduce", reproduce)
    words = [
        "reproduce",
        "--all",
        "--preset",
        "smoke",
        "--workdir",
        str(tmp_path),
        "--wandb",
        "disabled",
    ]
    assert cli.main(words) == 0
    assert ran == [("nope", tmp_path / "nope")]
    assert json.loads((tmp_path / "nope" / "sweep.json").read_text())["name"] == "nope-smoke"
