"""XLA's flags: set once, before jax starts, and never over those of the user."""

import pytest

from attnlab import machine


def flags(monkeypatch: pytest.MonkeyPatch, gpu: bool, tpu: bool, **given: str) -> dict[str, str]:
    monkeypatch.setattr(machine, "has_gpu", lambda: gpu)
    monkeypatch.setattr(machine, "has_tpu", lambda: tpu)
    environ = dict(given)
    machine.prepare(None, environ)
    return environ


def test_a_cpu_gets_a_device_a_core_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 3)
    assert flags(monkeypatch, False, False) == {"XLA_FLAGS": f"{machine.HOST_DEVICES}=3"}


def test_flags_of_the_user_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    given = f"{machine.HOST_DEVICES}=5 --xla_gpu_enable_latency_hiding_scheduler=false"
    assert flags(monkeypatch, True, False, XLA_FLAGS=given) == {"XLA_FLAGS": given}


def test_a_gpu_hides_latency_and_is_deterministic_when_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "deterministic" not in flags(monkeypatch, True, False)["XLA_FLAGS"]
    asked = flags(monkeypatch, True, False, ATTNLAB_DETERMINISTIC="1")["XLA_FLAGS"]
    for flag in (*machine.GPU, *machine.GPU_DETERMINISTIC):
        assert flag in asked


def test_a_tpu_has_a_variable_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found = flags(monkeypatch, False, True, LIBTPU_INIT_ARGS="--mine=1")
    assert found["LIBTPU_INIT_ARGS"] == " ".join(("--mine=1", *machine.TPU))
    assert "tpu" not in found["XLA_FLAGS"]


@pytest.mark.parametrize(
    ("devices", "environ", "message"),
    [
        (0, {}, "--devices: must be at least 1, got 0"),
        (2, {"XLA_FLAGS": f"{machine.HOST_DEVICES}=4"}, "already holds"),
        (None, {machine.DETERMINISTIC: "yes"}, "got 'yes'; allowed: 0, 1"),
    ],
)
def test_what_contradicts_itself_is_refused(
    devices: int | None, environ: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        machine.prepare(devices, environ)
