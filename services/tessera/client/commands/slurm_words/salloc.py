"""`salloc`: an allocation that lasts as long as a shell in its first pod, or a step in all of its pods."""

import os
from dataclasses import replace

from tessera.client.commands.context import AccessOptions, command
from tessera.client.commands.slurm_words.allocation import allocation
from tessera.client.commands.slurm_words.sbatch import (
    IdempotencyKey,
    Ignore,
    SlurmWords,
    against_words,
    asked_of,
    own_options,
    unfit,
)
from tessera.client.outcomes import Exit
from tessera.client.slurm.lease import RENEW, RENEW_BY_NAME, waiting_by_name, waiting_script
from tessera.client.slurm.scripts.options import split_words
from tessera.client.slurm.scripts.pods import SHELL_WITH_SRUN, SRUN_IN_A_SHELL
from tessera.client.slurm.scripts.script import preset, read_script
from tessera.client.slurm.steps import SlurmStep, read_step, run_step, run_words, split_step
from tessera.client.views.rendering import notify


@command
async def salloc(
    at: AccessOptions, words: SlurmWords = None, ignore: Ignore = None, key: IdempotencyKey = None
) -> Exit | None:
    """
    Allocate pods, open a shell in the first one once they run, and end the job when the shell ends, or five minutes
    after the first pod heard of this command last.

    `salloc OPTIONS srun COMMAND` runs the command in all pods instead.

    Both need a kubeconfig of your own, with the rights to get and create `pods/exec` in the namespace.
    """
    said, rest = split_words(words or ())
    at, ignored, key, said = own_options(at, ignore or (), key, said)
    said = [*preset("salloc", os.environ), *said]
    once = [] if "requeue" in dict(said) else [("no-requeue", "yes")]  # who is gone needs no second allocation
    script = read_script(waiting_script(), "salloc", ignored, [*once, *said], in_each_pod=True)
    is_step, command = rest[:1] == ["srun"], [*rest] or ["/bin/sh"]
    nothing = against_words("salloc", []) if is_step and not split_step(rest[1:])[1] else []
    script = script.with_mistakes(*unfit("salloc", script), *nothing)
    asked = await asked_of(at, script, replace(script, text=waiting_by_name()))
    has_steps = asked.command["spec"].get("launcher") == "steps"
    step = SlurmStep(tasks=1, terminal=True)
    if is_step and not has_steps:
        step, command = read_step(rest[1:])
    elif not has_steps:
        command = ["/bin/sh", "-c", SHELL_WITH_SRUN, SRUN_IN_A_SHELL, *command]
    await asked.refuse(at, key)
    renew = RENEW_BY_NAME if has_steps else RENEW
    async with allocation("salloc", at.find(), asked.identity, asked.command, key, renew) as held:
        if not is_step and len(held.names) > 1:
            notify(f"salloc: the shell is in {held.names[0]}; the pods are {', '.join(held.names[1:])}")
        if has_steps:
            code = await run_words(held.pods, held.job, command, held.own.interrupts)
        else:
            code = await run_step(held.pods, held.job, command, step)
    return code  # type: ignore[return-value]  # the shell's own code
