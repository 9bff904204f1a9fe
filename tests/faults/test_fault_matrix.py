"""Whatever happens to a sweep at whatever point: no reported row is lost, and resuming gives what never stopping gives.

`make test-faults`. Each cell is a process held at a point and one that resumes it: about 20 s of processor time together.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runner import CHECKOUT, Cli
from faults import FAULTS, POINTS, Fault, Scene
from wandb_server import WandbServer, wait_for

pytestmark = pytest.mark.faults

HELD = Path(__file__).parent / "held_cli.py"
WORDS = (
    "sweep", "--config", str(Path(__file__).parent / "tiny_sweep.py"),
    "--checkpoint-steps", "20", "--workdir", "disk/work",
)  # fmt: skip
CELLS = [(f, point) for f in FAULTS for point in POINTS if point not in f.impossible]


@pytest.fixture(scope="session")
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by the test processes too: what is compared must be one executable."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "fault-xla"


@pytest.fixture
def attnlab(tmp_path: Path, compile_cache: Path) -> Cli:
    runner = Cli(tmp_path, compile_cache)
    (runner.cwd / "disk").mkdir()
    return runner


def contents(work: Path) -> dict[str, tuple[bytes, bytes]]:
    """Run id -> its metrics and its summary."""
    return {
        run.name: (_bytes(run / "metrics.jsonl"), _bytes(run / "summary.json"))
        for run in (work / "runs").iterdir()
    }


def _bytes(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""


def rows(work: Path) -> dict[str, list[bytes]]:
    """Run id -> its complete rows: what has been reported."""
    return {run: metrics.split(b"\n")[:-1] for run, (metrics, _) in contents(work).items()}


@pytest.fixture(scope="session")
def uninterrupted(
    tmp_path_factory: pytest.TempPathFactory, compile_cache: Path
) -> dict[str, tuple[bytes, bytes]]:
    runner = Cli(tmp_path_factory.mktemp("uninterrupted"), compile_cache)
    (runner.cwd / "disk").mkdir()
    runner(*WORDS, "--wandb", "disabled")
    return contents(runner.cwd / "disk" / "work")


@pytest.fixture
def server(attnlab: Cli) -> Iterator[WandbServer]:
    with WandbServer() as running:
        attnlab.env |= running.environ
        yield running
    assert running.unknown == []


@pytest.fixture
def small_disk(attnlab: Cli, record_property) -> Iterator[None]:
    """A file system of 24 MB under the work directory."""
    disk = attnlab.cwd / "disk"
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small disk needs mount")
    yield
    subprocess.run(["umount", "-l", str(disk)], check=True)


def can_mount(folder: Path) -> bool:
    done = subprocess.run(["mount", "--bind", str(folder), str(folder)], capture_output=True)
    return done.returncode == 0 and not subprocess.run(["umount", str(folder)]).returncode


def hold(
    attnlab: Cli, fault: Fault, point: str, request: pytest.FixtureRequest
) -> tuple[subprocess.Popen[str], Path]:
    """Starts the sweep and returns when it has reached the point and everything before it is on disk."""
    held, work = attnlab.cwd / "hold", attnlab.cwd / "disk" / "work"
    held.mkdir()
    environ = {"ATTNLAB_TEST_POINT": point, "ATTNLAB_TEST_HOLD": str(held), **fault.environ}
    process = subprocess.Popen(
        [sys.executable, str(HELD), *WORDS, "--wandb", "online" if fault.online else "disabled"],
        cwd=attnlab.cwd, env={**attnlab.env, **environ, "PYTHONPATH": str(CHECKOUT)},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip

    request.addfinalizer(process.kill)  # where the test failed before its end

    def settled() -> bool:
        if process.poll() is not None:
            raise AssertionError(f"it ended before the point:\n{process.communicate()[0]}")
        if not (held / "reached").exists():
            return False
        newest = [int(p.name) for p in work.glob("checkpoints/*/*") if p.name.isdigit()]
        expected = {"compile": 3, "training": 14, "evaluation": 16, "checkpoint": 17}[point]
        count = sum(map(len, rows(work).values()))
        return count >= expected and (point == "compile" or max(newest, default=0) >= 40)

    assert wait_for(settled, timeout=240.0, every=0.1)
    return process, work


@pytest.mark.parametrize(("fault", "point"), CELLS, ids=[f"{f.name}, {p}" for f, p in CELLS])
def test_nothing_reported_is_lost_and_resuming_equals_never_stopping(
    fault: Fault, point: str, attnlab: Cli, uninterrupted, request, record_property
) -> None:
    cell = {"fault": fault.name, "point": point}
    record_property("fault cell", cell)
    server = request.getfixturevalue("server") if fault.online else None
    if fault.disk:
        cell["skipped"] = "a small disk needs mount"
        request.getfixturevalue("small_disk")
    if fault.name.startswith("read-only") and not can_mount(attnlab.cwd / "disk"):
        cell["skipped"] = "needs mount"
        pytest.skip("a read-only directory needs mount")
    process, work = hold(attnlab, fault, point, request)
    scene = Scene(process, work, server)

    reported = rows(work)
    fault.strike(scene)
    (attnlab.cwd / "hold" / "go").touch()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == fault.exit_code, output
    assert fault.says in output
    reported = {run: max(reported[run], lines, key=len) for run, lines in rows(work).items()}
    after = contents(work)
    ended = [
        run for run, (metrics, summary) in uninterrupted.items() if b'"step": 100' not in summary
    ]
    if point == "compile" and fault.exit_code:
        others = True  # nobody had ended; all are compared below
    else:
        others = all(after[run] == uninterrupted[run] for run in ended)
    fault.mend(scene)
    if fault.exit_code:
        resumed = attnlab(*WORDS, "--wandb", "disabled", "--resume")
        assert fault.resumed_says in resumed
    if server is not None:
        if not server.listening:
            server.up()
        if "NOT confirmed" in output:  # what it has not delivered it must have said
            attnlab("sync", "disk/work")
        assert_mirrored(server, work)

    final = rows(work)
    lost = sum(len(set(lines) - set(final[run])) for run, lines in reported.items())
    equal = contents(work) == uninterrupted
    cell |= {"lost": lost, "equal": "yes" if equal else "NO", "others": "ok" if others else "HURT"}
    cell["exit"] = str(process.returncode)
    assert lost == 0
    assert others, {run: (after[run], uninterrupted[run]) for run in ended}
    assert equal, {
        run: (found, uninterrupted[run])
        for run, found in contents(work).items()
        if found != uninterrupted[run]
    }


def assert_mirrored(server: WandbServer, work: Path) -> None:
    """Every line of every file is one row there, in its place, once."""
    import json

    for run, lines in rows(work).items():
        found = [{k: v for k, v in row.items() if k[0] != "_"} for row in server.runs[run].history]
        assert found == [json.loads(line) for line in lines], run
        assert server.runs[run].complete
