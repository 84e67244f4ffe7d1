"""`salloc`: an allocation that lasts as long as a shell in its first pod."""

import asyncio
import shutil
import sys
from collections.abc import Sequence

from tessera.client import ordering, submitting
from tessera.client.commands.context import AccessOptions, command
from tessera.client.commands.logs import until_started
from tessera.client.commands.sbatch import Ignore, Key, Words, asked_of, own_options
from tessera.client.job_glance import ENDED
from tessera.client.outcomes import Exit, Failure
from tessera.client.rendering import notify
from tessera.client.slurm.options import split_words
from tessera.client.slurm.script import read_script
from tessera_schemas.base import run_id
from tessera_schemas.commands import CancelJob
from tessera_schemas.labels import pod_name
from tessera_schemas.views import JobView

WAITING = "#!/bin/sh\ntrap 'exit 0' TERM\nwhile :; do sleep 3600 & wait $!; done\n"
"""What the pods do until the shell ends; a wait, so that SIGTERM ends it at once."""
REFUSED = ("array", "wait", "output", "error")


@command
async def salloc(at: AccessOptions, words: Words = None, ignore: Ignore = None, key: Key = None) -> Exit | None:
    """
    Allocate pods, open a shell in the first one once they run, and end the job when the shell ends.

    The shell is `kubectl exec`: it needs kubectl, and your own right to `pods/exec` in the tenant's namespace.
    """
    said, rest = split_words(words or ())
    at, ignored, key, said = own_options(at, ignore or (), key, said)
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise Failure(Exit.USAGE, "salloc: no kubectl on PATH, which opens the shell; or use srun, which needs none")
    script = read_script(WAITING, "salloc", ignored, said)
    if wrong := [f"--{name}" for name in REFUSED if name in script.options]:
        raise Failure(Exit.USAGE, f"salloc: {', '.join(wrong)}: for sbatch alone; leave it out")
    asked, where = await asked_of(at, script), at.find()
    async with submitting.submitted(where, asked.identity, asked.command, key) as sent:
        job_id = sent.done.job_id
        notify(f"salloc: Pending job allocation {job_id}")
        try:
            job = await until_started(where, job_id, follow=True)
            if job.phase in ENDED:
                raise Failure(Exit.CONFLICT, f"salloc: job {job_id} has {job.phase}" + _why(job))
            notify(f"salloc: Granted job allocation {job_id}")
            code = await _shell(kubectl, job, rest or ("/bin/sh",))
        finally:
            order = CancelJob(kind="cancel_job", v=1, job_id=job_id, why="its salloc has ended", now=True)
            await ordering.send(where, asked.identity, order, job_id)
            notify(f"salloc: Relinquishing job allocation {job_id}")
    return code  # type: ignore[return-value]  # the shell's own code


def _why(job: JobView) -> str:
    return f": {job.reason.sentence()}" if job.reason else ""


async def _shell(kubectl: str, job: JobView, words: Sequence[str]) -> int:
    """Run words in the first pod, on this terminal where there is one; their exit code."""
    pods = [pod_name(run_id(job.job_id, job.attempt), rank) for rank in range(job.pods)]
    if len(pods) > 1:
        notify(f"salloc: the shell is in {pods[0]}; the others are {', '.join(pods[1:])}")
    terminal = "-it" if sys.stdin.isatty() else "-i"
    exec_in = (kubectl, "exec", terminal, "-n", job.tenant, pods[0], "--", *words)
    process = await asyncio.create_subprocess_exec(*exec_in)
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
