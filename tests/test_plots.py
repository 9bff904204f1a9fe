"""Figures hold the numbers they claim to hold, hide nothing, and leave no trace in matplotlib."""

import subprocess
import sys
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from fake_runs import fake_run, runs_ending_at
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from test_claims import FINALS, make_claim

from attnlab import plots
from attnlab.claims.rules import Verdict, above
from attnlab.results import Results

PNG = b"\x89PNG\r\n\x1a\n"


def line(axis, label):
    (found,) = [line for line in axis.lines if str(line.get_label()).startswith(label)]
    return found


def texts(figure) -> str:
    return "\n".join(t.get_text() for t in figure.findobj(mpl.text.Text))


def two_seeds(**second) -> Results:
    return Results([fake_run("a", 0, [4.0, 3.0, 2.0]), fake_run("a", 1, [4.0, 3.2, 2.4], **second)])


def test_line_is_the_mean_over_seeds_and_band_its_extremes():
    figure = plots.loss_by_tokens(two_seeds(), ["a"])
    (axis,) = figure.axes
    np.testing.assert_array_equal(line(axis, "a").get_xdata(), [2000, 4000, 6000])
    np.testing.assert_allclose(line(axis, "a").get_ydata(), [4.0, 3.1, 2.2])
    (band,) = axis.findobj(PolyCollection)
    corners = band.get_paths()[0].vertices
    assert {2.0, 2.4} <= set(corners[corners[:, 0] == 6000][:, 1])
    assert "mean over seeds" in texts(figure)
    assert "smallest to largest seed" in texts(figure)


def test_diverged_seed_is_drawn_apart_and_counted():
    results = Results(
        [
            fake_run("a", 0, [4.0, 3.0, 2.0]),
            fake_run("a", 1, [4.0, 3.2, 2.4]),
            fake_run("a", 2, [4.0, 900.0], status="diverged"),
        ]
    )
    (axis,) = plots.loss_by_tokens(results, ["a"]).axes
    assert line(axis, "a").get_label() == "a (1 diverged: x)"
    np.testing.assert_allclose(line(axis, "a").get_ydata(), [4.0, 3.1, 2.2])
    (cross,) = [line for line in axis.lines if line.get_marker() == "x"]
    assert cross.get_xdata()[0] == 4000
    assert cross.get_ydata()[0] == axis.get_ylim()[1] < 10, "it must not flatten the others"


def test_arm_of_which_every_seed_diverged_is_still_in_the_figure():
    results = Results(
        [replace(run, status="diverged") for run in runs_ending_at({"a": [2.0, 9.0]})]
    )
    (axis,) = plots.loss_by_tokens(results, ["a"]).axes
    assert line(axis, "a").get_label() == "a (2 diverged: x)"
    assert [x.get_ydata()[0] for x in axis.lines if x.get_marker() == "x"] == [2.0, 9.0]


def test_mean_stops_where_a_seed_has_not_got_yet():
    runs = [fake_run("a", 0, [4.0, 3.0, 2.0]), fake_run("a", 1, [4.0, 3.2], status="running")]
    (axis,) = plots.loss_by_tokens(Results(runs), ["a"]).axes
    np.testing.assert_allclose(line(axis, "a").get_ydata(), [4.0, 3.1])


def test_seed_without_a_row_takes_no_line_away_and_is_counted():
    runs = [fake_run("a", 0, [4.0, 3.0]), fake_run("a", 1, [], status="waiting")]
    (axis,) = plots.loss_by_tokens(Results(runs), ["a"]).axes
    assert line(axis, "a").get_label() == "a (1 of 2 begun)"
    np.testing.assert_allclose(line(axis, "a").get_ydata(), [4.0, 3.0])


def test_panels_share_the_scale_and_references_are_labelled_once():
    results = Results(runs_ending_at({"a": [2.0, 2.1], "b": [3.0, 3.1]}))
    figure = plots.loss_by_tokens(
        results, {"left": ["a"], "right": ["b"]}, references={"bigram": 2.5}
    )
    left, right = figure.axes
    assert left.get_ylim() == right.get_ylim()
    assert texts(figure).count("bigram 2.500") == 1
    for axis in (left, right):
        assert 2.5 in [line.get_ydata()[0] for line in axis.lines]


def test_gap_is_the_difference_within_a_seed():
    # Seed 1 is missing in b; by-place subtraction would pair a-s1 with b-s2.
    runs = runs_ending_at({"a": [3.0, 9.0, 3.4], "b": [2.0, 2.0, 2.2]})
    results = Results([run for run in runs if run.id != "b-s1"])
    (axis,) = plots.gap_by_tokens(results, {"cost": ("a", "b")}).axes
    assert line(axis, "cost").get_ydata()[-1] == pytest.approx((1.0 + 1.2) / 2)


