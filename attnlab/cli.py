"""`attnlab ...`: parses the command line, prepares the machine, calls the library, explains what went wrong.

Nothing heavy is imported at the top: XLA reads its flags when jax starts, so the number of host devices must be
decided first; and a wrong flag should be refused at once.

Exit codes: 0 done; 2 bad input, nothing written; 128 + a signal (130 for Ctrl-C): stopped, and what was trained is on
disk; 1 the disk refused rows to the end, or anything else.
"""

import argparse
import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from attnlab import checks
from attnlab.commands import data_command, evaluate, measure_command, report_command, sample

CHECKOUT = Path(__file__).resolve().parent.parent
BAD_INPUT = 2
BENCHES = ("attention", "step", "population", "checkpoints", "tracking")


class UsageError(Exception):
    """A wrong word on the command line: one line that says what is allowed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        args, config_flags = _parse(words)
        return args.run(args, config_flags)
    except UsageError as error:
        print(f"attnlab: {error}", file=sys.stderr)
        if joined := sys.modules.get("attnlab.processes"):
            joined.leave(BAD_INPUT)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("attnlab: interrupted", file=sys.stderr)
        return 130


def _parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The command's own flags, and the `--config.x=y` overrides by themselves."""
    overrides = [w for w in words if w.startswith("--config.")]
    args = _parser().parse_args([w for w in words if w not in overrides])
    for word in overrides:
        if "=" not in word:
            raise UsageError(f"{word}: write --config.NAME=VALUE")
        if args.command not in ("train", "sweep", "plan", "launch", "wandb-sweep"):
            raise UsageError(
                f"{word}: allowed with `attnlab train`, `sweep`, `plan`, `launch` and `wandb-sweep`"
            )
    return args, overrides


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="attnlab",
        description="A claim about attention in, a verdict with a confidence interval out.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    reproduce = commands.add_parser("reproduce", help="run a claim and judge it")
    reproduce.add_argument("claim", nargs="?", help="see `attnlab claims`")
    reproduce.add_argument(
        "--all", action="store_true", help="every claim that has the preset, each in WORKDIR/NAME"
    )
    reproduce.add_argument("--preset", default="quick", help="size of the experiment (quick)")
    reproduce.add_argument("--seeds", type=int, help="paired seeds per arm (the claim's own)")
    _add_run_flags(reproduce)
    reproduce.set_defaults(run=_reproduce)

    train = commands.add_parser("train", help="train one configuration")
    _add_config_flag(train)
    train.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    _add_run_flags(train)
    _add_process_flags(train)
    train.set_defaults(run=_train)

    sweep = commands.add_parser("sweep", help="train the members of a sweep")
    _add_sweep_flags(sweep)
    sweep.add_argument(
        "--shard", metavar="I/N", help="train the I-th of N shares, counted from 0, of one workdir"
    )
    sweep.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    _add_run_flags(sweep)
    _add_process_flags(sweep)
    sweep.set_defaults(run=_sweep)

    launch = commands.add_parser("launch", help="run a sweep as jobs", add_help=False)
    launch.add_argument("where", choices=("local", "slurm", "sky"))
    launch.add_argument("flags", nargs=argparse.REMAINDER)
    launch.set_defaults(run=_launch)

    dashboard = commands.add_parser("dashboard", help="the W&B page of a sweep, as code")
    dashboard.add_argument("target", metavar="CLAIM[:PRESET]|WORKDIR")
    dashboard.add_argument("--project", help="W&B project (that of the sweep, or attnlab)")
    dashboard.add_argument("--entity", help="W&B entity (that of the sweep, or your own)")
    dashboard.add_argument("--wandb", choices=("online", "offline"))
    dashboard.add_argument(
        "--out", type=Path, metavar="FILE", help="where offline JSON goes (dashboard.json)"
    )
    dashboard.set_defaults(run=_dashboard)

    agents = commands.add_parser("wandb-sweep", help="a sweep as YAML for W&B's own agents")
    _add_sweep_flags(agents)
    agents.add_argument("--workdir", type=Path, required=True, help="shared by all agents")
    agents.add_argument("--project", default="attnlab", help="W&B project (attnlab)")
    agents.set_defaults(run=_wandb_sweep)

    forecast = commands.add_parser("plan", help="what a sweep takes on a mesh of accelerators")
    _add_sweep_flags(forecast)
    forecast.add_argument("--mesh", required=True, metavar="member=M,data=D")
    forecast.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, help="(where that is affordable)"
    )
    forecast.set_defaults(run=_forecast)

    status = commands.add_parser("status", help="the state of a sweep's members")
    status.add_argument("workdir", type=Path, metavar="WORKDIR")
    status.set_defaults(run=_status)

    report = commands.add_parser("report", help="one page about a sweep, and the tables behind it")
    report_command.add_arguments(report)
    report.set_defaults(run=_report)

    measure = commands.add_parser("measure", help="what a claim asks of trained members")
    measure_command.add_arguments(measure)
    measure.set_defaults(run=_measure)

    sync = commands.add_parser("sync", help="send to W&B what is not there yet")
    sync.add_argument("workdir", type=Path, metavar="WORKDIR")
    sync.set_defaults(run=_sync)

    sampling = commands.add_parser("sample", help="let a trained member continue a text")
    sample.add_arguments(sampling)
    sampling.set_defaults(run=_on_member(sample.run))

    evaluation = commands.add_parser("eval", help="loss of a trained member on held-out text")
    evaluate.add_arguments(evaluation)
    evaluation.set_defaults(run=_on_member(evaluate.run))

    claims = commands.add_parser(
        "claims", help="list the claims, what they cost, and their verdicts here"
    )
    claims.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="DIR", help="where verdicts lie (runs)"
    )
    claims.set_defaults(run=_claims)

    check = commands.add_parser("check", help="prove the exact claims on this machine")
    checks.add_arguments(check)
    check.set_defaults(run=_check)

    data = commands.add_parser("data", help="what a corpus holds, or write it as a token file")
    data_command.add_arguments(data)
    data.set_defaults(run=_data)

    bench = commands.add_parser("bench", help="measure this machine", add_help=False)
    bench.add_argument("what", choices=BENCHES)
    bench.add_argument("flags", nargs=argparse.REMAINDER)
    bench.set_defaults(run=_bench)

    mask = commands.add_parser("mask", help="draw masks")
    mask.add_argument("masks", nargs="+", metavar="MASK", help='e.g. "causal & sliding_window(4)"')
    mask.add_argument("--length", type=int, default=12, help="queries (12)")
    mask.add_argument("--kv-length", type=int, help="keys (as many as queries)")
    mask.add_argument("--png", type=Path, metavar="FILE", help="also draw them to a file")
    mask.set_defaults(run=_mask)
    return parser


