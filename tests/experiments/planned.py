"""The programs that a claim's preset would compile: planned, not trained."""

import tiny

from attnlab import config_files, sweeps
from attnlab.plan import Group


def groups(claim: str, preset: str, *overrides: str) -> list[Group]:
    """The groups of `attnlab sweep --config configs/CLAIM.py:PRESET --seeds 1 --dry-run`."""
    file = config_files.load(f"{config_files.CHECKOUT / 'configs' / claim}.py:{preset}", overrides)
    configs = sweeps.expand(file.config, file.members(seeds=1))
    return list(sweeps.plan(file.name, configs, tiny.BASE).groups)
