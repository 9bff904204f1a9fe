"""attend(): one specification of masked attention, several implementations that must agree."""

from attnlab.attention.api import attend, choose_impl
from attnlab.attention.bias import Alibi, PositionBias, RelativeBuckets
from attnlab.attention.stats import AttentionStats

__all__ = [
    "Alibi",
    "AttentionStats",
    "PositionBias",
    "RelativeBuckets",
    "attend",
    "choose_impl",
]
