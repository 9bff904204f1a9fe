"""What is benchmarked: this library's attention, jax's own, and torch's in a process of its own."""

import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import IO, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from attnlab import masks
from attnlab.attention import attend
from attnlab.masks import Mask

_traced: Counter[tuple[Any, ...]] = Counter()


class UnavailableError(Exception):
    """This contender cannot run this case; the message says why."""


@dataclass(frozen=True)
class Case:
    """One shape, mask and direction. `mask` is a name of `attention.MASKS`."""

    mask: str
    batch: int
    length: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    backward: bool


@dataclass(frozen=True)
class Contender:
    """A name and how to get ready: `prepare` returns (run once, giving its seconds; peak bytes).

    Raises UnavailableError where it cannot.
    """

    name: str
    prepare: Callable[[], tuple[Callable[[], float], float]]


def segments(length: int) -> np.ndarray:
    """Documents of uneven length, about 8 to a row: int [T]."""
    ends = np.random.default_rng(length).integers(0, length, 7)
    return np.searchsorted(np.sort(ends), np.arange(length), side="right")


def mask_of(case: Case) -> Mask:
    """The case's mask, in the one structure that all of them share."""
    T = case.length
    found = {
        "full": lambda: masks.full(T),
        "causal": lambda: masks.causal(T),
        "window 256": lambda: masks.sliding_window(T, 256),
        "prefix": lambda: masks.prefix_lm(T, T // 4),
        "packed": lambda: masks.documents(segments(T)),
    }
    return found[case.mask]().canonical(1, 1)


def names(torch: "TorchWorker | None", flex: bool) -> Iterator[str]:
    """The contenders of this run, in the order of the table."""
    yield from ("blockwise", "blockwise + statistics")
    if jax.device_count() > 1:
        yield _over_devices()
    yield from ("dense", "jax.nn")
    if torch is not None:
        yield "torch SDPA"
        if flex:
            yield "torch FlexAttention"


def build(
    case: Case, wanted: list[str], torch: "TorchWorker | None", dense_gigabytes: float
) -> list[Contender]:
    """The contenders named, on this case."""
    logits = case.batch * case.heads * case.length**2 * 4 / 2**30
    too_large = f"{logits:.1f} GB of logits" if logits > dense_gigabytes else None
    made = []
    for name in wanted:
        if name.startswith("torch"):
            assert torch is not None
            made.append(Contender(name, partial(torch.prepare, name, case)))
        elif name in ("dense", "jax.nn") and too_large:
            made.append(Contender(name, partial(_unavailable, too_large)))
        else:
            made.append(Contender(name, partial(_prepare_jax, name, case)))
    return made


def _over_devices() -> str:
    """The contender that gives each device its share of the heads, as a mesh gives it its share of the examples."""
    return f"blockwise x {jax.device_count()} devices"


def traces() -> dict[str, int]:
    """How often the blockwise programs were traced, by contender, length and direction."""
    return {
        f"{name}, T {length}, {'forward + backward' if backward else 'forward'}": count
        for (name, length, backward), count in _traced.items()
    }


def _unavailable(why: str) -> tuple[Callable[[], float], float]:
    raise UnavailableError(why)


def _arrays(case: Case) -> tuple[Array, ...]:
    shapes = [(case.batch, case.length, n, case.head_dim) for n in (case.heads, case.kv_heads)]
    keys = jax.random.split(jax.random.key(0), 4)
    q, k, v, dout = (
        jax.random.normal(key, shape, jnp.float32).astype(case.dtype)
        for key, shape in zip(keys, (shapes[0], shapes[1], shapes[1], shapes[0]), strict=True)
    )
    return q, k, v, dout


@cache
def _compiled(name: str, backward: bool, mask: str | None) -> Callable[..., Any]:
    """One jitted function a contender and direction; `mask` only where the contender needs it as flags."""

    def forward(q: Array, k: Array, v: Array, m: Mask) -> tuple[Array, Any]:
        scale = q.shape[-1] ** -0.5
        if name == "dense":
            return attend(q, k, v, m, scale=scale, impl="dense"), None
        if name in ("blockwise", _over_devices()):
            _traced[name, q.shape[1], backward] += 1
            return attend(q, k, v, m, scale=scale, impl="blockwise"), None
        if name == "blockwise + statistics":
            return attend(q, k, v, m, scale=scale, impl="blockwise", stats=True)
        flags: dict[str, Any] = {"mask": m.as_array()}
        if mask in ("full", "causal", "window 256"):
            flags = {"is_causal": mask != "full"}
            flags["local_window_size"] = (255, 0) if mask == "window 256" else None
        return jax.nn.dot_product_attention(q, k, v, scale=scale, **flags), None

    def both(q: Array, k: Array, v: Array, m: Mask, dout: Array) -> Any:
        out, pull, stats = jax.vjp(lambda q, k, v: forward(q, k, v, m), q, k, v, has_aux=True)
        return out, pull(dout), stats

    function = both if backward else lambda q, k, v, m, _: forward(q, k, v, m)
    if name == _over_devices():
        mesh, heads = _by_heads().mesh, _by_heads().spec
        function = jax.shard_map(
            function, mesh=mesh, in_specs=(heads, heads, heads, PartitionSpec(), heads),
            out_specs=heads, check_vma=False,
        )  # fmt: skip
    return jax.jit(function)


@cache
def _by_heads() -> NamedSharding:
    """[B, T, N, H] with an equal share of the heads on each device."""
    mesh = jax.make_mesh((jax.device_count(),), ("heads",), axis_types=(AxisType.Auto,))
    return NamedSharding(mesh, PartitionSpec(None, None, "heads"))


def _prepare_jax(name: str, case: Case) -> tuple[Callable[[], float], float]:
    devices = jax.device_count() if name == _over_devices() else 1
    if case.kv_heads % devices:
        raise UnavailableError(f"{case.kv_heads} heads of keys on {devices} devices")
    function = _compiled(name, case.backward, case.mask if name == "jax.nn" else None)
    q, k, v, dout = _arrays(case)
    if devices > 1:
        q, k, v, dout = jax.device_put((q, k, v, dout), _by_heads())
    arguments = (q, k, v, mask_of(case), dout)

    def once() -> float:
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        return time.perf_counter() - start

    once()  # compiles, unless another mask of this length already has
    memory = function.lower(*arguments).compile().memory_analysis()  # type: ignore[attr-defined]
    peak = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return once, float(devices * peak)


class TorchWorker:
    """A process with torch, asked in lines of JSON: its threads must not compete with XLA's while idle."""

    def __init__(self, write: IO[str], read: IO[str]) -> None:
        self._write, self._read = write, read

    def ask(self, **request: Any) -> dict[str, Any]:
        """One request, one answer. Raises UnavailableError with the worker's reason."""
        self.send(**request)
        return self.receive()

    def send(self, **request: Any) -> None:
        """A request whose answer is to be received, so that several workers can be busy at once."""
        self._write.write(json.dumps(request) + "\n")
        self._write.flush()

    def receive(self) -> dict[str, Any]:
        """The answer to the oldest request. Raises UnavailableError with the worker's reason."""
        line = self._read.readline()
        if not line:
            raise UnavailableError("the torch process ended")
        answer: dict[str, Any] = json.loads(line)
        if "why" in answer:
            raise UnavailableError(answer["why"])
        return answer

    def prepare(self, name: str, case: Case) -> tuple[Callable[[], float], float]:
        """Like `Contender.prepare`."""
        ids = segments(case.length).tolist() if case.mask == "packed" else None
        answer = self.ask(do="prepare", name=name, segments=ids, **asdict(case))
        return (lambda: float(self.ask(do="run", name=name)["seconds"])), float(answer["bytes"])


@contextmanager
def torch_worker(
    python: str, script: str = "torch_worker.py", *arguments: str
) -> Iterator[TorchWorker | None]:
    """A worker under the given Python, or None (said on the terminal) where that has no torch."""
    command = [python, str(Path(__file__).with_name(script)), *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        write, read = process.stdin, process.stdout
        assert write is not None
        assert read is not None
        greeting = json.loads(read.readline() or '{"why": "it did not start"}')
        if "why" in greeting:
            print(f"torch is not compared: {greeting['why']} ({python}; see --torch-python)")
            yield None
        else:
            print(f"torch {greeting['version']}, {greeting['threads']} threads")
            yield TorchWorker(write, read)
        # Leaving closes its input, which is how it learns that it is done.
