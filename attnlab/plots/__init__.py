"""Figures of results, one style for all: curves and verdicts here, and a module for each kind of measurement."""

from attnlab.plots.base import (
    COLOURS,
    DASHES,
    STYLE,
    VERDICT_COLOURS,
    NothingToDrawError,
    forest,
    gap_by_tokens,
    loss_by_tokens,
    mask_gallery,
    save,
)

__all__ = [
    "COLOURS",
    "DASHES",
    "STYLE",
    "VERDICT_COLOURS",
    "NothingToDrawError",
    "forest",
    "gap_by_tokens",
    "loss_by_tokens",
    "mask_gallery",
    "save",
]
