"""The package as a whole: what is installed, what importing costs, and which file may know what."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import attnlab

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "attnlab"
PYTHONS = ("3.11", "3.12", "3.13")

# Which room a file belongs to, and which rooms it may import from. A new file belongs in one of them.
ROOMS = {
    "arrays": ("masks", "attention", "positions", "norms", "recurrence"),
    "pytrees": (
        "knobs",
        "kv_cache",
        "model",
        "decoding",
        "windowed_sampling",
        "objectives",
        "data",
        "optimizer",
        "health",
        "magnitudes",
        "sharding",
        "training",
        "heldout",
        "probes",
        "costs",
        "perf",
    ),
    "results": (
        "claims",
        "statistics",
        "results",
        "measurements",
        "plots",
        "whole_files",
        "report",
    ),
    "runs": (
        "plan",
        "timing",
        "processes",
        "fitting",
        "population",
        "checkpoints",
        "resume",
        "shards",
        "members",
        "measuring",
        "norm_modes",
        "tracking",
    ),
    "entry": (
        "cli",
        "__main__",
        "commands",
        "config_files",
        "console",
        "signals",
        "sweeps",
        "checks",
        "compile_cache",
        "machine",
        "bench",
    ),
}
MAY_IMPORT = {
    "arrays": {"arrays"},
    "pytrees": {"arrays", "pytrees"},
    "results": {"results"},
    "runs": {"arrays", "pytrees", "results", "runs"},
    "entry": set(ROOMS),
}
# Third parties that are one file's business, so that replacing one of them touches one file.
OWNERS = {
    "flax": "model",
    "orbax": "checkpoints",
    "wandb": "tracking",
    "tokenizers": "data",
    "datasets": "data",
}
# What may not be mentioned in a file of these rooms.
FOREIGN = {
    "arrays": {"flax", "optax", "orbax", "wandb", "ml_collections", "rich", "matplotlib"},
    "results": {"jax", "jaxlib", "flax", "optax", "orbax", "wandb"},
}


def modules() -> list[str]:
    """Dotted names of every module of the package."""
    paths = (p.relative_to(ROOT).with_suffix("").parts for p in sorted(PACKAGE.rglob("*.py")))
    return [".".join(p[:-1] if p[-1] == "__init__" else p) for p in paths]


def source(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imports(module: str) -> set[str]:
    """Dotted names of everything a module imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source(module).read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively; the house style is absolute"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def run_python(code: str) -> str:
    """What a fresh interpreter prints, without this process's XLA and jax settings."""
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def pins(python: str) -> dict[str, str]:
    """Project -> exact version that constraints.txt asks for on a Python version."""
    found: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        requirement = Requirement(line)
        if requirement.marker and not requirement.marker.evaluate({"python_version": python}):
            continue
        (spec,) = requirement.specifier
        assert spec.operator == "==", f"not exact: {line}"
        name = canonicalize_name(requirement.name)
        assert name not in found, f"pinned twice on Python {python}: {name}"
        found[name] = spec.version
    return found


def pinned_requirements() -> list[Requirement]:
    """What pyproject.toml asks for, with the extras that the constraints cover."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = ("shakespeare", "tokenizers", "datasets", "slurm", "dashboards", "dev")
    lines = project["dependencies"] + [line for name in names for line in extras[name]]
    return [Requirement(line) for line in lines]


def tracked() -> list[Path]:
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return [path for path in paths if path.is_file()]


def test_version_is_the_one_that_is_installed() -> None:
    assert attnlab.__version__ == metadata.version("attnlab")


def test_importing_starts_no_backend_and_no_tracker() -> None:
    library = [m for m in modules() if not m.endswith("__main__")]  # importing that one runs it
    loaded = run_python(
        "import importlib, sys\n"
        f"for name in {library!r}: importlib.import_module(name)\n"
        "import jax\n"
        "jax.config.update('jax_num_cpu_devices', 3)  # refused once a backend runs\n"
        "print(jax.device_count(), 'wandb' in sys.modules)\n"
    )
    assert loaded == "3 False"


def test_cli_can_still_set_xla_flags_after_import() -> None:
    assert run_python("import sys, attnlab.cli; print('jax' in sys.modules)") == "False"


def test_judging_results_needs_no_model_code() -> None:
    names = [m for m in modules() if room(m) == "results"]
    assert run_python(
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(sorted({'jax', 'flax', 'optax', 'wandb'} & set(sys.modules)))\n"
    ) == str([])


@pytest.mark.parametrize("python", PYTHONS)
def test_ranges_admit_the_pins(python: str) -> None:
    pinned = pins(python)
    for requirement in pinned_requirements():
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} against {version}"


def test_constraints_pin_everything_that_is_installed_for_us() -> None:
    todo = pinned_requirements()
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        requirement = todo.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        for line in metadata.distribution(requirement.name).requires or []:
            child = Requirement(line)
            extras = {"", *requirement.extras}
            if child.marker is None or any(child.marker.evaluate({"extra": e}) for e in extras):
                todo.append(child)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    missing = {name for name, _ in seen} - set(pins(python))
    assert not missing


def room(module: str) -> str | None:
    """The room of a module; the package's own __init__ has none."""
    if module == "attnlab":
        return None
    top = module.split(".")[1]
    homes = [name for name, files in ROOMS.items() if top in files]
    assert homes, f"attnlab/{top} is in no room of tests/test_package.py: say which it belongs to"
    return homes[0]


@pytest.mark.parametrize("module", modules())
def test_rooms_are_entered_one_way(module: str) -> None:
    here = room(module)
    names = imports(module)
    tops = {name.split(".")[0] for name in names}
    assert not tops & {"experiments", "configs", "tests"}
    if here is None:
        return
    assert not tops & FOREIGN.get(here, set())
    for party, owner in OWNERS.items():
        assert party not in tops or module.split(".")[1] == owner, f"{party} belongs in {owner}"
    known = set(modules())
    for name in names:
        target = ".".join(name.split(".")[:2])
        if target in known and target != "attnlab":
            assert room(target) in MAY_IMPORT[here], f"{module} ({here}) imports {target}"


def test_repository_carries_no_data() -> None:
    large = [p for p in tracked() if p.stat().st_size > 1_000_000]
    assert not large, "over 1 MB"
    data = {".txt", ".csv", ".json", ".jsonl", ".bin", ".npy", ".npz", ".parquet", ".gz", ".zip"}
    corpora = [p for p in tracked() if p.suffix in data and p.stat().st_size > 100_000]
    assert not corpora, "a corpus is installed or downloaded, not committed"


def test_no_file_names_a_machine_or_a_registry() -> None:
    # The brackets keep the patterns from finding themselves.
    machine = rf"/[h]ome/\w|/[U]sers/\w|/[r]oot/\w|(?<![\w./-]){re.escape(str(ROOT))}/"
    registry = r"[p]ypi\.org|[p]ythonhosted|[n]pmjs|--(extra-)?[i]ndex-url"
    pattern = re.compile(f"{machine}|{registry}".encode())
    found = {p.name: m.group() for p in tracked() if (m := pattern.search(p.read_bytes()))}
    assert not found
