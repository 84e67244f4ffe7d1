"""`rerun`: a job's spec submitted again as a new job."""

from typing import Annotated

import typer

from tessera.client.commands.context import AccessOptions, Format, command
from tessera.client.commands.jobs.submit import show_submitted
from tessera.client.sending import submitting
from tessera.client.sending.rerunning import apply_changes, find_spec, read_changes
from tessera.client.views.completing import JobReference
from tessera.client.views.rendering import Output, notify
from tessera.kernel.ids import random_key


@command
async def rerun(
    at: AccessOptions,
    job: JobReference,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Of its spec, such as roles.worker.resources.gpus=4"),
    ] = None,
    hold: Annotated[bool, typer.Option("--hold", help="It waits until `tessera release`")] = False,
    key: Annotated[str | None, typer.Option(help="Idempotency key of the new job; else random")] = None,
    output: Format = Output.TABLE,
) -> None:
    """Submit a job's spec again, of a live job or one that has ended; of an array's task that task alone."""
    where = at.find()
    spec, tenant = await find_spec(where, at.identity, job)
    asked = {"kind": "submit_job", "spec": apply_changes(spec, read_changes(spec, changes or ())), "held": hold}
    if key is None:
        notify(f"key {(key := random_key())}")  # one of the CI run may be the key of the job itself
    whose = at.identity or (tenant if where.login is None and where.can_be(tenant) else None)
    async with submitting.submitted(where, whose, asked, key) as sent:
        show_submitted(sent.done, output)
