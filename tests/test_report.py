"""The report: complete, self-contained, right in its numbers, and silent about nothing that went wrong."""

import argparse
import csv
import html
import json
import math
import os
import re
import tomllib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, find_chromium
from fake_runs import fake_run, runs_ending_at
from fake_sweep import CLAIM, ENVIRONMENT, Member, toy_members, write_sweep
from matplotlib.image import imread
from test_claims import FINALS, make_claim

from attnlab import cli, plots
from attnlab.claims import ClaimFigure
from attnlab.claims.rules import above
from attnlab.commands import report_command, sweep_report
from attnlab.measurements import Probes
from attnlab.plots import NothingToDrawError
from attnlab.report import Source, build, figures, markup, source
from attnlab.results import Results
from attnlab.tracking import locks

VOID = {"meta", "link", "img", "br", "hr"}


class Page(HTMLParser):
    """A page taken apart: sections by id, images, links, and the text a reader sees."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.raw = path.read_text(encoding="utf-8")
        self.open: list[str] = []
        self.sections: dict[str, str] = {}
        self.images: list[dict[str, str]] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tables = 0
        self._section = ""
        self.text = ""
        self.feed(self.raw)
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in found:
            self.ids.append(found["id"])
        if tag == "section":
            self._section = found["id"]
            self.sections[self._section] = ""
        if tag == "img":
            self.images.append(found)
        if tag == "a":
            self.links.append(found["href"])
        self.tables += tag == "table"

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"{tag} closes what it did not open"
        if tag == "section":
            self._section = ""

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "title"):
            self.text += data + " "
            if self._section:
                self.sections[self._section] += data + " "


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A claim's sweep, finished and measured: (directory, report, page)."""
    work = write_sweep(tmp_path_factory.mktemp("good") / "w", toy_members())
    made = sweep_report.make(work, CLAIM, work / "report")
    return work, made, Page(made.page)


def broken_members() -> list[Member]:
    """One diverged, one interrupted, one dead while it ran, and one that never began."""
    members = toy_members()
    members[4] = replace(members[4], status="diverged", rows=4, end=9.0)
    members[6] = replace(members[6], status="interrupted", rows=6)
    members[7] = replace(members[7], status="running", rows=3)
    members[11] = replace(members[11], status="waiting", rows=0)
    return members


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    work = write_sweep(tmp_path_factory.mktemp("bad") / "w", broken_members())
    made = sweep_report.make(work, CLAIM, work / "report")
    return work, made, Page(made.page)


def test_page_asks_nobody_for_anything(good):
    page = good[2]
    fetched = re.findall(r'(?:src|srcset|action|data)="([^"]{0,40})', page.raw)
    assert fetched
    assert all(address.startswith("data:") for address in fetched)
    assert not re.search(r"@import|url\(|<script|<iframe|<link[^>]*stylesheet", page.raw)
    linked = [link for link in page.links if not link.startswith("#")]
    assert linked
    assert all((good[1].page.parent / link).is_file() for link in linked), (
        "links lead to files here"
    )
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert good[1].page.stat().st_size < 10_000_000


def test_verdict_stands_at_the_top_in_words_with_its_numbers(good):
    page, outcome = good[2], good[1].outcome
    top = page.text[:2500]
    assert CLAIM.statement in top
    assert top.index("REPRODUCED") < top.index("F1, it trains")
    assert 'class="badge reproduced"' in page.raw
    for judged in outcome.judgements:
        interval = judged.interval
        row = page.sections["verdicts"]
        assert f"{interval.mean:.3f}" in row
        assert f"{interval.low:.3f} to {interval.high:.3f}" in row
        assert f"p {judged.p_holm:.2g}" in row
    assert "paired seeds" in page.sections["verdicts"], "the power statement"


def test_every_section_of_a_measured_sweep_is_there(good):
    assert list(good[2].sections) == [
        "verdicts", "forest", "loss", "gap", "position", "probe", "shuffled", "length", "entropy",
        "masks", "arms", "config", "published", "null", "environment",
    ]  # fmt: skip


@pytest.fixture
def only(monkeypatch):
    """Restricts a report to the figures of some sections: drawing is what takes its time."""

    def restrict(*names: str) -> None:
        wanted = figures._wanted
        monkeypatch.setattr(
            figures, "_wanted", lambda facts: [w for w in wanted(facts) if w.section in names]
        )

    return restrict


