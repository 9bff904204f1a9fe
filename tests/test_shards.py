"""A sweep divided among jobs: who trains what, and that jobs in one directory leave each other alone."""

import itertools
import json
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tiny
from cli_runner import Cli

from attnlab import resume, shards, sweeps
from attnlab.commands import status
from attnlab.shards import Shard
from attnlab.tracking import Part, SweepDirectory, locks, read_groups, read_runs, sync


def planned(seeds: int = 3, widths: tuple[int, ...] = (16,)) -> sweeps.Plan:
    configs = [
        tiny.config({"model.width": width, "seed.init": seed}, mask=mask)
        for seed in range(seeds)
        for width in widths
        for mask in ("causal", "full")
    ]
    return sweeps.plan("tiny", configs, tiny.BASE)


def shares(division: dict[str, int]) -> list[int]:
    """Members of each shard, the most first."""
    return sorted(Counter(division.values()).values(), reverse=True)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
def test_every_member_is_in_one_shard_and_no_shard_is_empty(count: int) -> None:
    plan = planned()
    division = shards.divide(plan.groups, count)
    assert division.keys() == {m.id for m in plan.members}
    assert set(division.values()) == set(range(count))


def test_the_members_of_one_group_are_shared_out_evenly() -> None:
    plan = planned(seeds=4)
    assert shares(shards.divide(plan.groups, 3)) == [3, 3, 2]
    assert shares(shards.divide(plan.groups, 8)) == [1] * 8


@pytest.mark.parametrize("count", [1, 2, 4])
def test_groups_stay_whole_while_that_shares_out_the_work(count: int) -> None:
    configs = [
        tiny.config({"eval.windows": windows, "eval.final_windows": windows, "seed.init": seed})
        for windows in (4, 8, 12, 16)
        for seed in range(2)
    ]
    groups = sweeps.plan("tiny", configs, tiny.BASE).groups
    assert len(groups) == 4
    division = shards.divide(groups, count)
    assert all(len({division[m.id] for m in g.members}) == 1 for g in groups)


def test_a_group_that_is_most_of_the_work_is_cut() -> None:
    plan = planned(widths=(8, 128))
    division = shards.divide(plan.groups, 2)
    assert len({division[m.id] for m in plan.groups[1].members}) == 2


def test_added_members_move_nobody() -> None:
    before = shards.divide(planned(seeds=2).groups, 3)
    after = shards.divide(planned(seeds=3).groups, 3, kept=before)
    assert before.items() <= after.items()
    assert shares(after) == [2, 2, 2]


def test_more_shards_than_members_are_refused() -> None:
    with pytest.raises(ValueError, match=r"got 7 for 6 members; allowed: 1 to 6"):
        shards.check_count(planned().groups, 7)


def test_jobs_that_start_at_once_agree(tmp_path: Path) -> None:
    groups = planned().groups
    with ThreadPoolExecutor(
        3
    ) as pool:  # locks are those of open files, so threads stand in for jobs
        parts = list(pool.map(lambda i: shards.part(tmp_path, groups, Shard(i, 3)), range(3)))
    found = itertools.chain.from_iterable(part.members for part in parts)
    assert sorted(found) == sorted(m.id for m in planned().members)


def directory(workdir: Path, plan: sweeps.Plan, part: Part | None) -> SweepDirectory:
    made = SweepDirectory(workdir, plan.name, part)
    made.create(sweeps._records(plan.members), resume=True)
    return made


def test_shards_train_side_by_side_but_not_one_of_them_twice(tmp_path: Path) -> None:
    plan = planned()
    parts = [shards.part(tmp_path, plan.groups, Shard(i, 2)) for i in range(2)]
    with directory(tmp_path, plan, parts[0]), directory(tmp_path, plan, parts[1]):
        with pytest.raises(ValueError, match=r"another process is training in shard 1-of-2"):
            directory(tmp_path, plan, parts[1])
        with pytest.raises(ValueError, match=r"another process is training in it"):
            directory(tmp_path, plan, None)
        with pytest.raises(ValueError, match=r"is being trained in 2 shards; allowed: I/2"):
            shards.part(tmp_path, plan.groups, Shard(0, 3))
        with pytest.raises(ValueError, match="must be synced after that"):
            sync(tmp_path)
    with (
        directory(tmp_path, plan, None),
        pytest.raises(ValueError, match=r"another process is training in it"),
    ):
        directory(tmp_path, plan, parts[0])


