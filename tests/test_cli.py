"""The command line: refusals, and whole runs in processes of their own."""

import json
import shutil
import signal
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from cli_runner import Cli

from attnlab import cli, shards, sweeps
from attnlab.tracking import read_runs

# The smallest sweep of the flagship: all five arms, one program.
SWEEP = (
    "sweep",
    "--config",
    "configs/nope.py:smoke",
    "--config.model.layers=1",
    "--config.context=8",
)


@pytest.fixture(scope="session")
def compile_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("xla")


@pytest.fixture
def attnlab(tmp_path, compile_cache):
    runner = Cli(tmp_path, compile_cache)
    for name in ("configs", "experiments"):
        (runner.cwd / name).symlink_to(Path(cli.CHECKOUT) / name)
    return runner


def refused(capsys, *words: str) -> str:
    """The one line that a refused command prints; it must exit with 2."""
    try:
        code = cli.main(words)
    except SystemExit as error:  # argparse
        code = error.code
    output = capsys.readouterr()
    assert code == 2
    assert output.out == ""
    return output.err.strip().splitlines()[-1]


def test_every_run_flag_reaches_the_run(monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr(sweeps, "open_session", lambda _, settings: opened.append(settings))
    words = (
        f"sweep --config configs/base.py --shard 1/2 --workdir {tmp_path} --wandb offline --resume --checkpoint-steps 3 "
        "--checkpoint-minutes 4 --keep 5 --keep-every 6 --debug-nans --data-on host --profile"
    )
    args, _ = cli._parse(words.split())
    cli._open_session(None, args, args.workdir)
    want = sweeps.Settings(
        tmp_path, "offline", True, 3, 4.0, 5, 6, True,
        shard=shards.Shard(1, 2), data_on="host", profile=True,
    )  # fmt: skip
    assert opened == [want]
    defaults = sweeps.Settings(tmp_path / "other")
    same = [f.name for f in fields(want) if getattr(want, f.name) == getattr(defaults, f.name)]
    assert not same, "a setting that this test would not notice missing"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("reproduce", "nop"), ("claim", "'nop'", "did you mean 'nope'")),
        (("reproduce", "nope", "--preset", "quik"), ("preset", "'quik'", "smoke, quick")),
        (("reproduce", "nope", "--seeds", "1"), ("seeds", "at least 2", "1")),
        (("reproduce", "nope", "--wandb", "on"), ("--wandb", "'on'", "offline")),
        (("reproduce", "nope", "--devices", "0"), ("--devices", "0", "at least 1")),
        (("reproduce", "nope", "--resume"), ("--resume", "--workdir")),
        (("reproduce", "nope", "--config.steps=3"), ("--config.steps=3", "allowed with")),
        ((*SWEEP, "--config.modle.width=3"), ("modle.width", "did you mean model.width")),
        ((*SWEEP, "--config.steps=many"), ("config.steps", "int", "'many'")),
        ((*SWEEP, "--config.steps"), ("--config.steps", "NAME=VALUE")),
        ((*SWEEP, "--config.model.width=30", "--config.model.heads=4"), ("width", "30", "heads = 4")),
        ((*SWEEP, "--config.corpus=shakespear"), ("corpus", "'shakespear'", "did you mean")),
        ((*SWEEP, "--config.corpus=text:/no/such/file"), ("/no/such/file",)),
        ((*SWEEP, "--config.steps=15"), ("steps", "15", "log_every")),
        ((*SWEEP, "--checkpoint-steps", "0"), ("checkpoints.every_steps", "0", "positive")),
        ((*SWEEP, "--sweep", "other"), ("--sweep", "'other'", "nope")),
        ((*SWEEP, "--shard", "2/2"), ("--shard", "'2/2'", "0/2 to 1/2")),
        ((*SWEEP, "--shard", "0/0"), ("--shard", "'0/0'", "I/N")),
        ((*SWEEP, "--shard=-1/2"), ("--shard", "'-1/2'", "I/N")),
        ((*SWEEP, "--shard", "third"), ("--shard", "'third'", "I/N")),
        ((*SWEEP, "--shard", "0/19"), ("shards", "19", "18 members")),
        (("sweep", "--config", "configs/none.py"), ("--config", "configs/none.py", "FILE.py")),
        (("sweep", "--config", "configs/nope.py:tiny"), ("preset", "'tiny'", "smoke")),
        (("train", "--config", "configs/base.py", "--config.mask=sliding_window(0)"), ("0", "at least 1")),
        (("train", "--config", "configs/base.py", "--config.mask=prefix_lm(99)"), ("99", "32")),
        (("train", "--config", "configs/base.py", "--config.mask=causel"), ("causel", "did you mean")),
        (("train", "--config", "configs/base.py", "--config.objective=mlm"), ("objective", "'mlm'")),
        (("mask", "causal", "--length", "0"), ("--length", "0", "at least 1")),
        (("status", "/no/such/directory"), ("workdir", "/no/such/directory")),
        (("report", "/no/such/directory"), ("workdir", "/no/such/directory")),
    ],
)  # fmt: skip
def test_bad_input_gets_one_line_naming_field_and_value(
    words, parts, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(cli.CHECKOUT)
    if words[0] in ("sweep", "train"):
        words = (*words, "--workdir", str(tmp_path / "work"))
    monkeypatch.setenv("XLA_FLAGS", "")
    line = refused(capsys, *words)
    for part in parts:
        assert part in line
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("content", "parts"),
    [(b"", ("empty",)), (b"short", ("characters",)), (b"\xff\xfe\x00", ("UTF-8",))],
)
def test_unusable_text_is_refused_before_anything_is_written(
    content, parts, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(cli.CHECKOUT)
    monkeypatch.setenv("XLA_FLAGS", "")
    text = tmp_path / "my.txt"
    text.write_bytes(content)
    workdir = tmp_path / "work"
    line = refused(capsys, *SWEEP, f"--config.corpus=text:{text}", "--workdir", str(workdir))
    assert "my.txt" in line
    for part in parts:
        assert part in line
    assert not workdir.exists()


def test_mask_is_drawn(capsys):
    assert cli.main(["mask", "causal & sliding_window(2)", "--length", "3"]) == 0
    drawn = capsys.readouterr().out
    assert "lo" in drawn
    assert "hi" in drawn


def test_claims_lists_the_flagship(capsys):
    assert cli.main(["claims"]) == 0
    assert "attnlab reproduce nope --preset quick" in capsys.readouterr().out


def test_reproduce_ends_with_verdicts_one_trace_and_a_run_per_member(attnlab):
    output = attnlab("reproduce", "nope", "--preset", "smoke", "--seeds", "2", "--workdir", "work")
    work = attnlab.cwd / "work"
    assert "traces of the train step: 1," in output
    verdict = json.loads((work / "verdict.json").read_text())
    assert set(verdict["verdicts"]) >= {"F1", "F3"}
    assert all(v in output for v in verdict["verdicts"].values())
    runs = read_runs(work)
    assert len(runs) == 12
    assert {run.status for run in runs} == {"finished"}
    assert len(list((work / "wandb").rglob("*.wandb"))) == len(runs) + 1, "members, and the report"
    assert "W&B offline: the report is a run of the group" in output
    assert f"report: {Path('work') / 'report' / 'report.html'}" in output
    page = (work / "report" / "report.html").read_text()
    assert all(f">{v}</span>" in page for v in verdict["verdicts"].values())
    assert (work / "report" / "figures" / "loss_by_tokens.png").stat().st_size > 10_000
    assert sorted(p.name for p in attnlab.cwd.iterdir()) == ["configs", "experiments", "work"]
    home = {p.relative_to(attnlab.home).parts[:2] for p in attnlab.home.rglob("*")}
    assert home <= {(".cache",), (".config",), (".cache", "matplotlib"), (".config", "matplotlib")}


def test_dry_run_prints_the_plan_and_writes_nothing(attnlab):
    output = attnlab(*SWEEP, "--dry-run")
    assert "expected traces of the train step: 1" in output
    assert "18 members in 1 compiled program" in output
    assert sorted(p.name for p in attnlab.cwd.iterdir()) == ["configs", "experiments"]
    assert list(attnlab.home.iterdir()) == []


def histories(work: Path) -> dict[str, dict[str, np.ndarray]]:
    return {run.id: run.history for run in read_runs(work)}


def assert_equal_bits(a: Path, b: Path) -> None:
    left, right = histories(a), histories(b)
    assert left.keys() == right.keys()
    for run, columns in left.items():
        assert columns.keys() == right[run].keys()
        for name, values in columns.items():
            np.testing.assert_array_equal(values, right[run][name], err_msg=f"{run} {name}")


# Three members a seed: one trains long, one is soon done, one diverges at once.
LONG = (
    "sweep", "--config", str(Path(__file__).parent / "faults" / "tiny_sweep.py"),
    "--config.steps=10000", "--config.eval.every=1000", "--wandb", "disabled", "--devices", "2",
    "--seeds", "1",
)  # fmt: skip


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, compile_cache):
    runner = Cli(tmp_path_factory.mktemp("uninterrupted"), compile_cache)
    runner(*LONG, "--workdir", "work")
    return runner.cwd / "work"


