"""The W&B page of a sweep as code: what is on it, that W&B's client takes it, and the sweep for agents."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml
from wandb_server import ENTITY, WandbServer

pytest.importorskip("wandb_workspaces", reason="needs the extra dashboards")

from attnlab import cli, training
from experiments.nope import CLAIM
from launch import dashboard, wandb_sweep
from launch.dashboard import Subject

CHECKOUT = Path(cli.CHECKOUT)
SUBJECT = Subject("nope-quick", "attnlab", ENTITY, ("a", "b"), None, "It trains.", "Somebody 2022")


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return dashboard.as_json(*dashboard.build(SUBJECT))


def sections(made: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found = made["workspace"]["spec"]["section"]["panelBankConfig"]["sections"]
    return {section["name"]: section["panels"] for section in found}


def test_sections_lines_by_tokens_and_bands_over_seeds(made: dict[str, Any]) -> None:
    named = sections(made)
    assert list(named) == ["loss", "arms", "stability", "attention", "probes", "performance"]
    assert all(named.values())
    lines = [
        panel["config"]
        for name in ("loss", "stability", "attention")
        for panel in named[name]
        if panel["viewType"] == "Run History Line Plot"
    ]
    assert {line["xAxis"] for line in lines} == {"tokens"}
    assert {(x["groupBy"], x["groupAgg"], x["groupArea"]) for x in lines} == {
        ("arm.value", "mean", "stderr")
    }


def test_only_the_runs_of_the_sweep_by_the_column_that_W_B_has(made: dict[str, Any]) -> None:
    (runs,) = made["workspace"]["spec"]["section"]["runSets"]
    (chosen,) = runs["filters"]["filters"]
    assert (chosen["key"]["section"], chosen["op"], chosen["value"]) == ("run", "=", "nope-quick")
    assert chosen["key"]["name"].lower() == "group"
    assert runs["grouping"] == [{"section": "config", "name": "arm.value"}]


def test_every_column_is_one_that_training_logs() -> None:
    shapes = training.state_shapes(tiny.group(tiny.config()).task)
    logged = {*training.no_metrics(shapes), "val/loss", "val/bpb"}
    assert {c for names in dashboard.LINES.values() for c in names} <= logged


def test_columns_that_no_run_has_are_left_out() -> None:
    subject = Subject("s", "p", ENTITY, columns=frozenset({"val/loss", "tokens"}))
    panels = sections(dashboard.as_json(*dashboard.build(subject)))["loss"]
    assert [panel["config"]["metrics"] for panel in panels] == [["val/loss"]]


def test_a_workspace_comes_back_as_it_went(made: dict[str, Any]) -> None:
    import wandb_workspaces.workspaces as ws

    workspace, _ = dashboard.build(SUBJECT)
    again = ws.Workspace._from_model(workspace._to_model())
    back = json.loads(again._to_model().model_dump_json(by_alias=True))

    def without_ids(value: Any) -> Any:
        return re.sub(r'"(__id__|ref)": "[^"]*"', "", json.dumps(value["spec"], sort_keys=True))

    assert without_ids(back) == without_ids(made["workspace"])


def test_both_are_saved_by_the_real_client(tmp_path: Path) -> None:
    with WandbServer() as server:
        environ = {**os.environ, **server.environ, "HOME": str(tmp_path), "WANDB_MODE": "online"}
        words = ("dashboard", "nope:quick", "--entity", ENTITY)
        done = subprocess.run(
            [sys.executable, "-m", "attnlab", *words], cwd=tmp_path, env=environ, text=True,
            capture_output=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert server.unknown == []
        assert done.stdout.count("saved: http://127.0.0.1") == 2
        title = "attnlab nope-quick"
        assert server.views.keys() == {title, f"{title}, report"}
        assert {view["projectName"] for view in server.views.values()} == {"attnlab"}
        report = server.views[f"{title}, report"]["spec"]
    assert CLAIM.statement[:40] in json.dumps(report)
    runs = [block["metadata"]["runSets"] for block in report["blocks"] if "metadata" in block]
    assert len(runs) == 4
    assert all(x["name"] == "nope-quick" for sets in runs for x in sets)
    assert list(tmp_path.glob("*.json")) == []


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(words) == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_offline_it_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert cli.main(["dashboard", "nope"]) == 0
    assert json.loads((tmp_path / "dashboard.json").read_text()).keys() == {"workspace", "report"}
    assert "--wandb online" in capsys.readouterr().out


def test_bad_input_gets_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert "no W&B key found" in refused(capsys, "dashboard", "nope", "--wandb", "online")
    assert "did you mean 'nope'" in refused(capsys, "dashboard", "nop")
    assert "'quik'" in refused(capsys, "dashboard", "nope:quik")
    assert "no sweep.json" in refused(capsys, "dashboard", str(tmp_path))
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert "--entity" in refused(capsys, "dashboard", "nope", "--wandb", "online")
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports.v2", None)
    assert "attnlab[dashboards]" in refused(capsys, "dashboard", "nope", "--wandb", "offline")
    assert list(tmp_path.iterdir()) == []


def test_each_agent_trains_one_member_under_its_own_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"])
    config = str(CHECKOUT / "tests" / "launch_sweep.py")
    words = ("--config", config, "--config.steps=40", "--seeds", "1")
    assert cli.main(["wandb-sweep", *words, "--workdir", str(tmp_path / "w")]) == 0
    document = yaml.safe_load(capsys.readouterr().out)
    assert document["parameters"] == {"shard": {"values": ["0/2", "1/2"]}}
    assert cli.main(["sweep", *words, "--dry-run"]) == 0
    wanted = set(re.findall(r"launch_sweep-[0-9a-f]{10}", capsys.readouterr().out))
    found = []
    for shard in document["parameters"]["shard"]["values"]:
        env, program, *command = document["command"]
        assert (env, program) == ("${env}", "attnlab")
        filled = [f"--shard={shard}" if word == "${args}" else word for word in command]
        assert cli.main([*filled, "--dry-run"]) == 0
        found += re.findall(r"launch_sweep-[0-9a-f]{10}", capsys.readouterr().out)
    assert len(wanted) == 2
    assert sorted(found) == sorted(wanted)
    assert not (tmp_path / "w").exists()


def test_flags_are_words_of_the_agents_command() -> None:
    text = wandb_sweep.export("n", "p", "c.py:x", 3, Path("w"), ["--config.steps=3"])
    assert yaml.safe_load(text)["command"] == [
        "${env}", "attnlab", "sweep", "--config", "c.py:x", "--config.steps=3", "--workdir", "w", "--resume", "${args}",
    ]  # fmt: skip
