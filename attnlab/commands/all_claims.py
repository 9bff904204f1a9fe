"""All claims at once: what each asks and costs (`attnlab claims`), and every one of them run (`reproduce --all`)."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from attnlab import config_files, console, costs, knobs, objectives, sweeps
from attnlab.claims import Claim
from attnlab.claims.outcomes import markdown_rows
from attnlab.data import tokenizing
from attnlab.report import index
from attnlab.results import Results
from attnlab.tracking import RunResult, read_runs, read_sweep
from attnlab.tracking.files import read_json
from attnlab.training import Task
from attnlab.whole_files import replacing

FAILED = 1
TABLE = "claims.md"
BYTES = 256
CHARACTERS = 65  # of Shakespeare; a corpus is not read to say what a sweep of it costs


@dataclass(frozen=True)
class Cost:
    """What training a preset takes. `operations`: of the matrix products, as `costs.flops_per_update` counts them."""

    members: int
    programs: int
    updates: int
    operations: float

    def __str__(self) -> str:
        return (
            f"{self.members} members in {self.programs} program{'s' * (self.programs != 1)}, "
            f"{self.updates:,} updates, {_scaled(self.operations)}FLOP"
        )


def _scaled(operations: float) -> str:
    power = min(max(int(math.log10(max(operations, 1.0))) // 3, 3), 6)
    return f"{operations / 10 ** (3 * power):.3g} {' KMGTPE'[power]}"


def cost(claim: str, preset: str) -> Cost:
    """Counted from the configurations alone; a character vocabulary counts as Shakespeare's.

    Raises:
      ValueError: no such claim or preset.
    """
    file = config_files.load(f"{config_files.CHECKOUT / 'configs' / claim}.py:{preset}")
    configs = sweeps.expand(file.config, file.members(claim))
    programs, updates, operations = set(), 0, 0.0
    for config in configs:
        vocabulary = tokenizing.bpe_size(config["tokenizer"]) or (
            BYTES if config["tokenizer"] == "bytes" else CHARACTERS
        )
        inputs = objectives.Inputs(mask_id=vocabulary, bos_id=vocabulary + 1)
        arch = knobs.architecture(config, vocab_size=vocabulary, input_size=vocabulary + 2)
        task = Task(arch, knobs.budget(config), inputs)
        programs.add((knobs.without_families(arch), task.budget))
        updates += config["steps"]
        operations += config["steps"] * costs.flops_per_update(task)
    return Cost(len(configs), len(programs), updates, operations)


def list_them(claims: Mapping[str, Claim], runs: Path) -> None:
    """Prints each claim: its sentence, source, presets with their costs, and the newest verdicts below `runs`."""
    found = last_verdicts(runs)
    for name, claim in claims.items():
        console.say(f"{name}: {claim.statement}")
        console.say(f"    source: {claim.source}")
        for preset, text in claim.presets.items():
            console.say(f"    attnlab reproduce {name} --preset {preset}: {text}")
            console.say(f"        {cost(name, preset)}")
            if (verdict := found.get(f"{name}-{preset}")) is not None:
                console.say(f"        last here: {verdict}")


def last_verdicts(runs: Path) -> dict[str, str]:
    """Sweep name -> its newest verdict in words, of the directories up to two levels below `runs`."""
    newest: dict[str, tuple[float, str]] = {}
    for file in (*runs.glob("*/verdict.json"), *runs.glob("*/*/verdict.json")):
        try:
            sweep = read_sweep(file.parent)["name"]
            told = json.loads(file.read_text(encoding="utf-8"))
            parts = ", ".join(f"{part} {verdict}" for part, verdict in told["verdicts"].items())
            when = file.stat().st_mtime
        except (OSError, ValueError, KeyError, AttributeError):
            continue  # not ours, or being written
        day = datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d")
        words = f"{told['verdict']} ({parts}), {day}, {file.parent}"
        newest[sweep] = max(newest.get(sweep, (0.0, "")), (when, words))
    return {sweep: words for sweep, (_, words) in newest.items()}


def reproduce(
    claims: Mapping[str, Claim], preset: str, root: Path, one: Callable[[str, Path], int]
) -> int:
    """Runs every claim that has the preset, each in `root/NAME`, and keeps the index page and `claims.md` up to date.

    `one(name, workdir)` runs a claim and returns its exit code. A claim that fails does not keep the others from
    running; a signal does. Returns 0, or 1 where a claim failed, or 128 + the signal.
    """
    chosen = [name for name, claim in claims.items() if preset in claim.presets]
    for name in claims.keys() - set(chosen):
        console.say(f"{name}: has no preset {preset!r}, passed over")
    code = 0
    # A claim's directory changes while that claim runs, and only then: it is read and judged again after that alone.
    found = {name: entry(claims[name], root) for name in chosen}
    for number, name in enumerate(chosen, 1):
        console.say(f"claim {number}/{len(chosen)}: {name}")
        try:
            ended = one(name, root / name)
        except (ValueError, TypeError, OSError) as error:
            console.say(f"{name}: failed: {' '.join(str(error).split())}")
            ended = FAILED
        found[name] = entry(claims[name], root)
        page = index.build(list(found.values()), root, title=f"{preset} presets")
        write_table(found.values(), root / TABLE)
        if ended > 128:
            return ended
        code = code or ended
    console.print_paths({"index": page, "table": root / TABLE})
    return code


def write_table(found: Iterable[index.Entry], path: Path) -> None:
    """The verdicts as a Markdown table, a row per sub-claim."""
    lines = ["| claim | source | how it is checked | verdict | date | commit |", "|---" * 6 + "|"]
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    for one in found:
        if one.outcome is not None:
            preset = one.sweep.removeprefix(f"{one.claim.name}-")
            how = f"attnlab reproduce {one.claim.name} --preset {preset}"
            lines += markdown_rows(one.outcome, how=how, date=date, commit=one.commit)
    with replacing(path) as partial:
        partial.write_text("\n".join(lines) + "\n", encoding="utf-8")


def entry(claim: Claim, root: Path) -> index.Entry:
    """The claim as it stands in `root/NAME`."""
    workdir = root / claim.name
    if not (workdir / "sweep.json").exists():
        return index.Entry(claim, why="not run")
    report = workdir / "report" / "report.html"
    link = f"{claim.name}/report/report.html" if report.exists() else None
    sweep, runs = read_sweep(workdir)["name"], read_runs(workdir)
    try:
        outcome = claim.judge(Results(runs))
    except ValueError as error:
        return index.Entry(claim, sweep, why=f"not judged: {error}", report=link)
    return index.Entry(claim, sweep, outcome, report=link, commit=_commit(runs))


def _commit(runs: Iterable[RunResult]) -> str:
    """Short hash that the first run was trained at, with a + where files had changed; "-" where it is not known."""
    for run in runs:
        git = (read_json(run.path / "environment.json", default=[]) or [{}])[-1].get("git") or {}
        if git.get("commit"):
            return f"{git['commit'][:7]}{'+' * bool(git.get('dirty'))}"
    return "-"