def _add_config_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", required=True, metavar="FILE[:PRESET]", help="a file of configs/"
    )


def _add_sweep_flags(parser: argparse.ArgumentParser) -> None:
    """What says which members: a file, one of its sweeps, seeds."""
    _add_config_flag(parser)
    parser.add_argument(
        "--sweep", metavar="NAME", help="sweep_NAME of the file, when it has several"
    )
    parser.add_argument("--seeds", type=int, help="paired seeds per arm (the sweep's own)")


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", type=Path, help="where everything is written (runs/NAME-TIME)")
    parser.add_argument("--resume", action="store_true", help="finish what is missing in --workdir")
    parser.add_argument(
        "--checkpoint-steps",
        type=int,
        metavar="N",
        help="a checkpoint every N updates (not by updates)",
    )
    parser.add_argument(
        "--checkpoint-minutes", type=float, default=10.0, metavar="M",
        help="a checkpoint every M minutes (10)",
    )  # fmt: skip
    parser.add_argument(
        "--keep", type=int, default=2, metavar="N", help="newest checkpoints kept (2)"
    )
    parser.add_argument(
        "--keep-every", type=int, metavar="N", help="also keep those at multiples of N"
    )
    parser.add_argument(
        "--debug-nans", action="store_true", help="name the first bad tensor of a diverged member"
    )
    parser.add_argument(
        "--profile", action="store_true",
        help="trace a few updates of each group for jax's profiler, and put perf/... into the summaries",
    )  # fmt: skip
    parser.add_argument(
        "--data-on",
        choices=("auto", "device", "host"),
        default="auto",
        help="where the tokens are while training; equal batches (auto: by size)",
    )
    parser.add_argument(
        "--wandb",
        choices=("online", "offline", "disabled"),
        help="mirror to W&B (WANDB_MODE, or online when a key is found, else offline)",
    )
    parser.add_argument(
        "--devices",
        type=int,
        help="host devices on CPU (one per core); members are spread over them",
    )


