"""`attnlab bench step` and `population`: what is timed is the same training, and what cannot be run is said."""

import json
import sys

import jax
import numpy as np
import pytest
import tiny

from attnlab import cli, costs
from attnlab.bench import peer_worker, turns, updates, workloads
from attnlab.bench.contenders import UnavailableError
from attnlab.bench.turns import Contender
from attnlab.bench.workloads import Size

SIZE = Size(1, 8, 1, 4, 2)
FAST = ("--seconds", "0.001", "--chunk", "2", "--torch-python", sys.executable)


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with tiny.quick_compilation():
        yield


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    flags = ("--sizes", str(SIZE), "--members", "3", "--out", str(folder))
    assert cli.main(["bench", "population", *FAST, *flags]) == 0
    return json.loads((folder / "population.json").read_text())


def test_every_contender_has_a_time_and_its_share_of_the_ceiling(record):
    rows = {row["contender"]: row for row in record["rows"]}
    assert list(rows) == ["population", "single jitted run", "matmul"]
    flops = costs.flops_per_update(workloads.group(SIZE, tiny.BASE, 1, 2).task)
    for name in ("population", "single jitted run"):
        row = rows[name]
        low, high = row["spread"]
        assert 0 < low <= row["milliseconds"] <= high
        assert row["tokens_per_second"] * row["milliseconds"] == pytest.approx(1e3 * 4 * 2)
        assert row["gflops"] * row["milliseconds"] == pytest.approx(flops / 1e6)
        assert row["of_matmul"] == pytest.approx(row["gflops"] / rows["matmul"]["gflops"])
    assert rows["population"]["times_attnlab"] == 1.0
    assert record["machine"]["load_at_start"] >= 0
    assert record["members"] == 3


def test_a_single_run_trains_as_the_member_does():
    """The same updates on the same batches, so that only the form of the program is compared."""
    group = workloads.group(SIZE, tiny.BASE, 1, 3)
    found = {}
    for run in (workloads.Population(group), workloads.SingleRun(group)):
        for _ in range(2):
            run()
        found[type(run)] = jax.tree.map(lambda x: np.asarray(x).reshape(-1), run.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), *found.values())


def test_members_share_one_program_and_differ():
    group = workloads.group(SIZE, tiny.BASE, 4, 2)
    assert len(group.members) == 4
    assert len({member.config["seed"]["init"] for member in group.members}) == 4


def test_contenders_take_turns_until_each_has_had_its_time():
    order = []

    def contender(name, seconds, units=1):
        return Contender(name, lambda: (lambda: order.append(name) or seconds, units))

    def unavailable():
        raise UnavailableError("not here")

    found = turns.take_turns(
        [contender("slow", 1.0), contender("fast", 0.5, units=5), Contender("absent", unavailable)],
        seconds=2.5,
    )
    assert order[2:8] == ["slow", "fast"] * 3
    assert (order[2:].count("slow"), order[2:].count("fast")) == (3, 5)
    assert found["slow"].median == 1.0
    assert found["fast"].median == 0.1
    assert found["absent"].median is None
    assert found["absent"].why == "not here"


def test_a_peer_without_torch_is_said_and_not_fatal(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        workloads, "contenders", lambda _: [Contender("attnlab", lambda: (lambda: 0.1, 2))]
    )
    (tmp_path / "model.py").write_text("raise ImportError('no torch for this test')\n")
    flags = ("--sizes", str(SIZE), "--peer", str(tmp_path))
    assert cli.main(["bench", "step", *FAST, *flags]) == 0
    assert "torch is not compared" in capsys.readouterr().out


def test_the_worker_loads_the_checkout_it_is_given(tmp_path):
    (tmp_path / "model.py").write_text("GPT = 'of this checkout'\n")
    assert peer_worker.load(tmp_path / "model.py").GPT == "of this checkout"
    with pytest.raises(FileNotFoundError, match=r"no model\.py"):
        peer_worker.load(tmp_path / "elsewhere" / "model.py")


@pytest.mark.parametrize(
    ("what", "flags", "words"),
    [
        ("step", ("--sizes", "4,128"), ("--sizes", "'4,128'", "LAYERS,WIDTH,HEADS,T,BATCH")),
        ("step", ("--sizes", "1,10,3,4,2"), ("--sizes", "'1,10,3,4,2'", "multiple of the heads")),
        ("step", ("--sizes", "1,8,0,4,2"), ("--sizes", "'1,8,0,4,2'", "at least 1")),
        ("step", ("--chunk", "0"), ("--chunk", "0", ">= 1")),
        ("step", ("--seconds", "0"), ("--seconds", "0", "> 0")),
        ("population", ("--members", "0"), ("--members", "0", ">= 1")),
        ("step", ("--torch-python", "/no/such/python"), ("--torch-python", "'/no/such/python'")),
        ("step", ("--peer", "/no/such/checkout"), ("--peer", "'/no/such/checkout'", "model.py")),
    ],
)
def test_bad_flags_are_refused_in_one_line(what, flags, words, capsys):
    assert cli.main(["bench", what, *flags]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert all(word in error for word in words), error


def test_the_default_sizes_are_sizes():
    for text in (*updates.STEP_SIZES, *updates.POPULATION_SIZES):
        assert str(Size.parse(text)) == text
