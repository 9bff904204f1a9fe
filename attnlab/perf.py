"""How fast a group trains: tokens and operations a second, and what share of the machine that is.

Operations are the matrix products of `costs.flops_per_update`: counted from the shapes, forward and twice that
backward, attention as the whole T x T rectangle whatever the mask; nothing that is recomputed counts twice.
"""

import functools
import statistics
import time
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from attnlab import costs
from attnlab.training import Task

# Dense bfloat16 operations a second of one device by `device_kind`, as its maker states them (without sparsity): NVIDIA's
# data sheets of the A100, L4, H100 SXM and H200; Google Cloud's pages of TPU v4, v5e, v5p and v6e.
BFLOAT16_PEAK: Mapping[str, float] = {
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA L4": 121e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
}
MATMUL_SIZE = 1024


def of_group(task: Task, member_updates: int, seconds: float, devices: int) -> dict[str, float]:
    """`perf/...` of `member_updates` updates, those of all members together, in `seconds` on so many devices.

    The ceiling is named by the last key: `perf/of_bfloat16_peak`, the maker's figure, whatever precision was trained in;
    on a CPU `perf/of_measured_matmul`, a large float32 product timed now with every core; absent for an unknown device.
    """
    if member_updates == 0 or seconds <= 0:
        return {}
    updates = member_updates / seconds
    rate = updates * costs.flops_per_update(task)
    found = {
        "perf/tokens_per_second": updates * task.budget.batch_size * task.architecture.context,
        "perf/flops_per_second": rate,
        "perf/ms_per_member_update": 1e3 / updates,
    }
    device = jax.devices()[0]
    if device.platform == "cpu":
        found["perf/of_measured_matmul"] = rate / measured_matmul()
    elif device.device_kind in BFLOAT16_PEAK:
        found["perf/of_bfloat16_peak"] = rate / (devices * BFLOAT16_PEAK[device.device_kind])
    return found


@functools.cache
def measured_matmul() -> float:
    """Operations a second of a large float32 matrix product, the median of nine: host devices share the cores it uses."""
    x = jax.random.normal(jax.random.key(0), (MATMUL_SIZE, MATMUL_SIZE), jnp.float32)
    product = jax.jit(lambda x: x @ x)
    product(x).block_until_ready()
    times = []
    for _ in range(9):
        start = time.perf_counter()
        product(x).block_until_ready()
        times.append(time.perf_counter() - start)
    return 2 * MATMUL_SIZE**3 / statistics.median(times)
