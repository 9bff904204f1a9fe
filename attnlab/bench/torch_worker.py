"""The torch side of the benchmark: needs torch and nothing of this package, so that it can run under another Python.

Reads one JSON object a line and answers with one: {"do": "prepare", ...} -> {"bytes": peak}, {"do": "run", "name"} ->
{"seconds"}; {"why"} where something cannot be done.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> None:
    """Answers until the input ends."""
    try:
        import torch
    except ImportError as error:
        print(json.dumps({"why": str(error)}), flush=True)
        return
    print(
        json.dumps({"version": torch.__version__, "threads": torch.get_num_threads()}), flush=True
    )
    ready: dict[str, Callable[[], Any]] = {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "prepare":
                answer = prepare(torch, request, ready)
            else:
                start = time.perf_counter()
                ready[request["name"]]()
                answer = {"seconds": time.perf_counter() - start}
        except Exception as error:
            answer = {
                "why": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            }
        print(json.dumps(answer), flush=True)


def prepare(
    torch: Any, request: dict[str, Any], ready: dict[str, Callable[[], Any]]
) -> dict[str, Any]:
    """Builds and warms the call; the growth of the peak resident set during one call, plus its arguments."""
    shape = (request["batch"], request["heads"], request["length"], request["head_dim"])
    kv_shape = (request["batch"], request["kv_heads"], *shape[2:])
    dtype, grad = getattr(torch, request["dtype"]), request["backward"]
    q, k, v = (torch.randn(s).to(dtype).requires_grad_(grad) for s in (shape, kv_shape, kv_shape))
    dout = torch.randn(shape).to(dtype)
    make = flex if request["name"] == "torch FlexAttention" else sdpa
    attention, mask_bytes = make(torch, request)

    def once() -> Any:
        if not grad:
            with torch.no_grad():
                return attention(q, k, v)
        q.grad = k.grad = v.grad = None
        return attention(q, k, v).backward(dout)

    once()
    arguments = sum(x.numel() * x.element_size() for x in (q, k, v, dout)) + mask_bytes
    ready[request["name"]] = once
    return {"bytes": arguments + peak_growth(once)}


def visible(torch: Any, request: dict[str, Any]) -> Callable[..., Any] | None:
    """The mask as a function of (b, h, query, key), as FlexAttention takes it; None: everything."""
    kind, prefix = request["mask"], request["length"] // 4
    if kind == "full":
        return None
    if kind == "causal":
        return lambda b, h, i, j: j <= i
    if kind == "window 256":
        return lambda b, h, i, j: (j <= i) & (i - j < 256)
    if kind == "prefix":
        return lambda b, h, i, j: (j <= i) | (j < prefix)
    ids = torch.tensor(request["segments"])
    return lambda b, h, i, j: (j <= i) & (ids[i] == ids[j])


def sdpa(torch: Any, request: dict[str, Any]) -> tuple[Callable[..., Any], int]:
    """scaled_dot_product_attention with its causal flag where that is the mask, else with a boolean mask."""
    options: dict[str, Any] = {"enable_gqa": request["heads"] != request["kv_heads"]}
    size, allowed = 0, visible(torch, request)
    if request["mask"] == "causal":
        options["is_causal"] = True
    elif allowed is not None:
        i = torch.arange(request["length"])
        options["attn_mask"] = allowed(0, 0, i[:, None], i[None, :])[None, None]
        size = options["attn_mask"].numel()
    attention = torch.nn.functional.scaled_dot_product_attention
    return lambda q, k, v: attention(q, k, v, **options), size


def flex(torch: Any, request: dict[str, Any]) -> tuple[Callable[..., Any], int]:
    """FlexAttention with a block mask, compiled."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    allowed, block_mask, n = visible(torch, request), None, request["length"]
    if allowed is not None:
        block_mask = create_block_mask(allowed, None, None, n, n, device="cpu")
    compiled = torch.compile(flex_attention)
    gqa = request["heads"] != request["kv_heads"]
    return lambda q, k, v: compiled(q, k, v, block_mask=block_mask, enable_gqa=gqa), 0


def peak_growth(once: Callable[[], Any]) -> int:
    """Bytes by which the resident set rises above its start during one call (Linux; elsewhere 0)."""
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not clear.exists():
        return 0
    clear.write_text("5")  # resets the high-water mark

    def kilobytes(field: str) -> int:
        line = next(x for x in status.read_text().splitlines() if x.startswith(field))
        return int(line.split()[1])

    before = kilobytes("VmRSS")
    once()
    return 1024 * max(kilobytes("VmHWM") - before, 0)


if __name__ == "__main__":
    main()
