"""A nanoGPT checkout as a contender: one process with all cores, or one process a core, all of them at once."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attnlab.bench.contenders import TorchWorker, torch_worker
from attnlab.bench.turns import Contender
from attnlab.bench.workloads import Size

SCRIPT = "peer_worker.py"


class Peers:
    """The processes of a checkout: `whole` with every core, `parts` with one core each."""

    def __init__(self, whole: TorchWorker, parts: list[TorchWorker]):
        self.whole, self.parts = whole, parts

    def contenders(self, size: Size, vocab_size: int, updates: int) -> list[Contender]:
        """nanoGPT with all threads, and as many single-threaded runs at once as there are cores."""
        request = {**asdict(size), "vocab_size": vocab_size}
        made = [_contender("nanoGPT", [self.whole], request, updates)]
        if self.parts:
            name = f"nanoGPT x{len(self.parts)}"
            made.append(_contender(name, self.parts, request, updates))
        return made


def _contender(
    name: str, workers: list[TorchWorker], request: dict[str, Any], updates: int
) -> Contender:
    def prepare() -> tuple[Callable[[], float], int]:
        for worker in workers:
            worker.ask(do="prepare", **request)

        def run() -> float:
            start = time.perf_counter()
            for worker in workers:
                worker.send(do="run", updates=updates)
            for worker in workers:
                worker.receive()
            return time.perf_counter() - start

        return run, updates * len(workers)

    return Contender(name, prepare)


@contextlib.contextmanager
def peers(checkout: Path | None, python: str, *, parts: bool) -> Iterator[Peers | None]:
    """The processes, or None (said on the terminal) without a checkout or without torch.

    Raises:
      ValueError: a checkout without model.py.
    """
    if checkout is None:
        yield None
        return
    if not (checkout / "model.py").is_file():
        raise ValueError(f"--peer: no model.py in {str(checkout)!r}; allowed: a nanoGPT checkout")
    cores = os.cpu_count() or 1
    with contextlib.ExitStack() as stack:

        def worker(threads: int) -> TorchWorker | None:
            return stack.enter_context(
                torch_worker(python, SCRIPT, str(checkout.absolute()), str(threads))
            )

        whole = worker(cores)
        others = [worker(1) for _ in range(cores)] if parts and cores > 1 and whole else []
        yield Peers(whole, [w for w in others if w is not None]) if whole else None
