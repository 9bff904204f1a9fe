"""Exact claims and claims about initialisation: what a check is, how checks are run, what counts as passed.

A check is a function of a seed. It computes something with the library's real code and returns measurements, each
with the value or the bound it must meet, fixed beforehand. No training, no confidence interval: it holds or it
does not. The claims themselves live in `experiments.exact`; this module knows results only.
"""

import argparse
import fnmatch
import inspect
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAILED = 1
# A standard normal lies beyond this once in 2 100 draws.
Z_LIMIT = 3.5


@dataclass(frozen=True)
class Measurement:
    """One number and what it must satisfy.

    Attributes:
      quantity: what was measured, in words, with its unit.
      relation: `=` (within `tolerance` of `expected`), `<=` or `>=`.
      standard_error: of `measured` minus `expected`, where the number comes from sampling.
    """

    quantity: str
    measured: float
    relation: Literal["=", "<=", ">="]
    expected: float
    tolerance: float = 0.0
    standard_error: float | None = None

    @property
    def passed(self) -> bool:
        """False for a NaN, whatever the relation."""
        if self.relation == "=":
            return abs(self.measured - self.expected) <= self.tolerance
        if self.relation == "<=":
            return self.measured <= self.expected
        return self.measured >= self.expected

    @property
    def z(self) -> float | None:
        """(measured - expected) in standard errors; None where nothing was sampled."""
        if self.standard_error is None:
            return None
        return (self.measured - self.expected) / self.standard_error

    @property
    def requirement(self) -> str:
        """The right-hand side in words: `<= 1e-05`, `= 4 ± 0.014 (z = +0.31)`."""
        text = f"{self.relation} {number(self.expected)}"
        if self.relation == "=" and self.tolerance:
            text += f" ± {number(self.tolerance)}"
        return text if self.z is None else f"{text} (z = {self.z:+.2f})"


def equal(
    quantity: str, measured: float, expected: float, *, tolerance: float = 0.0
) -> Measurement:
    """`measured` must be `expected`, to within an absolute tolerance (0: exactly)."""
    return Measurement(quantity, float(measured), "=", float(expected), float(tolerance))


def at_most(quantity: str, measured: float, bound: float) -> Measurement:
    """`measured` must not exceed `bound`."""
    return Measurement(quantity, float(measured), "<=", float(bound))


def at_least(quantity: str, measured: float, bound: float) -> Measurement:
    """`measured` must reach `bound`."""
    return Measurement(quantity, float(measured), ">=", float(bound))


def sampled(
    quantity: str,
    measured: float,
    expected: float,
    *,
    standard_error: float,
    tolerance: float | None = None,
) -> Measurement:
    """A Monte Carlo mean: within `tolerance` of `expected`, by default `Z_LIMIT` standard errors."""
    if tolerance is None:
        tolerance = Z_LIMIT * float(standard_error)
    return Measurement(
        quantity, float(measured), "=", float(expected), float(tolerance), float(standard_error)
    )


