"""`attnlab status`: the state of every member from the directory alone, for people and for scripts."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from attnlab.commands import status
from attnlab.tracking import MemberRecord, SweepDirectory
from attnlab.tracking.files import write_json

ENDS = ("finished", "diverged", "stopped", "interrupted", "failed")


@pytest.fixture
def sweep(tmp_path: Path):
    """An open directory of members named a, b, ...: as long as it is open something trains."""
    with SweepDirectory(tmp_path, "sw") as directory:
        directory.create(
            [MemberRecord(name, name, "arm", 0, {"steps": 100, "name": name}) for name in "abcdef"]
        )
        yield directory


def put(sweep: SweepDirectory, name: str, rows: list[str], **summary: Any) -> None:
    run = sweep.run(name)
    (run / "metrics.jsonl").write_text("".join(f"{row}\n" for row in rows))
    if summary:
        write_json(run / "summary.json", summary)


ROWS = ['{"step":10,"train/loss":2.5}', '{"step":20,"train/loss":2.25,"val/loss":2.125}']


def cells(sweep: SweepDirectory) -> dict[str, tuple[str, ...]]:
    return {row.name: row.cells()[1:] for row in status.read(sweep.path)}


def test_every_state_is_told_with_step_losses_and_age(sweep) -> None:
    put(sweep, "b", ROWS[:1])
    put(sweep, "c", ROWS, status="diverged", diverged_at=21)
    for name, end in (("d", "finished"), ("e", "stopped"), ("f", "interrupted")):
        put(sweep, name, ROWS, status=end)
    os.utime(sweep.run("d") / "metrics.jsonl", (time.time() - 7200,) * 2)
    os.utime(sweep.run("e") / "metrics.jsonl", (time.time() + 7200,) * 2)  # the clock jumped
    found = cells(sweep)
    assert found["a"] == ("waiting", "-/100", "-", "-", "-", "-")
    assert found["b"][:4] == ("running", "10/100", "-", "2.5000")
    assert found["c"][:4] == ("diverged at 21", "20/100", "2.1250", "2.2500")
    assert [found[n][0] for n in "def"] == ["finished", "stopped", "interrupted"]
    assert found["d"][4] == "2 h ago"
    assert found["e"][4] == "0 s ago"


def test_nothing_runs_where_no_process_holds_the_directory(sweep) -> None:
    put(sweep, "b", ROWS[:1])
    sweep.close()
    assert cells(sweep)["b"][0] == "interrupted"


def test_the_newest_complete_checkpoint_of_a_group_is_that_of_its_members(sweep) -> None:
    write_json(sweep.path / "groups.json", {"g": ["a", "b"], "h": ["c"]})
    for step in ("20", "100", "120.orbax-checkpoint-tmp"):
        (sweep.path / "checkpoints" / "g" / step).mkdir(parents=True)
        (sweep.path / "checkpoints" / "g" / step / "_CHECKPOINT_METADATA").touch()
    (sweep.path / "checkpoints" / "g" / "140").mkdir()  # cut short: without its mark
    assert [cells(sweep)[n][5] for n in "abc"] == ["100", "100", "-"]


@pytest.mark.parametrize(
    ("ends", "alive", "code"),
    [
        (["finished"] * 6, False, status.DONE),
        (["finished"] * 5 + ["diverged"], False, status.FAULTY),
        (["finished"] * 5 + ["stopped"], False, status.FAULTY),
        (["finished"] * 5 + ["interrupted"], False, status.UNFINISHED),
        (["diverged"] * 5 + ["failed"], False, status.UNFINISHED),
        (["finished"] * 5 + [None], False, status.UNFINISHED),
        (["finished"] * 5 + ["running"], False, status.UNFINISHED),
        (["finished"] * 5 + ["running"], True, status.RUNNING),
    ],
)
def test_exit_code_says_done_to_resume_running_or_ended_badly(sweep, ends, alive, code) -> None:
    for name, end in zip("abcdef", ends, strict=True):
        if end is not None:
            put(sweep, name, ROWS, status=end)
    if not alive:
        sweep.close()
    assert status.exit_code(status.read(sweep.path)) == code
