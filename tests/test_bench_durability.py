"""`attnlab bench checkpoints` and `attnlab bench tracking`: they measure what they say, on the smallest sizes."""

import argparse
import json
from pathlib import Path

import pytest
import tiny

from attnlab.bench import durability


class FakeMirror:
    """W&B's own time is no matter of a test."""

    opened: list[str] = []  # noqa: RUF012

    def __init__(self, workdir: Path, mode: str) -> None:
        self.opened.append(mode)

    def stopped(self) -> frozenset[str]:
        return frozenset()

    def close(self, *, timeout: float | None) -> None:
        pass


def bench(what: str, *flags: str) -> int:
    parser = argparse.ArgumentParser()
    durability.add_arguments(parser, what)
    return durability.run(parser.parse_args(flags), what, tiny.BASE)


def test_checkpoints_are_saved_read_back_and_sized(tmp_path: Path, capsys) -> None:
    scratch, out = tmp_path / "scratch", tmp_path / "out"
    scratch.mkdir()
    flags = ("--members", "3", "--size", "1,16,2,8,4", "--repeat", "2")
    assert bench("checkpoints", *flags, "--directory", str(scratch), "--out", str(out)) == 0
    found = json.loads((out / "checkpoints.json").read_text())
    assert found["state_mb"] > 3 * 3 * 4 * 12 * 16**2 / 1e6, (
        "parameters and two moments of 3 members"
    )
    assert found["on_disk_mb"] > 0.8 * found["state_mb"], "noise does not compress"
    seconds = found["seconds"]
    assert 0 < seconds["blocking"] <= seconds["complete"]
    assert seconds["restored"] > 0
    assert "the trainer waits" in capsys.readouterr().out
    assert list(scratch.iterdir()) == [], "it cleans up"


def test_tracking_is_measured_by_rows_and_with_the_mirror(
    tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr(durability, "Mirror", FakeMirror)
    flags = ("--members", "2", "--rows", "3", "--step-ms", "1", "--every", "1", "2")
    assert bench("tracking", *flags, "--out", str(tmp_path)) == 0
    found = json.loads((tmp_path / "tracking.json").read_text())
    assert [(row["every"], row["wandb"]) for row in found["rows"]] == [
        (1, "disabled"), (1, "offline"), (2, "disabled"), (2, "offline"),
    ]  # fmt: skip
    assert FakeMirror.opened == ["offline"] * 3
    assert all(0 < row["seconds"]["call"] <= row["worst"] for row in found["rows"])
    assert "every 2 steps" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--members", "--rows", "--step-ms", "--every"])
def test_numbers_that_are_not_positive_are_refused(flag: str) -> None:
    with pytest.raises(ValueError, match=f"{flag}: must be positive, got 0"):
        bench("tracking", flag, "0")
