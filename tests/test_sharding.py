"""A member over several devices equals one on a single device, wherever its parameters lie."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import tiny
from jax.sharding import PartitionSpec as P

from attnlab import sharding

TESTS = Path(__file__).parent


def run(devices, *meshes):
    """What sharded_run.py reports with so many host devices."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    done = subprocess.run(
        [sys.executable, str(TESTS / "sharded_run.py"), *meshes],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def close(found, wanted):
    np.testing.assert_allclose(found["train"], wanted["train"], rtol=2e-5)
    np.testing.assert_allclose(found["val"], wanted["val"], rtol=2e-5)


def test_four_devices_equal_one_with_parameters_split_accumulation_and_recomputing():
    found = run(4, "1x1xreplicated", "1x4xfsdp", "1x4xfsdp->1x1xreplicated")
    alone, split, resumed = found.values()
    close(split, alone)
    assert (alone["traces"], split["traces"]) == (1, 1)
    assert (alone["devices"], split["devices"]) == (1, 4)
    assert split["bytes_a_device"] * 4 == alone["bytes_a_device"]
    rest = {**alone, "train": [alone["train"][0][1:]]}
    close(resumed, rest)


@pytest.mark.slow
def test_eight_devices_equal_one_in_every_layout():
    meshes = ("1x1xreplicated", "1x8xreplicated", "1x8xfsdp", "2x4xfsdp", "2x1xreplicated")
    crossings = ("1x1xreplicated->1x8xfsdp", "1x8xfsdp->1x4xreplicated")
    found = run(8, *meshes, *crossings)
    alone, two = found["1x1xreplicated"], found["2x1xreplicated"]
    close(found["1x8xreplicated"], alone)
    close(found["1x8xfsdp"], alone)
    close(found["2x4xfsdp"], two)
    assert {found[mesh]["traces"] for mesh in meshes} == {1}
    assert found["1x8xreplicated"]["bytes_a_device"] == alone["bytes_a_device"]
    assert found["1x8xfsdp"]["bytes_a_device"] * 8 == alone["bytes_a_device"]
    assert found["2x4xfsdp"]["devices"] == 8
    for crossing in crossings:
        close(found[crossing], {**alone, "train": [alone["train"][0][1:]]})


@pytest.mark.parametrize(
    ("shape", "data", "kind", "spec"),
    [
        ((16, 64), 4, "fsdp", P(None, "data")),
        ((64, 16), 4, "fsdp", P("data")),
        ((64, 64), 4, "fsdp", P("data")),
        ((6, 9), 3, "fsdp", P(None, "data")),
        ((8, 9), 4, "fsdp", P("data")),  # the largest axis does not divide
        ((7, 9), 4, "fsdp", P()),
        ((), 4, "fsdp", P()),
        ((16, 64), 1, "fsdp", P()),
        ((16, 64), 4, "replicated", P()),
    ],
)
def test_a_parameter_is_split_along_its_largest_axis_that_divides(shape, data, kind, spec):
    assert sharding.leaf_spec(shape, data, kind) == spec


def test_marks_do_nothing_outside_of_a_split_program():
    x = np.ones((4, 2), np.float32)
    text = str(jax.make_jaxpr(lambda x: sharding.whole(sharding.by_example(x)))(x))
    assert "sharding_constraint" not in text


def test_a_mesh_that_does_not_divide_the_devices_is_refused_in_one_line():
    with pytest.raises(
        ValueError, match=r"^config\.mesh\.data: .* 2 devices, got 4; allowed: 1, 2 "
    ):
        tiny.plan([tiny.config({"mesh.data": 4})])
    with pytest.raises(ValueError, match=r"^config\.mesh\.data"):
        sharding.make_mesh(1, 3)


def test_rows_of_devices_serve_members():
    assert sharding.make_mesh(1, 2).shape == {"member": 1, "data": 2}
    assert sharding.make_mesh(5, 1).shape == {"member": 2, "data": 1}
