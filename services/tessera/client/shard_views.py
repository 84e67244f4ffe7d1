"""The shared views as the operator reads them, with the n up to which they hold."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tessera.client.outcomes import Exit, Failure
from tessera.domain.phases import TERMINAL
from tessera.kernel.ports import ProjectionStore
from tessera_schemas.views import JobView, NodeView, QueueView

if TYPE_CHECKING:
    from tessera_schemas.config import Config

ID_PREFIX_MIN = 4
ENDED = frozenset(phase.value for phase in TERMINAL)


@dataclass(frozen=True, slots=True)
class ShardViews:
    """`as_of` is read before the view, so a view is never older than it says."""

    store: ProjectionStore

    async def as_of(self) -> int:
        """Number of the last ledger message that the views hold."""
        return await self.store.cursor()

    async def jobs(self) -> list[JobView]:
        """Live jobs first, each group oldest first, then by id."""
        found = [JobView.from_bytes(stored) for stored in (await self.store.get_all("jobs")).values()]
        return sorted(found, key=lambda job: (job.phase in ENDED, job.submitted_ts, job.job_id))

    async def all_work(self) -> list[JobView]:
        """Live jobs, then users' work in Kubernetes that is refused, whose ids are no jobs', then ended jobs."""
        jobs, found = await self.jobs(), (await self.store.get_all("refused")).values()
        refused = sorted(map(JobView.from_bytes, found), key=lambda work: (work.submitted_ts, work.job_id))
        return sorted([*jobs, *refused], key=lambda job: (job.phase in ENDED) * 2 + (job.phase == "refused"))

    async def work(self, named: str) -> JobView:
        """A job, or refused work, by the same names. Raises Failure."""
        stored = await self.store.get("jobs", named)
        return JobView.from_bytes(stored) if stored is not None else one_of(await self.all_work(), named)

    async def nodes(self) -> list[NodeView]:
        """All nodes by pool, then name."""
        found = [NodeView.from_bytes(stored) for stored in (await self.store.get_all("nodes")).values()]
        return sorted(found, key=lambda node: (node.pool, node.name))

    async def queues(self) -> list[QueueView]:
        """All queues by name."""
        found = [QueueView.from_bytes(stored) for stored in (await self.store.get_all("queues")).values()]
        return sorted(found, key=lambda queue: queue.name)

    async def config(self) -> "Config":
        """Version 0 before the first `apply`."""
        from tessera_schemas.config import Config  # who only lists does without

        stored = await self.store.get("config", "config")
        return Config() if stored is None else Config.model_validate_json(stored)

    async def job(self, named: str) -> JobView:
        """A job by its id, the unique beginning of one, or its name. Raises Failure."""
        stored = await self.store.get("jobs", named)
        return JobView.from_bytes(stored) if stored is not None else one_of(await self.jobs(), named)


def one_of(jobs: list[JobView], named: str) -> JobView:
    """The job meant by the beginning of an id or by a name; of jobs with one name the live one, if it is alone."""
    by_id = [job for job in jobs if len(named) >= ID_PREFIX_MIN and job.job_id.startswith(named)]
    by_name = [job for job in jobs if job.name == named]
    live = [job for job in by_name if job.phase not in ENDED]
    for found in (by_id, live, by_name):
        if len(found) == 1:
            return found[0]
        if found:
            some = ", ".join(job.job_id for job in found[:5]) + (", …" if len(found) > 5 else "")
            raise Failure(Exit.USAGE, f"job {named}: {len(found)} jobs are meant ({some}); name one by its id")
    raise Failure(Exit.NOT_FOUND, f"job {named}: there is none with this id or name; see `tessera ls`")
