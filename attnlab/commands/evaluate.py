"""`attnlab eval`: the loss of a trained member on held-out text, with error bars, overall and by position."""

import argparse
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from attnlab.heldout import BlockLosses
    from attnlab.members import Trained
    from attnlab.statistics import Interval

SPLITS = {"test": "test", "val": "validation"}
SEGMENTS = 8
LEAST_RESAMPLES = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `attnlab eval`."""
    parser.add_argument(
        "run_directory", type=Path, metavar="RUN", help="WORKDIR/runs/ID, or WORKDIR"
    )
    parser.add_argument("--member", metavar="NAME", help="name or id, where RUN is a WORKDIR")
    parser.add_argument("--split", choices=tuple(SPLITS), default="test", help="which text (test)")
    parser.add_argument(
        "--windows", type=int, metavar="N", help="windows, evenly spread (the whole split)"
    )
    parser.add_argument(
        "--blocks", type=int, default=100, metavar="N",
        help="stretches of text that the interval resamples (100)",
    )  # fmt: skip
    parser.add_argument(
        "--bootstrap", type=int, default=10_000, metavar="N", help="resamples (10000)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything as JSON")
    parser.add_argument(
        "--png",
        type=Path,
        metavar="FILE.png",
        help="also draw the loss by position, as PNG and SVG",
    )


def run(args: argparse.Namespace, base: Mapping[str, Any]) -> int:
    """Evaluates, prints, writes; returns 0. `base`: the configuration that holds every knob.

    Raises:
      ValueError: a flag out of range or a RUN that is none; before anything is computed.
    """
    _check(args)
    from attnlab import compile_cache, console, heldout, members

    compile_cache.enable()
    trained = members.load(args.run_directory, args.member, base)
    tokens = getattr(trained.corpus, SPLITS[args.split])
    starts = _flagged(
        heldout.window_starts, len(tokens), trained.architecture.context, args.windows
    )
    if len(starts) < 2:
        raise ValueError(
            f"--split: {args.split} of {trained.corpus.name!r} holds one window of {trained.architecture.context} "
            "tokens, too few for an interval; allowed: a longer text"
        )
    blocks = min(args.blocks, len(starts))
    found = trained.corpus.documents if trained.task.budget.packed else None
    documents = None if found is None else found[SPLITS[args.split]]
    losses = heldout.block_losses(
        trained.task, trained.params, trained.knobs, tokens, starts, blocks, documents
    )
    report = judge(trained, args.split, losses, starts, args.bootstrap)
    for title, columns, rows in report.tables():
        console.print_table(title, columns, rows)
    if args.json:
        from attnlab.tracking.files import write_json

        write_json(args.json, report.record())
    if args.png:
        from attnlab import plots
        from attnlab.plots import heldout_plots

        figure = heldout_plots.loss_by_position(
            report.subject, report.by_position, report.segments, report.references
        )
        plots.save(figure, args.png)
    return 0


@dataclass(frozen=True)
class Report:
    """Everything that `attnlab eval` found, in nats per target.

    `bytes_per_target`, `characters_per_target`: of the text that was predicted; None where there is no such text
    (numbers, hidden tokens). `references`: n-gram models counted on the training split, on this split.
    """

    run: str
    member: str
    step: int
    corpus: str
    split: str
    windows: int
    targets: int
    loss: "Interval"
    bytes_per_target: float | None
    characters_per_target: float | None
    references: dict[str, float]
    by_position: "np.ndarray"
    segments: list[tuple[int, int, "Interval"]]

    @property
    def subject(self) -> str:
        """Which member, after how many updates, on which text."""
        return f"{self.member}, {self.step} updates, {self.split} of {self.corpus}"

    def bits(self, targets_per_unit: float = 1.0) -> float:
        """Bits per unit of which there are `1 / targets_per_unit` in a target."""
        return self.loss.mean / math.log(2) * targets_per_unit

    def tables(self) -> list[tuple[str, Sequence[str], list[Sequence[str]]]]:
        """(title, columns, rows): the numbers, then the loss by position."""
        numbers = [("loss, nats per token", f"{self.loss.mean:.4f}", _range(self.loss))]
        for unit, value in self.rates().items():
            scale = value / self.loss.mean
            ends = f"{self.loss.low * scale:.4f} to {self.loss.high * scale:.4f}"
            numbers.append((f"bits per {unit}", f"{value:.4f}", ends))
        perplexity, low, high = (
            math.exp(x) for x in (self.loss.mean, self.loss.low, self.loss.high)
        )
        numbers.append(("perplexity", f"{perplexity:.3f}", f"{low:.3f} to {high:.3f}"))
        numbers += [
            (f"{name} model, nats", f"{nats:.4f}", "") for name, nats in self.references.items()
        ]
        title = (
            f"{self.subject}: {self.targets:,} targets in {self.windows:,} windows, interval over "
            f"{self.loss.n} blocks"
        )
        ranges: list[Sequence[str]] = [
            (f"{start + 1} to {stop}", f"{interval.mean:.4f}", _range(interval))
            for start, stop, interval in self.segments
        ]
        level = f"{self.loss.level:.0%} interval"
        return [
            (title, ("", "value", level), list(numbers)),
            ("loss by target position", ("positions", "nats per token", level), ranges),
        ]

    def rates(self) -> dict[str, float]:
        """Bits per token, character and byte, as far as they mean something."""
        units = {
            "token": 1.0,
            "character": self.characters_per_target,
            "byte": self.bytes_per_target,
        }
        return {unit: self.bits(1 / size) for unit, size in units.items() if size}

    def record(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "format": 1,
            "run": self.run,
            "member": self.member,
            "step": self.step,
            "corpus": self.corpus,
            "split": self.split,
            "windows": self.windows,
            "targets": self.targets,
            "loss": vars(self.loss),
            "bits": self.rates(),
            "perplexity": math.exp(self.loss.mean),
            "references": self.references,
            "loss_by_position": self.by_position.tolist(),
            "segments": [
                {"first": start, "stop": stop, **vars(interval)}
                for start, stop, interval in self.segments
            ],
        }


def judge(
    trained: "Trained", split: str, losses: "BlockLosses", starts: "np.ndarray", resamples: int
) -> Report:
    """Intervals, rates and references of what was computed."""
    from attnlab import statistics
    from attnlab.data import references

    context = trained.architecture.context
    edges = [context * i // SEGMENTS for i in range(SEGMENTS + 1)]
    corpus = trained.corpus
    found = references.reference_losses(corpus, split=SPLITS[split])
    size = _text_size(trained, split, starts)
    targets = int(losses.counts_KT.sum())

    def interval(start: int, stop: int) -> "Interval":
        nats_K, targets_K = losses.segment(start, stop)
        if not targets_K.all():
            raise ValueError(
                f"--blocks: got {len(targets_K)}, some of them without a target at positions {start + 1} to {stop}; "
                "allowed: fewer, larger blocks"
            )
        return statistics.ratio_interval(nats_K, targets_K, resamples=resamples)

    return Report(
        run=trained.id,
        member=trained.name,
        step=trained.step,
        corpus=corpus.name,
        split=split,
        windows=len(starts),
        targets=targets,
        loss=interval(0, context),
        bytes_per_target=size and size[0] / targets,
        characters_per_target=size and size[1] / targets,
        references={name: loss.held_out for name, loss in found.items()},
        by_position=losses.by_position,
        segments=[
            (start, stop, interval(start, stop))
            for start, stop in itertools.pairwise(edges)
            if losses.counts_KT[:, start:stop].any()  # a prefix has no targets
        ],
    )


def _text_size(trained: "Trained", split: str, starts: "np.ndarray") -> tuple[int, int] | None:
    """(UTF-8 bytes, characters) of all targets; None where they are no running text."""
    import numpy as np

    from attnlab.data.vocabulary import NumberVocabulary

    objective = trained.knobs.objective
    reordered = int(objective.order) != 0
    hidden = float(objective.mask_rate) > 0
    if hidden or reordered or isinstance(trained.vocabulary, NumberVocabulary):
        return None
    asked = np.arange(trained.architecture.context) + int(objective.offset)
    asked = asked[asked >= int(objective.prefix)] - int(objective.bos)
    tokens = getattr(trained.corpus, SPLITS[split])
    text = trained.vocabulary.decode(np.asarray(tokens[(starts[:, None] + asked[None, :]).ravel()]))
    return len(text.encode()), len(text)


def _check(args: argparse.Namespace) -> None:
    if args.windows is not None and args.windows < 2:
        raise ValueError(f"--windows: must be at least 2, got {args.windows}")
    if args.blocks < 2:
        raise ValueError(f"--blocks: an interval needs at least 2, got {args.blocks}")
    if args.bootstrap < LEAST_RESAMPLES:
        raise ValueError(
            f"--bootstrap: must be at least {LEAST_RESAMPLES} resamples, got {args.bootstrap}"
        )
    for flag, path, suffix in (("--json", args.json, ".json"), ("--png", args.png, ".png")):
        if path is not None and (path.suffix != suffix or not path.parent.is_dir()):
            raise ValueError(
                f"{flag}: got {str(path)!r}; allowed: a {suffix} file in a directory that exists"
            )


def _flagged(f: Any, *args: Any) -> Any:
    """What `f` gives; its complaint about an argument as one about the flag."""
    try:
        return f(*args)
    except ValueError as error:
        raise ValueError(f"--{error}") from None


def _range(interval: "Interval") -> str:
    return f"{interval.low:.4f} to {interval.high:.4f}"
