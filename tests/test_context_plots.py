"""What the report shows of a member's context: the right numbers, and a damaged file that costs no page."""

from dataclasses import replace

import numpy as np
import pytest
from fake_runs import fake_run

from attnlab.measurements.context import PositionShare, Reach, Samples, TruncatedContext
from attnlab.plots import NothingToDrawError, context_plots
from attnlab.report import context
from attnlab.report.source import Source, facts
from attnlab.results import Results


@pytest.fixture
def runs(tmp_path):
    """Arm "open" reads the future in two seeds; of "plain" nothing was measured."""
    made = [replace(fake_run("open", s, [0.3 + s]), path=tmp_path / str(s)) for s in (0, 1)]
    for seed, run in enumerate(made):
        run.path.mkdir()
        TruncatedContext([0.1, 2.0 + seed], [3.0, 4.0]).write(run.path)
        Reach([6.0, 3.0, 1.0, 0.0]).write(run.path)
        PositionShare([[0.9 - 0.2 * seed, 0.25], [0.5, 0.5]]).write(run.path)
        Samples("thou\nart", score=2.5, filling=3.0, full=2.25 + seed, real=1.75).write(run.path)
    return [*made, fake_run("plain", 0, [2.0])]


def test_both_losses_are_drawn_by_position(runs):
    figure = context_plots.truncated_context(Results(runs), ["open", "plain"])
    whole, cut = figure.axes
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["as trained", "future cut off"]
    np.testing.assert_allclose(whole.lines[0].get_ydata(), [0.1, 2.5])
    np.testing.assert_allclose(cut.lines[0].get_ydata(), [3.0, 4.0])
    with pytest.raises(NothingToDrawError):
        context_plots.truncated_context(Results(runs), ["plain"])


def test_table_has_loss_beside_what_it_hides_and_a_text(runs):
    page = context.future(facts(Source("leak", runs)))
    row = page[page.index(">open<") :]
    for number in ("0.800", "3.500", "2.500", "3.000", "2.750", "1.750"):
        assert f">{number}<" in row
    assert "thou\\nart" in page, "line ends are shown, not obeyed"
    assert "plain" not in page


def test_reach_is_drawn_up_to_the_farthest_token_and_counted(runs):
    (axis,) = context_plots.reach(Results(runs), ["open", "plain"]).axes
    np.testing.assert_allclose(axis.lines[0].get_ydata(), [0.6, 0.3, 0.1, np.nan])
    page = context.reach(facts(Source("leak", runs)))
    cells = page[page.index(">open<") :]
    assert [cells.index(f">{n}<") for n in ("1.0", "2.0", "3.0")]
    assert "plain" not in page


def test_share_of_position_is_given_head_by_head(runs):
    page = context.position_share(facts(Source("leak", runs)))
    assert "0.80 0.25; 0.50 0.50" in page
    assert ">0.51<" in page, "the mean"


def test_damaged_measurement_costs_its_table_alone(runs):
    (runs[0].path / Samples.FILE).write_text("{")
    assert "Not shown" in context.future(facts(Source("leak", runs)))


def test_sweep_without_such_measurements_has_no_such_section(runs):
    assert context.future(facts(Source("leak", runs[2:]))) == ""
