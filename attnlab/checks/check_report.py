"""What a run of checks looks like: the table on the terminal, JSON, Markdown between markers, figures."""

import datetime
import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from attnlab.checks.check import Erratum, Measurement, Outcome, Table, number

SCHEMA = 1
COLUMNS = ("id", "claim", "source", "measured", "required", "verdict")
BEGIN, END = "<!-- attnlab check: begin -->", "<!-- attnlab check: end -->"
PIPE_WIDTH = 160


def rows(outcomes: Iterable[Outcome]) -> list[tuple[str, ...]]:
    """One row per check for `COLUMNS`: the first measurement that failed, else the first."""
    return [_row(outcome) for outcome in outcomes]


def _row(outcome: Outcome) -> tuple[str, ...]:
    check, shown = outcome.check, _shown(outcome)
    if shown is None:
        return check.id, check.statement, check.source, outcome.error, "", outcome.verdict
    measured = f"{shown.quantity}: {number(shown.measured)}"
    assert outcome.finding is not None
    more = len(outcome.finding.measurements) - 1
    required = shown.requirement + (f", and {more} more" if more else "")
    return check.id, check.statement, check.source, measured, required, outcome.verdict


def _shown(outcome: Outcome) -> Measurement | None:
    if outcome.finding is None or not outcome.finding.measurements:
        return None
    measurements = outcome.finding.measurements
    return next((m for m in measurements if not m.passed), measurements[0])


def watch(outcomes: Iterable[Outcome], total: int) -> list[Outcome]:
    """Collects the outcomes; on a terminal a status line says how far it is."""
    console, done = Console(highlight=False), []
    with console.status("starting") as status:
        for outcome in outcomes:
            done.append(outcome)
            status.update(
                f"{len(done)} of {total} checks, last {outcome.check.id} in {outcome.seconds:.1f} s"
            )
    return done


def print_outcomes(outcomes: Sequence[Outcome], *, details: bool, seconds: float) -> None:
    """The table; every measurement of the failures, or of all with `details`; the count."""
    console = _console()
    table = RichTable(
        title="exact claims and claims at initialisation", title_justify="left", show_lines=True
    )
    for column in COLUMNS:
        table.add_column(column, overflow="fold", no_wrap=column in ("id", "verdict"))
    for outcome, row in zip(outcomes, rows(outcomes), strict=True):
        style = "green" if outcome.passed else "bold red"
        table.add_row(*map(escape, row[:-1]), f"[{style}]{row[-1]}[/]")
    console.print(table)
    for outcome in outcomes:
        if details or not outcome.passed:
            _print_details(console, outcome)
    failed = sum(not outcome.passed for outcome in outcomes)
    seed = outcomes[0].seed if outcomes else 0
    console.print(
        f"{len(outcomes) - failed} passed, {failed} failed, seed {seed}, {seconds:.1f} s",
        markup=False,
    )


def _print_details(console: Console, outcome: Outcome) -> None:
    console.print(
        f"\n{outcome.check.id} {outcome.verdict}: {outcome.check.statement}", markup=False
    )
    if outcome.finding is None:
        console.print(f"    raised {outcome.error}", markup=False)
    else:
        for m in outcome.finding.measurements:
            mark = "ok  " if m.passed else "FAIL"
            console.print(
                f"    {mark} {m.quantity}: got {number(m.measured)}, required {m.requirement}",
                markup=False,
            )
        for table in outcome.finding.tables:
            console.print(_rich_table(table))
    if not outcome.passed:
        console.print(f"    again: {outcome.command}", markup=False)


def _rich_table(table: Table) -> RichTable:
    rich = RichTable(title=table.title, title_justify="left")
    for column in table.columns:
        rich.add_column(escape(column), justify="right")
    for row in table.rows:
        rich.add_row(*(escape(x if isinstance(x, str) else number(x)) for x in row))
    return rich


def print_errata(errata: Sequence[Erratum], sources: Mapping[str, str]) -> None:
    """Where the sources say it, what is right, and what proves it."""
    console = _console()
    table = RichTable(title="errata of the sources", title_justify="left", show_lines=True)
    for column in ("id", "where", "says", "right", "shown by"):
        table.add_column(column, overflow="fold")
    for e in errata:
        table.add_row(*map(escape, (e.id, e.where, e.says, e.right, proof(e))))
    console.print(table)
    for name, title in sources.items():
        console.print(f"{name}: {title}", markup=False)