def test_section_without_data_is_left_out(tmp_path, only):
    only("position", "probe", "shuffled", "length", "entropy")
    work = write_sweep(tmp_path / "w", toy_members(2), measured=False)
    page = Page(sweep_report.make(work, CLAIM, tmp_path / "out").page)
    assert not {"probe", "shuffled", "length"} & set(page.sections)
    assert {"position", "entropy"} <= set(page.sections), "these come with every run"


def test_every_figure_has_words_and_two_files(good):
    _, made, page = good
    assert len(page.images) == len(made.figures) == 10
    for image in page.images:
        assert len(image["alt"]) > 30
    for png in made.figures:
        assert png.read_bytes().startswith(b"\x89PNG")
        assert "<svg" in png.with_suffix(".svg").read_text()
    forest = next(image["alt"] for image in page.images if "Forest" in image["alt"])
    assert "F1 REPRODUCED at 0.7" in forest


def test_published_numbers_stand_beside_ours(good):
    text = good[2].sections["published"]
    for row in good[1].outcome.gaps:
        for number in row.gap.published:
            assert html.unescape(number.setting) in text
        assert f"{row.interval.mean:.4f}" in text
    assert "3.59 nats" in text
    assert "none known" in text, "a gap that nobody published is said to be one"


def test_arms_differ_in_the_table_by_what_they_differ_in(good):
    text = good[2].sections["config"]
    head, _, rest = text.partition("All other knobs")
    assert all(word in head for word in ("mask", "objective", "positions", "masked_lm(0.15)"))
    assert "model.width" not in head
    assert "model.width" in rest


def test_command_commit_and_dirt_are_on_the_page(good):
    text = good[2].sections["environment"]
    assert "attnlab reproduce toy --workdir 'runs/a b'" in text
    assert ENVIRONMENT["git"]["commit"] in text
    assert "uncommitted changes" in text
    assert "None" not in text
    assert "Session" not in text, "fifteen equal records are one"


def test_nothing_that_went_wrong_is_hidden(bad):
    page, outcome = bad[2], bad[1].outcome
    assert [str(j.verdict) for j in outcome.judgements] == ["INVALID", "INVALID"]
    assert "Not finished" in page.text[:700]
    assert "11 finished, 1 diverged, 2 interrupted, 1 waiting" in page.text
    text = page.sections["ended"]
    for phrase in ("diverged at step 80", "interrupted after step 120", "waiting before its first"):
        assert phrase in text
    assert text.count("causal-none") == 2
    assert "2 of 3 (1 diverged)" in page.sections["arms"]


def test_claim_brings_figures_of_its_own_and_says_what_a_diverged_run_counts_as(tmp_path, only):
    only("own")

    def nothing(results):
        raise NothingToDrawError("no such runs")

    own = (
        ClaimFigure("sizes", "By size.", "Dots.", lambda r: plots.loss_by_tokens(r, r.arms[:1])),
        ClaimFigure("absent", "Not here.", "Nothing.", nothing),
    )
    counting = replace(CLAIM.subclaims[0], diverged_as="the loss before training")
    claim = replace(CLAIM, figures=own, subclaims=(counting, *CLAIM.subclaims[1:]))
    work = write_sweep(tmp_path / "w", broken_members())
    made = sweep_report.make(work, claim, tmp_path / "out")
    assert [png.name for png in made.figures] == ["sizes.png"]
    page = Page(made.page)
    assert "By size." in page.sections["own"]
    assert "F1 count a diverged run as the loss before training." in page.sections["ended"]


def test_figures_of_a_broken_sweep_are_all_made(bad, good):
    assert {png.name for png in bad[1].figures} == {png.name for png in good[1].figures}


def test_sweep_that_has_not_begun_has_a_page_too(tmp_path, only):
    only("loss")
    waiting = [replace(m, status="waiting", rows=0) for m in toy_members(2)]
    work = write_sweep(tmp_path / "w", waiting)
    page = Page(sweep_report.make(work, CLAIM, tmp_path / "out").page)
    assert "10 waiting" in page.text
    assert "No figure yet" in page.sections["loss"]
    assert page.sections["ended"].count("waiting before its first row") == 10


