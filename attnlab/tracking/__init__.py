"""Run directories, written while training and read back after; W&B mirrors them.

    WORKDIR/
      sweep.json               name and members of the sweep
      runs/RUN_ID/
        config.json            the member's full configuration; RUN_ID is derived from it
        environment.json       a list: one record for the first session and each one that differs
        metrics.jsonl          one JSON object a row: {"step": 100, "tokens": 12800, ...}
        summary.json           status and final numbers
      wandb/                   the W&B mirror

The directories are the truth: everything W&B shows can be made from them again (`sync`).
`step` counts updates done. JSON files are replaced atomically; metrics.jsonl only grows, and a
crash may tear its last line, which readers pass over and a resuming writer repairs. W&B's own step
is the number of the line in that file, so a row can be neither dropped, doubled nor renumbered; the
x axis of its charts is `tokens`.

A session:

    sweep = SweepDirectory(workdir, "nope")                  # looks, writes nothing
    members = [MemberRecord(run_id("nope", config), ...), ...]
    sweep.create(members)                                    # refuses bad input, then writes
    environment = environment_record(sys.argv, {"corpus": ..., "sha256": ...}, device=...)
    with sweep, Mirror(sweep.path, "offline") as mirror:     # or no mirror at all
        with Tracker(sweep, members, mirror, environment=environment) as tracker:
            tracker.log(step, {"tokens": tokens_M, "train/loss": loss_M}, where=active_M)
            tracker.flush()                                  # before a checkpoint is committed
            tracker.finish(0, "finished", {"val/loss": 1.9})
    read_runs(workdir)
"""

from attnlab.tracking.directory import (
    ENDED,
    STATUSES,
    MemberRecord,
    Part,
    SweepDirectory,
    read_groups,
    read_sweep,
    record_group,
    run_id,
)
from attnlab.tracking.environment import environment_record
from attnlab.tracking.results import RunResult, read_runs
from attnlab.tracking.tracker import Tracker, TrackingError, TrackingReport
from attnlab.tracking.wandb_mirror import (
    Mirror,
    MirrorReport,
    MirrorSettings,
    sync,
)
from attnlab.tracking.wandb_mode import WandbMode, resolve_mode

__all__ = [
    "ENDED",
    "STATUSES",
    "MemberRecord",
    "Mirror",
    "MirrorReport",
    "MirrorSettings",
    "Part",
    "RunResult",
    "SweepDirectory",
    "Tracker",
    "TrackingError",
    "TrackingReport",
    "WandbMode",
    "environment_record",
    "read_groups",
    "read_runs",
    "read_sweep",
    "record_group",
    "resolve_mode",
    "run_id",
    "sync",
]
