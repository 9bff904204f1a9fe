"""The process behind the W&B mirror: follows run directories and repeats them to W&B.

Started by `wandb_mirror` as `python -m attnlab.tracking.wandb_follower TASK`; the only module that
uses wandb. It looks at the directories every second or so and hands new lines of metrics.jsonl to
one W&B run for each member. Line number k is W&B's step k, so a server that is asked how far it got
(which happens when a run is opened with `resume="allow"`) names the line to go on from: rows can be
neither lost nor doubled, whatever died in between. Offline nobody can be asked, and each session
writes the run anew from its first line and removes the older file, so that there is one file a run.

Standard input ending means that the trainer is done, or dead: deliver, confirm, exit. Standard
output carries one JSON object a line: {"stop": run id} or {"problem": text}. An error that is not
the network's ends the process with a code, and `wandb_mirror` starts a new one that carries on.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

from attnlab.tracking import locks, wandb_report
from attnlab.tracking.directory import ENDED, read_sweep
from attnlab.tracking.files import decode_row, read_json, write_json
from attnlab.tracking.wandb_mirror import GIVE_UP, OFFLINE, read_state, snapshot, state_file

EXIT_CODES = {"finished": 0, "diverged": 1, "failed": 1, "stopped": 255, "interrupted": 255}
"""255 is what W&B itself records for a run that was told to stop."""

PARALLEL = 16
"""Runs that open or finish at the same time: each waits for several answers of the server."""

OUTAGE_SECONDS = 30.0
CONFIRM_TRIES = 3
ATTEMPTS = 2


class NoAccessError(Exception):
    """W&B will not have us, now or later."""


@dataclass
class _Followed:
    """A run directory, and how far it has been handed over."""

    id: str
    member: dict[str, Any]
    path: Path
    run: Any = None
    """The open W&B run, or None."""
    offset: int = 0
    """Bytes of metrics.jsonl handed over or known to be there already."""
    line: int = 0
    """Lines in those bytes; the next line's number."""
    unreadable: int = 0
    first: int = 0
    """The first line that W&B does not have."""
    attempts: dict[tuple[int, str], int] = field(default_factory=dict)
    """How often a state of the directory was delivered without being confirmed."""

    def restart(self) -> None:
        self.run, self.offset, self.line, self.unreadable, self.first = None, 0, 0, 0, 0


