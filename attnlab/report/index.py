"""Several claims on one page: a row for each with its verdict, all sub-claims in one figure, links to the reports."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from attnlab import plots
from attnlab.claims import Claim
from attnlab.claims.judging import Outcome
from attnlab.claims.rules import Verdict
from attnlab.report.build import packaged, write
from attnlab.report.markup import Markup, badge, between, element, figure, join, table, text
from attnlab.report.sections import Section, note

PAGE, FIGURE = "index.html", "claims_forest.png"


@dataclass(frozen=True)
class Entry:
    """A claim as it stands in one directory.

    Attributes:
      sweep: name of the sweep that asked, "NAME-PRESET"; empty where none did.
      outcome: None where nothing can be judged.
      why: the reason then.
      report: link to the claim's own report, relative to the index; None where there is none.
      commit: that it was trained at, in short; "-" where it is not known.
    """

    claim: Claim
    sweep: str = ""
    outcome: Outcome | None = None
    why: str = ""
    report: str | None = None
    commit: str = "-"


def build(entries: Sequence[Entry], out: Path, *, title: str) -> Path:
    """Writes `index.html` and the forest plot (PNG and SVG) into `out`; returns the page.

    Raises:
      ValueError: no entry.
      OSError: `out` cannot be written.
    """
    if not entries:
        raise ValueError("entries: need at least one claim")
    out.mkdir(parents=True, exist_ok=True)
    shown = [Section("claims", "Claims", _claims(entries))]
    judged = {e.claim.name: e.outcome for e in entries if e.outcome is not None}
    if judged:
        shown += [
            Section("forest", "All sub-claims at a glance", _forest(judged, out)),
            Section("numbers", "All sub-claims in numbers", _numbers(judged)),
        ]
    page = out / PAGE
    write(page, _page(title, entries, shown))
    return page


def _page(title: str, entries: Sequence[Entry], shown: Sequence[Section]) -> str:
    links = [element("li", element("a", section.title, href=f"#{section.id}")) for section in shown]
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return Template(packaged("page.html")).substitute(
        title=text(f"{title}: attnlab"),
        refresh="",
        style=packaged("page.css"),
        head=join(
            [
                element("p", "attnlab, every claim", class_="kicker"),
                element("h1", title),
                element("p", _standing(entries), class_="muted"),
            ]
        ),
        nav=join(links, Markup("\n")),
        body=join((section.html() for section in shown), Markup("\n")),
        foot=join(["Built ", now, " by attnlab."]),
    )


def _standing(entries: Sequence[Entry]) -> str:
    verdicts = [entry.outcome.verdict for entry in entries if entry.outcome is not None]
    counted = [f"{verdicts.count(v)} {v}" for v in Verdict if v in verdicts]
    missing = len(entries) - len(verdicts)
    return f"{len(entries)} claims: {', '.join([*counted, *([f'{missing} not judged'] if missing else [])])}."


def _claims(entries: Sequence[Entry]) -> Markup:
    rows = []
    for entry in entries:
        name: object = entry.claim.name
        if entry.report is not None:
            name = element("a", entry.claim.name, href=entry.report)
        verdict: object = entry.why or "-"
        parts: object = "-"
        if entry.outcome is not None:
            verdict = badge(entry.outcome.verdict)
            parts = ", ".join(f"{j.subclaim.id} {j.verdict}" for j in entry.outcome.judgements)
        rows.append((name, entry.claim.statement, verdict, parts, entry.sweep or "-"))
    columns = ("claim", "what it says", "verdict", "parts", "sweep")
    caption = "A claim's verdict is that of the parts it rests on; its report has the numbers."
    return table(columns, rows, caption=caption, stacked=True, words=columns)


def _forest(judged: dict[str, Outcome], out: Path) -> Markup:
    judgements = [(name, j) for name, outcome in judged.items() for j in outcome.judgements]
    png, svg = plots.save(
        plots.forest([j for _, j in judgements], names=[n for n, _ in judgements]), out / FIGURE
    )
    said = ", ".join(f"{name} {j.subclaim.id} {j.verdict}" for name, j in judgements)
    return figure(
        png, svg, alt=said, link=png.name,
        caption="Each sub-claim on its own scale, with the region that was claimed before anything was trained.",
    )  # fmt: skip


def _numbers(judged: dict[str, Outcome]) -> Markup:
    rows = []
    for name, outcome in judged.items():
        for j in outcome.judgements:
            mean = f"{j.interval.mean:.3f} {j.subclaim.unit}".rstrip() if j.interval else "-"
            seeds = str(j.interval.n) if j.interval else "-"
            number = (
                mean,
                between(j.interval),
                f"{j.subclaim.rule} {j.subclaim.unit}".rstrip(),
                seeds,
            )
            rows.append(
                (f"{name} {j.subclaim.id}", j.subclaim.statement, *number, badge(j.verdict))
            )
    columns = ("part", "what it says", "mean", "95 % CI", "claimed", "seeds", "verdict")
    if not rows:
        return note("No numbers", "no sub-claim could be asked")
    return table(
        columns,
        rows,
        caption="Each sub-claim and its number",
        stacked=True,
        words=("what it says", "verdict"),
    )
