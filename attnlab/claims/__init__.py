"""Claims and how they are judged: what is said, what would show it, and the verdict. Knows results, never a model."""

from attnlab.claims.claim import (
    EXPERIMENTS,
    Claim,
    ClaimFigure,
    Control,
    Gap,
    Measurement,
    Published,
    SubClaim,
    Trend,
    below_reference,
    experiment_module,
)

__all__ = [
    "EXPERIMENTS",
    "Claim",
    "ClaimFigure",
    "Control",
    "Gap",
    "Measurement",
    "Published",
    "SubClaim",
    "Trend",
    "below_reference",
    "experiment_module",
]
