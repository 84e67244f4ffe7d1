"""An allocation in the foreground: pods that are held for a command, which ends their job when it ends itself."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tessera.client.commands.jobs.logs import until_started
from tessera.client.commands.slurm_words.foreground import Foreground, foreground
from tessera.client.connect.shard_views import ENDED
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure
from tessera.client.sending import submitting
from tessera.client.slurm.in_pods import PodExec, pods_of
from tessera.client.slurm.lease import renewed
from tessera.client.views.rendering import notify
from tessera_schemas.base import Json, number_or_id, run_id
from tessera_schemas.cluster.labels import pod_name
from tessera_schemas.views import JobView


@dataclass(frozen=True, slots=True)
class Allocation:
    """A job whose pods run and wait for commands, the names of its pods by rank, and the way to call them."""

    own: Foreground
    pods: PodExec
    job: JobView
    names: tuple[str, ...]


@asynccontextmanager
async def allocation(
    name: str, where: Where, identity: str | None, asked: Json, key: str | None, renew: Sequence[str]
) -> AsyncIterator[Allocation]:
    """
    Submit a job whose pods wait under a lease, and hold it until the body ends; then the job is cancelled.

    `name` is the command's own in what it says; `renew` the words in the first pod that renew the lease. Raises Refused
    with all reasons, Failure for a job that ends before it runs or pods that are not reached, typer.Exit on a signal.
    """
    async with (
        foreground(name, where, identity) as own,
        submitting.submitted(where, identity, asked, key) as sent,
    ):
        job_id, number = sent.done.job_id, number_or_id(sent.done.number, sent.done.job_id)
        own.is_stored(job_id)
        notify(f"{name}: Pending job allocation {number}")
        try:
            job = await until_started(where, identity, job_id, follow=True)
            if job.phase in ENDED:
                why = f": {job.reason.sentence()}" if job.reason else ""
                raise Failure(Exit.CONFLICT, f"{name}: job {number} has {job.phase}{why}")
            notify(f"{name}: Granted job allocation {number}")
            names = tuple(pod_name(run_id(job_id, job.attempt), rank) for rank in range(job.pods))
            async with pods_of(job.tenant) as pods, renewed(name, pods, names[0], renew):
                yield Allocation(own, pods, job, names)
        finally:
            await own.cancel(f"its {name} has ended")
            notify(f"{name}: Relinquishing job allocation {number}")
