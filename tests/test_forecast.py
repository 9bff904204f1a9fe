"""Planning past the machine: counts by hand, the table, and the real train step on virtual devices."""

import dataclasses
from pathlib import Path

import pytest
import tiny
from cli_runner import Cli

from attnlab import cli
from attnlab.commands import forecast
from attnlab.commands.forecast import CHIPS, Forecast
from attnlab.perf import BFLOAT16_PEAK

SHOWN = Forecast(
    members=10, rows=4, data=8, parameters=1_000, flops=6 * 10**12, state=12_000, working=8_000,
    exchanged=7_000.0, updates=100, tokens=5, lines=7, seconds=1.0, compiled_memory=None, collectives={},
)  # fmt: skip


def test_every_chip_has_a_peak() -> None:
    assert {chip.kind for chip in CHIPS.values()} <= BFLOAT16_PEAK.keys()


def test_time_and_memory_by_hand() -> None:
    assert SHOWN.here == 3, "ten members on four rows"
    assert SHOWN.memory == 3 * 20_000
    computing, exchanging = SHOWN.update_seconds(CHIPS["v5e"])
    assert computing == pytest.approx(3 * 6e12 / (8 * 197e12 * 0.4))
    assert exchanging == pytest.approx(3 * 7_000 / 200e9)
    assert SHOWN.chip_hours(CHIPS["v5e"]) == pytest.approx(computing * 100 * 32 / 3600)


def test_exchanged_bytes_by_hand() -> None:
    assert forecast.exchanged_bytes(100, 1, "replicated") == 0
    assert forecast.exchanged_bytes(100, 4, "replicated") == 2 * 400 * 3 / 4
    assert forecast.exchanged_bytes(100, 4, "fsdp") == 3 * 400 * 3 / 4


def test_collectives_are_read_off_the_program() -> None:
    text = """
  %ar = f32[8]{0} all-reduce(f32[8]{0} %x), replica_groups={}
  %ag = (f32[2]{0}, f32[4]{0}) all-gather-start(f32[2]{0} %y), dimensions={0}
  %done = f32[4]{0} all-gather-done(%ag)
  %again = f32[] all-reduce(f32[] %z), to_apply=%add
"""
    assert forecast.count_collectives(text) == {"all-reduce": 2, "all-gather": 1}


def test_what_does_not_fit_is_said() -> None:
    large = dataclasses.replace(SHOWN, state=10 * 10**9)
    used = {row[0]: row[3] for row in forecast.rows_of(large)}
    assert used["v5e"] == "188%, too large"
    assert used["h200"] == "21%"


def test_more_rows_than_members_are_refused() -> None:
    with pytest.raises(ValueError, match="member=3 for a group of 2 members; allowed: at most 2"):
        forecast.of_group(tiny.group(*(tiny.config({"seed.init": s}) for s in range(2))), 3)


@pytest.mark.parametrize(
    "text", ["8", "member=0", "data=2,data=2", "member=2;data=2", "rows=2", ""]
)
def test_a_mesh_that_is_none_is_refused(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["plan", "--config", "configs/base.py", f"--mesh={text}"]) == 2
    assert "allowed: member=M,data=D" in capsys.readouterr().err


@pytest.fixture
def attnlab(tmp_path: Path) -> Cli:
    return Cli(tmp_path, tmp_path / "xla")


@pytest.mark.slow
def test_a_small_program_is_compiled_for_its_mesh(attnlab: Cli) -> None:
    config = str(Path(__file__).with_name("launch_sweep.py"))
    output = attnlab("plan", "--config", config, "--mesh", "member=2,data=2")
    assert "mesh member=2, data=2: 4 devices, 4 members, 2 a row" in output
    assert "the train step was compiled" in output
    assert "all-reduce" in output
    assert "as XLA planned it" in output
    assert all(name in output for name in CHIPS)
    assert list(attnlab.cwd.iterdir()) == []


@pytest.mark.slow
def test_a_member_of_a_billion_parameters_on_64_devices_is_lowered_here(attnlab: Cli) -> None:
    changes = {
        "model.width": 2048, "model.layers": 20, "model.heads": 16, "model.kv_heads": 16, "context": 1024,
        "batch_size": 128, "eval.windows": 128, "eval.final_windows": 128, "mesh.sharding": "fsdp",
        "model.remat": "block", "model.activations": "bfloat16", "corpus": "random:64",
    }  # fmt: skip
    words = [f"--config.{key}={value}" for key, value in changes.items()]
    output = attnlab("plan", "--config", str(tiny.BASE_FILE), "--mesh", "member=1,data=64", *words)
    assert "mesh member=1, data=64: 64 devices" in output
    assert "only lowered" in output
    (count,) = (line for line in output.splitlines() if line.startswith("one member: "))
    assert 1_000_000_000 < int(count.split()[2].replace(",", "")) < 1_100_000_000
