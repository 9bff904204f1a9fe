"""Checkpoints: what is restored is what was saved, or it is not restored."""

import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import checkpoints
from attnlab.checkpoints import Checkpoints


def state(value: float, *, members: int = 3) -> dict:
    """Leaves of every kind that a training state has; numbers that do not compress to nothing."""
    noise = np.random.default_rng(0).normal(size=(members, 40, 16)).astype(np.float32)
    return {
        "params": {"w": jnp.asarray(noise + value), "b": jnp.full((members, 16), value)},
        "step": jnp.full(members, 16777217, jnp.int32),
        "stopped": jnp.array([True, False, True][:members]),
    }


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Checkpoints at 10 and 20."""
    with Checkpoints(tmp_path / "c", keep=2) as saved:
        for step in (10, 20):
            saved.save(step, state(step))
    return tmp_path / "c"


def restored(directory: Path, like: dict | None = None):
    with Checkpoints(directory) as there:
        return there.restore(state(0) if like is None else like)


def same(a, b) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


def quietly(directory: Path):
    """What is restored, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = restored(directory)
    return found, [str(w.message) for w in caught if "checkpoint" in str(w.message)]


def test_the_newest_state_comes_back_with_its_bits_and_kinds(two: Path) -> None:
    step, found = restored(two)
    assert step == 20
    same(found, state(20))
    assert jax.tree.map(lambda x: x.dtype, found) == jax.tree.map(lambda x: x.dtype, state(20))


def test_a_directory_that_holds_nothing_restores_nothing_and_is_not_made(tmp_path: Path) -> None:
    assert restored(tmp_path / "c") is None
    assert not (tmp_path / "c").exists()


def files(step: Path) -> list[Path]:
    return sorted(p for p in step.rglob("*") if p.is_file())


@pytest.mark.parametrize("damage", ["flipped", "halved", "zeroed", "removed"])
def test_no_damage_to_any_file_gives_other_numbers_or_ends_the_run(two: Path, damage: str) -> None:
    passed_over = 0
    for file in files(two / "20"):
        content = file.read_bytes()
        middle = len(content) // 2
        if damage == "flipped":
            file.write_bytes(
                content[:middle] + bytes([content[middle] ^ 16]) + content[middle + 1 :]
            )
        elif damage == "halved":
            file.write_bytes(content[:middle])
        elif damage == "zeroed":
            file.write_bytes(bytes(len(content)))
        else:
            file.unlink()
        (step, found), messages = quietly(two)
        assert step in (10, 20), file
        same(found, state(step))
        if step == 10:
            passed_over += 1
            assert any("checkpoint 20" in m and "trying the one before" in m for m in messages), (
                file
            )
        file.write_bytes(content)
    assert passed_over >= 3, "the files with the arrays and their index were damaged"


def test_an_unreadable_checkpoint_is_replaced_when_training_comes_there_again(two: Path) -> None:
    largest = max(files(two / "20"), key=lambda p: p.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:100])
    with Checkpoints(two) as there:
        with pytest.warns(UserWarning, match="checkpoint 20"):
            assert there.restore(state(0))[0] == 10
        there.save(20, state(99))
    step, found = restored(two)
    assert step == 20
    same(found, state(99))


def test_a_save_that_was_cut_off_leaves_the_one_before(two: Path) -> None:
    (two / "30.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
    (two / "30.orbax-checkpoint-tmp" / "state" / "manifest.ocdbt").write_bytes(b"half")
    assert restored(two)[0] == 20
    with Checkpoints(two) as there:
        there.save(30, state(30))
    assert restored(two)[0] == 30


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"step": jnp.zeros(3, jnp.float32)},
            r"leaf step: has int32\[3\], the program needs float32",
        ),
        ({"step": jnp.zeros(2, jnp.int32)}, r"leaf step: has int32\[3\], .* needs int32\[2\]"),
        ({"new": jnp.zeros(3)}, "leaf new: has nothing"),
    ],
)
def test_a_state_of_another_program_is_refused_by_the_name_of_the_leaf(
    two: Path, change: dict, message: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match=message):
            restored(two, {**state(0), **change})


