"""`attnlab sample`: lets a trained member continue a text.

The text goes to standard output, what there is to say about it to standard error.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnlab.data.vocabulary import Tokens, Vocabulary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `attnlab sample`."""
    parser.add_argument(
        "run_directory", type=Path, metavar="RUN", help="WORKDIR/runs/ID, or WORKDIR"
    )
    parser.add_argument("--member", metavar="NAME", help="name or id, where RUN is a WORKDIR")
    parser.add_argument("--prompt", required=True, metavar="TEXT", help="the text to continue")
    parser.add_argument("--tokens", type=int, default=200, metavar="N", help="tokens to add (200)")
    parser.add_argument(
        "--temperature", type=float, default=1.0, metavar="X",
        help="divides the logits; 0 takes the likeliest token (1)",
    )  # fmt: skip
    parser.add_argument("--top-k", type=int, metavar="K", help="draw among the K likeliest (all)")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="equal seeds, equal text (0)"
    )


def run(args: argparse.Namespace, base: Mapping[str, Any]) -> int:
    """Prints the prompt and its continuation; returns 0. `base`: the configuration that holds every knob.

    Raises:
      ValueError: a flag out of range, a RUN that is none, a prompt outside the vocabulary, or a member that cannot
        continue a text.
    """
    from attnlab import compile_cache, decoding, members

    choice = decoding.Choice(args.temperature, args.top_k, args.seed)
    if args.tokens < 1:
        raise ValueError(f"--tokens: must be at least 1, got {args.tokens}")
    compile_cache.enable()
    trained = members.load(args.run_directory, args.member, base)
    try:
        decoding.check_decodable(trained.knobs)
    except ValueError as error:
        raise ValueError(f"RUN: {trained.name!r} cannot continue a text: {error}") from None
    prompt = encoded(trained.vocabulary, args.prompt).tolist()
    context = trained.architecture.context
    print(f"{trained.name}, after {trained.step} updates", file=sys.stderr)
    if len(prompt) > context:
        print(f"prompt: of {len(prompt)} tokens the last {context} are read", file=sys.stderr)
    added = decoding.generate(
        trained.task, trained.params, trained.knobs, prompt, args.tokens, choice
    )
    print(trained.vocabulary.decode([*prompt, *added]))
    return 0


def encoded(vocabulary: "Vocabulary", prompt: str) -> "Tokens":
    """The ids of a prompt.

    Raises:
      ValueError: it holds something that is not in the vocabulary: all of it is named.
    """
    try:
        return vocabulary.encode(prompt)
    except ValueError as error:
        unknown = [c for c in dict.fromkeys(prompt) if not _encodes(vocabulary, c)]
        if not unknown:
            raise ValueError(f"--prompt: {error}") from None
        raise ValueError(
            f"--prompt: {', '.join(map(repr, unknown))} not in the vocabulary; allowed: what the corpus holds "
            f"({vocabulary.size} ids)"
        ) from None


def _encodes(vocabulary: "Vocabulary", character: str) -> bool:
    try:
        vocabulary.encode(character)
    except ValueError:
        return False
    return True
