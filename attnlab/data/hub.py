"""Datasets of the Hugging Face hub, or local ones: streamed once into a text file of the cache.

    hf:NAME[:CONFIG[:COLUMN[:SPLIT]]]

    hf:roneneldan/TinyStories                        its column `text`
    hf:Salesforce/wikitext:wikitext-2-raw-v1         a configuration of it
    hf:ccdv/arxiv-summarization::article             the default configuration, another column
    hf:allenai/c4:en:text:train[:100000]             the first 100 000 rows of a split
    hf:./my_folder                                   a folder of .jsonl, .parquet, .csv or .txt files

Without SPLIT, a dataset with the splits `train`, `validation` and `test` keeps them; of any other, `train` is cut by
position like every text. Each row is a document; rows without text are left out and counted. The cache does not look
whether a remote dataset has changed: delete its folder there to fetch it again. Needs the extra `datasets`.
"""

from __future__ import annotations

import array
import hashlib
import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.data import cache
from attnlab.data.cache import CorpusError
from attnlab.data.corpus import SPLITS
from attnlab.data.texts import Text

FORMAT, VERSION = "attnlab-text", 1
_FORM = "allowed: hf:NAME[:CONFIG[:COLUMN[:SPLIT]]], SPLIT being a name or NAME[:ROWS]"
_REPORT_ROWS = 1000  # rows between two steps of the progress bar


@dataclass(frozen=True)
class Source:
    """What of which dataset; `split` None is all three of a dataset that has them, `rows` None all rows."""

    dataset: str
    config: str | None
    column: str
    split: str | None
    rows: int | None


def parse(name: str, argument: str) -> Source:
    """The source that `hf:argument` names.

    Raises:
      ValueError: a name of another form.
    """
    dataset, config, column, split = [*argument.split(":", 3), "", "", ""][:4]
    match = re.fullmatch(r"(\w+)(?:\[:(\d{1,18})\])?", split) if split else None
    if not dataset or (split and match is None):
        raise ValueError(f"corpus {name!r}: not a dataset; {_FORM}")
    rows = int(match[2]) if match and match[2] else None
    if rows == 0:
        raise ValueError(f"corpus {name!r}: 0 rows; {_FORM}")
    return Source(dataset, config or None, column or "text", match[1] if match else None, rows)


def read(name: str, argument: str, cache_dir: Path) -> Text:
    """The text of a dataset, memory-mapped from the cache; streamed there first if it is not.

    Raises:
      ValueError: a name of another form.
      CorpusError: `datasets` is not installed, no network, no such dataset, configuration, split or column, no text,
        or the cache cannot be written.
    """
    source = parse(name, argument)
    place = _place(source, cache_dir)
    if not place.exists():
        if importlib.util.find_spec("datasets") is None:
            raise CorpusError(
                f"corpus {name!r}: the package datasets is not installed; pip install 'attnlab[datasets]' "
                f"(or pip install datasets)"
            )
        with cache.building(place) as part:
            _stream(name, source, part)
    return _open(name, place)


