"""`attnlab bench attention`: every contender computes the same thing, and what cannot be run is said."""

import itertools
import json
import sys
import types

import jax
import numpy as np
import pytest
import tiny

from attnlab import cli
from attnlab.bench import attention, contenders, torch_worker

SMALL = ("--heads", "2", "--head-dim", "8", "--seconds", "0.001", "--torch-python", sys.executable)


def case(mask: str, length: int = 40) -> contenders.Case:
    return contenders.Case(mask, 2, length, 2, 2, 8, "float32", False)


MASKS = ("causal", "packed")
OVER_DEVICES = (f"blockwise x {jax.device_count()} devices",) if jax.device_count() > 1 else ()


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    flags = ("--lengths", "24", "--masks", *MASKS, "--out", str(folder))
    with tiny.quick_compilation():
        assert cli.main(["bench", "attention", *SMALL, *flags]) == 0
    return json.loads((folder / "attention.json").read_text()), folder


def test_every_contender_has_a_time_and_a_size(record):
    cells = record[0]["cells"]
    names = ("blockwise", "blockwise + statistics", *OVER_DEVICES, "dense", "jax.nn")
    asked = itertools.product(MASKS, ("forward", "forward + backward"), names)
    assert [(c["mask"], c["direction"], c["contender"]) for c in cells] == list(asked)
    for cell in cells:
        low, high = cell["spread"]
        assert 0 < low <= cell["milliseconds"] <= high
        assert cell["megabytes"] > 0
        assert cell["why"] is None


def test_one_trace_serves_all_masks_of_a_length(record):
    programs = ("blockwise", *OVER_DEVICES)
    asked = itertools.product(programs, ("forward", "forward + backward"))
    assert record[0]["machine"]["traces"] == {f"{name}, T 24, {way}": 1 for name, way in asked}


def test_logits_beyond_the_limit_are_a_reason_and_not_a_time():
    names = ["dense", "jax.nn"]
    for contender in contenders.build(case("causal", 4096), names, None, dense_gigabytes=0.2):
        with pytest.raises(contenders.UnavailableError, match=r"0\.2 GB of logits"):
            contender.prepare()


def test_the_figures_are_written(record):
    for name in ("time.png", "memory.png"):
        assert (record[1] / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("mask", attention.MASKS)
def test_jax_contenders_compute_the_same(mask):
    it = case(mask)
    q, k, v, dout = contenders._arrays(it)
    with tiny.quick_compilation():
        outputs = {
            name: contenders._compiled(name, True, mask if name == "jax.nn" else None)(
                q, k, v, contenders.mask_of(it), dout
            )[:2]
            for name in ("dense", "blockwise", "blockwise + statistics", *OVER_DEVICES, "jax.nn")
        }
    want = outputs.pop("dense")
    for name, got in outputs.items():
        for a, b in zip(jax.tree.leaves(got[:2]), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("mask", attention.MASKS)
@pytest.mark.parametrize("length", [40, 300])
def test_torch_is_given_the_same_mask(mask, length):
    numpy_as_torch = types.SimpleNamespace(tensor=np.asarray)
    request = {"mask": mask, "length": length, "segments": contenders.segments(length)}
    allowed = torch_worker.visible(numpy_as_torch, request)
    i = np.arange(length)
    want = np.asarray(contenders.mask_of(case(mask, length)).as_array())[0, 0]
    got = np.ones_like(want) if allowed is None else allowed(0, 0, i[:, None], i[None, :])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--heads", "0"), ("--heads", "0", ">= 1")),
        (("--lengths", "0"), ("--lengths", "0", ">= 1")),
        (("--heads", "4", "--kv-heads", "3"), ("--kv-heads", "3", "divisor of 4")),
        (("--seconds", "0"), ("--seconds", "0", "> 0")),
        (("--dense-gigabytes", "-1"), ("--dense-gigabytes", "-1", ">= 0")),
        (("--torch-python", "/no/such/python"), ("--torch-python", "/no/such/python")),
    ],
)
def test_bad_flags_are_refused_in_one_line(flags, words, capsys):
    assert cli.main(["bench", "attention", "--lengths", "16", *flags]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert all(word in error for word in words), error


def test_a_python_without_torch_is_said_and_not_fatal(tmp_path, capsys, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch in here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with contenders.torch_worker(sys.executable) as worker:
        assert worker is None
    assert "torch is not compared: no torch in here" in capsys.readouterr().out
