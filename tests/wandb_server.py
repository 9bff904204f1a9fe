"""A W&B server on loopback, as far as the real client needs one to record runs.

It answers the requests that wandb 0.31 sends while runs are created, resumed, logged to, stopped
and finished, and keeps what it was told, so that a test can ask what arrived: configuration,
history, summary, exit code. Faults can be injected: a status instead of an answer, silence, the
"stop" button. An operation it does not know is refused and listed in `unknown`, which a test must
find empty.

What it shows: what the client puts on the wire. What it does not show: what W&B's own servers
make of it.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

API_KEY = "0" * 40
ENTITY = "loopback"


@dataclass
class ServerRun:
    """One run as the server knows it."""

    id: str
    project: str
    group: str | None = None
    job_type: str | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    lines: dict[int, str] = field(default_factory=dict)
    """History lines by their offset in the file, as a file stream overwrites them."""
    events: dict[int, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    exit_code: int | None = None
    complete: bool = False
    preempting: bool = False
    stopped: bool = False
    """True once the stop button was pressed."""
    started: int = 0
    """How many times a client opened the run (one more for every resume)."""

    @property
    def history(self) -> list[dict[str, Any]]:
        """The rows in the order of the file."""
        return [json.loads(self.lines[offset]) for offset in sorted(self.lines)]


@dataclass
class Fault:
    """Answer `status` to the next `times` requests whose path or operation matches `pattern`."""

    pattern: str
    status: int
    times: int


class WandbServer:
    """Start with `with WandbServer() as server:`; `server.environ` points a client at it."""

    def __init__(self) -> None:
        self.runs: dict[str, ServerRun] = {}
        self.unknown: list[str] = []
        self.requests: list[str] = []
        self.opening: set[str] = set()
        """Runs a client has asked about, which is what it does before it opens one."""
        self.views: dict[str, dict[str, Any]] = {}
        """Workspaces and reports that were saved: display name -> what was sent, `spec` as the client made it."""
        self.faults: list[Fault] = []
        self.delay = 0.0
        """Seconds every answer is held back: the distance to a real server."""
        self.lock = threading.RLock()
        self._http: ThreadingHTTPServer | None = None
        self._port = 0

    def __enter__(self) -> WandbServer:
        self.up()
        return self

    def __exit__(self, *exc: object) -> None:
        self.down()

    def up(self) -> None:
        """Listen; on the same port as before if there was one."""
        server = self

        class Handler(_Handler):
            owner = server

        class Http(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True
            request_queue_size = 128

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that hangs up is no error of the server."""

        self._http = Http(("127.0.0.1", self._port), Handler)
        self._port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def down(self) -> None:
        """Stop listening: from now on connections are refused, and open ones answer 503."""
        http, self._http = self._http, None
        if http is not None:
            http.shutdown()
            http.server_close()

    @property
    def listening(self) -> bool:
        return self._http is not None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def environ(self) -> dict[str, str]:
        """Environment variables that send a W&B client here, and nowhere else."""
        return {
            "WANDB_BASE_URL": self.url,
            "WANDB_API_KEY": API_KEY,
            "WANDB_ERROR_REPORTING": "false",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    def fail(self, pattern: str, status: int, times: int = 1) -> None:
        """Answer `status` to the next `times` requests that match the regular expression."""
        with self.lock:
            self.faults.append(Fault(pattern, status, times))

    def injected(self, request: str) -> int | None:
        """The status to answer instead of serving `request`, if a fault is waiting for it."""
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.pattern, request):
                    fault.times -= 1
                    return fault.status
        return None

    def run(self, project: str, run_id: str) -> ServerRun:
        with self.lock:
            return self.runs.setdefault(run_id, ServerRun(run_id, project))


