"""Asking a run to stop: a signal sets a flag that the training loop polls, so that nothing is lost.

A Python exception raised inside a compiled call or between two writes would leave work half recorded; a flag
does not. The second Ctrl-C stops at once.
"""

import signal
from types import FrameType, TracebackType
from typing import Self

# SLURM announces the end of an allocation with USR1 or USR2, a preemption with TERM.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class StopFlag:
    """Context manager: within it the stop signals set `received`; calling it says whether one came."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}

    def __call__(self) -> bool:
        return self.received is not None

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, what a shell reports for it."""
        return 0 if self.received is None else 128 + self.received

    def __enter__(self) -> Self:
        self._before = {s: signal.signal(s, self._on_signal) for s in STOP_SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
