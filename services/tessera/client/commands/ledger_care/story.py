"""`ledger story`: all that the ledger records of a job, also of one that lists show no longer."""

from contextlib import suppress
from dataclasses import asdict

from tessera.client.commands.context import AccessOptions, Format, command
from tessera.client.connect.api import path_of
from tessera.client.connect.connecting import api_of
from tessera.client.connect.where import Where
from tessera.client.ledger.reading import stored_ledger
from tessera.client.outcomes import Exit, Failure, Refused
from tessera.client.sending import ordering
from tessera.client.views.completing import JobReference
from tessera.client.views.explain import story_lines
from tessera.client.views.rendering import Output, notify, show_value, zone_name
from tessera.kernel.errors import KernelError


@command
async def story(at: AccessOptions, job: JobReference, output: Format = Output.TABLE) -> None:
    """Show what the ledger records of a job, from its first record on; a whole id needs no gateway."""
    where = at.find()
    job_id = await ordering.find_job_id(where, job)
    first_n = await _taken_n(where, job_id)
    async with stored_ledger(where, at.identity) as ledger:
        lines = await ledger.story(job_id, first_n or 1)
        gap = await ledger.gap_before(first_n) if first_n else None
    if gap is not None:
        lines = [gap, *lines]
    if not lines:
        raise Failure(Exit.NOT_FOUND, f"job {job}: the ledger has no record of it; a backup may")
    if output.for_programs:
        show_value(output, {"job_id": job_id, "story": [asdict(line) for line in lines]}, None)
        return
    notify(f"times in {zone_name()}")
    print("\n".join(story_lines([line.line() for line in lines])))


async def _taken_n(where: Where, job_id: str) -> int:
    """Number of the job's first record, as the gateway knows it; 0 where it does not answer or knows no such job."""
    with suppress(Failure, Refused, KernelError):
        return int((await api_of(where).get(path_of(job_id, "explain"))).get("taken_n") or 0)
    return 0