def test_damaged_measurement_costs_its_figure_and_nothing_else(tmp_path, only):
    only("probe", "shuffled")
    members = toy_members(2)
    work = write_sweep(tmp_path / "w", members)
    (work / "runs" / members[0].id / Probes.FILE).write_text("{")
    page = Page(sweep_report.make(work, CLAIM, tmp_path / "out").page)
    assert "is not JSON" in page.sections["probe"]
    assert "shuffled" in page.sections


def test_sweep_of_another_claim_is_shown_and_not_judged(tmp_path, only):
    only("loss")
    members = [Member("treated", seed, 2.0) for seed in (0, 1)]
    work = write_sweep(tmp_path / "w", members, "toy-own", measured=False)
    page = Page(sweep_report.make(work, CLAIM, tmp_path / "out").page)
    assert "Not judged. arms: no sub-claim of toy" in re.sub(r"\s+", " ", page.text)
    assert "verdicts" not in page.sections
    assert "treated" in page.sections["arms"]


def test_sweep_without_a_claim_tells_its_runs_apart(tmp_path, only):
    only("loss")
    members = [
        Member("", seed, 2 + 10 * rate, overrides=(("optimizer.learning_rate", rate),))
        for rate in (0.01, 0.02)
        for seed in (0, 1)
    ]
    work = tmp_path / "w"
    runs = []
    for index, member in enumerate(members):
        one = write_sweep(tmp_path / str(index), [member], "rates", measured=False)
        runs += sweep_report.read_source(one, None).runs
    made = build(Source("rates", runs), work)
    page = Page(made.page)
    assert "nothing is judged" in page.text
    assert "learning_rate 0.01" in page.sections["arms"]
    assert "2.200" in page.sections["arms"], "two seeds at rate 0.02"
    assert "2.100" in page.sections["arms"]
    assert made.outcome is None
    assert "Each arm against itself" in page.text


def test_text_from_outside_cannot_become_markup(tmp_path, only):
    only("loss")
    members = [Member("<b>&\"'", seed, 2.0) for seed in (0, 1)]
    work = tmp_path / "w"
    runs = [
        replace(run, id=f"r{index}")
        for index, run in enumerate(runs_ending_at({m.arm: [2.0, 2.1] for m in members}))
    ]
    page = Page(build(Source("<i>", runs), work).page)
    assert "<b>" not in page.raw
    assert "<b>&\"'" in page.text


def test_runs_table_holds_every_run_and_its_numbers(bad):
    rows = list(csv.DictReader(bad[1].runs.open()))
    assert len(rows) == 15
    by_id = {row["id"]: row for row in rows}
    for member in broken_members():
        row = by_id[member.id]
        assert (row["arm"], int(row["seed"])) == (member.arm, member.seed)
        assert row["config.positions"] == CLAIM.arms[member.arm]["positions"]
        if member.status == "finished":
            assert float(row["final.val/loss"]) == member.end
    assert by_id[broken_members()[7].id]["status"] == "interrupted", "its process is dead"