def test_a_directory_that_cannot_be_written_costs_the_checkpoint_and_not_the_run(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("in the way")
    with Checkpoints(tmp_path / "file" / "c") as there:
        with pytest.warns(UserWarning, match="checkpoint 10 could not be written"):
            there.save(10, state(10), wait=True)
        (tmp_path / "file").unlink()
        there.save(20, state(20), wait=True)
    assert restored(tmp_path / "file" / "c")[0] == 20


def test_newest_and_multiples_are_kept(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "c", keep=2, keep_every=20) as saved:
        for step in (10, 20, 30, 40, 50, 60):
            saved.save(step, {"x": jnp.zeros(3)}, wait=True)
        assert list(saved.steps()) == [20, 40, 50, 60]


def test_due_by_steps_or_by_minutes_since_the_last_one(tmp_path: Path, monkeypatch) -> None:
    now = 1000.0
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: now)
    by_steps = Checkpoints(tmp_path / "a", every_steps=20, every_minutes=None)
    by_minutes = Checkpoints(tmp_path / "b", every_minutes=10.0)
    assert [by_steps.due(step) for step in (10, 19, 20, 30)] == [False, False, True, True]
    assert not by_minutes.due(10**6)
    now += 600.0
    assert by_minutes.due(1)
    assert not by_steps.due(10)


def test_all_processes_of_a_job_save_when_the_first_one_thinks_it_is_due(
    tmp_path, monkeypatch
) -> None:
    asked = []

    def broadcast(mine):
        asked.append(bool(mine))
        return np.bool_(True)

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(checkpoints.multihost_utils, "broadcast_one_to_all", broadcast)
    assert Checkpoints(tmp_path / "c", every_steps=20, every_minutes=None).due(10)
    assert asked == [False]


@pytest.mark.parametrize("name", ["every_steps", "every_minutes", "keep", "keep_every"])
def test_periods_and_numbers_that_are_not_positive_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"checkpoints.{name}: must be positive, got 0"):
        Checkpoints(tmp_path, **{name: 0})


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32", "bfloat16", "bool", "int8"])
def test_a_checksum_changes_with_every_bit_and_is_the_same_on_device_and_host(dtype: str) -> None:
    values = np.asarray(jnp.asarray([[1, 0, 1], [0, 0, 1]], dtype))
    sums = {int(checkpoints._checksum(values, np))}
    raw = values.tobytes()
    for bit in range(8 * len(raw)):
        if dtype == "bool" and bit % 8:
            continue
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        other = np.frombuffer(bytes(changed), values.dtype).reshape(values.shape)
        sums.add(int(checkpoints._checksum(other, np)))
        assert int(checkpoints._checksum(jnp.asarray(other), jnp)) in sums
        assert int(checkpoints._checksum(values, np)) != int(checkpoints._checksum(other, np))


def test_saves_go_on_below_an_unreadable_newest_one(two: Path) -> None:
    """As when checkpoints are taken by minutes, and the next session is slower."""
    for file in files(two / "20"):
        file.write_bytes(b"")
    with Checkpoints(two, keep=2) as there:
        with pytest.warns(UserWarning, match="checkpoint 20"):
            assert there.restore(state(0))[0] == 10
        for step in (13, 16):
            there.save(step, state(step), wait=True)
    (step, found), messages = quietly(two)
    assert step == 16, messages
    same(found, state(16))


def test_one_that_is_passed_over_is_told_and_not_asked_for_again_at_once(tmp_path: Path) -> None:
    there = Checkpoints(tmp_path / "c", every_steps=20, every_minutes=None)
    with pytest.warns(UserWarning, match="no checkpoint at 20: why"):
        there.pass_over(20, "why")
    assert [there.due(step) for step in (20, 39, 40)] == [False, False, True]
