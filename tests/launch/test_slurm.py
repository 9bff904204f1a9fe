"""A real SLURM on this machine: submitted as an array, preempted, requeued, resumed, judged. See `slurm_cluster`.

make test-slurm        (-s shows what happened)
"""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import slurm_cluster
from cli_runner import Cli
from slurm_cluster import Cluster

from attnlab.commands import status
from attnlab.tracking import read_runs, read_sweep

pytestmark = pytest.mark.slurm
pytest.importorskip("submitit", reason="needs the extra slurm")

CONFIG = "tests/launch_sweep.py"
CHECKOUT = Path(__file__).parents[2]
STEPS = 4000
VERDICTS = ("REPRODUCED", "INCONCLUSIVE", "INVALID")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := slurm_cluster.why_not():
        pytest.skip(reason)
    with Cluster(tmp_path_factory.mktemp("slurm") / "cluster") as running:
        yield running


@pytest.fixture(scope="module")
def attnlab(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Cli:
    root = tmp_path_factory.mktemp("user")
    runner = Cli(root, root / "xla")
    runner.env |= cluster.environ
    # Training alone is what an array needs; a job of this size is over before W&B's client has started.
    runner.env["WANDB_MODE"] = "disabled"
    runner.cwd = CHECKOUT
    return runner


def until(what: str, ready: Callable[[], bool], cluster: Cluster, seconds: float = 400.0) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, (
            f"waited for {what}; queue {cluster.queue()}\n{cluster.logs()}"
        )
        time.sleep(0.5)


class Diary:
    """What happened when, printed: `pytest -s` shows a transcript."""

    def __init__(self) -> None:
        self.started = time.monotonic()

    def __call__(self, text: str) -> None:
        for line in text.splitlines():
            print(f"{time.monotonic() - self.started:5.0f}s {line}")


def steps_of(work: Path) -> dict[str, int]:
    """Rows of each member that has some."""
    return {f.parent.name: f.read_bytes().count(b"\n") for f in work.glob("runs/*/metrics.jsonl")}


def logs_of(work: Path) -> str:
    return "".join(f.read_text() for f in sorted((work / "launch" / "logs").rglob("*_log.*")))


def test_an_array_is_preempted_requeued_resumed_and_judged(
    attnlab: Cli, cluster: Cluster, tmp_path: Path
) -> None:
    diary, work = Diary(), tmp_path / "work"
    # A claim, so that there is something to judge; at this size its verdict means nothing.
    words = (
        "launch", "slurm", "--config", "configs/nope.py:smoke", "--config.model.layers=1", "--config.context=8",
        f"--config.steps={STEPS}", f"--config.eval.every={STEPS // 2}", "--seeds", "2", "--shards", "2",
        "--workdir", str(work), "--partition", "low", "--time", "50", "--cpus", "1", "--checkpoint-minutes", "0.5",
    )  # fmt: skip
    planned = attnlab(*words, "--dry-run")
    assert not work.exists()
    diary(submitted := attnlab(*words))
    (array,) = {job.partition("_")[0] for job in cluster.queue()}
    (script,) = {f.read_text() for f in (work / "launch" / "logs").rglob("*_submission.sh")}
    # Of a checkout that somebody edits at this moment the two may have taken different snapshots.
    script, planned = (re.sub(r"code-\w{12}", "code", text) for text in (script, planned))
    assert script.strip() in planned, "a dry run prints the very file that sbatch gets"
    assert f"job {array}_1" in submitted
    refused = attnlab(*words, code=2)
    assert "waiting or running already" in refused

    def training() -> bool:
        rows = steps_of(work)
        return len(rows) == len(read_sweep(work)["members"]) and min(rows.values()) > 20

    until("a sweep", (work / "sweep.json").exists, cluster, 600)
    until("both shards to train", training, cluster, 600)
    urgent = (
        "sbatch", "--parsable", "--partition=high", f"--cpus-per-task={cluster.cpus}", "--output=/dev/null",
        "--wrap=sleep 600",
    )  # fmt: skip
    high = cluster(*urgent).strip()
    diary(f"rows {sorted(steps_of(work).values())}; queue {cluster.queue()}")
    diary(f"job {high} of partition high wants the whole node")

    def preempted() -> bool:
        return cluster.queue().get(high, ("", "gone", ""))[1] != "PENDING"

    until("preemption", preempted, cluster)
    diary(f"queue {cluster.queue()}")
    held = {run.id: run.last_step or 0 for run in read_runs(work)}
    assert {run.status for run in read_runs(work)} == {"interrupted"}
    assert status.exit_code(status.read(work)) == status.UNFINISHED
    diary("\n".join(" ".join(row.cells()) for row in status.read(work)))
    cluster("scancel", high)

    until("the array to be over", lambda: not cluster.queue(), cluster, 900)
    assert status.exit_code(status.read(work)) == status.DONE
    diary("\n".join(" ".join(row.cells()) for row in status.read(work)))
    text = logs_of(work)
    said = ("Caught", "checkpoint method", "Requeued", "completed", "wall time")
    diary("\n".join(line for line in text.splitlines() if any(w in line for w in said)))
    assert text.count("Requeued job") >= 2, text
    for run in read_runs(work):
        steps = run.history["step"].tolist()
        assert run.status == "finished"
        assert steps == sorted(set(steps)), "no update was reported twice"
        assert steps[-1] == STEPS > held[run.id] > 0
    report = attnlab("report", str(work))
    diary(report)
    assert any(verdict in report for verdict in VERDICTS), report


def test_a_cancelled_job_stays_cancelled(attnlab: Cli, cluster: Cluster, tmp_path: Path) -> None:
    work = tmp_path / "work"
    attnlab(
        "launch", "slurm", "--config", f"{CONFIG}:long", "--workdir", str(work),
        "--partition", "low", "--time", "30", "--cpus", "1", "--config.steps=400000",
    )  # fmt: skip
    until("training", lambda: min(steps_of(work).values(), default=0) > 20, cluster)
    (job,) = cluster.queue()
    cluster("scancel", job)
    until("the job to go", lambda: not cluster.queue(), cluster, 120)
    assert {run.status for run in read_runs(work)} == {"interrupted"}
    assert "Requeued" not in logs_of(work)
    time.sleep(3)
    assert not cluster.queue()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--partition", "lwo"), ("--partition", "'lwo'", "did you mean 'low'", "high, low")),
        (("--partition", "low", "--time", "90"), ("--time", "90", "at most 60")),
        (("--time", "9"), ("--time", "9 minutes", "10 minutes", "--checkpoint-minutes")),
        (("--nodes", "5"), ("refused by sbatch", "More processors requested")),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused_before_anything_is_submitted(
    words: tuple[str, ...], parts: tuple[str, ...], attnlab: Cli, cluster: Cluster, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    output = attnlab("launch", "slurm", "--config", CONFIG, "--workdir", str(work), *words, code=2)
    (line,) = output.strip().splitlines()[-1:]
    for part in parts:
        assert part in line
    assert not cluster.queue()


def test_a_cluster_that_is_down_gets_one_line(attnlab: Cli, tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=none\nSlurmctldHost=localhost\nSlurmctldPort=1\n"
    )
    before, attnlab.env = attnlab.env, {**attnlab.env, "SLURM_CONF": str(tmp_path / "slurm.conf")}
    try:
        output = attnlab(
            "launch", "slurm", "--config", CONFIG, "--workdir", str(tmp_path / "w"), code=2
        )
    finally:
        attnlab.env = before
    assert "does not answer" in output.strip().splitlines()[-1]
