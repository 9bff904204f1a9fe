"""Asking a run to stop: a signal sets a flag that the training loop polls, so that nothing is lost.

A Python exception raised inside a compiled call or between two writes would leave work half recorded; a flag
does not. A Ctrl-C after that stops at once, also where Python cannot run a handler, as in a compilation.
"""

import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

# SLURM announces the end of an allocation with USR1 or USR2, a preemption with TERM, and may send several of them:
# only a person's second Ctrl-C means that what is being saved does not matter.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
PATIENCE = 3.0
"""Seconds that a second Ctrl-C leaves for rows to reach the disk, before the process ends whatever it does."""


class StopFlag:
    """Context manager: within it the stop signals set `received`; calling it says whether to stop.

    `agreed`: for a job of several processes, which must all stop at the same place or wait for each other for ever.
    It gets how often this flag was asked, which all of them ask equally often, and answers alike in all of them
    (`checkpoints.reached_preemption`). It follows SIGTERM, in a handler of jax's own that one of Python's would
    replace: so there SIGTERM is left alone and the other signals are turned into it.
    """

    def __init__(self, agreed: Callable[[int], bool] | None = None) -> None:
        self.received: signal.Signals | None = None
        self._agreed = agreed
        self._asked, self._together = 0, False
        self._before: dict[signal.Signals, object] = {}
        self._left = threading.Event()

    def __call__(self) -> bool:
        if self._agreed is None:
            return self.received is not None
        self._asked += 1
        self._together = self._together or self._agreed(self._asked)
        if self._together and self.received is None:
            self.received = signal.SIGTERM  # what another process of the job got
        return self._together

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, what a shell reports for it."""
        return 0 if self.received is None else 128 + self.received

    def __enter__(self) -> Self:
        handled = [s for s in STOP_SIGNALS if self._agreed is None or s != signal.SIGTERM]
        self._before = {s: signal.signal(s, self._on_signal) for s in handled}
        # Python writes a byte for each signal the moment it comes, in whatever call the main thread is.
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="attnlab-signals", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._left.set()
        signal.set_wakeup_fd(self._wakeup)
        self._writer.close()
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is None:
            self.received = signal.Signals(number)
            if self._agreed is not None:
                os.kill(os.getpid(), signal.SIGTERM)

    def _watch(self) -> None:
        """A thread: ends the process when a second Ctrl-C has not ended it."""
        asked = False
        with self._reader:
            while numbers := self._reader.recv(64):
                for number in numbers:
                    if asked and number == signal.SIGINT and not self._left.wait(PATIENCE):
                        os._exit(128 + signal.SIGINT)
                    asked |= number in STOP_SIGNALS
