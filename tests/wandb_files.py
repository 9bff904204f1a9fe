"""Reads the `.wandb` file of an offline run, without wandb's own reader.

The file is a LevelDB log: a 7-byte header, then blocks of 32 KiB holding chunks of checksum (4
bytes), length (2), type (1: whole, 2: first, 3: middle, 4: last) and payload; a record is one whole
chunk or a first-to-last sequence, and holds one protobuf message.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK = 32 * 1024
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


@dataclass
class OfflineRun:
    """What one offline file says."""

    id: str = ""
    group: str = ""
    job_type: str = ""
    name: str = ""
    tags: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, str] = field(default_factory=dict)
    """Metric name or glob -> what its x axis is, by `define_metric`."""
    exit_code: int | None = None


def read_offline(workdir: Path) -> dict[str, list[OfflineRun]]:
    """Run id -> its offline files, oldest first."""
    runs: dict[str, list[OfflineRun]] = {}
    for file in sorted(workdir.glob("wandb/offline-run-*/run-*.wandb")):
        run = read_run(file)
        runs.setdefault(run.id, []).append(run)
    return runs


def read_run(file: Path) -> OfflineRun:
    """The records of one file, put together."""
    from wandb.proto import wandb_internal_pb2

    run = OfflineRun()
    for payload in records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(payload)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run.id, run.group, run.job_type = (
                record.run.run_id,
                record.run.run_group,
                record.run.job_type,
            )
            run.name, run.tags = record.run.display_name, tuple(record.run.tags)
            run.config.update(_items(record.run.config.update))
        elif kind == "history":
            run.history.append(_items(record.history.item))
        elif kind == "summary":
            run.summary.update(_items(record.summary.update))
        elif kind == "metric":
            run.metrics[record.metric.name or record.metric.glob_name] = record.metric.step_metric
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    return run


def records(data: bytes) -> Iterator[bytes]:
    """The payloads of a LevelDB log, up to where it was cut off."""
    assert data[:4] == b":W&B", "not a .wandb file"
    position, parts = 7, []
    while position + 7 <= len(data):
        room = BLOCK - position % BLOCK
        if room < 7:  # the rest of a block that no header fits into
            position += room
            continue
        checksum, length, kind = struct.unpack_from("<IHB", data, position)
        payload = data[position + 7 : position + 7 + length]
        if len(payload) < length:
            return
        assert zlib.crc32(bytes([kind]) + payload) == checksum, f"damaged at byte {position}"
        position += 7 + length
        parts = [payload] if kind in (WHOLE, FIRST) else [*parts, payload]
        if kind in (WHOLE, LAST):
            yield b"".join(parts)


def _items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