def _add_process_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--processes", type=int, metavar="N",
        help="of one job, each started with the same words (1, or the tasks of an srun)",
    )  # fmt: skip
    parser.add_argument("--process-id", type=int, metavar="I", help="this one of the N, from 0")
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="where process 0 listens")


def _reproduce(args: argparse.Namespace, _: list[str]) -> int:
    with _bad_input():
        if args.all == (args.claim is not None):
            raise ValueError("reproduce: name one claim, or give --all and no name")
        if args.seeds is not None and args.seeds < 2:
            raise ValueError(f"seeds: a verdict needs at least 2, got {args.seeds}")
        chosen = _every_claim() if args.all else {args.claim: _claim(args.claim)}
        presets = list(dict.fromkeys(p for claim in chosen.values() for p in claim.presets))
        if args.preset not in presets:
            raise ValueError(f"preset: got {args.preset!r}; allowed: {', '.join(presets)}")
        _refuse_resume_of_nothing(args)
        _prepare_machine(args.devices)
    if args.all:
        from attnlab import sweeps
        from attnlab.commands import all_claims

        root = args.workdir or sweeps.default_workdir(f"claims-{args.preset}")
        return all_claims.reproduce(chosen, args.preset, root, _one_of_all(args))
    with _bad_input():
        run = _claim_run(args.claim, args, args.workdir)
    return run()


def _one_of_all(args: argparse.Namespace) -> Callable[[str, Path], int]:
    return lambda name, workdir: _claim_run(name, args, workdir)()


def _claim_run(name: str, args: argparse.Namespace, workdir: Path | None) -> Callable[[], int]:
    """What runs a claim, once nothing is left to refuse."""
    from attnlab import sweeps

    claim = _claim(name)
    plan = _plan_of(f"{CHECKOUT / 'configs' / name}.py:{args.preset}", [], name, args.seeds)
    session = _open_session(plan, args, workdir)
    measured = claim.measured_in(args.preset)
    return lambda: sweeps.reproduce(claim, session, measured, _base_config())


def _train(args: argparse.Namespace, config_flags: list[str]) -> int:
    with _bad_input():
        _prepare_machine(args.devices)
        _join_processes(args)
        plan = _plan(_config_file(args.config, config_flags), [{}])
    return _run(plan, args)


def _sweep(args: argparse.Namespace, config_flags: list[str]) -> int:
    with _bad_input():
        _prepare_machine(args.devices)
        _join_processes(args)
        plan = _plan_of(args.config, config_flags, args.sweep, args.seeds)
    return _run(plan, args)


def _launch(args: argparse.Namespace, config_flags: list[str]) -> int:
    with _bad_input():
        _prepare_machine(None)

        def plan(config: str, flags: argparse.Namespace) -> Any:
            return _plan_of(config, config_flags, flags.sweep, flags.seeds)

        command = _experiment("launch.command")
        return command.run(args.where, args.flags, config_flags, plan, print)


def _dashboard(args: argparse.Namespace, _: list[str]) -> int:
    with _bad_input():
        workdir = Path(args.target) if (Path(args.target) / "sweep.json").exists() else None
        name = args.target.partition(":")[0]
        if workdir is not None:
            name = report_command.claim_name(argparse.Namespace(workdir=workdir, claim=None))
        elif Path(args.target).is_dir():
            raise ValueError(f"workdir={args.target!r}: no sweep.json in it")
        return _experiment("launch.dashboard").run(args, _claim(name), workdir, print)


def _wandb_sweep(args: argparse.Namespace, config_flags: list[str]) -> int:
    with _bad_input():
        _prepare_machine(None)
        plan = _plan_of(args.config, config_flags, args.sweep, args.seeds)
        chosen = {"--sweep": args.sweep, "--seeds": args.seeds}
        flags = [w for k, v in chosen.items() if v is not None for w in (k, str(v))]
        text = _experiment("launch.wandb_sweep").export(
            plan.name,
            args.project,
            args.config,
            len(plan.members),
            args.workdir,
            [*config_flags, *flags],
        )
    print(text, end="")
    return 0


