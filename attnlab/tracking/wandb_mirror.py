"""The W&B mirror, seen from the trainer: a child process that follows the run directories.

W&B runs in a process of its own (`wandb_follower`), tied to this one by a pipe. Whatever happens to
it - no network, a server that answers 500, its helper killed for memory, an upload that never ends -
costs the trainer nothing: rows are on disk before the child sees them, and what it did not deliver
is counted here from the files and sent later by `sync`. A child that dies is started again. A
trainer that dies takes nothing with it: the child notices, delivers the last rows and marks the
runs as interrupted.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from attnlab.tracking import locks, wandb_report
from attnlab.tracking.directory import ENDED, Part, read_sweep
from attnlab.tracking.files import effective_status, read_json
from attnlab.tracking.wandb_mode import credentials

OFFLINE = "offline"
"""The target of an offline mirror; an online one is named by server and project."""

GIVE_UP = 4
"""Exit code of a child that would only fail again."""

RESTARTS = 4
BACKOFF_SECONDS = 2.0

# Variables that describe one particular run, or another process's helper. The child makes many runs.
_NOT_INHERITED = frozenset(
    f"WANDB_{name}"
    for name in [
        "CONFIG",
        "CONFIG_PATHS",
        "CONSOLE",
        "DIR",
        "DISABLED",
        "JOB_TYPE",
        "LAUNCH",
        "MODE",
        "NAME",
        "NOTES",
        "PROJECT",
        "RESUME",
        "RUN_GROUP",
        "RUN_ID",
        "SERVICE",
        "SILENT",
        "SWEEP_ID",
        "SWEEP_PARAM_PATH",
        "TAGS",
    ]
)


# Seconds for the last rows of a run where somebody asked for nothing else. A client that was refused (429, 500) waits
# twice as long before each further try, up to a minute.
SYNC_PATIENCE = 300.0


@dataclass(frozen=True)
class MirrorSettings:
    """How the mirror works; none of it changes what is mirrored.

    Attributes:
      project: W&B project; None for WANDB_PROJECT, else "attnlab".
      poll_seconds: how often the run directories are looked at.
      transmit_seconds: how often a run sends what it has, in whole seconds; None scales it with the number of runs,
        15 s up to 16 of them and 60 s from 64, to stay below W&B's rate limits.
      init_timeout, finish_timeout: seconds for one run to open, and to deliver its last rows.
      niceness: how far the mirror steps back behind the trainer when cores are short, 0 to 19.
        W&B needs about 1 ms of a core for each row of ten metrics; much niceness on a crowded
        machine leaves it hungry, and the end waiting for it.

    Raises:
      ValueError: W&B would refuse the project name, or a time is not positive.
    """

    project: str | None = None
    poll_seconds: float = 1.0
    transmit_seconds: int | None = None
    init_timeout: float = 30.0
    finish_timeout: float = 20.0
    niceness: int = 5

    def __post_init__(self) -> None:
        name = self.project_name
        if not 1 <= len(name) <= 128 or set(name) & set("/\\#?%:\r\n"):
            raise ValueError(f"project={name!r}: must be 1 to 128 characters without / \\ # ? % :")
        for field in ("poll_seconds", "init_timeout", "finish_timeout"):
            if getattr(self, field) <= 0:
                raise ValueError(f"{field}={getattr(self, field)}: must be positive")
        # W&B would take half a second as 0, and 0 as its default of 15.
        if self.transmit_seconds is not None and self.transmit_seconds < 1:
            raise ValueError(
                f"transmit_seconds={self.transmit_seconds}: must be at least 1 or None"
            )
        if not 0 <= self.niceness <= 19:
            raise ValueError(f"niceness={self.niceness}: must be 0 to 19")

    @property
    def project_name(self) -> str:
        """The project, with the default filled in."""
        return self.project or os.environ.get("WANDB_PROJECT") or "attnlab"


@dataclass(frozen=True)
class MirrorReport:
    """What W&B has of a sweep.

    Attributes:
      mode: "online" or "offline".
      runs, rows: how much is there; online: as confirmed by the server.
      missing: run id -> rows that are not (0 when only the end of the run is unknown there).
      problems: what went wrong, each once.
      url: page of the project, or None.
      report: whether the sweep's report is there as it stands on the disk; None when the sweep has none.
    """

    mode: str
    runs: int
    rows: int
    missing: dict[str, int]
    problems: tuple[str, ...]
    url: str | None
    workdir: Path
    report: bool | None = None

    def lines(self) -> list[str]:
        """One or two lines for the end of a run."""
        where = self.url if self.mode == "online" else str(self.workdir / "wandb")
        there = f"W&B {self.mode}: {self.runs} runs, {self.rows} rows"
        lines = [f"{there}{f' in {where}' if where else ''}"]
        if self.missing:
            lines.append(
                f"W&B {self.mode}: NOT confirmed there: {sum(self.missing.values())} rows of "
                f"{len(self.missing)} runs ({'; '.join(self.problems) or 'reason unknown'})"
            )
        if self.report is False:
            lines.append(
                f"W&B {self.mode}: the report is NOT there ({'; '.join(self.problems) or 'reason unknown'})"
            )
        if self.missing or self.report is False or self.mode == "offline":
            lines.append(f"to send them: attnlab sync {self.workdir}")
        return lines


def sync(
    workdir: str | os.PathLike[str],
    settings: MirrorSettings | None = None,
    *,
    timeout: float | None = None,
) -> MirrorReport:
    """Send to W&B what it does not have of a sweep: runs, rows, ends. Repeating it sends nothing.

    The server is asked how many rows it has of each run, and gets the lines of metrics.jsonl from
    there on, so it does not matter how the mirror came to be incomplete. Offline files that are
    thereby superseded are marked as synced. Without `settings` it goes to the project that the
    sweep was logged to. `timeout`: seconds, None to wait as long as it takes.

    Raises:
      ValueError: `workdir` holds no sweep, or is being trained in, or no W&B key is found.
    """
    root = Path(workdir).absolute()
    read_sweep(root)
    if locks.in_use(root):
        raise ValueError(
            f"workdir={str(workdir)!r}: is being trained in; must be synced after that"
        )
    if credentials(os.environ) is None:
        raise ValueError("wandb: no key found; must be logged in (`wandb login`) to sync")
    settings = settings or MirrorSettings(
        project=read_state(root).get("project"), finish_timeout=SYNC_PATIENCE
    )
    return Mirror(root, "online", settings).close(timeout=timeout)


class Mirror:
    """Follows `workdir` from the moment it is made until it is closed.

    One for a whole session: members that ended are delivered while others train.

    Args:
      workdir: the directory of a sweep.
      mode: "online" or "offline"; see `resolve_mode`.
      settings: project, intervals and time-outs.
      part: mirror only the runs of this part of the sweep; the other parts have mirrors of their own.

    Raises:
      ValueError: another mode.
    """

    def __init__(
        self,
        workdir: Path,
        mode: str,
        settings: MirrorSettings | None = None,
        part: Part | None = None,
    ) -> None:
        if mode not in ("online", "offline"):
            raise ValueError(f"mode={mode!r}: must be online or offline")
        self._workdir, self._mode, self._part = workdir, mode, part
        self._settings = settings or MirrorSettings()
        self._report: MirrorReport | None = None
        self._stopped: set[str] = set()
        self._problems: list[str] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # of _child against close
        self._closing = threading.Event()
        self._abandoned = False
        self._thread = threading.Thread(target=self._supervise, name="attnlab-wandb", daemon=True)
        self._thread.start()

    def stopped(self) -> frozenset[str]:
        """Ids of the runs whose stop button was pressed."""
        return frozenset(self._stopped)

    def close(self, *, timeout: float | None) -> MirrorReport:
        """Wait until everything on disk is delivered, at most `timeout` seconds; say what is not.

        What did not get there can be sent later by `sync`. Calling it again returns the same report.
        """
        if self._report is None:
            self._report = self._close(timeout)
        return self._report

    def leave(self) -> None:
        """Do not wait: the child sees that nothing more will come, delivers what there is, and ends by itself."""
        with self._lock:
            self._closing.set()
            self._end_of_input(self._child)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Waits for the delivery at a normal end; who breaks off does not want to wait."""
        if error is None:
            self.close(timeout=60.0)
        elif self._report is None:
            self.leave()

    def _close(self, timeout: float | None) -> MirrorReport:
        self.leave()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._problems.append(f"W&B did not finish within {timeout:.0f} s")
            with self._lock:
                self._abandoned = True
                if self._child is not None:
                    self._child.kill()
            self._thread.join(5.0)
        return self._made_report()

    def _supervise(self) -> None:
        """Keep a child at work until it says that it is done."""
        for _ in range(1 + RESTARTS):
            try:
                with self._lock:
                    if self._abandoned:
                        return
                    self._child = child = self._start()
                    if self._closing.is_set():
                        self._end_of_input(child)
            except OSError as error:
                self._note(f"the mirror could not be started: {error}")
                return
            assert child.stdout is not None
            with child.stdout as messages:
                for line in messages:
                    self._hear(line)
            code = child.wait()
            if code in (0, GIVE_UP) or self._abandoned:
                return
            self._note(f"the mirror ended with code {code}")
            self._closing.wait(BACKOFF_SECONDS)

    def _start(self) -> subprocess.Popen[bytes]:
        folder = self._workdir / "wandb"
        log: IO[bytes] | int = subprocess.DEVNULL
        with contextlib.suppress(OSError):
            folder.mkdir(exist_ok=True)
            file = state_file(self._workdir, self._part_name).with_suffix(".log")
            log = open(file, "ab")  # noqa: SIM115 (closed below)
        task = {"workdir": str(self._workdir), "mode": self._mode, **asdict(self._settings)}
        task["project"] = self._settings.project_name
        task["part"] = self._part_name
        task["members"] = None if self._part is None else sorted(self._part.members)
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "attnlab.tracking.wandb_follower", json.dumps(task)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._workdir,
                env=_child_environ(folder, self._mode),
                start_new_session=True,  # Ctrl-C is for the trainer alone
            )
        finally:
            if not isinstance(log, int):
                log.close()

    def _hear(self, line: bytes) -> None:
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            if "stop" in said:
                self._stopped.add(said["stop"])
            if "problem" in said:
                self._note(said["problem"])

    def _note(self, problem: str) -> None:
        text = " ".join(problem.split())
        if text not in self._problems:
            self._problems.append(text)

    @staticmethod
    def _end_of_input(child: subprocess.Popen[bytes] | None) -> None:
        if child is not None and child.stdin is not None:
            with contextlib.suppress(OSError):
                child.stdin.close()

    @property
    def _part_name(self) -> str | None:
        return None if self._part is None else self._part.name

    def _made_report(self) -> MirrorReport:
        state = read_state(self._workdir, self._part_name)
        target = OFFLINE if self._mode == "offline" else state.get("target", "")
        records = state.get("targets", {}).get(target, {})
        ids = [member["id"] for member in read_sweep(self._workdir)["members"]]
        if self._part is not None:
            ids = [run_id for run_id in ids if run_id in self._part.members]
        report, sent = wandb_report.find(self._workdir), state.get("reports", {})
        return MirrorReport(
            mode=self._mode,
            runs=len(records),
            rows=sum(record["rows"] for record in records.values()),
            missing=_missing(self._workdir, ids, records),
            problems=tuple(self._problems),
            url=state.get("url"),
            workdir=self._workdir,
            report=None if report is None else sent.get(target) == report.digest,
        )


