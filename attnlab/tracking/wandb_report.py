"""A sweep's report as a W&B run of its own in the sweep's group: job type "report", the verdict as its summary, the
page and every figure as media.

Used by the mirror's child process alone, which hands in wandb. Only `WORKDIR/report` is sent; one that says the same
as what was delivered is not sent again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = "report"
JOB_TYPE = "report"


@dataclass(frozen=True)
class SweepReport:
    """The report in `folder`: what `report.json` says of it, and the digest of that file."""

    folder: Path
    manifest: dict[str, Any]
    digest: str

    @property
    def run_id(self) -> str:
        """The id of the report's run: no member's, because those end in ten hex digits."""
        return f"{self.manifest['sweep']}-{JOB_TYPE}"

    def media(self, wandb: Any) -> dict[str, Any]:
        """The row that holds the page and the figures; what has gone from the disk is left out."""
        row: dict[str, Any] = {}
        page = self.folder / self.manifest["page"]
        if page.is_file():
            row["report"] = wandb.Html(page.read_text(encoding="utf-8"), inject=False)
        for figure in self.manifest["figures"]:
            file = self.folder / figure["file"]
            if file.is_file():
                row[f"figures/{figure['name']}"] = wandb.Image(str(file), caption=figure["caption"])
        return row


def find(workdir: Path) -> SweepReport | None:
    """The report of a sweep; None where there is none that can be read."""
    folder = workdir / FOLDER
    try:
        data = (folder / "report.json").read_bytes()
        manifest = json.loads(data)
        if not {"sweep", "tags", "summary", "page", "figures"} <= manifest.keys():
            return None
    except (OSError, ValueError, AttributeError):
        return None
    return SweepReport(folder, manifest, hashlib.sha256(data).hexdigest())
