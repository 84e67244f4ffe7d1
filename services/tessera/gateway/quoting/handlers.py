"""Operations about when jobs start; a tenant sees quotes of its own jobs alone, and scores of the pools it uses."""

from collections.abc import Callable

from aiohttp import web

from tessera.domain.entities import Job
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.gateway.entrance.bodies import read_query
from tessera.gateway.entrance.guard import CALLER
from tessera.gateway.entrance.problems import json_response
from tessera.gateway.entrance.tokens import Caller
from tessera.gateway.operations import queries
from tessera.gateway.operations.paging import cursor_of, place_of
from tessera.gateway.quoting.models import PoolScores, QuotedJob, QuoteList, ScoreList
from tessera.gateway.reading.quotes import SharedQuotes, with_words
from tessera.gateway.reading.views import ListPlace
from tessera.kernel.ports import Clock
from tessera_schemas.shard.quotes import StartQuote


class QuoteHandlers:
    """`pools_of` are the pools that a caller sees."""

    def __init__(
        self, state: State, clock: Clock, quotes: SharedQuotes, pools_of: Callable[[Caller], set[str]]
    ) -> None:
        self._state, self._clock, self._quotes, self._pools_of = state, clock, quotes, pools_of

    async def quotes(self, request: web.Request) -> web.Response:
        """Answers with a page of the caller's waiting jobs that have a quote, the soonest by its median first."""
        query, tenant = read_query(request, queries.PageQuery), request[CALLER].tenant
        kept, behind = await self._quotes.fresh(), place_of(query.cursor)
        # A job that has started since the quotes were drawn has none.
        own = (job for job in self._state.jobs.found(kept.quotes) if tenant in (None, job.tenant))
        found = (_place(job, kept.quotes[job.job_id]) for job in own if job.phase is Phase.QUEUED)
        places = sorted(place for place in found if behind is None or place > behind)
        shown, now_ms = places[: query.limit], self._clock.now_ms()
        items = tuple(
            QuotedJob(
                job_id=job.job_id,
                name=job.name,
                tenant=job.tenant,
                queue=job.queue,
                pool=self._state.tree.pool(job.queue) or "",
                user=job.user,
                gpu_milli=job.amount.gpu_milli,
                submitted_ts=job.submitted_ts,
                quote=with_words(kept.quotes[job.job_id], now_ms),
            )
            for job in self._state.jobs.found(job_id for _, _, job_id in shown)
        )
        following = cursor_of(shown[-1]) if len(places) > len(shown) else None
        return json_response(QuoteList(as_of=kept.n, ts=kept.ts, items=items, next=following))

    async def scores(self, request: web.Request) -> web.Response:
        """Answers with how quotes of the last weeks held, by pool; they name no job."""
        kept, seen = await self._quotes.fresh(), self._pools_of(request[CALLER])
        items = tuple(
            PoolScores.model_validate({"pool": pool, **scores.model_dump()})
            for pool, scores in sorted(kept.scores.items())
            if pool in seen
        )
        return json_response(ScoreList(as_of=kept.n, ts=kept.ts, items=items))


def _place(job: Job, quote: StartQuote) -> ListPlace:
    return 0, quote.by_50_ts, job.job_id
