"""A real SLURM of one node on this machine, for as long as a `with` lasts: own configuration, own daemons, no systemd.

It needs the Debian packages slurmctld, slurmd, slurm-client and munge, and root. Nothing outside its directory is read
or written: no accounting, no cgroups. Partition `low` is preempted, with a minute's grace, by partition `high`.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue")
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")

CONFIGURATION = """
ClusterName=attnlab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket,cred_expire=20
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=preempt_send_user_signal,batch_sched_delay=1,sched_interval=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=30
ReturnToService=2
EnforcePartLimits=ALL
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus}
PartitionName=low Nodes={host} Default=YES MaxTime=60 PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=high Nodes={host} MaxTime=60 PriorityTier=10 PreemptMode=OFF
"""


def why_not() -> str | None:
    """What keeps a cluster from being started here, after an attempt to install what is missing; None when nothing."""
    if missing := _missing():
        if os.getuid() == 0 and shutil.which("apt-get"):
            subprocess.run(
                ["apt-get", "install", "--yes", "--quiet", *PACKAGES],
                capture_output=True, timeout=300, check=False,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            )  # fmt: skip
        missing = _missing()
    if missing:
        return f"{', '.join(missing)} cannot be found or installed (apt-get install {' '.join(PACKAGES)})"
    return None if os.getuid() == 0 else "a SLURM of one's own needs root"


def _missing() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name) is None]


class Cluster:
    """`with Cluster(directory) as cluster:`; `cluster.environ` points SLURM's commands at it."""

    def __init__(self, root: Path):
        self.root, self.host = root, socket.gethostname().partition(".")[0]
        self.cpus = os.cpu_count() or 1
        self.daemons: list[tuple[str, subprocess.Popen[bytes]]] = []

    @property
    def environ(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.root / "slurm.conf")}

    def __enter__(self) -> Self:
        for name in ("state", "spool"):
            (self.root / name).mkdir(parents=True)
        ports = [_free_port(), _free_port()]
        text = CONFIGURATION.format(root=self.root, host=self.host, ports=ports, cpus=self.cpus)
        (self.root / "slurm.conf").write_text(text)
        key = self.root / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        try:
            self._start(
                "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.root}/munge.socket",
                f"--pid-file={self.root}/munged.pid", f"--log-file={self.root}/munged.log",
                f"--seed-file={self.root}/munged.seed",
            )  # fmt: skip
            self._until("munge's socket", (self.root / "munge.socket").exists)
            self._start("slurmctld", "-D", "-f", f"{self.root}/slurm.conf")
            self._start("slurmd", "-D", "-f", f"{self.root}/slurm.conf", "-N", self.host)
            self._until(
                "an idle node", lambda: "idle" in self("sinfo", "-h", "-o", "%t", check=False)
            )
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if any(name == "slurmctld" for name, _ in self.daemons):
            self("scancel", "--user=root", check=False)
            self._until("an empty queue", lambda: not self.queue(), seconds=60, must=False)
        for _, process in reversed(self.daemons):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.daemons.clear()

    def __call__(self, *words: str, check: bool = True) -> str:
        """The output of one of SLURM's commands."""
        done = subprocess.run(
            words, env={**os.environ, **self.environ}, capture_output=True, text=True, timeout=60, check=False
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{words}: {done.stderr}\n{self.logs()}"
        return done.stdout

    def queue(self) -> dict[str, tuple[str, str, str]]:
        """Job -> (partition, state, reason)."""
        lines = self("squeue", "-h", "-r", "-o", "%i %P %T %r", check=False).splitlines()
        return {
            job: (part, state, why) for job, part, state, why in (x.split(None, 3) for x in lines)
        }

    def logs(self) -> str:
        """The ends of the daemons' logs."""
        files = [self.root / f"{name}.log" for name in ("slurmctld", "slurmd", "munged")]
        return "\n".join(f"{f.name}:\n{f.read_text()[-1500:]}" for f in files if f.exists())

    def _start(self, *words: str) -> None:
        with open(self.root / f"{words[0]}.out", "ab") as output:
            process = subprocess.Popen(
                words, env={**os.environ, **self.environ}, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )  # fmt: skip
        self.daemons.append((words[0], process))

    def _until(
        self, what: str, ready: Callable[[], bool], *, seconds: float = 60.0, must: bool = True
    ) -> None:
        end = time.monotonic() + seconds
        while not ready():
            dead = [name for name, process in self.daemons if process.poll() is not None]
            late = time.monotonic() > end
            if (dead or late) and not must:
                return
            if dead or late:
                raise AssertionError(f"waiting for {what}; ended: {dead}\n{self.logs()}")
            time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