def state_file(workdir: Path, part: str | None = None) -> Path:
    """Where a mirror keeps what it has delivered; that of a part has a file of its own."""
    return workdir / "wandb" / ("mirror.json" if part is None else f"mirror-{part}.json")


def read_state(workdir: Path, part: str | None = None) -> dict[str, Any]:
    """What the mirror has delivered and confirmed, or nothing; of one part, or of all of them together.

    `project` is the W&B project; `target` the server and project it speaks to; `targets[target][run id]` holds `bytes`, `rows`
    and `status` of the run directory at the moment the target had all of it; `reports[target]` is the digest of the
    report it has.
    """
    if part is not None:
        return _one_state(state_file(workdir, part))
    merged: dict[str, Any] = {}
    for file in sorted((workdir / "wandb").glob("mirror*.json")):
        state = _one_state(file)
        targets = merged.get("targets", {})
        for target, records in state.get("targets", {}).items():
            known = targets.setdefault(target, {})
            for run_id, record in records.items():
                if run_id not in known or record["bytes"] >= known[run_id]["bytes"]:
                    known[run_id] = record
        merged = {**merged, **state, "targets": targets}
    return merged


def _one_state(file: Path) -> dict[str, Any]:
    try:
        state = read_json(file, default={})
    except (OSError, ValueError):
        return {}  # then everything counts as undelivered, and asking the server will tell
    return state if isinstance(state, dict) else {}


