"""Settings every test runs under."""

import os

# Two host devices, so that sharding over members is exercised on a laptop; set before jax starts.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

import hypothesis
import jax
import pytest

# An accidental broadcast across ranks is an error in attnlab, not a convenience.
jax.config.update("jax_numpy_rank_promotion", "raise")

# No timed tests: what takes a millisecond here may compile first, or share its core, elsewhere.
hypothesis.settings.register_profile("attnlab", deadline=None)
hypothesis.settings.load_profile("attnlab")


@pytest.fixture(scope="session")
def trained_workdir(tmp_path_factory):
    """The directory of a finished sweep of three tiny members: see `trained_run`."""
    import trained_run

    return trained_run.make(tmp_path_factory.mktemp("trained"))
