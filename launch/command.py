"""`attnlab launch local|slurm|sky`: which sweeps in how many jobs, what would be submitted, and submitting it."""

import argparse
import hashlib
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch import local, sky, slurm, snapshot
from launch.jobs import Job, Sweep
from launch.snapshot import Snapshot

WHERE = ("local", "slurm", "sky")


def parse(where: str, words: Sequence[str]) -> argparse.Namespace:
    """The flags of one way to launch."""
    parser = argparse.ArgumentParser(prog=f"attnlab launch {where}", description=__doc__)
    parser.add_argument(
        "--config", required=True, nargs="+", metavar="FILE[:PRESET]", help="files of configs/"
    )
    parser.add_argument("--sweep", metavar="NAME", help="sweep_NAME of the file")
    parser.add_argument("--seeds", type=int, help="paired seeds per arm (the sweep's own)")
    parser.add_argument("--shards", type=int, default=1, metavar="N", help="jobs a sweep (1)")
    parser.add_argument("--dry-run", action="store_true", help="print what would be submitted")
    parser.add_argument("--wandb", choices=("online", "offline", "disabled"))
    parser.add_argument("--checkpoint-minutes", type=float, default=10.0, metavar="M")
    if where == "sky":
        parser.add_argument(
            "--template", default="gpu", help=f"one of {', '.join(sky.templates())}"
        )
        parser.add_argument("--bucket", default="", help="s3://... or gs://..., holds the workdir")
        return parser.parse_args(words)
    parser.add_argument(
        "--workdir",
        type=Path,
        required=True,
        help="of the sweep; with several, the one above theirs",
    )
    if where == "local":
        parser.add_argument("--devices", type=int, help="host devices of each job on a CPU")
        return parser.parse_args(words)
    parser.add_argument("--time", type=int, default=24 * 60, metavar="MINUTES", help="limit (1440)")
    parser.add_argument("--partition")
    parser.add_argument("--gpus", type=int, help="a node")
    parser.add_argument("--cpus", type=int, help="a task")
    parser.add_argument("--mem-gb", type=float, help="a node")
    parser.add_argument("--nodes", type=int, default=1, help="a job (1)")
    parser.add_argument("--tasks-per-node", type=int, default=1, help="processes of a job (1)")
    parser.add_argument("--account")
    parser.add_argument("--qos")
    parser.add_argument("--constraint")
    parser.add_argument("--at-once", type=int, default=256, help="jobs running at a time (256)")
    parser.add_argument("--signal-seconds", type=int, default=90, help="notice before the end (90)")
    parser.add_argument("--shared", action="store_true", help="every node does see the workdir")
    return parser.parse_args(words)


@dataclass(frozen=True)
class _Launch:
    """What is to be submitted, worked out and checked; nothing is written."""

    sweeps: list[Sweep]
    code: Snapshot
    folder: Path
    environs: list[dict[str, str]]

    @property
    def jobs(self) -> list[Job]:
        commands = [s.command(i, self.code.place) for s in self.sweeps for i in range(s.shards)]
        place, cwd = str(self.code.place), str(Path.cwd())
        return [
            Job(command, place, cwd, environ)
            for command, environ in zip(commands, self.environs, strict=True)
        ]

    @property
    def names(self) -> list[str]:
        return [f"{s.name} {i}/{s.shards}" for s in self.sweeps for i in range(s.shards)]


def run(
    where: str,
    words: Sequence[str],
    overrides: Sequence[str],
    plan: Callable[[str, argparse.Namespace], Any],
    say: Callable[[str], None],
) -> int:
    """Submits, or prints what would be; returns the exit code.

    `overrides`: `--config.x=y`. `plan`: checks and plans the sweep of a configuration, as `attnlab sweep` does.

    Raises:
      ValueError: anything that is wrong; nothing is written or submitted then.
    """
    args = parse(where, words)
    if where == "sky":
        made = sky.commands(_sweeps(args, overrides, plan, Path()), args.template, args.bucket)
        if args.dry_run:
            for command in made:
                say(shlex.join(command))
            return 0
        return sky.run(made, _checkout(), say)
    root = args.workdir.absolute()
    _check_writable(root)
    sweeps = _sweeps(args, overrides, plan, root)
    code, paths = snapshot.take(_checkout(), [_file(s.config) for s in sweeps], root / "launch")
    sweeps = [_relocated(s, path) for s, path in zip(sweeps, paths, strict=True)]
    environs = [_environ(where, s, i) for s in sweeps for i in range(s.shards)]
    launch = _Launch(sweeps, code, root / "launch" / "logs", environs)
    return _local(args, launch, say) if where == "local" else _slurm(args, launch, root, say)


