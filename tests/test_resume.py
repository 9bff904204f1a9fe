"""What resuming takes up, what it leaves alone, and what it refuses."""

from pathlib import Path
from typing import Any

import pytest
import tiny

from attnlab import cli, resume, sweeps
from attnlab.plan import Group
from attnlab.tracking import MemberRecord, SweepDirectory
from attnlab.tracking.files import write_json

SEEDS = [tiny.config({"seed.init": seed, "seed.data": seed}) for seed in range(3)]


def started(workdir: Path, configs: list[dict[str, Any]]) -> list[Group]:
    """A directory in which these configurations were begun, in one group."""
    groups = tiny.plan(configs)
    with SweepDirectory(workdir, "tiny") as directory:
        directory.create(
            [MemberRecord(m.id, m.name, m.arm, 0, m.config) for g in groups for m in g.members]
        )
        for group in groups:
            resume.record(workdir, group)
    return groups


def ended(workdir: Path, group: Group, *indices: int) -> None:
    for index in indices:
        write_json(
            workdir / "runs" / group.members[index].id / "summary.json", {"status": "finished"}
        )


def names(groups: list[Group]) -> list[list[int]]:
    """Seeds of the members, by group."""
    return [[m.config["seed"]["init"] for m in g.members] for g in groups]


def test_a_new_directory_has_everything_left(tmp_path: Path) -> None:
    assert names(resume.remaining(tmp_path, tiny.plan(SEEDS))) == [[0, 1, 2]]


def test_a_group_with_something_left_is_taken_up_whole_and_a_finished_one_not_at_all(
    tmp_path: Path,
) -> None:
    (group,) = started(tmp_path, SEEDS)
    ended(tmp_path, group, 0, 2)
    assert resume.remaining(tmp_path, tiny.plan(SEEDS)) == [group]
    ended(tmp_path, group, 1)
    assert resume.remaining(tmp_path, tiny.plan(SEEDS)) == []


def test_added_members_form_groups_of_their_own(tmp_path: Path) -> None:
    (group,) = started(tmp_path, SEEDS[:2])
    assert names(resume.remaining(tmp_path, tiny.plan(SEEDS))) == [[0, 1], [2]]
    ended(tmp_path, group, 0, 1)
    assert names(resume.remaining(tmp_path, tiny.plan(SEEDS))) == [[2]]


def test_another_configuration_is_refused_with_exactly_the_keys_that_differ(tmp_path: Path) -> None:
    (group,) = started(tmp_path, SEEDS)
    changed = [tiny.config({"seed.init": s, "seed.data": s, "model.norm": "rmsnorm"}, steps=12) for s in range(3)]  # fmt: skip
    for done in ((), (0, 1, 2)):  # a finished sweep is not extended by accident either
        ended(tmp_path, group, *done)
        with pytest.raises(ValueError, match="3 of its 3 members") as refused:
            resume.remaining(tmp_path, tiny.plan(changed))
        said = str(refused.value)
        assert (
            "(config.model.norm: stored 'layernorm', asked 'rmsnorm'; config.steps: stored 8, asked 12)"
            in said
        )
        assert said.count("config.") == 2


def test_one_changed_member_is_compared_with_what_became_of_it(tmp_path: Path) -> None:
    started(tmp_path, SEEDS)
    changed = [*SEEDS[:2], tiny.config({"seed.init": 2, "seed.data": 2}, mask="full")]
    with pytest.raises(
        ValueError, match=r"1 of its 3 .*\(config.mask: stored 'causal', asked 'full'\)"
    ):
        resume.remaining(tmp_path, tiny.plan(changed))


def test_a_key_that_came_or_went_is_named_too(tmp_path: Path) -> None:
    (group,) = started(tmp_path, SEEDS[:1])
    stored = {k: v for k, v in group.members[0].config.items() if k != "context"}
    write_json(tmp_path / "runs" / group.members[0].id / "config.json", stored)
    with pytest.raises(ValueError, match=r"config.context: stored nothing, asked 8; config.steps"):
        resume.remaining(tmp_path, tiny.plan([tiny.config({"seed.init": 0}, steps=12)]))


def test_fewer_members_are_refused_by_name(tmp_path: Path) -> None:
    started(tmp_path, SEEDS)
    with pytest.raises(ValueError, match=r"\(.* s2\); must be resumed with at least the members"):
        resume.remaining(tmp_path, tiny.plan(SEEDS[:2]))


@pytest.mark.parametrize(
    "command",
    [
        ("train", "--config", "configs/base.py", "--config.corpus=random:17"),
        ("sweep", "--config", "configs/nope.py:smoke", "--config.corpus=random:17", "--seeds", "2"),
    ],
    ids=["train", "sweep"],
)
def test_the_command_line_lets_only_what_changes_no_result_change(
    command, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(cli.CHECKOUT)
    monkeypatch.setenv("XLA_FLAGS", "")
    seen = []
    monkeypatch.setattr(sweeps, "run", lambda session: seen.append(session) or 0)
    words = (*command, "--workdir", str(tmp_path / "work"))
    assert cli.main([*words, "--wandb", "offline", "--checkpoint-steps", "100"]) == 0
    seen.pop().directory.close()

    monkeypatch.setenv("XLA_FLAGS", "")
    how = ("--wandb", "disabled", "--devices", "1", "--checkpoint-steps", "7",
           "--checkpoint-minutes", "1", "--keep", "5", "--keep-every", "50", "--debug-nans")  # fmt: skip
    assert cli.main([*words, "--resume", *how]) == 0
    seen.pop().directory.close()
    capsys.readouterr()

    changed = ("--config.optimizer.learning_rate=0.5", "--config.eval.every=40")
    assert cli.main([*words, "--resume", *changed]) == cli.BAD_INPUT
    error = capsys.readouterr().err
    assert "config.eval.every: stored " in error
    assert ", asked 40" in error
    assert "config.optimizer.learning_rate: stored 0.004, asked 0.5" in error
    assert error.count("config.") == 2, error
    assert seen == []