def rows_logged(work: Path) -> int:
    """Of the member that trains long."""
    files = (work / "runs").glob("*/metrics.jsonl")
    return max((f.read_bytes().count(b"\n") for f in files), default=0)


def test_the_same_command_twice_gives_the_same_bits(attnlab, uninterrupted):
    attnlab(*LONG, "--workdir", "work")
    assert_equal_bits(attnlab.cwd / "work", uninterrupted)


def on_devices(devices: int) -> tuple[str, ...]:
    return (*LONG[:-3], str(devices), *LONG[-2:], "--workdir", "work")


@pytest.mark.parametrize(
    ("number", "before", "after"),
    [(signal.SIGINT, 2, 1), (signal.SIGTERM, 1, 2), pytest.param(signal.SIGUSR1, 2, 3, marks=pytest.mark.slow)],
)  # fmt: skip
def test_a_sweep_stopped_on_some_devices_resumes_on_others_to_the_same_bits(
    number, before, after, attnlab, uninterrupted
):
    """A member runs by itself wherever it is, so on a CPU not even the layout of the others changes a bit."""
    work = attnlab.cwd / "work"
    code, output = attnlab.stop_when(on_devices(before), lambda: rows_logged(work) >= 20, number)
    assert code == 128 + number, output
    # Who had ended keeps its end.
    assert [run.status for run in read_runs(work)] == ["interrupted", "finished", "diverged"]
    attnlab("status", "work", code=3)
    attnlab(*on_devices(after), code=2)  # started and not resumed: refused
    attnlab(*on_devices(after), "--resume")
    assert_equal_bits(work, uninterrupted)
    attnlab("status", "work", code=5)  # one diverged


def test_kill_9_loses_nothing_that_was_reported(attnlab, uninterrupted):
    work = attnlab.cwd / "work"
    words = (*LONG, "--checkpoint-steps", "200", "--workdir", "work")
    code, _ = attnlab.stop_when(words, lambda: rows_logged(work) >= 60, signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert read_runs(work)[0].last_step >= 500
    attnlab(*words, "--resume")
    assert_equal_bits(work, uninterrupted)


def test_adding_seeds_trains_only_the_new_ones(attnlab, uninterrupted):
    work = attnlab.cwd / "work"
    shutil.copytree(uninterrupted, work)
    before = {p: p.read_bytes() for p in work.glob("runs/*/metrics.jsonl")}
    output = attnlab(*LONG[:-1], "2", "--workdir", "work", "--resume")
    assert "3 members" in output
    assert len(list(work.glob("runs/*/metrics.jsonl"))) == 6
    assert all(p.read_bytes() == content for p, content in before.items())
