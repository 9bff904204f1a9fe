"""From a source to the files of a report."""

import datetime
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template

from attnlab.claims.judging import Outcome
from attnlab.report import export, figures, manifest, sections
from attnlab.report.markup import Markup, element, join, text
from attnlab.report.source import Facts, Source, facts
from attnlab.whole_files import replacing


@dataclass(frozen=True)
class Report:
    """What was written, and the verdict it tells; `outcome` is None where nothing could be judged."""

    page: Path
    runs: Path
    history: Path
    figures: tuple[Path, ...]
    outcome: Outcome | None


def build(source: Source, out: Path) -> Report:
    """Writes the whole report into `out`; each file is either the old one or the whole new one.

    Raises:
      ValueError: a sweep without members.
      OSError: `out` cannot be written.
    """
    known = facts(source)
    out.mkdir(parents=True, exist_ok=True)
    runs = out / "runs.csv"
    export.write_runs(known.results, runs)
    history = export.write_history(known.results, out)
    drawn = figures.draw(known, out / "figures")
    page = out / "report.html"
    write(page, _page(known, drawn, history.name))
    manifest.write(known, drawn, page, out / "report.json")  # last: it says that all is there
    pngs = tuple(item.png for item in drawn if item.png is not None)
    return Report(page, runs, history, pngs, known.outcome)


def _page(known: Facts, drawn: list[figures.Drawn], history: str) -> str:
    shown = list(sections.sections(known, drawn))
    links = [element("li", element("a", section.title, href=f"#{section.id}")) for section in shown]
    refresh = known.source.refresh
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    files = [element("a", name, href=name) for name in ("runs.csv", history)]
    return Template(packaged("page.html")).substitute(
        title=text(f"{known.source.name}: attnlab report"),
        refresh=Markup(f'<meta http-equiv="refresh" content="{refresh}">') if refresh else "",
        style=packaged("page.css"),
        head=sections.header(known),
        nav=join(links, Markup("\n")),
        body=join((section.html() for section in shown), Markup("\n")),
        foot=join(["Built ", now, " by attnlab. The numbers behind it: ", join(files, ", "), "."]),
    )


def packaged(name: str) -> str:
    """The text of a file that lies beside this one."""
    return resources.files("attnlab.report").joinpath(name).read_text(encoding="utf-8")


def write(path: Path, page: str) -> None:
    """Writes a page whole or not at all."""
    with replacing(path) as partial:
        partial.write_text(page, encoding="utf-8")
