"""Files of configs/: `get_config(preset)` says what is trained, `sweep_NAME(...)` which members there are of it.

    def get_config(preset: str = "quick") -> ConfigDict: ...
    def sweep_masks(seeds: int = 3) -> Iterator[dict[str, Any]]:
        for seed in range(seeds):
            yield {"mask": "causal", "seed.init": seed, "seed.data": seed}

A sweep yields flat overrides of the configuration, one dict a member. It names what it wants to know among `seeds`
(`--seeds`, None where the flag is not given and the parameter has no default), `preset` (the text after the colon)
and `config` (the configuration with the overrides of the command line).
"""

import importlib.util
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from attnlab import knobs

CHECKOUT = Path(__file__).resolve().parent.parent
BASE = CHECKOUT / "configs" / "base.py"


@dataclass(frozen=True)
class ConfigFile:
    """A file, loaded, with the configuration of one preset of it."""

    path: Path
    preset: str
    module: ModuleType
    config: dict[str, Any]

    @property
    def name(self) -> str:
        """Of a sweep over it: the file's name and the preset's."""
        return "-".join(filter(None, [self.path.stem, self.preset]))

    def members(self, sweep: str | None = None, seeds: int | None = None) -> list[dict[str, Any]]:
        """The flat overrides of each member; a file without sweeps is one member.

        `sweep` may be left out when the file has one.

        Raises:
          ValueError: no such sweep, several and none named, or seeds that are below 1 or not asked for.
        """
        found = sorted(
            n.removeprefix("sweep_") for n in vars(self.module) if n.startswith("sweep_")
        )
        if sweep is None and not found:
            if seeds is not None:
                raise ValueError(
                    f"--seeds: got {seeds}, but this file has no sweep; set config.seed instead"
                )
            return [{}]
        if sweep is None and len(found) > 1:
            raise ValueError(f"--sweep: the file has several; allowed: {', '.join(found)}")
        name = sweep or found[0]
        if name not in found:
            raise ValueError(
                f"--sweep: got {name!r}; allowed: {', '.join(found) or 'none in this file'}"
            )
        if seeds is not None and seeds < 1:
            raise ValueError(f"--seeds: must be at least 1, got {seeds}")
        generate = getattr(self.module, f"sweep_{name}")
        return list(generate(**self._wanted(name, inspect.signature(generate), seeds)))

    def _wanted(
        self, sweep: str, signature: inspect.Signature, seeds: int | None
    ) -> dict[str, Any]:
        """The arguments that a sweep names."""
        known: dict[str, Any] = {"preset": self.preset, "config": self.config, "seeds": seeds}
        for parameter in signature.parameters.values():
            if parameter.name not in known:
                raise ValueError(
                    f"sweep_{sweep}: unknown parameter {parameter.name!r}; allowed: {', '.join(known)}"
                )
        if seeds is None and "seeds" in signature.parameters:
            if signature.parameters["seeds"].default is not inspect.Parameter.empty:
                del known["seeds"]
        elif seeds is not None and "seeds" not in signature.parameters:
            raise ValueError(f"--seeds: got {seeds}, but sweep_{sweep} takes no seeds")
        return {name: value for name, value in known.items() if name in signature.parameters}


def load(spec: str, overrides: Sequence[str] = ()) -> ConfigFile:
    """`FILE.py` or `FILE.py:PRESET`, with `--config.x=y` applied and typed.

    Raises:
      ValueError: no such file, not a Python file, no get_config in it, or an override that does not fit.
    """
    path_text, _, preset = spec.partition(":")
    path = Path(path_text)
    if not path.is_file():
        raise ValueError(f"--config: no file {path_text!r}; allowed: FILE.py or FILE.py:PRESET")
    if str(CHECKOUT) not in sys.path:
        sys.path.insert(0, str(CHECKOUT))
    module = _module_from(path)
    config = (module.get_config(preset) if preset else module.get_config()).to_dict()
    for word in overrides:
        key, _, text = word.removeprefix("--config.").partition("=")
        knobs.set_from_text(config, key, text)
    return ConfigFile(path, preset, module, config)


def _module_from(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"--config: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise ValueError(f"--config: {path} has no get_config(preset)")
    return module