def test_only_the_members_of_living_shards_run(tmp_path: Path) -> None:
    plan = planned()
    parts = [shards.part(tmp_path, plan.groups, Shard(i, 2)) for i in range(2)]
    with directory(tmp_path, plan, parts[0]):
        for member in plan.members:
            row = json.dumps({"step": 4, "train/loss": 1.0})
            (tmp_path / "runs" / member.id / "metrics.jsonl").write_text(row + "\n")
        found = {run.id: run.status for run in read_runs(tmp_path)}
        assert {found[i] for i in parts[0].members} == {"running"}
        assert {found[i] for i in parts[1].members} == {"interrupted"}
        assert status.exit_code(status.read(tmp_path)) == status.RUNNING
        assert locks.in_use(tmp_path)
    assert not locks.in_use(tmp_path)
    assert {run.status for run in read_runs(tmp_path)} == {"interrupted"}


def test_another_number_of_shards_keeps_members_with_their_checkpoint(tmp_path: Path) -> None:
    plan = planned(seeds=4)
    parts = [shards.part(tmp_path, plan.groups, Shard(i, 2)) for i in range(2)]
    for part in parts:
        with directory(tmp_path, plan, part):
            for group in resume.remaining(tmp_path, plan.groups, part.members):
                resume.record(tmp_path, group, part)
    assert sorted(map(len, read_groups(tmp_path).values())) == [4, 4]
    third = [shards.part(tmp_path, plan.groups, Shard(i, 4)) for i in range(4)]
    held = [set(part.members) for part in third if part.members]
    assert held == [set(ids) for ids in read_groups(tmp_path).values()] or held == [
        set(ids) for ids in reversed(read_groups(tmp_path).values())
    ]
    whole = resume.remaining(tmp_path, plan.groups)
    assert {g.id for g in whole} == read_groups(tmp_path).keys()


SWEEP = (
    "sweep", "--config", str(Path(__file__).with_name("launch_sweep.py")), "--workdir", "work", "--resume",
    "--checkpoint-steps", "200",
)  # fmt: skip


@pytest.mark.slow
def test_a_killed_shard_disturbs_no_other_and_is_finished_by_itself(tmp_path: Path) -> None:
    attnlab, work = Cli(tmp_path, tmp_path / "xla"), tmp_path / "cwd" / "work"
    longer = (*SWEEP, "--config.steps=6000", "--shard")
    other = attnlab.start(*longer, "0/2")

    def rows() -> list[int]:
        return [f.read_bytes().count(b"\n") for f in work.glob("runs/*/metrics.jsonl")]

    code, _ = attnlab.stop_when(
        (*longer, "1/2"), lambda: len(rows()) == 4 and min(rows()) > 30, signal.SIGKILL
    )
    assert code == -signal.SIGKILL
    output, errors = other.communicate(timeout=300)
    assert other.returncode == 0, output + errors
    assert "W&B offline: 2 runs" in output
    division = json.loads((work / "shards.json").read_text())["members"]
    ended = {run.id: run.status for run in read_runs(work)}
    assert {ended[i] for i, shard in division.items() if shard == 0} == {"finished"}
    assert {ended[i] for i, shard in division.items() if shard == 1} == {"interrupted"}
    attnlab("status", "work", code=3)
    attnlab(*longer, "1/2")
    attnlab("status", "work", code=0)
    assert "report.html" in attnlab("report", "work")
    for run in read_runs(work):
        steps = run.history["step"].tolist()
        assert steps == sorted(set(steps))
        assert steps[-1] == 6000
    assert len(list((work / "wandb").rglob("*.wandb"))) == 4
