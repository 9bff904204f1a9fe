"""The ledger: claims that hold exactly or at initialisation, each computed with attnlab's own code in seconds.

    attnlab check                    everything
    attnlab check I12                one claim, with all its measurements
    attnlab check 'M*' --seed 7      a group, other random numbers
    attnlab check --errata           what the sources get wrong

A claim is a function of a seed whose docstring says it in one sentence; deliberately wrong variants stand beside the
claim that exposes them. Thresholds were written down before they were measured and are not tuned.

Everything was measured on CPU. On an accelerator matrix products are asked for in full float32, which the thresholds
assume; that has not been run.
"""

from attnlab.checks import in_order
from experiments.exact import (
    attention,
    averaging,
    batch,
    biases,
    depth,
    edges,
    initialisation,
    masks,
    positions,
    scaling,
)
from experiments.exact.errata import ERRATA

SOURCES = {
    "Six notes": "Six notes on attention: study notes to part 5 of Karpathy, Let's build GPT (2023), 71:38 to 78:44",
    "One line changed": "One line changed: where every symbol in the attention formula comes from (study notes to the same lecture)",
    "On paper": "Attention, worked on paper (study guide)",
    "attnlab": "derived here",
}

CHECKS = in_order(
    (
        *positions.CHECKS,
        *masks.CHECKS,
        *batch.CHECKS,
        *biases.CHECKS,
        *attention.CHECKS,
        *averaging.CHECKS,
        *scaling.CHECKS,
        *initialisation.CHECKS,
        *depth.CHECKS,
        *edges.CHECKS,
    )
)

__all__ = ["CHECKS", "ERRATA", "SOURCES"]
