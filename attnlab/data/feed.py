"""Where training reads its tokens: from the device, or windows that the host cuts from a memory map.

Both give the batch of (data seed, step), bit for bit. A corpus goes to the device whole if its training split has at
most `ON_DEVICE_BYTES`. Otherwise the host cuts the windows of the next call of the program while this one runs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.data import sampling
from attnlab.data.corpus import Corpus
from attnlab.data.sampling import Packed, Windows

Place = Literal["auto", "device", "host"]
PLACES: tuple[Place, ...] = ("auto", "device", "host")
ON_DEVICE_BYTES = 1 << 30


def on_host(corpus: Corpus, place: Place = "auto") -> bool:
    """Whether the host cuts the windows; `auto` is by the size of the training split.

    Raises:
      ValueError: another place.
    """
    if place not in PLACES:
        raise ValueError(f"data_on: got {place!r}; allowed: {', '.join(PLACES)}")
    return place == "host" or (place == "auto" and corpus.train.nbytes > ON_DEVICE_BYTES)


def device_tokens(corpus: Corpus, *, documents: bool) -> Any:
    """The training split as the compiled step reads it, not yet on the device."""
    if not documents:
        return corpus.train
    return Packed(corpus.train, _starts(corpus, "train").astype(np.int32))


def evaluation(corpus: Corpus, split: str, *, count: int, length: int, documents: bool) -> Windows:
    """`sampling.evaluation_windows` of a split, in numpy, with their documents if these matter."""
    tokens = corpus.split(split)
    windows = np.asarray(sampling.evaluation_windows(tokens, count=count, length=length))
    if not documents:
        return Windows(windows)
    starts = sampling.evaluation_starts(len(tokens), count=count, length=length)
    return Windows(windows, sampling.segments(_starts(corpus, split), starts, length))


class HostFeed:
    """Windows of one chunk of updates after another, the next one cut while the device works.

    There is no state but what was cut ahead: any step may be asked for at any time.

    Args:
      seeds: the data seed of each member; members with equal seeds share the work.
      updates: K, of a chunk.
    """

    def __init__(
        self,
        corpus: Corpus,
        seeds: Sequence[int],
        *,
        batch_size: int,
        length: int,
        updates: int,
        documents: bool,
    ):
        self._tokens = corpus.train
        self._documents = _starts(corpus, "train") if documents else None
        self._seeds, self._member = np.unique(np.asarray(seeds, np.uint32), return_inverse=True)
        self._sizes = {"batch_size": batch_size, "length": length}
        self._updates = updates
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="windows")
        self._ahead: tuple[int, Future[Windows]] | None = None

    def chunk(self, step: int) -> Windows:
        """The windows of updates `step` to `step + K - 1`, in numpy: [M, K, B, W]."""
        if self._ahead is not None and self._ahead[0] == step:
            windows = self._ahead[1].result()
        else:
            windows = self._cut(step, self._updates)
        following = step + self._updates
        self._ahead = following, self._thread.submit(self._cut, following, self._updates)
        return windows

    def update(self, member: int, step: int) -> Windows:
        """The windows of one update of one member: [B, W]."""
        return jax.tree.map(lambda x: x[member, 0], self._cut(step, 1))

    def close(self) -> None:
        """Drops what was cut ahead."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _cut(self, step: int, updates: int) -> Windows:
        steps = step + np.arange(updates, dtype=np.int32)
        with _host():
            starts = np.asarray(
                _window_starts(self._seeds, steps, n_tokens=len(self._tokens), **self._sizes)
            )
        length = self._sizes["length"]
        # A view with every window of the corpus as a row: indexing it copies whole rows.
        rows = np.lib.stride_tricks.sliding_window_view(self._tokens, length)
        segments = None
        if self._documents is not None:
            segments = sampling.segments(self._documents, starts, length)[self._member]
        return Windows(np.asarray(rows[starts])[self._member], segments)


@functools.partial(jax.jit, static_argnames=("batch_size", "length", "n_tokens"))
def _window_starts(seeds: Any, steps: Any, **sizes: int) -> jax.Array:
    """int32[S, K, B]: the law of `sampling.window_starts` for all seeds and steps."""

    def one(seed: Any, step: Any) -> jax.Array:
        return sampling.window_starts(seed, step, **sizes)

    return jax.vmap(lambda seed: jax.vmap(lambda step: one(seed, step))(steps))(jnp.asarray(seeds))


def _host() -> contextlib.AbstractContextManager[Any]:
    """Computes on the CPU where jax has one, so as not to stand in line behind the training step."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:
        return contextlib.nullcontext()


def _starts(corpus: Corpus, split: str) -> np.ndarray:
    if corpus.documents is None:
        raise ValueError(f"corpus {corpus.name!r}: has no documents")
    return corpus.documents[split]
