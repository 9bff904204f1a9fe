"""What must be decided before jax starts: XLA's flags, in one place.

    host devices        CPU     one per core, so that members are spread over cores (`--devices`)
    latency hiding      GPU     collectives run while other work does
                        TPU     the same for the gathers of FSDP
    determinism         GPU     `ATTNLAB_DETERMINISTIC=1`: no atomics and no autotuning, for equal bits at some cost
    compile cache       all     `attnlab.compile_cache`

A flag that the user has set stands. The flags of accelerators are set only where one is found, and were not run on one
here: they are those of XLA's own documentation (openxla.org/xla/flags_guidance, and docs.cloud.google.com/tpu).
"""

import os
from collections.abc import MutableMapping, Sequence
from pathlib import Path

HOST_DEVICES = "--xla_force_host_platform_device_count"
GPU = ("--xla_gpu_enable_latency_hiding_scheduler=true",)
GPU_DETERMINISTIC = ("--xla_gpu_deterministic_ops=true", "--xla_gpu_autotune_level=0")
TPU = (
    "--xla_tpu_enable_async_collective_fusion=true",
    "--xla_tpu_enable_async_collective_fusion_fuse_all_gather=true",
)
DETERMINISTIC = "ATTNLAB_DETERMINISTIC"


def prepare(devices: int | None = None, environ: MutableMapping[str, str] = os.environ) -> None:
    """Sets the flags in the environment; call before the first import of jax.

    `devices`: host devices on a CPU; None for one per core.

    Raises:
      ValueError: `devices` is below 1 or set twice, or the switch of determinism is neither 0 nor 1.
    """
    if devices is not None and devices < 1:
        raise ValueError(f"--devices: must be at least 1, got {devices}")
    if HOST_DEVICES in environ.get("XLA_FLAGS", "") and devices is not None:
        raise ValueError(
            f"--devices: got {devices}, but XLA_FLAGS already holds {HOST_DEVICES}; set one of them"
        )
    wanted = [f"{HOST_DEVICES}={devices or cores()}"]
    switch = environ.get(DETERMINISTIC, "0")
    if switch not in ("0", "1"):
        raise ValueError(f"{DETERMINISTIC}: got {switch!r}; allowed: 0, 1")
    if has_gpu():
        wanted += [*GPU, *(GPU_DETERMINISTIC if switch == "1" else ())]
    _add(environ, "XLA_FLAGS", wanted)
    if has_tpu():
        _add(environ, "LIBTPU_INIT_ARGS", TPU)


def cores() -> int:
    """Cores this process may use; all of them where the system cannot say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_gpu() -> bool:
    """Whether NVIDIA's driver is loaded."""
    return Path("/proc/driver/nvidia/version").exists()


def has_tpu() -> bool:
    """Whether the chips of a TPU host are there."""
    return any(Path("/dev").glob("accel*")) or "TPU_WORKER_ID" in os.environ


def _add(environ: MutableMapping[str, str], variable: str, flags: Sequence[str]) -> None:
    there = environ.get(variable, "")
    missing = [flag for flag in flags if flag.partition("=")[0] not in there]
    if missing:
        environ[variable] = " ".join(filter(None, [there, *missing]))
