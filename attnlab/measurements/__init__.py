"""What is measured on a trained member beside its loss, as files of its run directory; computed by `attnlab.measuring`."""

from attnlab.measurements.measured import (
    LossByLength,
    Measured,
    Probes,
    ProbesBeyondReach,
    ShuffledPrefix,
    attention_entropy,
    loss_by_position,
)

__all__ = [
    "LossByLength",
    "Measured",
    "Probes",
    "ProbesBeyondReach",
    "ShuffledPrefix",
    "attention_entropy",
    "loss_by_position",
]