def test_history_holds_every_logged_row(bad, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    path = figures_and_history_as_csv(bad[0], tmp_path)
    rows = list(csv.DictReader(path.open()))
    assert len(rows) == sum(member.rows for member in broken_members())
    first = next(row for row in rows if row["arm"] == "causal-none" and row["seed"] == "0")
    assert (int(first["step"]), int(first["tokens"])) == (20, 20 * 512)
    assert math.isfinite(float(first["val/loss"]))


def figures_and_history_as_csv(work: Path, out: Path) -> Path:
    from attnlab.report import export

    runs = sweep_report.read_source(work, None).runs
    return export.write_history(Results(runs), out)


def test_history_is_the_same_as_parquet(bad, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = figures_and_history_as_csv(bad[0], tmp_path)
    assert path.name == "history.parquet"
    table = parquet.read_table(path)
    assert table.num_rows == sum(member.rows for member in broken_members())
    assert {"arm", "seed", "step", "tokens", "val/loss"} <= set(table.column_names)


def test_panels_never_hold_more_lines_than_there_are_colours():
    runs = []
    for depth in (1, 2, 4):
        for mask in ("causal", "sliding_window(8)"):
            for positions in ("none", "learned", "rope", "alibi", "sinusoidal"):
                run = fake_run(f"{mask} {positions} {depth}", 0, [2.0])
                run.config.update(
                    mask=mask, objective="next_token", positions=positions, model={"layers": depth}
                )
                runs.append(run)
    made = figures.panels(source.facts(Source("s", runs)))
    assert sorted(arm for arms in made.values() for arm in arms) == sorted(
        run.config["arm"] for run in runs
    )
    assert max(len(arms) for arms in made.values()) <= figures.LINES
    assert {"causal mask", "causal mask, layers 2", "causal mask, layers 4"} <= set(made), (
        "a title says what is not as usual"
    )


def test_long_figure_is_embedded_as_png(tmp_path, monkeypatch, only):
    only("forest")
    monkeypatch.setattr(markup, "SVG_LIMIT", 10)
    outcome_runs = runs_ending_at(FINALS)
    page = Page(build(Source("toy", outcome_runs, make_claim(above(0.5))), tmp_path).page)
    assert page.images
    assert all(image["src"].startswith("data:image/png") for image in page.images)


def test_wandb_is_linked_only_where_it_is(tmp_path, good, only):
    only()
    assert "W&B" not in good[2].text
    runs = runs_ending_at(FINALS)
    url = "https://wandb.example/e/p"
    page = Page(build(Source("toy", runs, make_claim(above(0.5)), wandb_url=url), tmp_path).page)
    assert url in page.links


def test_colours_of_words_can_be_read_on_their_backgrounds():
    css = Path(markup.__file__).with_name("page.css").read_text()
    blocks = re.findall(r":root \{([^}]*)\}", css)
    light = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[0]))
    dark = light | dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[1]))
    for colours in (light, dark):
        for word, under in (
            ("ink", "paper"), ("muted", "paper"), ("link", "paper"), ("ink", "card"),
            ("muted", "card"), ("ink", "warn-card"), ("warn", "warn-card"),
        ):  # fmt: skip
            assert contrast(colours[word], colours[under]) >= 4.5, (word, under)
        for verdict in ("reproduced", "not-reproduced", "inconclusive", "invalid"):
            assert contrast("#ffffff", colours[verdict]) >= 4.5, verdict
    for light_colour, dark_colour in markup.DARK.items():
        if light_colour not in ("#ffffff", "#b0b0b0"):  # paper, and the grid
            assert contrast(dark_colour, markup.DARK["#ffffff"]) >= 4.5, light_colour


