"""
A real Slurm of two nodes with eight GPUs each, as processes of this machine, from Debian's packages.

`make slurm` unpacks them into build/slurm; none is installed. Nodes are two slurmd on loopback, GPUs are files: only
CUDA_VISIBLE_DEVICES says who has which. Accounts are not kept.
"""

import os
import pwd
import re
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tessera_local.free_port import free_port
from tests.steps.pods import wait_for

UNPACKED = Path(__file__).parents[2] / "build" / "slurm" / "root"
CPUS, MEMORY_MIB, GPUS, MODEL = 64, 500_000, 8, "h100"
NODES = ("n1", "n2")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")

CONFIGURATION = """
ClusterName=beside
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1
ReturnToService=2
FirstJobId=9001
GresTypes=gpu
DependencyParameters=kill_invalid_depend
PartitionName=batch Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """What is not there of it; empty when a Slurm can be started."""
    if not (UNPACKED / "usr/sbin/slurmctld-wlm").exists():
        return "no real Slurm: `make slurm` unpacks Debian's packages of it, where there is apt-get"
    return ""


@dataclass(frozen=True, slots=True)
class Slurm:
    """Its commands by `run`; `bin` is a folder of them for PATH."""

    bin: Path
    environment: Mapping[str, str]

    def run(self, *words: str) -> str:
        """What a command prints, also where it fails."""
        done = subprocess.run([self.bin / words[0], *words[1:]], capture_output=True, text=True, check=False)
        return done.stdout

    def wait(self) -> None:
        """Until no job waits or runs. What was put back in line begins soon, not two minutes later."""
        hurried = set[str]()

        def have_ended() -> bool:
            left = [line.split() for line in self.run("squeue", "-h", "-o", "%A %r").splitlines()]
            for job in {job for job, reason in left if reason == "BeginTime"} - hurried:
                # Its nodes take no credential of the second in which that of the run before was revoked.
                self.run("scontrol", "update", f"JobId={job}", "StartTime=now+3")
                hurried.add(job)
            return not left

        wait_for(have_ended, "all jobs of the real Slurm have ended")

    def jobs(self) -> list[dict[str, str]]:
        """The fields of each job that it remembers, array tasks among them."""
        shown = self.run("scontrol", "-o", "show", "jobs").splitlines()
        return [dict(re.findall(r"(\S+?)=(.*?)(?= \S+=|$)", line)) for line in shown if line.startswith("JobId=")]


@contextmanager
def real_slurm(folder: Path) -> Iterator[Slurm]:
    """Daemons that end with the context. Raises AssertionError when the nodes do not come up."""
    libraries = next((UNPACKED / "usr/lib").glob("*-linux-gnu"))
    environment = {
        "LD_LIBRARY_PATH": f"{libraries}:{libraries}/slurm-wlm",
        "SLURM_CONF": str(folder / "slurm.conf"),
        "PATH": os.environ["PATH"],
    }
    configure(folder, libraries / "slurm-wlm")
    slurm = Slurm(commands(folder / "bin", environment), environment)
    daemons = list[subprocess.Popen[bytes]]()

    def start(program: str, *words: str) -> None:
        name = folder / program.removesuffix("-wlm")
        name.unlink(missing_ok=True)
        name.symlink_to(UNPACKED / "usr/sbin" / program)  # slurmctld looks at the name that it is called by
        with (folder / f"{name.name}.log").open("ab") as log:
            daemons.append(subprocess.Popen([name, *words], env=environment, stdout=log, stderr=log))

    try:
        munge = folder / "munge"
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        start("munged", "--foreground", "--force", *(f"--{option}={munge / name}" for option, name in files.items()))
        wait_for((munge / "socket").exists, "munged serves its socket")
        start("slurmctld-wlm", "-D")
        for node in NODES:
            start("slurmd-wlm", "-D", "-N", node, "-d", str(UNPACKED / "usr/sbin/slurmstepd-wlm"))
        wait_for(
            lambda: slurm.run("sinfo", "-h", "-N", "-o", "%t").split() == ["idle"] * len(NODES), "both nodes are idle"
        )
        yield slurm
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait()


def configure(folder: Path, plugins: Path) -> None:
    """The files that it reads, and the folders that it writes to."""
    (folder / "munge").mkdir(mode=0o700)
    (folder / "munge/key").write_bytes(secrets.token_bytes(1024))
    (folder / "munge/key").chmod(0o400)
    (folder / "state").mkdir()
    lines = [CONFIGURATION.format(controller=free_port(), user=user(), folder=folder, plugins=plugins)]
    for node in NODES:
        size = f"CPUs={CPUS} RealMemory={MEMORY_MIB} Gres=gpu:{MODEL}:{GPUS}"
        lines.append(f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={free_port()} {size}")
    (folder / "slurm.conf").write_text("\n".join((*lines, "")))
    for gpu in range(GPUS):
        (folder / f"gpu{gpu}").symlink_to("/dev/null")  # Slurm wants a device
    (folder / "gres.conf").write_text(f"NodeName=n[1-2] Name=gpu Type={MODEL} File={folder}/gpu[0-{GPUS - 1}]\n")


def user() -> str:
    """The name of who runs this."""
    return pwd.getpwuid(os.getuid()).pw_name


def commands(folder: Path, environment: Mapping[str, str]) -> Path:
    """A folder of its commands, which find their libraries and this configuration; they hand neither on."""
    folder.mkdir()
    for command in (UNPACKED / "usr/bin").glob("s*"):
        set_here = " ".join(f"{name}='{value}'" for name, value in environment.items() if name != "PATH")
        (folder / command.name).write_text(f'#!/bin/sh\nexec env {set_here} {command} "$@"\n')
        (folder / command.name).chmod(0o755)
    return folder
