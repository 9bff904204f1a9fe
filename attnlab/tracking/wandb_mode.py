"""Whether W&B is online, offline or disabled: decided here, so that it never asks."""

from __future__ import annotations

import contextlib
import netrc
import os
from collections.abc import Mapping
from configparser import ConfigParser
from configparser import Error as ConfigError
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

MODES = ("online", "offline", "disabled")


@dataclass(frozen=True)
class WandbMode:
    """`mode` is "online", "offline" or "disabled"; `reason` says in a few words why."""

    mode: str
    reason: str


def resolve_mode(flag: str | None = None, environ: Mapping[str, str] | None = None) -> WandbMode:
    """Decide whether W&B is used: the flag, else WANDB_MODE, else online if a key is found.

    Raises:
      ValueError: the flag or WANDB_MODE is none of the modes.
    """
    environ = os.environ if environ is None else environ
    if flag is not None:
        if flag not in MODES:
            raise ValueError(f"wandb={flag!r}: must be {', '.join(MODES)}")
        return WandbMode(flag, "as asked")
    named = environ.get("WANDB_MODE", "")
    mode = {"dryrun": "offline", "run": "online"}.get(named, named)
    if mode:
        if mode not in MODES:
            raise ValueError(f"WANDB_MODE={named!r}: must be {', '.join(MODES)}")
        return WandbMode(mode, "WANDB_MODE")
    source = credentials(environ)
    if source is None:
        return WandbMode("offline", "no key found; `wandb login` and `attnlab sync` upload later")
    return WandbMode("online", f"key from {source}")


def credentials(environ: Mapping[str, str]) -> str | None:
    """Where W&B will find a key, or None. Nothing is read but the names of hosts."""
    for variable in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        if environ.get(variable):
            return variable
    home = Path(environ.get("HOME") or os.path.expanduser("~"))
    host = urlsplit(_base_url(environ, home)).netloc
    # W&B serves one deployment under both names, and accepts a key stored for either.
    both = {"api.wandb.ai", "api.forge.coreweave.com"}
    hosts = both if host in both else {host}
    named = environ.get("NETRC")
    for path in [Path(named).expanduser()] if named else [home / ".netrc", home / "_netrc"]:
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            if hosts & set(netrc.netrc(path).hosts):
                return path.name
    return None


def _base_url(environ: Mapping[str, str], home: Path) -> str:
    if environ.get("WANDB_BASE_URL"):
        return environ["WANDB_BASE_URL"]
    folder = environ.get("WANDB_CONFIG_DIR")
    parser = ConfigParser()
    with contextlib.suppress(OSError, ConfigError):
        parser.read((Path(folder) if folder else home / ".config" / "wandb") / "settings")
        return parser.get("default", "base_url")
    return "https://api.wandb.ai"