def contrast(one: str, other: str) -> float:
    """Of two colours, by the definition of WCAG 2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return float(np.dot([0.2126, 0.7152, 0.0722], linear))

    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


# The command


@pytest.mark.parametrize(
    ("sweep", "flag", "name"),
    [
        ("nope", None, "nope"),
        ("nope-quick", None, "nope"),
        ("nopeless", None, None),
        ("base", None, None),
        ("nope-quick", "none", None),
        ("base", "nope", "nope"),
    ],
)
def test_claim_is_the_one_in_the_name_of_the_sweep_unless_asked_otherwise(
    sweep, flag, name, tmp_path
):
    work = write_sweep(tmp_path, [Member("causal-none", 0, 2.0, rows=0)], sweep)
    assert report_command.claim_name(argparse.Namespace(workdir=work, claim=flag)) == name


def test_command_writes_beside_the_runs_or_where_it_is_told(tmp_path, capsys, only):
    only()
    work = write_sweep(tmp_path / "w", toy_members(2), measured=False)
    assert cli.main(["report", str(work), "--out", str(tmp_path / "there")]) == 0
    assert f"report: {tmp_path / 'there' / 'report.html'}" in capsys.readouterr().out
    assert not (work / "report").exists()
    assert cli.main(["report", str(work)]) == 0
    assert (work / "report" / "report.html").is_file()


def test_command_says_the_verdict_first(good, capsys):
    sweep_report.say(good[1])
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"REPRODUCED: {CLAIM.statement} (F1 REPRODUCED, F3 REPRODUCED)"


def test_claim_that_does_not_exist_is_refused(tmp_path, capsys):
    work = write_sweep(tmp_path, [Member("causal-none", 0, 2.0, rows=0)])
    assert cli.main(["report", str(work), "--claim", "nop"]) == 2
    assert "did you mean 'nope'" in capsys.readouterr().err
    assert not (work / "report").exists()


def test_watch_rebuilds_when_something_is_new_and_ends_with_the_sweep(tmp_path, monkeypatch, only):
    only()
    members = [Member("causal-none", 0, 2.0, status="running", rows=3)]
    work = write_sweep(tmp_path / "w", members, "own", measured=False)
    pages: list[str] = []
    made = []

    def make(workdir, claim, out, *, refresh=None):
        made.append(refresh)
        pages.append((workdir / "runs" / members[0].id / "metrics.jsonl").read_text())
        return build(sweep_report.read_source(workdir, claim, refresh=refresh), out)

    monkeypatch.setattr(sweep_report, "make", make)
    lock = locks.take(work / ".lock")
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:  # nothing was new at the second look
            write_sweep(work, [replace(members[0], rows=5)], "own", measured=False)
        if len(looks) == 3:
            write_sweep(
                work, [replace(members[0], status="finished", rows=10)], "own", measured=False
            )
            lock.close()

    sweep_report.watch(work, None, tmp_path / "out", sleep=sleep)
    assert made == [sweep_report.REFRESH_SECONDS] * 2 + [None]
    assert [page.count("\n") for page in pages] == [3, 5, 10]
    assert "http-equiv" not in (tmp_path / "out" / "report.html").read_text()


def test_watch_ends_with_ctrl_c_and_leaves_a_page_that_does_not_reload(tmp_path, only):
    only()
    members = [Member("causal-none", 0, 2.0, status="waiting", rows=0)]
    work = write_sweep(tmp_path / "w", members, "own", measured=False)

    def sleep(_: float) -> None:
        assert 'http-equiv="refresh"' in (tmp_path / "out" / "report.html").read_text()
        raise KeyboardInterrupt

    sweep_report.watch(work, None, tmp_path / "out", sleep=sleep)
    assert "http-equiv" not in (tmp_path / "out" / "report.html").read_text()


def test_masks_are_drawn_once_each_and_cut_where_they_are_long(tmp_path):
    members = [
        Member("causal-none", 0, 2.0, rows=0),
        Member("causal-learned", 0, 2.0, rows=0),
        Member("mlm-none", 0, 2.0, rows=0, overrides=(("context", 100),)),
    ]
    read = sweep_report.read_source(write_sweep(tmp_path, members), None)
    assert {title: mask.shape for title, mask in read.masks.items()} == {
        "causal, T = 16": (16, 16),
        "full, T = 100 (first 64 of 100)": (64, 64),
    }
    np.testing.assert_array_equal(read.masks["causal, T = 16"], np.tri(16, dtype=bool))


def test_failed_write_leaves_the_old_page(tmp_path, monkeypatch, only):
    only()
    runs = runs_ending_at(FINALS)
    page = build(Source("toy", runs), tmp_path).page
    before = page.read_text()
    replacing = os.replace

    def refuse(a, b):
        if str(b).endswith("report.html"):
            raise OSError("disk full")
        replacing(a, b)

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        build(Source("other", runs), tmp_path)
    assert page.read_text() == before
    assert not list(tmp_path.glob(".*"))


def test_verdict_file_and_page_agree(good):
    from attnlab.claims import outcomes

    stored = json.loads(json.dumps(outcomes.as_dict(good[1].outcome)))
    assert stored["verdict"] == "REPRODUCED"
    assert [j["survives_holm"] for j in stored["judgements"]] == [True, True]
    assert stored["gaps"][1]["published"][0]["value"] == 0.005
    assert set(stored["nulls"]) == set(CLAIM.arms)


# In a browser

CHROMIUM = find_chromium()
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium: install one, or name it in CHROMIUM"
)
# The least contrast of any text with what is behind it, and that text.
CONTRAST = """(() => {
  const parts = colour => colour.match(/[\\d.]+/g).map(Number);
  const lum = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 :
    ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = e => { for (; e; e = e.parentElement) {
    const c = getComputedStyle(e).backgroundColor; if (parts(c)[3] !== 0) return c; } };
  let least = [99, ''];
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    const two = [getComputedStyle(e).color, behind(e)].map(c => lum(parts(c)));
    const ratio = (Math.max(...two) + 0.05) / (Math.min(...two) + 0.05);
    if (ratio < least[0]) least = [ratio, e.textContent.slice(0, 40)];
  }
  return least; })()"""
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
IMAGES = "[...document.images].map(image => image.complete && image.naturalWidth > 100)"
HEADERS = """[...document.querySelectorAll('table')].map(table =>
  table.querySelectorAll('thead th[scope=col]').length > 1 &&
  table.querySelectorAll('tbody tr').length == table.querySelectorAll('tbody th[scope=row]').length &&
  document.getElementById(table.getAttribute('aria-labelledby')) !== null)"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    assert CHROMIUM is not None
    with Browser(CHROMIUM, tmp_path_factory.mktemp("profile")) as running:
        yield running