@dataclass(frozen=True)
class Table:
    """Numbers that belong to a finding but are not judged one by one."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float, ...], ...]


@dataclass(frozen=True)
class Finding:
    """What a check found. The first measurement is the claim itself; the others are its limits and controls."""

    measurements: tuple[Measurement, ...]
    tables: tuple[Table, ...] = ()

    @property
    def passed(self) -> bool:
        return bool(self.measurements) and all(m.passed for m in self.measurements)


@dataclass(frozen=True)
class Check:
    """One claim. Its sentence is the first paragraph of the docstring of `measure`.

    Attributes:
      id: number in the ledger, such as `I12` or `M4`.
      measure: seed -> Finding.
      source: who says so, and where.
      figures: draws the finding, file stem -> figure; None where a number says it all.
    """

    id: str
    measure: Callable[[int], Finding]
    source: str
    figures: "Callable[[Finding], Mapping[str, Figure]] | None" = None

    @property
    def statement(self) -> str:
        paragraph = (inspect.getdoc(self.measure) or "").split("\n\n")[0]
        return " ".join(paragraph.split())

    @property
    def topic(self) -> str:
        """The module of the claim: `masks`, `scaling`, ..."""
        return self.measure.__module__.rpartition(".")[2]


@dataclass(frozen=True)
class Erratum:
    """A statement of a source that does not hold.

    Attributes:
      where: document and line.
      says, right: what it says, and what holds instead.
      proof: ids of the checks that show it; where there is none, `how` says how it is known.
    """

    id: str
    where: str
    says: str
    right: str
    proof: tuple[str, ...] = ()
    how: str = ""


@dataclass(frozen=True)
class Outcome:
    """A check that was run: its finding, or the error that stopped it."""

    check: Check
    seed: int
    seconds: float
    finding: Finding | None
    error: str = ""

    @property
    def passed(self) -> bool:
        return self.finding is not None and self.finding.passed

    @property
    def verdict(self) -> str:
        return "pass" if self.passed else "FAIL"

    @property
    def command(self) -> str:
        """Runs this check alone."""
        return f"attnlab check {self.check.id} --seed {self.seed}"


def run_check(check: Check, seed: int) -> Outcome:
    """Runs one check; an exception is a failure of the claim, not of the run."""
    started, finding, error = time.perf_counter(), None, ""
    try:
        finding = check.measure(seed)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    return Outcome(check, seed, time.perf_counter() - started, finding, error)


def run_checks(checks: Sequence[Check], seed: int) -> Iterator[Outcome]:
    """One outcome per check, as soon as it is there."""
    for check in checks:
        yield run_check(check, seed)


def in_order(checks: Sequence[Check]) -> tuple[Check, ...]:
    """Sorted as I1, I2, ..., I10, ..., M1.

    Raises:
      ValueError: an id twice, an id of another form, or a check without a sentence.
    """
    seen: set[str] = set()
    for check in checks:
        if check.id in seen or not re.fullmatch(r"[A-Z]\d+", check.id):
            raise ValueError(
                f"check id: got {check.id!r}; allowed: a letter and a number, each once"
            )
        if not check.statement:
            raise ValueError(
                f"check {check.id}: its function has no docstring, so it claims nothing"
            )
        seen.add(check.id)
    return tuple(sorted(checks, key=lambda check: (check.id[0], int(check.id[1:]))))


def select(checks: Sequence[Check], pattern: str | None) -> tuple[Check, ...]:
    """The checks whose id or topic matches a glob, upper and lower case alike; all of them for None.

    Raises:
      ValueError: nothing matches.
    """
    if pattern is None:
        return tuple(checks)
    wanted = pattern.lower()
    chosen = tuple(
        check
        for check in checks
        if fnmatch.fnmatch(check.id.lower(), wanted) or fnmatch.fnmatch(check.topic, wanted)
    )
    if not chosen:
        topics = ", ".join(sorted({check.topic for check in checks}))
        raise ValueError(
            f"PATTERN: nothing matches {pattern!r}; allowed: an id ({checks[0].id} to {checks[-1].id}), "
            f"a topic ({topics}), or a glob of either such as 'M*'"
        )
    return chosen


def number(value: float) -> str:
    """Four significant digits, an integer as such."""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.4g}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `attnlab check`."""
    parser.add_argument(
        "pattern",
        nargs="?",
        metavar="PATTERN",
        help="an id, a topic, or a glob: I12, masks, 'M*' (all)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="any integer >= 0 (0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything as JSON")
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="also write the table; between its markers if there are any",
    )
    parser.add_argument(
        "--figures", type=Path, metavar="DIR", help="also draw the figures, as PNG and SVG"
    )
    parser.add_argument(
        "--errata", action="store_true", help="list what the sources get wrong, and stop"
    )


def choose(args: argparse.Namespace, checks: Sequence[Check]) -> tuple[Check, ...]:
    """What the flags ask for, refused before anything runs.

    Raises:
      ValueError: a pattern that matches nothing, a negative seed, or a Markdown file without markers.
    """
    from attnlab.checks import check_report

    if args.seed < 0:
        raise ValueError(f"--seed: must be at least 0, got {args.seed}")
    if args.markdown:
        check_report.check_markdown_target(args.markdown)
    return select(checks, args.pattern)


def run(
    args: argparse.Namespace,
    chosen: Sequence[Check],
    errata: Sequence[Erratum],
    sources: Mapping[str, str],
) -> int:
    """`attnlab check` after `choose`: runs, prints, writes. Returns 0, or 1 when a check failed."""
    from attnlab.checks import check_report

    if args.errata:
        check_report.print_errata(errata, sources)
        return 0
    import jax

    from attnlab import compile_cache

    compile_cache.enable()
    started = time.perf_counter()
    # Accelerators round the factors of a float32 product to fewer bits unless told not to.
    with jax.default_matmul_precision("highest"):
        outcomes = check_report.watch(run_checks(chosen, args.seed), len(chosen))
    seconds = time.perf_counter() - started
    check_report.print_outcomes(outcomes, details=args.pattern is not None, seconds=seconds)
    if args.json:
        check_report.write_json(args.json, outcomes)
    if args.markdown:
        check_report.write_markdown(args.markdown, outcomes, sources)
    if args.figures:
        check_report.write_figures(args.figures, outcomes)
    return 0 if all(outcome.passed for outcome in outcomes) else FAILED
