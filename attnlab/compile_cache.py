"""Compiled programs kept between processes, so that a command compiles only the first time it runs."""

import hashlib
import os
import platform
from pathlib import Path

from attnlab.data.cache import cache_directory

OPT_OUT = "ATTNLAB_COMPILE_CACHE"


def enable() -> Path | None:
    """Turns on jax's persistent compilation cache in the user's cache directory; call before the first compilation.

    `ATTNLAB_COMPILE_CACHE=off` leaves it alone, and so does a directory that the user has already given to jax
    (`JAX_COMPILATION_CACHE_DIR`). Programs are kept per kind of processor, because one that was compiled for
    another may not run. Returns the directory, or None.
    """
    import jax

    given = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if os.environ.get(OPT_OUT) == "off" or given:
        return None
    place = cache_directory() / "xla" / _processor()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None  # a read-only home costs time, not results
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return place


def _processor() -> str:
    """A short name of this kind of processor: equal flags, equal name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    text = f"{platform.system()} {platform.machine()} {platform.processor()} {flags}"
    return f"{platform.machine()}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
