"""`attnlab data`: what a corpus holds, before anything is trained on it; or the same, written as a token file."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnlab.data.corpora import Corpus

SHOWN_TOKENS = 12  # of the sample, as pieces


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `attnlab data`."""
    parser.add_argument(
        "corpus", metavar="CORPUS", help="shakespeare, text:PATH, hf:NAME, tokens:PATH, ..."
    )
    parser.add_argument(
        "--tokenizer", default="char", metavar="T", help="char, bytes or bpe:V (char)"
    )
    parser.add_argument(
        "--sample", type=int, default=300, metavar="N",
        help="characters of the validation split to show (300)",
    )  # fmt: skip
    parser.add_argument(
        "--write", type=Path, metavar="DIR", help="also write a token file, to be named tokens:DIR"
    )


def run(args: argparse.Namespace) -> int:
    """Prints splits, reference losses and a sample, and writes the token file; returns 0.

    Raises:
      ValueError: a flag out of range, a directory that exists, or a corpus that cannot be had (`corpora.load`).
    """
    from attnlab import console
    from attnlab.data import corpora, references, token_files

    if args.sample < 0:
        raise ValueError(f"--sample: must be at least 0, got {args.sample}")
    if args.write is not None and args.write.exists():
        raise ValueError(f"--write: {args.write} exists; allowed: a new directory")
    corpus = corpora.load(args.corpus, args.tokenizer)
    if args.corpus.startswith("tokens:"):
        token_files.check_digest(
            args.corpus, Path(args.corpus.removeprefix("tokens:")).expanduser()
        )
    console.print_table(*splits_table(corpus))
    for line in facts(corpus):
        console.say(line)
    losses = {name: loss.held_out for name, loss in references.reference_losses(corpus).items()}
    console.print_table(*losses_table(corpus, losses))
    for line in sample(corpus, args.sample):
        console.say(line)
    if args.write is not None:
        token_files.write(corpus, args.write)
        console.say(f"written: tokens:{args.write}")
    return 0


Rows = tuple[str, list[str], list[list[str]]]


def splits_table(corpus: "Corpus") -> Rows:
    """Title, columns and rows: tokens, documents and text of each split."""
    from attnlab.data.corpora import SPLITS

    rows = []
    for split in SPLITS:
        tokens = len(corpus.split(split))
        documents = "-" if corpus.documents is None else f"{len(corpus.documents[split]):,}"
        size = None if corpus.text_bytes is None else corpus.text_bytes[split]
        text = ["-", "-"] if size is None else [f"{size:,}", f"{size / tokens:.3f}"]
        rows.append([split, f"{tokens:,}", documents, *text])
    columns = ["split", "tokens", "documents", "bytes of text", "bytes per token"]
    return f"{corpus.name} ({corpus.tokenizer})", columns, rows


def facts(corpus: "Corpus") -> list[str]:
    """What is true of the corpus as a whole."""
    from attnlab.data import feed

    size = corpus.train.nbytes
    where = "windows are cut on the host" if feed.on_host(corpus) else "goes to the device whole"
    return [
        f"vocabulary: {corpus.vocabulary.size:,} ids",
        f"training split: {size / 1e6:,.1f} MB as {corpus.train.dtype}; {where}",
        f"sha256: {corpus.sha256}",
    ]


def losses_table(corpus: "Corpus", losses: dict[str, float]) -> Rows:
    """Title, columns and rows: what n-gram tables of the training split reach on the validation split."""
    bits = corpus.bits_per_nat()
    rows = [
        [name, f"{loss:.4f}", "-" if bits is None else f"{loss * bits:.4f}"]
        for name, loss in losses.items()
    ]
    return "loss on the validation split", ["n-gram table", "nats per token", "bits per byte"], rows


def sample(corpus: "Corpus", characters: int) -> list[str]:
    """The beginning of the validation split: some characters of it, and its first tokens one by one."""
    if characters == 0:
        return []
    ids = corpus.validation[:characters]  # a token is a character at least, or a part of one
    pieces = [repr(corpus.vocabulary.decode([i])) for i in ids[:SHOWN_TOKENS]]
    return [
        f"first tokens of validation: {' '.join(pieces)}",
        corpus.vocabulary.decode(ids)[:characters],
    ]
