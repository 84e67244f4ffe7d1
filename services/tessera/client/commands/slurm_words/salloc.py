"""`salloc`: an allocation that lasts as long as a shell in its first pod, or a step in all of its pods."""

import os

from tessera.client.commands.context import AccessOptions, command
from tessera.client.commands.jobs.logs import until_started
from tessera.client.commands.slurm_words.foreground import foreground
from tessera.client.commands.slurm_words.sbatch import (
    IdempotencyKey,
    Ignore,
    SlurmWords,
    against_words,
    asked_of,
    own_options,
    unfit,
)
from tessera.client.connect.shard_views import ENDED
from tessera.client.outcomes import Exit, Failure
from tessera.client.sending import submitting
from tessera.client.slurm.lease import renewed, waiting_script
from tessera.client.slurm.scripts.options import split_words
from tessera.client.slurm.scripts.pods import SHELL_WITH_SRUN, SRUN_IN_A_SHELL
from tessera.client.slurm.scripts.script import preset, read_script
from tessera.client.slurm.steps import SlurmStep, find_kubectl, read_step, run_step
from tessera.client.views.rendering import notify
from tessera_schemas.base import number_or_id, run_id
from tessera_schemas.cluster.labels import pod_name
from tessera_schemas.views import JobView


@command
async def salloc(
    at: AccessOptions, words: SlurmWords = None, ignore: Ignore = None, key: IdempotencyKey = None
) -> Exit | None:
    """
    Allocate pods, open a shell in the first one once they run, and end the job when the shell ends, or five minutes
    after the first pod heard of this command last.

    `salloc OPTIONS srun COMMAND` runs the command in all pods instead.

    Both are `kubectl exec`: they need kubectl, and your own rights to get pods and create `pods/exec` in the namespace.
    """
    said, rest = split_words(words or ())
    at, ignored, key, said = own_options(at, ignore or (), key, said)
    said = [*preset("salloc", os.environ), *said]
    kubectl, wrong = find_kubectl("salloc", "; or use srun, which needs none")
    shell = [*rest] or ["/bin/sh"]
    step = SlurmStep(tasks=1, terminal=True)
    if shell[0] == "srun":
        step_options, shell = split_words(shell[1:])
        step, mistakes = read_step(step_options)
        wrong += mistakes
        wrong += against_words("salloc", shell)
    else:
        shell = ["/bin/sh", "-c", SHELL_WITH_SRUN, SRUN_IN_A_SHELL, *shell]
    once = [] if "requeue" in dict(said) else [("no-requeue", "yes")]  # who is gone needs no second allocation
    script = read_script(waiting_script(), "salloc", ignored, [*once, *said], in_each_pod=True)
    wrong += unfit("salloc", script)
    asked = await asked_of(at, script.with_mistakes(*wrong))
    await asked.refuse(at, key)
    where = at.find()
    async with (
        foreground("salloc", where, asked.identity) as own,
        submitting.submitted(where, asked.identity, asked.command, key) as sent,
    ):
        job_id, number = sent.done.job_id, number_or_id(sent.done.number, sent.done.job_id)
        own.is_stored(job_id)
        notify(f"salloc: Pending job allocation {number}")
        try:
            job = await until_started(where, asked.identity, job_id, follow=True)
            if job.phase in ENDED:
                raise Failure(Exit.CONFLICT, f"salloc: job {number} has {job.phase}" + _why(job))
            notify(f"salloc: Granted job allocation {number}")
            pods = [pod_name(run_id(job_id, job.attempt), rank) for rank in range(job.pods)]
            if step.terminal and len(pods) > 1:
                notify(f"salloc: the shell is in {pods[0]}; the pods are {', '.join(pods[1:])}")
            async with renewed(kubectl, job.tenant, pods[0]):
                code = await run_step(kubectl, job, shell, step)
        finally:
            await own.cancel("its salloc has ended")
            notify(f"salloc: Relinquishing job allocation {number}")
    return code  # type: ignore[return-value]  # the shell's own code


def _why(job: JobView) -> str:
    return f": {job.reason.sentence()}" if job.reason else ""
