"""Settings every test runs under."""

import os

# Two host devices, so that sharding over members is exercised on a laptop; set before jax starts.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

import jax

# An accidental broadcast across ranks is an error in attnlab, not a convenience.
jax.config.update("jax_numpy_rank_promotion", "raise")
