"""The report of a sweep's directory: read everything, build, and again whenever something is new."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from attnlab import console
from attnlab.claims import Claim
from attnlab.masks import mask_text
from attnlab.report import Report, Source, build
from attnlab.tracking import ENDED, RunResult, locks, read_runs, read_sweep
from attnlab.tracking.files import read_json
from attnlab.tracking.wandb_mirror import read_state

POLL_SECONDS = 2.0
REFRESH_SECONDS = 10  # of the page in a browser while a sweep is watched
MASK_SIZE = 64  # queries and keys of a mask that are drawn
MASKS = 16


def make(workdir: Path, claim: Claim | None, out: Path, *, refresh: int | None = None) -> Report:
    """The report of a sweep as its directory stands now.

    Raises:
      ValueError: `workdir` holds no sweep.
      OSError: `out` cannot be written.
    """
    return build(read_source(workdir, claim, refresh=refresh), out)


def read_source(workdir: Path, claim: Claim | None, *, refresh: int | None = None) -> Source:
    """Everything a report is made from."""
    runs = read_runs(workdir)
    environments = {r.id: read_json(r.path / "environment.json", default=[]) for r in runs}
    state = read_state(workdir)
    return Source(
        name=read_sweep(workdir)["name"],
        runs=runs,
        claim=claim,
        environments=environments,
        masks=_masks(runs),
        wandb_url=state.get("url") if state.get("target") else None,
        refresh=refresh,
    )


def watch(
    workdir: Path,
    claim: Claim | None,
    out: Path,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Writes the report again whenever a file of the sweep has changed; ends with the sweep, or with Ctrl-C.

    Building takes at most about half of one core: after a slow one the next waits as long as that took.
    """
    built: object = None
    try:
        while True:
            seen, over = _state(workdir), _over(workdir)
            pause = POLL_SECONDS
            if seen != built or over:
                started = time.monotonic()
                report = make(workdir, claim, out, refresh=None if over else REFRESH_SECONDS)
                if built is None or over:
                    say(report)
                built = seen
                pause = max(pause, time.monotonic() - started)
            if over:
                return
            sleep(pause)
    except KeyboardInterrupt:
        make(workdir, claim, out)
        console.say("no longer watching")


def say(report: Report) -> None:
    """The verdict in a line, and where everything lies."""
    if report.outcome is not None:
        parts = ", ".join(f"{j.subclaim.id} {j.verdict}" for j in report.outcome.judgements)
        console.say(f"{report.outcome.verdict}: {report.outcome.claim.statement} ({parts})")
    console.print_paths({"report": report.page, "runs": report.runs, "history": report.history})


def _state(workdir: Path) -> tuple[tuple[str, int, int], ...]:
    """What changes when a run gets a row, an end, or a measurement."""
    files = [workdir / "sweep.json", *sorted((workdir / "runs").glob("*/*.json*"))]
    found = []
    for file in files:
        try:
            stat = file.stat()
        except OSError:  # replaced at this moment; the next look sees it
            continue
        found.append((str(file), stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def _over(workdir: Path) -> bool:
    """Whether nobody trains and no member waits to be trained."""
    if locks.in_use(workdir):
        return False
    return all(run.status in ENDED for run in read_runs(workdir))


def _masks(runs: Sequence[RunResult]) -> dict[str, np.ndarray]:
    """The masks of the configurations as text -> bool [T, S], the first `MASK_SIZE` queries and keys of each."""
    asked = dict.fromkeys(
        (run.config["mask"], int(run.config["context"]))
        for run in runs
        if {"mask", "context"} <= run.config.keys()
    )
    several = len({context for _, context in asked}) > 1
    drawn = {}
    for text, context in list(asked)[:MASKS]:
        title = f"{text}, T = {context}" if several else text
        allowed_TS = np.asarray(mask_text.parse(text, context).as_array()[0, 0])
        if context > MASK_SIZE:
            title += f" (first {MASK_SIZE} of {context})"
        drawn[title] = allowed_TS[:MASK_SIZE, :MASK_SIZE]
    return drawn
