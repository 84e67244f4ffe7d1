"""
Pods of a run as processes of this machine: the runner in each, an address of loopback for each.

Every process of such a run carries the run's job id in its environment: so what is left of it is found, and ended.
"""

import os
import platform
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tessera_local.free_port import free_port

ROOT = Path(__file__).parents[2]
INTEL_MPI = ROOT / "build" / "intel-mpi"
"""Where `make mpi` puts it."""
PATIENCE_SECONDS = 240.0
"""For anything to come to pass; nothing is expected to be fast here."""


def go() -> bool:
    return shutil.which("go") is not None


def mpi_program(kind: str, name: str) -> str:
    """`mpicc` or `mpirun` of OpenMPI, MPICH or Intel MPI."""
    return str(INTEL_MPI / "bin" / name) if kind == "intel" else f"{name}.{kind}"


def compile_with_mpi(kind: str, source: Path, program: Path) -> None:
    """By the compiler of a kind of MPI; where a machine has none, the test is skipped, but in CI (Intel's: amd64)."""
    compiler, starter = (mpi_program(kind, name) for name in ("mpicc", "mpirun"))
    if missing := [name for name in (compiler, starter) if shutil.which(name) is None]:
        why = f"no {' and '.join(missing)} here: `make mpi` installs them"
        assert not os.environ.get("CI") or (kind == "intel" and platform.machine() != "x86_64"), why
        pytest.skip(why)
    environment = {**os.environ, "I_MPI_ROOT": str(INTEL_MPI)}  # where Intel's compiler looks
    subprocess.run([compiler, source, "-o", program], check=True, env=environment)


def build(folder: Path) -> Path:
    """The program as it is installed in a pod, with its names beside it."""
    subprocess.run(["make", "-s", "steps", f"STEPS={folder}", "STEPS_ARCHITECTURES="], cwd=ROOT, check=True)
    subprocess.run([folder / "tessera-steps", "install", folder / "tessera"], check=True)
    return folder / "tessera" / "bin" / "tessera-steps"


def wait_for(holds: Callable[[], bool], what: str) -> None:
    """Raises AssertionError with what was waited for."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS:.0f} s: {what}"
        time.sleep(0.01)


def resident_kibibytes(pid: int) -> int:
    """Memory of a process; 0 for one that is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")), 0)


@dataclass
class Pods:
    """The runners of a run by rank, and what its first pod writes."""

    folder: Path
    job: str
    pods: list[subprocess.Popen[bytes]] = field(default_factory=list)
    temporary: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="pods-"))
    """Of the pods' TMPDIRs."""

    def temporary_of(self, rank: int) -> str:
        """A pod's TMPDIR, its own: a daemon of OpenMPI clears the folder of its job and host there as it starts."""
        path = Path(self.temporary, str(rank))
        path.mkdir(exist_ok=True)
        return str(path)

    def host(self, rank: int) -> str:
        return f"127.88.0.{rank}"

    def path(self, name: str) -> Path:
        return self.folder / name

    def ended(self) -> tuple[int, str, str]:
        """Exit code, output and errors of the first pod, once all pods have ended, the others well."""
        out, err = self.pods[0].communicate(timeout=PATIENCE_SECONDS)
        codes = [pod.wait(PATIENCE_SECONDS) for pod in self.pods]
        assert codes[1:] == [0] * (len(codes) - 1), err.decode()
        return codes[0], out.decode(), err.decode()

    def processes(self) -> list[int]:
        """All that run of it: the runners, the script and tasks, also those that left their groups."""
        mark = f"TESSERA_JOB_ID={self.job}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:  # gone meanwhile
                continue
        return found

    def tasks(self) -> list[int]:
        """The processes of it that are no runners."""
        return [pid for pid in self.processes() if pid not in {pod.pid for pod in self.pods}]

    def kill(self) -> None:
        """Ends all that is left of it."""
        while left := self.processes():
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            for pod in self.pods:
                pod.wait(PATIENCE_SECONDS)
        shutil.rmtree(self.temporary)


@contextmanager
def pods_of_a_run(
    program: Path, folder: Path, count: int, script: str, variables: Mapping[str, str] | None = None
) -> Iterator[Pods]:
    """So many pods, the first with a script of bash. Each has WHERE=rank, and four CPUs unless `variables` say more."""
    key = folder / "key"
    key.write_bytes(secrets.token_bytes(32))
    (folder / "script").write_text(script)
    run = Pods(folder, f"j-{secrets.token_hex(6)}")
    environment = {
        "PATH": os.environ["PATH"],
        "TESSERA_JOB_ID": run.job,
        "TESSERA_ATTEMPT": "1",
        "TESSERA_WORLD_SIZE": str(count),
        "TESSERA_STEPS_HOSTS": run.host(0).removesuffix("0") + "{rank}",
        "TESSERA_STEPS_PORT": str(free_port()),
        "TESSERA_STEPS_KEY": str(key),
        "SLURM_CPUS_ON_NODE": "4",
    } | dict(variables or {})
    with ending(run):
        for rank in range(count):
            run.pods.append(
                subprocess.Popen(
                    [program, "pod", "--", "bash", folder / "script"],
                    cwd=folder,
                    env=environment | {"TESSERA_RANK": str(rank), "WHERE": str(rank), "TMPDIR": run.temporary_of(rank)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE if rank == 0 else None,
                    stderr=subprocess.PIPE if rank == 0 else None,
                )
            )
        yield run


@contextmanager
def ending(run: Pods) -> Iterator[None]:
    """Kills what is left of a run."""
    try:
        yield
    finally:
        run.kill()