def proof(erratum: Erratum) -> str:
    """The checks that show it, or how it is known."""
    shown = ", ".join(f"attnlab check {check}" for check in erratum.proof)
    return "; ".join(filter(None, (shown, erratum.how)))


def as_json(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Everything that was found, in JSON types; numbers that are not finite are strings."""
    return {
        "schema": SCHEMA,
        "date": _today(),
        "commit": commit(),
        "passed": all(outcome.passed for outcome in outcomes),
        "checks": [_outcome_json(outcome) for outcome in outcomes],
    }


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    check, finding = outcome.check, outcome.finding
    return {
        "id": check.id,
        "topic": check.topic,
        "claim": check.statement,
        "source": check.source,
        "seed": outcome.seed,
        "passed": outcome.passed,
        "seconds": round(outcome.seconds, 3),
        "error": outcome.error,
        "measurements": [
            {
                "quantity": m.quantity,
                "measured": _finite(m.measured),
                "relation": m.relation,
                "expected": _finite(m.expected),
                "tolerance": m.tolerance,
                "standard_error": m.standard_error,
                "z": None if m.z is None else _finite(m.z),
                "passed": m.passed,
            }
            for m in (finding.measurements if finding else ())
        ],
        "tables": [
            {
                "title": t.title,
                "columns": list(t.columns),
                "rows": [[_finite(x) for x in row] for row in t.rows],
            }
            for t in (finding.tables if finding else ())
        ],
    }


def _finite(x: str | float) -> str | float:
    return x if isinstance(x, str) or abs(x) < float("inf") else str(x)


def write_json(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Writes `as_json`, making the directory if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(as_json(outcomes), indent=1, allow_nan=False) + "\n", encoding="utf-8"
    )


def markdown(outcomes: Sequence[Outcome], sources: Mapping[str, str]) -> str:
    """The table: claim, source, how it is checked, verdict, date, commit; then what the short names stand for."""
    date, at = _today(), commit()
    lines = [
        "| id | claim | source | checked by | measured | verdict | date | commit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for outcome, (_, claim, source, measured, required, verdict) in zip(
        outcomes, rows(outcomes), strict=True
    ):
        quantity, _, value = measured.rpartition(": ")
        checked = f"{quantity} {required}" if quantity else required
        cells = (outcome.check.id, claim, source, checked, value, verdict, date, at)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    seeds = sorted({outcome.seed for outcome in outcomes})
    lines += ["", f"Seed {', '.join(map(str, seeds))}. Sources:", ""]
    lines += [f"- {name}: {title}" for name, title in sources.items()]
    return "\n".join(lines) + "\n"


def check_markdown_target(path: Path) -> None:
    """Refuses a file that holds something else than the table.

    Raises:
      ValueError: the file exists and does not hold both markers, in order.
    """
    if path.exists():
        _around(path)


def _around(path: Path) -> tuple[str, str]:
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(
            f"--markdown: {path} exists without the markers {BEGIN} and {END} to write between"
        )
    return before, after


def write_markdown(path: Path, outcomes: Sequence[Outcome], sources: Mapping[str, str]) -> None:
    """Writes the table between the markers of `path`; a new file gets both."""
    before, after = _around(path) if path.exists() else ("", "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{before}{BEGIN}\n{markdown(outcomes, sources)}{END}{after}", encoding="utf-8")


def write_figures(directory: Path, outcomes: Sequence[Outcome]) -> list[Path]:
    """Draws the figures of every finding that has some: DIRECTORY/STEM.png and .svg."""
    from attnlab import plots

    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for outcome in outcomes:
        if outcome.finding is not None and outcome.check.figures is not None:
            for stem, figure in outcome.check.figures(outcome.finding).items():
                written.append(directory / f"{outcome.check.id}_{stem}.png")
                plots.save(figure, written[-1])
    return written


def commit() -> str:
    """The commit of this checkout, `+` where files were changed since; `unknown` outside git."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ("git", "-C", str(here), "describe", "--always", "--dirty=+", "--exclude=*"),
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_WIDTH)