def shown(browser: Browser, which: str, request, **how) -> None:
    """Opens the page of a fixture; nothing may complain, and nothing but the file may be asked for."""
    url = request.getfixturevalue(which)[1].page.as_uri()
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(url, **how)
    assert browser.complaints == []
    assert {r for r in browser.requests if not r.startswith("data:")} == {url}


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("which", ["good", "bad"])
@pytest.mark.browser
@needs_chromium
def test_page_is_whole_on_phone_and_desk_in_light_and_dark(which, width, dark, browser, request):
    shown(browser, which, request, width=width, dark=dark)
    assert browser.ask(FITS), "the page scrolls sideways"
    images = browser.ask(IMAGES)
    assert images
    assert all(images)
    ratio, text = browser.ask(CONTRAST)
    assert ratio >= 4.5, text
    headers = browser.ask(HEADERS)
    assert len(headers) >= 6
    assert all(headers)


def corner(browser: Browser, path: Path) -> tuple[int, ...]:
    """Red, green and blue of the first figure's corner, which is paper."""
    browser.ask("document.images[0].scrollIntoView({block: 'start'})")
    x, y = browser.ask(
        "(() => { const box = document.images[0].getBoundingClientRect(); return [box.x, box.y]; })()"
    )
    browser.screenshot(path, whole=False)
    pixel = imread(path)[int(y) + 1, int(x) + 1, :3]
    return tuple(round(255 * float(value)) for value in pixel)


@pytest.mark.browser
@needs_chromium
def test_figures_follow_the_colour_scheme(browser, request, tmp_path):
    found = []
    for dark in (False, True):
        shown(browser, "good", request, width=1280, dark=dark)
        found.append(corner(browser, tmp_path / "shot.png"))
    assert found == [(255, 255, 255), (0x14, 0x17, 0x1B)]


@pytest.mark.browser
@needs_chromium
def test_page_prints_black_on_white_and_within_the_paper(browser, request, tmp_path):
    # A4 less its margins is 182 mm, or 688 CSS pixels.
    shown(browser, "good", request, width=688, dark=True, media="print")
    assert browser.ask(FITS)
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.ask("getComputedStyle(document.querySelector('nav')).display") == "none"
    scrolling = "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > 690)"
    assert browser.ask(f"{scrolling}.map(box => box.ariaLabel)") == [], "cut off on paper"
    assert corner(browser, tmp_path / "shot.png") == (255, 255, 255), "figures, too"
    browser.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


# For programs


def test_manifest_names_the_verdict_its_numbers_and_every_figure(good):
    work, made, _ = good
    stored = json.loads((work / "report" / "report.json").read_text())
    interval = made.outcome.judgements[0].interval
    summary = stored["summary"]
    assert summary["claim/verdict"] == summary["claim/F1/verdict"] == "REPRODUCED"
    assert (summary["claim/F1/low"], summary["claim/F1/high"]) == (interval.low, interval.high)
    assert summary["runs/finished"] == 15
    assert summary["arm/mlm-none/val/loss"] == pytest.approx(3.27, abs=0.01)
    assert stored["tags"] == ["report", "toy", *CLAIM.arms, "seed0", "seed1", "seed2"]
    assert stored["verdict"]["verdicts"] == {"F1": "REPRODUCED", "F3": "REPRODUCED"}
    files = [made.page.parent / figure["file"] for figure in stored["figures"]]
    assert files == list(made.figures)


def test_reports_that_say_the_same_have_equal_manifests(tmp_path, only):
    only("loss")
    runs = runs_ending_at(FINALS)
    for name, some in (("a", runs), ("b", runs), ("c", runs[1:])):
        build(Source("toy", some), tmp_path / name)
    a, b, c = ((tmp_path / name / "report.json").read_bytes() for name in "abc")
    assert a == b != c


def test_what_the_page_is_made_of_is_packaged():
    root = Path(__file__).resolve().parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    packaged = project["tool"]["setuptools"]["package-data"]["attnlab.report"]
    assert sorted(packaged) == sorted(
        path.name
        for path in (root / "attnlab" / "report").iterdir()
        if path.suffix in (".html", ".css")
    )
