"""`attnlab measure WORKDIR`: what a claim asks of trained members beside their loss."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnlab.claims import Claim


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `attnlab measure`."""
    parser.add_argument("workdir", type=Path, metavar="WORKDIR")
    parser.add_argument(
        "--claim", metavar="NAME",
        help="what this claim asks for (the one in the sweep's name, NAME-PRESET)",
    )  # fmt: skip


def run(args: argparse.Namespace, claim: "Claim | None", base: Mapping[str, Any]) -> int:
    """Measures every finished member that lacks something; returns the exit code.

    `claim`: what `report_command.claim_name` names. `base`: the configuration that holds every knob.

    Raises:
      ValueError: WORKDIR holds no sweep, or no claim says what to measure.
    """
    from attnlab import sweeps

    if claim is None:
        raise ValueError("--claim: the sweep's name names none; allowed: see `attnlab claims`")
    return sweeps.measure(args.workdir, claim.measured_in(None), base)