def snapshot(run: Path, *, alive: bool) -> tuple[int, str]:
    """Bytes of a run's metrics and its status, to be compared with what was delivered."""
    try:
        size = (run / "metrics.jsonl").stat().st_size
    except OSError:
        size = 0
    try:
        summary = read_json(run / "summary.json", default={})
    except (OSError, ValueError):
        summary = {}
    return size, effective_status(summary, rows=size > 0, alive=alive)


def _missing(workdir: Path, ids: Iterable[str], records: Mapping[str, Any]) -> dict[str, int]:
    missing = {}
    for run_id in ids:
        path = workdir / "runs" / run_id
        size, status = snapshot(path, alive=False)
        record = records.get(run_id, {"bytes": 0, "rows": 0, "status": None})
        if (size or status in ENDED) and (size, status) != (record["bytes"], record["status"]):
            rows = 0
            if size:
                rows = (path / "metrics.jsonl").read_bytes().count(b"\n")
            missing[run_id] = max(0, rows - record["rows"])
    return missing


def _child_environ(folder: Path, mode: str) -> dict[str, str]:
    environ = {k: v for k, v in os.environ.items() if k not in _NOT_INHERITED}
    package = str(Path(__file__).resolve().parents[2])
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [package, environ.get("PYTHONPATH")]))
    environ["WANDB_MODE"] = mode
    if mode == "offline":
        environ["WANDB_ERROR_REPORTING"] = "false"  # offline means that nothing is sent at all
    # Nothing is written outside the workdir. The user's settings and keys are still found.
    for kind in ("CACHE", "DATA", "ARTIFACT"):
        environ[f"WANDB_{kind}_DIR"] = str(folder / kind.lower())
    return environ
