"""`explain`: why a job stands where it stands, and what would let it start."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tessera.client.commands.context import AccessOptions, Format, command
from tessera.client.connect.connecting import views_of
from tessera.client.connect.where import Where
from tessera.client.outcomes import Failure, Refused
from tessera.client.sending.explaining import explain_job
from tessera.client.views.arrays import array_lines, failed_tasks
from tessera.client.views.completing import JobReference
from tessera.client.views.explain import explanation_lines
from tessera.client.views.rendering import Output, plain, show_value
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient
from tessera_schemas.views import JobView


@command
async def explain(at: AccessOptions, job: JobReference, output: Format = Output.TABLE) -> None:
    """Say why a job stands where it stands, who holds what it needs, what would let it start, and its story."""
    where = at.find()
    found = await explain_job(where, job, at.identity)
    array = await _array_of(where, at.identity, found)
    if array is not None:
        found |= {"array": plain(array[0].array), "failed_tasks": plain(array[1])}
    if output.for_programs:
        show_value(output, found, found.pop("as_of"))
    else:
        said = [] if array is None else array_lines(*array)
        print("\n".join(explanation_lines(found, SystemClock().now_ms(), said)))


async def _array_of(
    where: Where, identity: str | None, found: dict[str, Any]
) -> tuple[JobView, Sequence[JobView]] | None:
    """The array that is explained, with its failed tasks; None for another job."""
    if not found.get("job_id"):
        return None
    with suppress(Failure, Refused, Transient):  # the explanation stands without it
        views = views_of(where, identity)
        job = await views.job(found["job_id"])
        return None if job.array is None else (job, await failed_tasks(views, job))
    return None