class _Handler(BaseHTTPRequestHandler):
    owner: WandbServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, payload: object, status: int = 200) -> None:
        body = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _refused(self, request: str) -> bool:
        """Record the request; True if a fault (or an outage) already answered it."""
        owner = self.owner
        with owner.lock:
            owner.requests.append(request)
        time.sleep(owner.delay)
        if not owner.listening:
            self.close_connection = True
            self._answer({"error": "the server is down"}, 503)
            return True
        if (status := owner.injected(request)) is not None:
            self._answer({"error": f"injected {status}"}, status)
            return True
        return False

    def do_POST(self) -> None:
        body = self._body()
        if self.path == "/graphql":
            self._graphql(json.loads(body))
        elif match := re.fullmatch(r"/files/([^/]+)/([^/]+)/([^/]+)/file_stream", self.path):
            _, project, run_id = (unquote(part) for part in match.groups())
            self._file_stream(project, run_id, json.loads(body))
        else:
            self._unknown(f"POST {self.path}")

    def do_PUT(self) -> None:
        body = self._body()
        if match := re.fullmatch(r"/upload/([^/]+)/([^/]+)/(.+)", self.path):
            project, run_id, name = (unquote(part) for part in match.groups())
            if self._refused(f"PUT {run_id}/{name}"):
                return
            self.owner.run(project, run_id).files[name] = body
            self._answer({})
        else:
            self._unknown(f"PUT {self.path}")

    def do_GET(self) -> None:
        self._unknown(f"GET {self.path}")

    def _unknown(self, what: str) -> None:
        with self.owner.lock:
            self.owner.unknown.append(what)
        self._answer({"errors": [{"message": f"unknown to the loopback server: {what}"}]}, 400)

    def _file_stream(self, project: str, run_id: str, message: dict[str, Any]) -> None:
        if self._refused(f"file_stream {run_id}"):
            return
        with self.owner.lock:
            run = self.owner.run(project, run_id)
            for name, part in message.get("files", {}).items():
                offset, content = part["offset"], part["content"]
                if name == "wandb-history.jsonl":
                    run.lines.update(enumerate(content, offset))
                elif name == "wandb-events.jsonl":
                    run.events.update(enumerate(content, offset))
                elif name == "wandb-summary.json":
                    run.summary = json.loads(content[-1])
            run.preempting |= bool(message.get("preempting"))
            if message.get("complete"):
                run.complete, run.exit_code = True, message.get("exitcode")
            stopped = run.stopped
        self._answer({"exitcode": None, "limits": {}, "stopped": stopped})

    def _graphql(self, message: dict[str, Any]) -> None:
        match = re.search(r"(?:query|mutation)\s+(\w+)", message["query"])
        operation = match.group(1) if match else "?"
        if self._refused(f"graphql {operation}"):
            return
        answer = getattr(self, f"_op_{operation}", None)
        if answer is None:
            self._unknown(f"{operation}: {message['query']}")
            return
        with self.owner.lock:
            self._answer({"data": answer(message.get("variables") or {})})

    def _op_Viewer(self, _: dict[str, Any]) -> dict[str, Any]:
        viewer = {"id": "u", "entity": ENTITY, "username": ENTITY, "flags": "{}"}
        return {"viewer": {**viewer, "teams": {"edges": []}}}

    def _op_GetDefaultEntity(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"viewer": {"id": "u", "entity": ENTITY}}

    def _op_Runs(self, given: dict[str, Any]) -> dict[str, Any]:
        """The listing of a project, by which a client asks how many rows arrived."""
        filters = json.loads(given.get("filters") or "{}")
        assert set(filters) <= {"group"}, filters
        chosen = [
            run
            for run in self.owner.runs.values()
            if run.project == given["project"] and run.group == filters.get("group", run.group)
        ]
        edges = [{"node": _listed(run), "cursor": run.id} for run in chosen]
        page = {"endCursor": None, "hasNextPage": False, "__typename": "PageInfo"}
        runs = {"edges": edges, "pageInfo": page}
        return {
            "project": {
                "internalId": "1",
                "runCount": len(chosen),
                "readOnly": False,
                "runs": runs,
            }
        }

    def _op_UpsertBucket(self, given: dict[str, Any]) -> dict[str, Any]:
        project = given.get("project") or "uncategorized"
        new = given["name"] not in self.owner.runs
        run = self.owner.run(project, given["name"])
        run.group = given.get("groupName") or run.group
        run.job_type = given.get("jobType") or run.job_type
        run.name = given.get("displayName") or run.name
        run.tags = tuple(given.get("tags") or run.tags)
        if given.get("config"):
            run.config = {k: v["value"] for k, v in json.loads(given["config"]).items()}
        if given.get("summaryMetrics"):
            run.summary = json.loads(given["summaryMetrics"])
        if given["name"] in self.owner.opening:
            self.owner.opening.discard(given["name"])
            run.started += 1
            run.complete, run.exit_code, run.preempting = False, None, False
        bucket = {
            "id": _storage_id(project, run.id),
            "name": run.id,
            "displayName": run.name,
            "description": None,
            "config": None,
            "sweepName": None,
            "historyLineCount": len(run.lines),
            "project": {"id": "p", "name": project, "entity": {"id": "e", "name": ENTITY}},
        }
        return {"upsertBucket": {"bucket": bucket, "inserted": new}}

    def _op_RunResumeStatus(self, given: dict[str, Any]) -> dict[str, Any]:
        self.owner.opening.add(given["name"])
        run = self.owner.runs.get(given["name"])
        if run is None:
            return {"model": {"id": "p", "name": given["project"], "bucket": None}}
        last = [run.lines[max(run.lines)]] if run.lines else []
        bucket = {
            "id": _storage_id(run.project, run.id),
            "name": run.id,
            "displayName": run.name,
            "description": None,
            "summaryMetrics": json.dumps(run.summary),
            "logLineCount": 0,
            "historyLineCount": len(run.lines),
            "eventsLineCount": len(run.events),
            "historyTail": json.dumps(last),
            "eventsTail": "[]",
            "config": json.dumps({k: {"value": v} for k, v in run.config.items()}),
            "tags": list(run.tags),
            "wandbConfig": json.dumps({"t": 1}),
        }
        return {"model": {"id": "p", "name": run.project, "bucket": bucket}}

    def _op_ProjectInternalId(self, given: dict[str, Any]) -> dict[str, Any]:
        return {
            "project": {
                "id": base64.b64encode(b"Project:v1").decode(),
                "internalId": "UHJvamVjdEludGVybmFsSWQ6MQ==",
            }
        }

    def _op_GetProjects(self, _: dict[str, Any]) -> dict[str, Any]:
        names = dict.fromkeys(["attnlab", *(run.project for run in self.owner.runs.values())])
        made = {"createdAt": "2026-01-01T00:00:00Z", "isBenchmark": False, "user": None}
        edges = [
            {
                "node": {
                    "__typename": "Project",
                    "id": name,
                    "name": name,
                    "entityName": ENTITY,
                    **made,
                }
            }
            for name in names
        ]
        page = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}
        return {"models": {"pageInfo": page, "edges": edges}}

    def _op_UpsertView2(self, given: dict[str, Any]) -> dict[str, Any]:
        return self._view("upsertView", given)

    def _op_upsertView(self, given: dict[str, Any]) -> dict[str, Any]:
        return self._view("upsertView", given)

    def _view(self, field: str, given: dict[str, Any]) -> dict[str, Any]:
        """A workspace or a report: kept, and given an id."""
        name = given["displayName"]
        inserted = name not in self.owner.views
        self.owner.views[name] = {**given, "spec": json.loads(given["spec"])}
        project = {"name": given["projectName"], "entityName": given["entityName"]}
        view = {
            "id": base64.b64encode(f"View:{name}".encode()).decode(),
            "name": given.get("name") or "nw",
            "type": given.get("type"),
            "displayName": name,
            "description": given.get("description"),
            "project": {"id": "p", **project},
            "updatedAt": "2026-01-01T00:00:00Z",
            "spec": given["spec"],
        }
        return {field: {"view": view, "inserted": inserted}}

    def _op_CreateRunFiles(self, given: dict[str, Any]) -> dict[str, Any]:
        project, run_id = given["project"], given["run"]
        files = [
            {"name": name, "uploadUrl": f"{self.owner.url}/upload/{project}/{run_id}/{name}"}
            for name in given["files"]
        ]
        return {"createRunFiles": {"runID": run_id, "uploadHeaders": [], "files": files}}


def _listed(run: ServerRun) -> dict[str, Any]:
    return {
        "projectId": "1",
        "id": _storage_id(run.project, run.id),
        "tags": list(run.tags),
        "name": run.id,
        "displayName": run.name,
        "sweepName": None,
        "state": "finished" if run.complete and run.exit_code == 0 else "running",
        "group": run.group,
        "jobType": run.job_type,
        "commit": None,
        "readOnly": False,
        "createdAt": "2026-01-01T00:00:00Z",
        "heartbeatAt": None,
        "description": None,
        "notes": None,
        "historyLineCount": len(run.lines),
        "user": {"name": ENTITY, "username": ENTITY},
    }


def _storage_id(project: str, run_id: str) -> str:
    return base64.b64encode(f"Run:v1:{run_id}:{project}:{ENTITY}".encode()).decode()


def wait_for(condition: Any, timeout: float = 120.0, every: float = 0.05) -> bool:
    """True as soon as `condition()` holds, False if it does not within `timeout` seconds."""
    for _ in _until(timeout, every):
        if condition():
            return True
    return bool(condition())


def _until(timeout: float, every: float) -> Iterator[None]:
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        yield
        time.sleep(every)