class Follower:
    """Everything the process knows. `task` is what `wandb_mirror` sends."""

    def __init__(self, task: dict[str, Any], out: IO[str]) -> None:
        # Not at the top: who imports this module to read it must not start wandb.
        import wandb

        self.wandb = wandb
        self.task, self.out = task, out
        self.workdir = Path(task["workdir"])
        self.online = task["mode"] == "online"
        self.ended = threading.Event()
        self.followed: dict[str, _Followed] = {}
        self.sweep = ""
        self.pool = ThreadPoolExecutor(PARALLEL)
        self.unreachable_until = 0.0
        self.state = read_state(self.workdir, task["part"])
        self.state["project"] = task["project"]
        target = OFFLINE
        if self.online:
            target = f"{self.wandb.setup().settings.base_url} {task['project']}"
            self.state["target"] = target
        self.records = self.state.setdefault("targets", {}).setdefault(target, {})
        self.target = target
        self.lock = threading.Lock()

    def work(self) -> None:
        """Follow until the trainer is done, then see to it that everything has arrived."""
        while not self.ended.is_set():
            self.look(alive=True)
            self.ended.wait(self.task["poll_seconds"])
        self.unreachable_until = 0.0
        for _ in range(ATTEMPTS):
            if not self.look(alive=False):
                break
        self._send_report()

    def look(self, *, alive: bool) -> bool:
        """Hand over what is new. Return whether some run is still behind its directory."""
        self._discover()
        behind = [f for f in self.followed.values() if self._is_behind(f, alive)]
        list(self.pool.map(self._open, [f for f in behind if f.run is None]))
        # The status before the rows: a status that is an end comes after the last of them.
        seen = [(f, *snapshot(f.path, alive=alive)) for f in behind if f.run is not None]
        # In parallel, because each row waits for a thread of wandb's to take it.
        list(self.pool.map(self._hand_over, [f for f, _, _ in seen]))
        over = [item for item in seen if item[2] in ENDED]
        done = list(self.pool.map(lambda item: self._finish(*item), over))
        self._confirm([item for item, good in zip(over, done, strict=True) if good])
        return any(self._is_behind(f, alive) for f in behind)

    def _discover(self) -> None:
        with contextlib.suppress(ValueError):
            sweep = read_sweep(self.workdir)
            self.sweep = sweep["name"]
            for member in sweep["members"]:
                run_id = member["id"]
                ours = self.task["members"] is None or run_id in self.task["members"]
                if ours and run_id not in self.followed:
                    path = self.workdir / "runs" / run_id
                    self.followed[run_id] = _Followed(run_id, member, path)

    def _is_behind(self, followed: _Followed, alive: bool) -> bool:
        size, status = snapshot(followed.path, alive=alive)
        if not size and status not in ENDED:
            return False
        if followed.run is not None:
            return size > followed.offset or status in ENDED
        record = self.records.get(followed.id)
        if record is not None and (record["bytes"], record["status"]) == (size, status):
            return False
        return followed.attempts.get((size, status), 0) < ATTEMPTS

    def _open(self, followed: _Followed) -> bool:
        """Open the W&B run and learn from which line on it needs rows; False while unreachable."""
        if time.monotonic() < self.unreachable_until:
            return False
        member = followed.member
        config = read_json(followed.path / "config.json", default={})
        session = read_json(followed.path / "environment.json", default=[])
        run = self._init(
            id=followed.id,
            name=member["name"],
            job_type="member",
            tags=_tags(member),
            config={
                **config,
                "sweep": self.sweep,
                "arm": member["arm"],
                "environment": session[-1] if session else {},
            },
            settings=self._settings(followed.id),
        )
        if run is None:
            return False
        followed.restart()
        followed.run = run
        self._define_axis(followed)
        if self.online:
            followed.first = run.starting_step  # follows the last row of the server's history
        return True

    def _init(self, **what: Any) -> Any:
        """Open a W&B run in the group of the sweep, or resume it; None while W&B is unreachable."""
        try:
            run = self.wandb.init(
                project=self.task["project"],
                entity=os.environ.get("WANDB_ENTITY") or self.state.get("entity"),
                dir=str(self.workdir),
                mode=self.task["mode"],
                reinit="create_new",
                resume="allow" if self.online else None,
                group=self.sweep,
                **what,
            )
        except (self.wandb.errors.AuthenticationError, self.wandb.errors.UsageError) as error:
            raise NoAccessError(str(error)) from error
        except self.wandb.errors.CommError as error:
            self.unreachable_until = time.monotonic() + OUTAGE_SECONDS
            self.say(problem=f"cannot reach W&B: {error}")
            return None
        if self.online:
            self.state["entity"], self.state["url"] = run.entity, run.project_url
        return run

    def _send_report(self) -> None:
        """Deliver the sweep's report, unless the target has one that says the same."""
        if self.task.get("part") is not None:
            return  # of the whole sweep, and the business of whoever has it all
        report = wandb_report.find(self.workdir)
        sent = self.state.setdefault("reports", {})
        if report is None or sent.get(self.target) == report.digest:
            return
        run = self._init(
            id=report.run_id,
            name=report.run_id,
            job_type=wandb_report.JOB_TYPE,
            tags=_cut(report.manifest["tags"]),
            config={"sweep": self.sweep, "claim": report.manifest.get("claim")},
            settings=self._settings(report.run_id),
        )
        if run is None:
            return
        run.log(report.media(self.wandb))
        run.summary.update(report.manifest["summary"])
        try:
            run.finish(exit_code=0)
        except TimeoutError:
            self.say(problem="W&B did not take the report in time")
            return
        if not self.online:
            _remove_older(self.workdir / "wandb", report.run_id, Path(run.dir).parent)
        sent[self.target] = report.digest
        self._keep_state()

    def _define_axis(self, followed: _Followed) -> None:
        """Charts by tokens where rows have them, else by step; never by the number of the line."""
        row = None
        with contextlib.suppress(OSError), open(followed.path / "metrics.jsonl", "rb") as file:
            row = decode_row(file.readline())
        axis = "tokens" if row is None or "tokens" in row else "step"
        followed.run.define_metric(axis)
        followed.run.define_metric("*", step_metric=axis)

    def _hand_over(self, followed: _Followed) -> None:
        """Log every complete line that W&B does not have."""
        try:
            with open(followed.path / "metrics.jsonl", "rb") as file:
                file.seek(followed.offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    row = decode_row(line)
                    followed.unreadable += row is None
                    if row is not None and followed.line >= followed.first:
                        followed.run.log(row, step=followed.line, commit=True)
                    followed.offset += len(line)
                    followed.line += 1
        except FileNotFoundError:
            return

    def _finish(self, followed: _Followed, size: int, status: str) -> bool:
        """End the W&B run as its directory ended; False if its last rows were not delivered."""
        if time.monotonic() < self.unreachable_until:
            return False
        run = followed.run
        summary = read_json(followed.path / "summary.json", default={})
        run.summary.update({**summary, "status": status})
        if status == "interrupted":
            run.mark_preempting()
        try:
            run.finish(exit_code=EXIT_CODES[status])
        except TimeoutError:
            self.unreachable_until = time.monotonic() + OUTAGE_SECONDS
            self.say(problem="W&B did not take the last rows in time")
            return False
        finally:
            followed.run = None
        if not self.online:
            _remove_older(self.workdir / "wandb", followed.id, Path(run.dir).parent)
        return True

    def _confirm(self, over: list[tuple[_Followed, int, str]]) -> None:
        """Record what the target has: offline what was written, online what the server counts."""
        if not over:
            return
        confirmed = {f.id for f, _, _ in over} if not self.online else self._counted(over)
        for followed, size, status in over:
            if followed.id in confirmed:
                place = {"bytes": followed.offset, "rows": followed.line, "status": status}
                self.records[followed.id] = place
                if self.online:
                    _mark_synced(self.workdir / "wandb", followed.id)
            else:
                key = (size, status)
                followed.attempts[key] = followed.attempts.get(key, 0) + 1
        self._keep_state()

    def _keep_state(self) -> None:
        with contextlib.suppress(OSError):  # full disk: the server will be asked again
            write_json(state_file(self.workdir, self.task["part"]), self.state)

    def _counted(self, over: list[tuple[_Followed, int, str]]) -> set[str]:
        """Ids of the runs of which the server counts all rows; its count may lag for a moment."""
        full: set[str] = set()
        for attempt in range(CONFIRM_TRIES):
            time.sleep(float(attempt))
            try:
                counts = self._count_rows()
            except Exception as error:
                self.say(problem=f"W&B cannot be asked what it has: {error}")
                return full
            full = {f.id for f, _, _ in over if counts.get(f.id, 0) >= f.line - f.unreadable}
            if len(full) == len(over):
                return full
        self.say(problem="W&B has fewer rows than it was sent")
        return full

    def _count_rows(self) -> dict[str, int]:
        """Rows of each run of the sweep as the server counts them."""
        path = f"{self.state['entity']}/{self.task['project']}"
        api = self.wandb.Api(timeout=int(self.task["init_timeout"]))
        runs = api.runs(path, filters={"group": self.sweep}, per_page=200)
        return {run.id: int(run._attrs.get("historyLineCount") or 0) for run in runs}

    def _settings(self, run_id: str) -> Any:
        transmit = self.task["transmit_seconds"]
        if transmit is None:
            transmit = min(60, max(15, len(self.followed)))
        wanted: dict[str, Any] = {
            "console": "off",
            "silent": True,
            "disable_git": True,
            "disable_code": True,
            "symlink": False,
            "use_dot_wandb": False,
            "init_timeout": self.task["init_timeout"],
            "finish_timeout": self.task["finish_timeout"],
            "finish_timeout_raises": True,
            # Otherwise the stop button of one run interrupts the process, and with it all runs.
            "stop_fn": lambda: self.say(stop=run_id),
            "x_disable_stats": True,
            "x_disable_meta": True,
            "x_disable_machine_info": True,
            "x_save_requirements": False,
            "x_file_stream_transmit_interval": float(transmit),
            # The default of 15 s keeps an offline run invisible, and loses it all when killed early.
            "x_transaction_log_flush_interval": 1.0,
        }
        # Names with x_ are private to W&B and may go.
        known = self.wandb.Settings.model_fields
        return self.wandb.Settings(**{k: v for k, v in wanted.items() if k in known})

    def say(self, **message: str) -> None:
        """Tell the trainer."""
        with self.lock, contextlib.suppress(OSError, ValueError):
            self.out.write(json.dumps(message) + "\n")
            self.out.flush()


def _tags(member: dict[str, Any]) -> list[str]:
    return _cut([member["arm"], f"seed{member['seed']}", *member["tags"]])


def _cut(tags: Iterable[str]) -> list[str]:
    """W&B takes tags of at most 64 characters, each once."""
    return [tag[:64] for tag in dict.fromkeys(tags) if tag]


def _offline_folders(folder: Path, run_id: str) -> Iterable[Path]:
    pattern = re.compile(rf"offline-run-\d+_\d+-{re.escape(run_id)}(-\d+)?")
    return [path for path in folder.glob(f"offline-run-*{run_id}*") if pattern.fullmatch(path.name)]


def _remove_older(folder: Path, run_id: str, newest: Path) -> None:
    """Every offline file holds the whole run: only the newest is worth its space."""
    for path in _offline_folders(folder, run_id):
        if path.name != newest.name:
            shutil.rmtree(path, ignore_errors=True)


def _mark_synced(folder: Path, run_id: str) -> None:
    """The mark by which `wandb sync` passes over offline files whose rows the server has."""
    for path in _offline_folders(folder, run_id):
        with contextlib.suppress(OSError):
            (path / f"run-{run_id}.wandb.synced").touch()


def _leave(code: int) -> NoReturn:
    """End now: wandb's exit handlers can wait for an upload for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> NoReturn:
    """Run one follower on the task in argv, and leave with its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # schedulers signal every process of a job
    # Whatever wandb prints belongs into the log, not between the messages.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    task = json.loads(sys.argv[1])
    os.nice(task["niceness"])
    # A predecessor whose trainer was killed may still be delivering.
    mine = state_file(Path(task["workdir"]), task["part"]).with_suffix(".lock")
    lock = locks.take(mine, patience=120.0)
    follower = Follower(task, out)

    def watch() -> None:
        sys.stdin.buffer.read()
        follower.ended.set()

    threading.Thread(target=watch, daemon=True).start()
    if lock is None:
        follower.say(problem="another mirror is at work in this directory")
        _leave(GIVE_UP)
    try:
        follower.work()
    except NoAccessError as error:
        follower.say(problem=str(error))
        _leave(GIVE_UP)
    except BaseException as error:
        traceback.print_exc()
        follower.say(problem=f"{type(error).__name__}: {error}")
        _leave(3)
    # Lets wandb's helper remove its files; it may hang after an outage.
    closing = threading.Thread(target=follower.wandb.teardown, daemon=True)
    closing.start()
    closing.join(5.0)
    _leave(0)


if __name__ == "__main__":
    main()