def test_long_names_of_gaps_stay_inside_the_figure_and_leave_the_curves_their_place():
    names = [f"{kind} of a rather long description, 2 layers" for kind in "abcdefg"]
    arms = {name: [3.0, 2.9] for name in ("an-arm-of-depth2", "another-arm-of-depth2")}
    results = Results(runs_ending_at(arms))
    figure = plots.gap_by_tokens(results, dict.fromkeys(names, tuple(arms)))
    FigureCanvasAgg(figure).draw()
    (axis,) = figure.axes
    legend = axis.get_legend().get_window_extent()
    assert legend.x1 <= figure.bbox.width
    assert legend.y1 <= figure.bbox.height
    assert axis.get_window_extent().height > figure.dpi * 2


def test_gap_of_arms_without_a_common_seed_is_refused():
    results = Results([fake_run("a", 0, [1.0]), fake_run("b", 1, [1.0])])
    with pytest.raises(ValueError, match=r"pairs\['cost'\]: a and b have no seed in common"):
        plots.gap_by_tokens(results, {"cost": ("a", "b")})


def test_mask_is_drawn_with_queries_down_and_keys_across():
    allowed_TS = np.tri(3, 5, k=1, dtype=bool)
    figure = plots.mask_gallery({"m": allowed_TS, "n": np.ones((2, 2), bool)})
    shown = [axis for axis in figure.axes if axis.get_visible()]
    np.testing.assert_array_equal(shown[0].images[0].get_array(), allowed_TS)
    assert shown[0].get_ylim() == (2.5, -0.5), "row 0 is at the top"
    assert [axis.get_title() for axis in shown] == ["m", "n"]


@pytest.mark.parametrize("bad", [np.ones((2, 2)), np.ones(4, bool), np.ones((1, 1, 2, 2), bool)])
def test_what_is_no_mask_is_refused(bad):
    with pytest.raises(ValueError, match=r"masks\['m'\]: must be bool \[T, S\]"):
        plots.mask_gallery({"m": bad})


@pytest.mark.parametrize("call", [lambda: plots.mask_gallery({}), lambda: plots.forest([])])
def test_nothing_to_draw_is_refused(call):
    with pytest.raises(ValueError, match="need at least one"):
        call()


def test_forest_shows_seeds_interval_border_and_verdict():
    outcome = make_claim(above(0.5), above(1.0)).judge(Results(runs_ending_at(FINALS)))
    first, second = plots.forest(outcome.judgements).axes
    seeds, bar, mean = first.lines[:3]
    np.testing.assert_allclose(sorted(seeds.get_xdata()), [0.65, 0.7, 0.75])
    interval = outcome.judgements[0].interval
    assert list(bar.get_xdata()) == [interval.low, interval.high]
    assert mean.get_xdata()[0] == interval.mean
    assert first.get_xlim()[0] < 0.5 < first.get_xlim()[1]
    assert first.get_title(loc="right") == "REPRODUCED"
    assert second.get_title(loc="right") == "NOT REPRODUCED"


def test_forest_of_a_failed_control_shows_the_reason_and_no_number():
    runs = runs_ending_at(FINALS | {"plain": [2.4, 2.45, 2.4]})
    figure = plots.forest(make_claim(above(0.5)).judge(Results(runs)).judgements)
    (axis,) = figure.axes
    assert axis.get_title(loc="right") == "INVALID"
    assert "control plain-learns failed" in axis.get_xlabel()
    assert not axis.lines


def test_verdicts_have_colours_of_their_own():
    assert set(plots.VERDICT_COLOURS) == set(Verdict)
    assert len(set(plots.VERDICT_COLOURS.values())) == len(Verdict)


def test_saved_twice_is_the_same_file(tmp_path):
    figures = [plots.loss_by_tokens(two_seeds(), ["a"]) for _ in range(2)]
    paths = [plots.save(f, tmp_path / f"{i}.png") for i, f in enumerate(figures)]
    assert [p.name for p in paths[0]] == ["0.png", "0.svg"]
    assert paths[0][0].read_bytes().startswith(PNG)
    assert b"<svg" in paths[0][1].read_bytes()
    for first, second in zip(*paths, strict=True):
        assert first.read_bytes() == second.read_bytes()
    assert len(list(tmp_path.iterdir())) == 4, "no half-written file stays behind"


def test_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "f.png"
    path.write_text("old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        plots.save(plots.mask_gallery({"m": np.ones((2, 2), bool)}), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_other_endings_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.png.*'f\.jpg'"):
        plots.save(plots.mask_gallery({"m": np.ones((2, 2), bool)}), tmp_path / "f.jpg")


def test_drawing_leaves_no_global_state():
    code = """
import sys
import matplotlib as mpl
import numpy as np
def settings():  # asking for the backend would itself import pyplot
    return {k: mpl.rcParams[k] for k in mpl.rcParams if k != "backend"}
before = settings()
from attnlab import plots
plots.mask_gallery({"m": np.ones((2, 2), bool)})
assert settings() == before
assert "matplotlib.pyplot" not in sys.modules
assert "jax" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
