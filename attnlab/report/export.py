"""The tables behind a report: every run, and every logged row."""

import csv
import importlib.util
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.results import Results, fate, flat
from attnlab.whole_files import replacing


def write_runs(results: Results, path: Path) -> None:
    """A row per run: arm, seed, id, status, what became of it, then its configuration and final numbers."""
    rows = []
    for arm in results.arms:
        for seed, run in results.runs(arm).items():
            row: dict[str, Any] = {"arm": arm, "seed": seed, "id": run.id, "status": run.status}
            row["end"] = fate(run)
            row |= {f"config.{key}": value for key, value in flat(run.config).items()}
            row |= {
                f"final.{key}": value
                for key, value in flat(run.summary).items()
                if not isinstance(value, list | tuple)
            }
            rows.append(row)
    _write_csv(path, list(dict.fromkeys(key for row in rows for key in row)), rows)


def write_history(results: Results, directory: Path) -> Path:
    """A row per run and logged step, columns without a value empty: history.parquet with pyarrow, else history.csv."""
    columns = list(
        dict.fromkeys(
            column
            for arm in results.arms
            for run in results.runs(arm).values()
            for column in run.history
        )
    )
    if importlib.util.find_spec("pyarrow") is None:
        path = directory / "history.csv"
        _write_csv(path, ["arm", "seed", "id", *columns], _history_rows(results))
        return path
    path = directory / "history.parquet"
    _write_parquet(path, ["arm", "seed", "id", *columns], list(_history_rows(results)))
    return path


def _history_rows(results: Results) -> Iterable[Mapping[str, Any]]:
    for arm in results.arms:
        for seed, run in results.runs(arm).items():
            lists = {column: np.asarray(values).tolist() for column, values in run.history.items()}
            for values in zip(*lists.values(), strict=True):
                yield {
                    "arm": arm,
                    "seed": seed,
                    "id": run.id,
                    **dict(zip(lists, values, strict=True)),
                }


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    with (
        replacing(path) as partial,
        open(partial, "w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)


def _cell(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value


def _write_parquet(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    data = {column: [row.get(column) for row in rows] for column in columns}
    with replacing(path) as partial:
        pyarrow.parquet.write_table(pyarrow.table(data), partial)
