"""Collects what the cells of the fault matrix found, and prints it as a table at the end."""

from datetime import datetime
from pathlib import Path

import pytest
from faults import FAULTS, POINTS

CELL = "fault cell"
HERE = Path(__file__).parent
COLUMNS = {"compile": "during compilation", "training": "in training", "evaluation": "in a validation",
           "checkpoint": "in a checkpoint write"}  # fmt: skip


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table on the terminal; a complete one also goes to matrix.md."""
    cells: dict[tuple[str, str], str] = {}
    for outcome in ("passed", "failed", "skipped", "error"):
        for report in terminalreporter.getreports(outcome):
            if outcome == "passed" and report.when != "call":
                continue
            for name, value in report.user_properties:
                if name == CELL:
                    cells[value["fault"], value["point"]] = _text(outcome, value)
    if not cells:
        return
    notes: dict[str, str] = {}
    lines = ["| fault | " + " | ".join(COLUMNS.values()) + " |", "|---" * (1 + len(POINTS)) + "|"]
    for fault in FAULTS:
        row = [fault.name]
        for point in POINTS:
            if point in fault.impossible:
                reason = notes.setdefault(fault.impossible[point], chr(ord("a") + len(notes)))
                row.append(f"- ({reason})")
            else:
                row.append(cells.get((fault.name, point), "not run"))
        lines.append("| " + " | ".join(row) + " |")
    lines += ["", *(f"({letter}) {reason}." for reason, letter in notes.items())]
    terminalreporter.section("fault matrix")
    for line in lines:
        terminalreporter.write_line(line)
    if "not run" not in "\n".join(lines):
        (HERE / "matrix.md").write_text(_page(lines))
        terminalreporter.write_line(f"written: {HERE / 'matrix.md'}")


def _text(outcome: str, cell: dict[str, str]) -> str:
    if outcome == "skipped":
        return f"skipped: {cell.get('skipped', '')}"
    if outcome != "passed":
        return "FAILED"
    return (
        f"{cell['lost']} lost, equal {cell['equal']}, others {cell['others']}, exit {cell['exit']}"
    )


def _page(lines: list[str]) -> str:
    return "\n".join(
        [
            "# Fault matrix",
            "",
            f"Written by `make test-faults` on {datetime.now():%Y-%m-%d}: a sweep of three members is struck at a point,",
            "mended and resumed, through the command line. A cell tells: rows that were on disk and are not in the end;",
            "whether rows and summaries of all members then equal, byte for byte, those of a run that nothing happened",
            "to; whether the members that had ended when it happened (in compilation none had) were as they should be",
            "at once, before resuming; and the exit code of the command that was struck (negative: killed by a signal).",
            "With W&B faults the loopback server must also have every row once, after `attnlab sync` where the command said that it had not.",
            "",
            *lines,
            "",
        ]
    )
