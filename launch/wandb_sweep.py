"""A sweep for those who must use W&B's agents: one member a run, under the id that `attnlab sweep` gives it.

An agent starts a process for each member, so each compiles for itself; `attnlab sweep` is the way that does not. The
member's W&B run is the one its id names, in the group of the sweep. The empty run that the agent announces for itself
is W&B's; attnlab does not write to it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def export(
    name: str, project: str, config: str, members: int, workdir: Path, flags: Sequence[str]
) -> str:
    """The YAML that `wandb sweep FILE` takes: a grid over shards of one member each, all below one workdir.

    `config`: FILE or FILE:PRESET. `flags`: further words of `attnlab sweep`.
    """
    import yaml

    command = ["${env}", "attnlab", "sweep", "--config", config, *flags, "--workdir", str(workdir)]
    document: dict[str, Any] = {
        "name": name,
        "project": project,
        "description": f"One run for each of the {members} members of {config}.",
        "method": "grid",
        "metric": {"name": "val/loss", "goal": "minimize"},
        "parameters": {"shard": {"values": [f"{i}/{members}" for i in range(members)]}},
        # ${args} becomes --shard=I/N.
        "command": [*command, "--resume", "${args}"],
    }
    return str(yaml.safe_dump(document, sort_keys=False))
