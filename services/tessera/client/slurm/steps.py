"""
Steps: commands in the pods of an allocation that runs, by `kubectl exec` as who calls and with their own rights.

No service takes part, so nobody but the cluster says who may.
"""

import asyncio
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from tessera.client.outcomes import Exit, Failure
from tessera.client.slurm.scripts.options import Asked
from tessera_schemas.base import run_id
from tessera_schemas.cluster.labels import pod_name
from tessera_schemas.views import JobView

OPTIONS = ("jobid", "ntasks", "nodes", "label", "l", "pty", "overlap", "exact", "unbuffered", "u")
"""What an `srun` within an allocation may say; `overlap` and those behind it are so anyway."""
LINE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SlurmStep:
    """Which ranks run a command (None: all), whether lines begin with their rank, whether it gets the terminal."""

    tasks: int | None = None
    label: bool = False
    terminal: bool = False


def read_step(said: Sequence[Asked]) -> tuple[SlurmStep, list[str]]:
    """Options of an `srun` within an allocation, and what is wrong: those that only an allocation has, a number."""
    options, mistakes = dict(said), list[str]()
    if wrong := [f"--{name}" for name in options if name not in OPTIONS]:
        mistakes.append(f"srun: {', '.join(wrong)}: the allocation has it; a step knows -n, --label, --pty")
    asked = options.get("ntasks", options.get("nodes"))
    if asked is not None and not (asked.isdecimal() and int(asked)):
        mistakes.append(f"srun: {asked!r} is no number of tasks; write -n 2")
        asked = None
    terminal = "pty" in options
    step = SlurmStep(1 if terminal else int(asked) if asked else None, "label" in options or "l" in options, terminal)
    return step, mistakes


def find_kubectl(name: str, otherwise: str = "") -> tuple[str, list[str]]:
    """Path of kubectl, or what to say without one, with `otherwise` as the way out."""
    kubectl = shutil.which("kubectl")
    return kubectl or "", [] if kubectl else [f"{name}: no kubectl on PATH, which reaches the pods{otherwise}"]


async def run_step(kubectl: str, job: JobView, words: Sequence[str], step: SlurmStep) -> int:
    """
    Run the words in the job's pods, each with its own variables and GPUs; the highest exit code.

    A step of one rank has this process's input. Raises Failure where there are not that many pods.
    """
    if job.owner:
        raise Failure(Exit.USAGE, f"srun: the pods of {job.owner} are yours: kubectl exec -n {job.tenant} POD")
    tasks = job.pods if step.tasks is None else step.tasks
    if tasks > job.pods:
        raise Failure(Exit.USAGE, f"srun: {tasks} tasks, and the allocation has {job.pods}: a task is a pod")
    running = [_run_in_pod(kubectl, job, rank, words, step, alone=tasks == 1) for rank in range(tasks)]
    return max(await asyncio.gather(*running))


async def _run_in_pod(kubectl: str, job: JobView, rank: int, words: Sequence[str], step: SlurmStep, alone: bool) -> int:
    options = (["-it"] if step.terminal and sys.stdin.isatty() else ["-i"]) if alone else []
    pod = pod_name(run_id(job.job_id, job.attempt), rank)
    piped = asyncio.subprocess.PIPE if step.label else None
    process = await asyncio.create_subprocess_exec(
        *(kubectl, "exec", *options, "-n", job.tenant, pod, "--", *words),
        stdin=None if alone else asyncio.subprocess.DEVNULL,
        stdout=piped,
        stderr=piped,
        limit=LINE_BYTES,
    )
    try:
        if process.stdout is not None and process.stderr is not None:
            both = (process.stdout, sys.stdout), (process.stderr, sys.stderr)
            await asyncio.gather(*(_copy_labelled(lines, to.buffer, rank) for lines, to in both))
        return await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def _copy_labelled(lines: asyncio.StreamReader, to: BinaryIO, rank: int) -> None:
    async for line in lines:
        to.write(b"%d: %s" % (rank, line))
        to.flush()
