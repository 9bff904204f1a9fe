"""Every claim through the command line: its smoke preset trains, is measured, judged and reported."""

import json

import pytest
from cli_runner import Cli

from attnlab.claims import EXPERIMENTS
from attnlab.claims.rules import Verdict


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_smoke_preset_runs_to_its_report(name, tmp_path):
    attnlab = Cli(tmp_path, tmp_path / "xla")
    output = attnlab(
        "reproduce", name, "--preset", "smoke", "--workdir", "work", "--wandb", "disabled"
    )
    verdict = json.loads((attnlab.cwd / "work" / "verdict.json").read_text())
    assert verdict["claim"] == name
    assert set(verdict["verdicts"].values()) <= set(Verdict)
    assert verdict["verdicts"]
    assert all(f"{part} {said}" in output for part, said in verdict["verdicts"].items())
    report = json.loads((attnlab.cwd / "work" / "report" / "report.json").read_text())
    assert (attnlab.cwd / "work" / "report" / "report.html").stat().st_size > 10_000
    assert report["verdict"]["verdicts"] == verdict["verdicts"]
    assert "No figure yet" not in (attnlab.cwd / "work" / "report" / "report.html").read_text()
