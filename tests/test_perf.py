"""Rates against counting by hand; the profile that a run leaves behind."""

import functools
import types

import jax
import pytest
import tiny

from attnlab import costs, perf, population, sweeps


def task():
    return tiny.group(tiny.config()).task


def test_rates_are_those_of_all_members_together(monkeypatch):
    monkeypatch.setattr(perf, "measured_matmul", lambda: 1e9)
    found = perf.of_group(task(), member_updates=30, seconds=2.0, devices=2)
    flops = costs.flops_per_update(task())
    assert found == {
        "perf/tokens_per_second": 15 * 4 * 8,
        "perf/flops_per_second": 15 * flops,
        "perf/ms_per_member_update": pytest.approx(2000 / 30),
        "perf/of_measured_matmul": pytest.approx(15 * flops / 1e9),
    }
    assert perf.of_group(task(), 0, 2.0, 2) == {}, "nothing was timed"


@pytest.mark.parametrize(
    ("kind", "peak"), [("NVIDIA H200", 989e12), ("TPU v4", 275e12), ("TPU v9", None)]
)
def test_an_accelerator_is_compared_with_its_makers_figure_or_with_nothing(monkeypatch, kind, peak):
    device = types.SimpleNamespace(platform="gpu", device_kind=kind)
    expected = None if peak is None else 15 * costs.flops_per_update(task()) / (2 * peak)
    made = task()
    monkeypatch.setattr(jax, "devices", lambda: [device])
    found = perf.of_group(made, member_updates=30, seconds=2.0, devices=2)
    assert found.get("perf/of_bfloat16_peak") == (expected and pytest.approx(expected))
    assert "perf/of_measured_matmul" not in found


def test_a_profile_is_written_and_changes_no_number(tmp_path, monkeypatch):
    monkeypatch.setattr(perf, "measured_matmul", lambda: 1e9)
    monkeypatch.setattr(population, "Program", functools.cache(population.Program))  # compile once
    config = tiny.config(steps=16, **{"eval.every": 16})
    with tiny.quick_compilation():
        log, _ = tiny.train([config], profile=tmp_path / "profile")
        plain, _ = tiny.train([config])
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))
    assert log.rows == plain.rows
    summary, without = log.ends[0][1], plain.ends[0][1]
    rates = {k for k in summary if k.startswith("perf/")}
    assert {k: v for k, v in summary.items() if k not in rates} == without
    assert "perf/of_measured_matmul" in rates
    assert summary["perf/tokens_per_second"] > 0


def test_a_run_too_short_to_be_profiled_is_refused_and_leaves_nothing(tmp_path):
    planned = sweeps.Plan("tiny", (tiny.group(tiny.config(steps=8)),))
    settings = sweeps.Settings(tmp_path / "new", wandb="disabled", profile=True)
    with pytest.raises(ValueError, match=r"^--profile: .* group 0 has 2 of 4 .* at least 12$"):
        sweeps.open_session(planned, settings)
    assert not (tmp_path / "new").exists()
