"""What can be read off a trained network: positions, what it makes of its context, where its attention goes."""

from attnlab.probes.position import (
    Errors,
    Settings,
    bag_of_prefix,
    behind_bos,
    blind_guess,
    consecutive_tokens,
    independent_tokens,
    position_errors,
    shuffled_labels,
    states,
    states_of_members,
    uniform_guess,
)

__all__ = [
    "Errors",
    "Settings",
    "bag_of_prefix",
    "behind_bos",
    "blind_guess",
    "consecutive_tokens",
    "independent_tokens",
    "position_errors",
    "shuffled_labels",
    "states",
    "states_of_members",
    "uniform_guess",
]