def _forecast(args: argparse.Namespace, config_flags: list[str]) -> int:
    with _bad_input():
        rows, data = _mesh(args.mesh)
        os.environ["JAX_PLATFORMS"] = "cpu"
        _prepare_machine(rows * data)
        from attnlab import console
        from attnlab.commands import forecast

        words = [*config_flags, f"--config.mesh.data={data}"]
        plan = _plan_of(args.config, words, args.sweep, args.seeds)
        found = [forecast.of_group(g, rows, compiles=args.compile) for g in plan.groups]
    for group in found:
        for line in forecast.lines_of(group):
            console.say(line)
        console.print_table(plan.name, forecast.CHIP_COLUMNS, forecast.rows_of(group))
    return 0


def _mesh(text: str) -> tuple[int, int]:
    """`member=8,data=32` as (8, 32), before jax knows how many devices there are.

    Raises:
      ValueError: it is not of that form.
    """
    found = dict(re.findall(r"(member|data)=([1-9]\d*)", text))
    if text != ",".join(f"{k}={v}" for k, v in found.items()) or not found:
        raise ValueError(
            f"--mesh: got {text!r}; allowed: member=M,data=D, such as member=8,data=32"
        )
    return int(found.get("member", 1)), int(found.get("data", 1))


def _run(plan: Any, args: argparse.Namespace) -> int:
    from attnlab import sweeps

    if args.dry_run:
        with _bad_input():
            return sweeps.dry_run(plan, _shard(args))
    with _bad_input():
        session = _open_session(plan, args, args.workdir)
    return sweeps.run(session)


def _status(args: argparse.Namespace, _: list[str]) -> int:
    with _bad_input():
        from attnlab import console
        from attnlab.commands import status

        rows = status.read(args.workdir)
        console.print_table(str(args.workdir), status.COLUMNS, [row.cells() for row in rows])
    return status.exit_code(rows)


def _report(args: argparse.Namespace, _: list[str]) -> int:
    with _bad_input():
        return report_command.run(args, _claim_of(args))


def _measure(args: argparse.Namespace, _: list[str]) -> int:
    with _bad_input():
        _prepare_machine(None)
        return measure_command.run(args, _claim_of(args), _base_config())


def _claim_of(args: argparse.Namespace) -> Any:
    """The claim that WORKDIR belongs to, or None."""
    return _claim(report_command.claim_name(args))


def _claim(name: str | None) -> Any:
    """The claim of this name; None for None."""
    from attnlab import claims

    return None if name is None else _experiment(claims.experiment_module(name)).CLAIM


def _sync(args: argparse.Namespace, _: list[str]) -> int:
    with _bad_input():
        from attnlab import tracking

        report = tracking.sync(args.workdir)
    for line in report.lines():
        print(line)
    return 1 if report.missing or report.report is False else 0


def _refuse_resume_of_nothing(args: argparse.Namespace) -> None:
    if args.resume and args.workdir is None:
        raise ValueError("--resume: needs --workdir, the directory to finish")


def _open_session(plan: Any, args: argparse.Namespace, workdir: Path | None) -> Any:
    from attnlab import sweeps

    _refuse_resume_of_nothing(args)
    settings = sweeps.Settings(
        workdir=workdir or sweeps.default_workdir(plan.name),
        wandb=args.wandb,
        resume=args.resume,
        checkpoint_steps=args.checkpoint_steps,
        checkpoint_minutes=args.checkpoint_minutes,
        keep=args.keep,
        keep_every=args.keep_every,
        debug_nans=args.debug_nans,
        shard=_shard(args),
        data_on=args.data_on,
        profile=args.profile,
    )
    return sweeps.open_session(plan, settings)


def _shard(args: argparse.Namespace) -> Any:
    from attnlab.shards import Shard

    text = getattr(args, "shard", None)
    if text is not None and args.workdir is None and not args.dry_run:
        raise ValueError("--shard: needs --workdir, the directory that all shards share")
    return None if text is None else Shard.parse(text)


