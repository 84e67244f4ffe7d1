"""`run`: a command on your terminal in a pod of its own, as `docker run -it` is; or a service of this installation."""

from collections.abc import Coroutine, Sequence
from typing import Annotated, Any

import typer

from tessera.client.commands.context import AccessOptions, command
from tessera.client.commands.sessions.options import SessionOptions, session_of
from tessera.client.commands.slurm_words.allocation import allocation
from tessera.client.outcomes import Exit, Failure
from tessera.client.slurm.lease import RENEW, waiting_script
from tessera.client.slurm.steps import SlurmStep, run_step

SHELL = ("/bin/sh",)


@command
def run(
    at: AccessOptions,
    options: SessionOptions,
    what: Annotated[str, typer.Argument(metavar="IMAGE|SERVICE", help="With -i an image, else a service: A+B for two")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="After `--`; else /bin/sh", show_default=False)
    ] = None,
    interactive: Annotated[bool, typer.Option("-i", "--interactive", help="Hand this command's input on")] = False,
    terminal: Annotated[bool, typer.Option("-t", "--tty", help="Give the command your terminal")] = False,
) -> int | Coroutine[Any, Any, int]:
    """
    Run a command in a pod of its own: `tessera run -it IMAGE --gpus 1 -- python`. The job ends with it.

    The pod ends by itself five minutes after it heard of this command last. You need a kubeconfig of your own with the
    rights to get and create `pods/exec` in the namespace, and an image that has /bin/sh.

    Without -i it runs a service, or several in one process, until SIGTERM; settings are TESSERA_… or in tessera.toml.
    """
    if interactive:
        return _run_in_pod(at, options, what, words or SHELL, terminal)
    if terminal or words:
        raise Failure(Exit.USAGE, "run: a command in a pod has your input: write tessera run -it IMAGE -- COMMAND")
    from tessera.launch import run_named  # a command needs nothing of a service

    return run_named(what, at.shard)


async def _run_in_pod(
    at: AccessOptions, options: SessionOptions, image: str, words: Sequence[str], terminal: bool
) -> int:
    waiting = ("/bin/sh", "-c", waiting_script())
    asked = await session_of(
        at, options, image, waiting, {}, {"retry": {"max_attempts": 1}, "session": {"kind": "terminal"}}
    )
    async with allocation("run", at.find(), at.identity, asked, options.key, RENEW) as held:
        return await run_step(held.pods, held.job, words, SlurmStep(tasks=1, terminal=terminal))