def _local(args: argparse.Namespace, launch: _Launch, say: Callable[[str], None]) -> int:
    _say_plan(launch, say)
    if args.dry_run:
        return 0
    launch.code.write()
    return local.run(launch.jobs, launch.names, launch.folder, launch.code.place, say)


def _slurm(
    args: argparse.Namespace, launch: _Launch, root: Path, say: Callable[[str], None]
) -> int:
    request = slurm.Request(
        # Of the workdir: jobs of one sweep are found by it, in whichever launch they were submitted.
        name=f"attnlab-{launch.sweeps[0].name}-{hashlib.sha256(str(root).encode()).hexdigest()[:6]}",
        time=args.time, partition=args.partition, cpus_per_task=args.cpus, gpus_per_node=args.gpus,
        nodes=args.nodes, ntasks_per_node=args.tasks_per_node, mem_gb=args.mem_gb, account=args.account,
        qos=args.qos, constraint=args.constraint, signal_seconds=args.signal_seconds, at_once=args.at_once,
    )  # fmt: skip
    text = slurm.script(request, launch.folder, launch.code.place, len(launch.jobs))
    if args.dry_run and not slurm.available():
        slurm.check_times(request, args.checkpoint_minutes)
        say("not checked: partition, queue and file system, because this machine has no SLURM")
    else:
        for warning in slurm.check(request, root, args.checkpoint_minutes, shared=args.shared):
            say(f"warning: {warning}")
    _say_plan(launch, say)
    if args.dry_run:
        for line in text.splitlines():
            say(line)
        return 0
    launch.code.write()
    ids = slurm.submit(request, launch.folder, launch.code.place, launch.jobs)
    for name, job in zip(launch.names, ids, strict=True):
        say(f"{name}: job {job}, log {launch.folder / job / f'{job}_0_log.out'}")
    for sweep in launch.sweeps:
        say(f"attnlab status {sweep.workdir}")
    return 0


def _say_plan(launch: _Launch, say: Callable[[str], None]) -> None:
    for line in launch.code.lines():
        say(line)
    for name, job in zip(launch.names, launch.jobs, strict=True):
        environ = [f"{k}={v}" for k, v in job.environ.items()]
        say(f"{name}: {shlex.join([*environ, *job.command])}")


def _sweeps(
    args: argparse.Namespace,
    overrides: Sequence[str],
    plan: Callable[[str, argparse.Namespace], Any],
    root: Path,
) -> list[Sweep]:
    from attnlab import shards

    if args.shards < 1:
        raise ValueError(f"--shards: must be at least 1, got {args.shards}")
    made: list[Sweep] = []
    for config in args.config:
        planned = plan(config, args)
        shards.check_count(planned.groups, args.shards)
        if planned.name in (s.name for s in made):
            raise ValueError(f"--config: {config!r} is given twice")
        workdir = root if len(args.config) == 1 else root / planned.name
        made.append(Sweep(planned.name, config, workdir, args.shards, _flags(args, overrides)))
    return made


def _flags(args: argparse.Namespace, overrides: Sequence[str]) -> tuple[str, ...]:
    """What `attnlab sweep` is told beside the shard and the workdir."""
    given = {"--sweep": args.sweep, "--seeds": args.seeds, "--wandb": args.wandb}
    given["--devices"] = getattr(args, "devices", None)
    words = [
        word for flag, value in given.items() if value is not None for word in (flag, str(value))
    ]
    return (*overrides, *words, "--checkpoint-minutes", f"{args.checkpoint_minutes:g}")


def _environ(where: str, sweep: Sweep, index: int) -> dict[str, str]:
    if where != "local":
        return {}
    return local.visible_devices(sweep.shards, index, dict(os.environ))


def _checkout() -> Path:
    return Path(__file__).resolve().parent.parent


def _file(config: str) -> Path:
    return Path(config.partition(":")[0])


def _relocated(sweep: Sweep, path: str) -> Sweep:
    _, colon, preset = sweep.config.partition(":")
    return Sweep(sweep.name, f"{path}{colon}{preset}", sweep.workdir, sweep.shards, sweep.flags)


def _check_writable(workdir: Path) -> None:
    above = workdir
    while not above.exists():
        above = above.parent
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise ValueError(f"workdir={str(workdir)!r}: {str(above)!r} cannot be written")