def _claims(args: argparse.Namespace, _: list[str]) -> int:
    with _bad_input():
        _prepare_machine(None)
        from attnlab.commands import all_claims

        all_claims.list_them(_every_claim(), args.runs)
    return 0


def _every_claim() -> dict[str, Any]:
    from attnlab.claims import EXPERIMENTS

    return {name: _claim(name) for name in EXPERIMENTS}


def _on_member(run: Callable[..., int]) -> Callable[..., int]:
    """A command on a trained member, which needs the configuration that holds every knob."""

    def command(args: argparse.Namespace, _: list[str]) -> int:
        with _bad_input():
            return run(args, _base_config())

    return command


def _check(args: argparse.Namespace, _: list[str]) -> int:
    with _bad_input():
        ledger = _experiment("experiments.exact")
        chosen = checks.choose(args, ledger.CHECKS)
    return checks.run(args, chosen, ledger.ERRATA, ledger.SOURCES)


def _data(args: argparse.Namespace, _: list[str]) -> int:
    with _bad_input():
        return data_command.run(args)


def _bench(args: argparse.Namespace, _: list[str]) -> int:
    parser = argparse.ArgumentParser(prog=f"attnlab bench {args.what}")
    with _bad_input():
        _prepare_machine(None)
        # Benchmarks import jax: their flags are parsed here, not above.
        if args.what == "attention":
            from attnlab.bench import attention

            parser.description = attention.__doc__
            attention.add_arguments(parser)
            return attention.run(parser.parse_args(args.flags))
        from attnlab.bench import durability, updates

        bench = updates if args.what in ("step", "population") else durability
        parser.description = bench.__doc__
        bench.add_arguments(parser, args.what)
        flags = parser.parse_args(args.flags)
        return bench.run(flags, args.what, _base_config())


def _mask(args: argparse.Namespace, _: list[str]) -> int:
    with _bad_input():
        from attnlab.masks import mask_text

        for flag, value in (("--length", args.length), ("--kv-length", args.kv_length)):
            if value is not None and value < 1:
                raise ValueError(f"{flag}: must be at least 1, got {value}")
        masks = {text: mask_text.parse(text, args.length, args.kv_length) for text in args.masks}
        for text, mask in masks.items():
            if len(masks) > 1:
                print(text)
            print(mask_text.render(mask))
        if args.png:
            import numpy as np

            from attnlab import plots

            arrays = {text: np.asarray(mask.as_array()[0, 0]) for text, mask in masks.items()}
            plots.save(plots.mask_gallery(arrays), args.png)
    return 0


class _bad_input:  # noqa: N801 - reads as a statement
    """Turns a refusal of the library into one line on the terminal: what it raises before anything is written."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if (
            isinstance(error, ValueError | TypeError | OSError)
            and "ATTNLAB_TRACEBACK" not in os.environ
        ):
            raise UsageError(" ".join(str(error).split())) from error


def _prepare_machine(devices: int | None) -> None:
    from attnlab import machine

    machine.prepare(devices)


def _join_processes(args: argparse.Namespace) -> None:
    from attnlab import processes

    processes.start(args.processes, args.process_id, args.coordinator)


def _experiment(module: str) -> ModuleType:
    if str(CHECKOUT) not in sys.path:
        sys.path.insert(0, str(CHECKOUT))
    return importlib.import_module(module)


def _config_file(spec: str, overrides: list[str]) -> Any:
    from attnlab import config_files

    return config_files.load(spec, overrides)


def _base_config() -> dict[str, Any]:
    """The configuration that holds every knob."""
    from attnlab import config_files

    return config_files.load(str(config_files.BASE)).config


def _plan_of(spec: str, overrides: list[str], sweep: str | None, seeds: int | None) -> Any:
    """The plan of the members that a sweep of a config file gives."""
    file = _config_file(spec, overrides)
    return _plan(file, file.members(sweep, seeds))


def _plan(file: Any, members: list[dict[str, Any]]) -> Any:
    from attnlab import sweeps

    return sweeps.plan(file.name, sweeps.expand(file.config, members), _base_config())


if __name__ == "__main__":
    sys.exit(main())