def _place(source: Source, cache_dir: Path) -> Path:
    """The folder of the cache. A local dataset is another one when one of its files has changed."""
    local = Path(source.dataset).expanduser()
    files = sorted(p for p in local.rglob("*") if p.is_file()) if local.exists() else []
    stamps = [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    text = json.dumps([VERSION, source.__dict__, stamps], sort_keys=True)
    safe = re.sub(r"[^A-Za-z0-9.-]+", "_", source.dataset).strip("._") or "dataset"
    return cache_dir / "texts" / f"{safe[-60:]}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


def _stream(name: str, source: Source, place: Path) -> None:
    """Writes text.bin, documents.bin and header.json."""
    rows = empty = 0
    starts, ends, digest = array.array("q"), [], hashlib.sha256()
    with (place / "text.bin").open("xb") as file, _Bar(name) as bar:
        for split in _splits(name, source):
            begin = file.tell()
            for text in _texts(name, source, split):
                rows += 1
                raw = text.encode()
                empty += not raw
                if raw:
                    starts.append(file.tell())
                    digest.update(raw)
                    file.write(raw)
                bar.at(rows, file.tell())
            if file.tell() == begin:
                raise CorpusError(
                    f"corpus {name!r}: column {source.column!r} of split {split!r} has no text in {rows} rows"
                )
            ends.append(file.tell())
        bar.end(rows, file.tell())
    np.array(starts, "<i8").tofile(place / "documents.bin")
    header = {
        "format": FORMAT, "version": VERSION, "sha256": digest.hexdigest(), "bytes": ends[-1],
        "rows": rows, "empty_rows": empty, "source": source.__dict__,
        "cuts": ends[:2] if len(ends) == len(SPLITS) else None,
    }  # fmt: skip
    (place / "header.json").write_text(json.dumps(header, indent=2) + "\n", encoding="utf-8")


def _splits(name: str, source: Source) -> tuple[str, ...]:
    """The splits to read, in order."""
    import datasets

    if source.split is not None:
        return (source.split,)
    try:
        found = datasets.get_dataset_split_names(source.dataset, source.config)
    except Exception as error:
        raise _unavailable(name, error) from error
    return SPLITS if set(SPLITS) <= set(found) else ("train",)


def _texts(name: str, source: Source, split: str) -> Iterator[str]:
    """The column of each row."""
    import datasets

    try:
        stream = datasets.load_dataset(source.dataset, source.config, split=split, streaming=True)
        for number, row in enumerate(stream):
            if number == source.rows:
                return
            yield _cell(name, source.column, number, row)
    except CorpusError:
        raise
    except Exception as error:
        raise _unavailable(name, error) from error


def _cell(name: str, column: str, number: int, row: dict[str, Any]) -> str:
    if column not in row:
        raise CorpusError(
            f"corpus {name!r}: no column {column!r}; allowed: {', '.join(sorted(row))}, as "
            f"hf:NAME:CONFIG:COLUMN"
        )
    text = row[column]
    if text is not None and not isinstance(text, str):
        raise CorpusError(
            f"corpus {name!r}: column {column!r} of row {number} is {type(text).__name__}; allowed: a "
            f"column of text"
        )
    return text or ""


def _unavailable(name: str, error: Exception) -> CorpusError:
    """Whatever `datasets` says, in one line with a way out."""
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    if isinstance(error, ConnectionError | TimeoutError):
        way_out = "with no network, name a local folder or use a text that is here"
    else:
        way_out = _FORM
    return CorpusError(f"corpus {name!r}: cannot be read: {reason}; {way_out}")


def _open(name: str, place: Path) -> Text:
    try:
        header = json.loads((place / "header.json").read_text(encoding="utf-8"))
        raw = np.memmap(place / "text.bin", np.uint8, mode="r")
        starts = np.fromfile(place / "documents.bin", "<i8")
        if len(raw) != header["bytes"] or len(starts) != header["rows"] - header["empty_rows"]:
            raise ValueError("sizes do not agree")
        cuts = header["cuts"]
        return Text(raw, starts, header["sha256"], None if cuts is None else (cuts[0], cuts[1]))
    except (OSError, ValueError, KeyError) as error:
        raise CorpusError(
            f"corpus {name!r}: {place} is damaged ({error}); delete it to fetch the dataset again"
        ) from error


class _Bar:
    """Rows and megabytes on a terminal while they come; one line at the end elsewhere."""

    def __init__(self, name: str):
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._name, self._console = name, Console(stderr=True, highlight=False, soft_wrap=True)
        self._bars = Progress(
            SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn(),
            console=self._console, transient=True, disable=not self._console.is_terminal,
        )  # fmt: skip
        self._task = self._bars.add_task(self._text(0, 0), total=None)

    def _text(self, rows: int, size: int) -> str:
        return f"{self._name}: {rows:,} rows, {size / 1e6:,.1f} MB of text"

    def at(self, rows: int, size: int) -> None:
        if rows % _REPORT_ROWS == 0:
            self._bars.update(self._task, description=self._text(rows, size))

    def end(self, rows: int, size: int) -> None:
        self._console.print(self._text(rows, size), markup=False)

    def __enter__(self) -> _Bar:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()
