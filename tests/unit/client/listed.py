"""A gateway's lists in memory: pages and filters are the gateway's own, without HTTP."""

from collections.abc import Iterable
from typing import Any

from tessera.client.connect.shard_views import ShardViews
from tessera.client.outcomes import Exit, Failure
from tessera.gateway.operations.paging import cursor_of, is_called, page_of, place_of
from tessera.gateway.operations.queries import JobQuery
from tessera.gateway.reading.views import ORDERS
from tessera_schemas.base import Json
from tessera_schemas.config import Config
from tessera_schemas.views import JobView


class ListedJobs:
    """Answers as `Api.get` does about these jobs; `asked` are the paths that were asked for."""

    def __init__(self, jobs: Iterable[JobView] = (), config: Config | None = None, as_of: int = 1) -> None:
        self._jobs, self._config, self._as_of = list(jobs), config or Config(), as_of
        self.asked: list[str] = []

    async def get(self, path: str, **query: Any) -> Json:
        """JSON of an answer. Raises Failure for a job that is not there."""
        self.asked.append(path)
        if path == "/v1/config":
            return {"as_of": self._as_of, "config": self._config.model_dump(mode="json")}
        if path != "/v1/jobs":
            return {"as_of": self._as_of, "job": self._one(path.rpartition("/")[2])}
        said = {name: value for name, value in query.items() if value not in (None, ())}
        phase = said.pop("phase", ())
        asked = JobQuery.model_validate(said | {"phase": (phase,) if isinstance(phase, str) else tuple(phase)})
        place, key = place_of(asked.cursor), ORDERS[asked.order]
        rest = [job for job in sorted(self._jobs, key=key) if place is None or key(job) > place]
        rest = [job for job in rest if not asked.named or is_called(job, asked.named)]  # type: ignore[arg-type]
        items, place = page_of(rest, asked, lambda _: "")
        rows = [job.model_dump(mode="json") for job in items]
        return {"as_of": self._as_of, "items": rows, "next": None if place is None else cursor_of(place)}

    def _one(self, job_id: str) -> Json:
        for job in self._jobs:
            if job.job_id == job_id:
                return job.model_dump(mode="json")
        raise Failure(Exit.NOT_FOUND, f"job {job_id}: there is none; see `tessera ls`")


def views_over(*jobs: JobView, config: Config | None = None) -> ShardViews:
    """Views of a shard that has these jobs."""
    return ShardViews(ListedJobs(jobs, config))  # type: ignore[arg-type]
