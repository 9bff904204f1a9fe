"""Who may read whom, as data: the `Mask` type, its constructors and its algebra.

A mask is an argument of attention, never a property of a layer. Every mask below has one of two
pytree structures (bounds only, or bounds and a boolean array), so one compiled block serves them
all, and changing the mask never retraces.

In every picture a row is a query, a column is a key, and `x` means "may read".
"""

from attnlab.masks.explicit import dense, graph, key_mask
from attnlab.masks.intervals import (
    block_causal,
    causal,
    chunked,
    full,
    key_padding,
    prefix_lm,
    sliding_window,
    window,
)
from attnlab.masks.mask import Mask, hull
from attnlab.masks.segments import cross_documents, documents, positions

__all__ = [
    "Mask",
    "block_causal",
    "causal",
    "chunked",
    "cross_documents",
    "dense",
    "documents",
    "full",
    "graph",
    "hull",
    "key_mask",
    "key_padding",
    "positions",
    "prefix_lm",
    "sliding_window",
    "window",
]
