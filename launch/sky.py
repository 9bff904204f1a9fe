"""Jobs on cloud GPUs and TPUs, by SkyPilot: a YAML file a kind of machine, and one `sky` command a shard.

SkyPilot is no dependency of attnlab (about 460 MB): its command line is called where it is installed. None of these
files was run on a cloud; they were read by SkyPilot's own parser (0.14.1) and by a schema.
"""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from launch.jobs import Sweep

FOLDER = Path(__file__).parent / "sky"


def templates() -> list[str]:
    """Names of the files of `sky/`."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def commands(sweeps: Sequence[Sweep], template: str, bucket: str) -> list[tuple[str, ...]]:
    """One `sky jobs launch` a shard. A managed job is started again elsewhere when its machine is taken away.

    Raises:
      ValueError: an unknown template, no bucket, or a flag that a shell would cut in two.
    """
    if template not in templates():
        raise ValueError(f"--template: got {template!r}; allowed: {', '.join(templates())}")
    if "://" not in bucket:
        raise ValueError(
            f"--bucket: got {bucket!r}; allowed: where the workdir is kept, such as s3://NAME or gs://NAME"
        )
    made = []
    for sweep in sweeps:
        if spaced := [word for word in sweep.flags if " " in word]:
            raise ValueError(
                f"{spaced[0]}: a flag of `launch sky` holds no spaces; allowed: write it without (causal&full)"
            )
        for index in range(sweep.shards):
            environ = {
                "CONFIG": sweep.config,
                "FLAGS": " ".join(sweep.flags),
                "SHARD": f"{index}/{sweep.shards}",
                "NAME": sweep.name,
                "BUCKET": bucket,
            }
            words = [word for k, v in environ.items() for word in ("--env", f"{k}={v}")]
            name = f"{sweep.name}-{index}-of-{sweep.shards}".lower().replace("_", "-")
            file = f"launch/sky/{template}.yaml"
            made.append(
                ("sky", "jobs", "launch", "--yes", "--detach-run", "--name", name, *words, file)
            )
    return made


def run(made: Sequence[tuple[str, ...]], checkout: Path, say: Callable[[str], None]) -> int:
    """Runs the commands in the checkout, whose files SkyPilot copies; stops at the first that fails.

    Raises:
      ValueError: SkyPilot is not installed.
    """
    if shutil.which("sky") is None:
        raise ValueError(
            "launch sky: SkyPilot is not installed; pip install 'skypilot[gcp]' or the cloud you have, in an "
            "environment of its own, and `sky check`"
        )
    for index, words in enumerate(made):
        code = subprocess.run(words, cwd=checkout, check=False).returncode
        if code != 0:
            say(f"sky ended with {code} at shard {index}; submitted before it: {index}")
            return 1
    return 0
