"""Operations about when jobs start; a tenant sees quotes of its own jobs alone, and scores of the pools it uses."""

from collections.abc import Callable
from dataclasses import asdict

from aiohttp import web

from tessera.domain.entities import Job
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.engine.explain.changed_spec import differences
from tessera.engine.quoting.asked import AskedQuote
from tessera.engine.quoting.scorecard import as_told
from tessera.gateway.entrance.bodies import read_query
from tessera.gateway.entrance.guard import CALLER
from tessera.gateway.entrance.problems import all_of, json_response, refused
from tessera.gateway.entrance.tokens import Caller
from tessera.gateway.operations import queries
from tessera.gateway.operations.commanding import Submits, read_submit, spec_of
from tessera.gateway.operations.models import SpecDifference, SubmitEnvelope
from tessera.gateway.operations.paging import cursor_of, place_of
from tessera.gateway.quoting.asking import AskedQuotes
from tessera.gateway.quoting.models import (
    EarlierStart,
    PoolScores,
    QuoteEnvelope,
    QuoteList,
    ScoreList,
    SpecQuote,
    WaitingQuote,
)
from tessera.gateway.reading.quotes import SharedQuotes, with_words
from tessera.gateway.reading.views import ListPlace
from tessera.kernel.ports import Clock
from tessera_schemas.base import job_id
from tessera_schemas.facts import JobAdmitted
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.quotes import StartQuote

KEY = "a-quote"


class QuoteHandlers:
    """`quotes` are of jobs that wait, `asked` of others; `pools_of` are the pools that a caller sees."""

    def __init__(
        self,
        state: State,
        clock: Clock,
        shard: str,
        quotes: SharedQuotes,
        asked: AskedQuotes,
        submits: Submits,
        pools_of: Callable[[Caller], set[str]],
    ) -> None:
        self._state, self._clock, self._shard, self._pools_of = state, clock, shard, pools_of
        self._quotes, self._asked, self._submits = quotes, asked, submits

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
            WaitingQuote(
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

    async def quote(self, request: web.Request) -> web.Response:
        """Answers when a job would start if it were submitted now; raises Refusal as for the submit itself."""
        caller = request[CALLER]
        if caller.tenant is None:
            raise refused(Code.FORBIDDEN, "Authorization", "ask with a token of the job's tenant")
        body = await read_submit(request, QuoteEnvelope)
        asked = SubmitEnvelope.model_validate({"spec": body.spec, "dry_run": True})
        command = await self._submits.command(asked, KEY, caller)
        await self._submits.judge(caller.tenant, command, None)
        spec = spec_of(command)
        assert spec is not None
        # No key has a blank, so that no job has this id.
        unique = job_id(self._shard, caller.tenant, "a quote")
        fact = JobAdmitted(kind="job_admitted", job_id=unique, tenant=caller.tenant, key=KEY, spec=spec)
        n, found = self._state.n, await self._asked.quote(fact, body.changes)
        if isinstance(found, Reason):
            raise all_of([found])
        return json_response(self._answer(n, spec, found))

    def _answer(self, n: int, spec: JobSpec, found: AskedQuote) -> SpecQuote:
        now_ms, money = self._clock.now_ms(), self._state.tree.money
        return SpecQuote(
            as_of=n,
            pool=found.pool,
            quote=with_words(as_told(found.quote), now_ms),
            length_ms=found.length_ms,
            length_rests_on="" if not found.length_ms else "learnt_runtimes" if found.is_learnt else "time_limits",
            cost_micros=found.cost_micros,
            currency="" if money is None else money.currency,
            changes=tuple(
                EarlierStart(
                    kind=change.kind,
                    text=change.text,
                    role=change.role,
                    value=change.value,
                    quote=with_words(as_told(change.quote), now_ms),
                    cost_micros=change.cost_micros,
                    differences=tuple(SpecDifference(**asdict(each)) for each in differences(spec, change.spec)),
                )
                for change in found.changes
            ),
            tried=found.tried,
        )


def _place(job: Job, quote: StartQuote) -> ListPlace:
    return 0, quote.by_50_ts, job.job_id
