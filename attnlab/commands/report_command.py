"""`attnlab report WORKDIR`: the report of a sweep, once or again and again while it trains."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnlab.claims import Claim

NO_CLAIM = "none"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `attnlab report`."""
    parser.add_argument("workdir", type=Path, metavar="WORKDIR")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (WORKDIR/report)")
    parser.add_argument(
        "--claim", metavar="NAME",
        help=f"judge by this claim, or by {NO_CLAIM} (by the one in the sweep's name, NAME-PRESET)",
    )  # fmt: skip
    parser.add_argument(
        "--watch", action="store_true",
        help="write it again whenever the sweep has something new, until it has ended or Ctrl-C",
    )  # fmt: skip


def claim_name(args: argparse.Namespace) -> str | None:
    """The claim that was asked for, else the one a sweep `NAME` or `NAME-PRESET` belongs to, else None.

    Raises:
      ValueError: WORKDIR holds no sweep.
    """
    from attnlab.claims import EXPERIMENTS
    from attnlab.tracking import read_sweep

    sweep = read_sweep(args.workdir)["name"]
    if args.claim is not None:
        return None if args.claim == NO_CLAIM else args.claim
    named = [name for name in EXPERIMENTS if sweep == name or sweep.startswith(f"{name}-")]
    return max(named, key=len, default=None)


def run(args: argparse.Namespace, claim: "Claim | None") -> int:
    """Writes the report, says where it lies, and returns 0. `claim`: what `claim_name` names.

    Raises:
      ValueError: WORKDIR holds no sweep.
      OSError: the report cannot be written.
    """
    from attnlab.commands import sweep_report

    out = args.out or args.workdir / "report"
    if args.watch:
        sweep_report.watch(args.workdir, claim, out)
    else:
        sweep_report.say(sweep_report.make(args.workdir, claim, out))
    return 0
