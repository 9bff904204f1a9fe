"""A nanoGPT checkout in a process of its own: needs torch, the checkout's `model.py`, and nothing of this package.

Arguments: the checkout, and the number of threads. Reads one JSON object a line and answers with one:
{"do": "prepare", ...} builds and warms a training run, {"do": "run", "updates"} -> {"seconds"}; {"why"} where something
cannot be done.
"""

import contextlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> None:
    """Answers until the input ends."""
    answers, checkout, threads = sys.stdout, Path(sys.argv[1]), int(sys.argv[2])
    update: Callable[[], Any] = lambda: None  # noqa: E731

    def say(**answer: Any) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    # The checkout prints on its own, and answers are lines of this output.
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        try:
            import torch

            torch.set_num_threads(threads)
            network = load(checkout / "model.py")
        except Exception as error:
            return say(why=f"{type(error).__name__}: {error}")
        say(version=torch.__version__, threads=torch.get_num_threads())
        for line in sys.stdin:
            request = json.loads(line)
            try:
                if request["do"] == "prepare":
                    update = prepare(torch, network, request)
                    say(parameters=update.parameters)  # type: ignore[attr-defined]
                else:
                    start = time.perf_counter()
                    for _ in range(request["updates"]):
                        update()
                    say(seconds=time.perf_counter() - start)
            except Exception as error:
                say(why=f"{type(error).__name__}: {error}".splitlines()[0])


def load(path: Path) -> Any:
    """The module at `path`, under a name of its own."""
    spec = importlib.util.spec_from_file_location("peer_model", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"no {path.name} in {path.parent}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def prepare(torch: Any, network: Any, request: dict[str, Any]) -> Callable[[], Any]:
    """One update as nanoGPT's train.py makes it on a CPU: float32, no dropout, clipping at 1, AdamW."""
    T, B, V = request["context"], request["batch"], request["vocab_size"]
    torch.manual_seed(0)
    model = network.GPT(network.GPTConfig(
        block_size=T, vocab_size=V, n_layer=request["layers"], n_head=request["heads"],
        n_embd=request["width"], dropout=0.0, bias=False,
    ))  # fmt: skip
    optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), "cpu")
    tokens = torch.randint(0, V, (1_000_000,))

    def update() -> None:
        starts = torch.randint(len(tokens) - T, (B,))
        x = torch.stack([tokens[i : i + T] for i in starts])
        y = torch.stack([tokens[i + 1 : i + 1 + T] for i in starts])
        _, loss = model(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(3):
        update()
    update.parameters = sum(p.numel() for p in model.parameters())  # type: ignore[attr-defined]
    return update


if __name__ == "__main__":
    main()
