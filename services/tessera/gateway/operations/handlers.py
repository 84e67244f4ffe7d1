"""One short function per operation: who asks, for what, and the answer; a "no" is raised."""

import asyncio
import re
from dataclasses import asdict
from typing import Any

import structlog
from aiohttp import web
from pydantic import ValidationError

from tessera.domain.entities import EndedJob, Job, RefusedWork, Run
from tessera.domain.quota.queue_settings import granted_classes, time_limit_fault
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.engine.explain.changed_spec import changed_spec, differences
from tessera.engine.queueing.entry import key_conflict
from tessera.engine.queueing.shares import seen_by, shares
from tessera.engine.queueing.updates import update_faults
from tessera.gateway.entrance.bodies import read_body, read_query
from tessera.gateway.entrance.guard import CALLER
from tessera.gateway.entrance.loop_shares import SHARE
from tessera.gateway.entrance.problems import Refusal, all_of, json_response, no_such_job, refused
from tessera.gateway.entrance.tokens import Caller
from tessera.gateway.operations import models, queries
from tessera.gateway.operations.accounting import AccountHandlers
from tessera.gateway.operations.commanding import (
    KEY_HEADER,
    Arrivals,
    Commands,
    Submits,
    digest_of,
    read_key,
    spec_of,
)
from tessera.gateway.operations.free_slots import SlotHandlers
from tessera.gateway.operations.health_reports import HealthReports
from tessera.gateway.operations.listing import ListHandlers
from tessera.gateway.operations.paging import JobPages
from tessera.gateway.operations.resizing import SizeHandlers
from tessera.gateway.quoting.asking import AskedQuotes
from tessera.gateway.quoting.handlers import QuoteHandlers
from tessera.gateway.reading.account import AccountReader
from tessera.gateway.reading.budgets import budget_notes
from tessera.gateway.reading.consequences import told_consequences
from tessera.gateway.reading.explaining import KeptAnswers, explained, known_starts, list_positions
from tessera.gateway.reading.groups import groups_of, idle_groups
from tessera.gateway.reading.logs import Logs
from tessera.gateway.reading.quotes import SharedQuotes
from tessera.gateway.reading.specs import Specs
from tessera.gateway.reading.streaming import Streams
from tessera.gateway.reading.views import SharedStatus, SharedViews
from tessera.gateway.settings import GatewaySettings
from tessera.kernel.ports import Clock
from tessera.kernel.process.shard_status import judge
from tessera_schemas.base import Strict, job_id
from tessera_schemas.commands import (
    AnswerMove,
    ApplyConfig,
    CancelJob,
    DrainNode,
    HoldJob,
    MoveJob,
    ReleaseJob,
    ReportCheckpoint,
    RequeueJob,
    ReserveNodes,
    SetPriority,
    UpdateJob,
)
from tessera_schemas.config import Queue
from tessera_schemas.reasons import Code, PublicReason
from tessera_schemas.views import LineStart

JOB_ID = re.compile(r"[a-z2-7]{20}")
CANCELS_AT_ONCE = 64
KNOWN_SECONDS, KNOWN_POLL_SECONDS = 0.5, 0.02
WAIT_POLL_SECONDS = 0.2
STARTS_SECONDS = 1.0
STARTS_REST = 19
# So old expected starts may be, and so many times as long as the search for them took.

log = structlog.get_logger()


class Handlers:
    """Handlers of the API's operations. `state` is the live folded state; answers hold as of `state.n`."""

    def __init__(
        self,
        settings: GatewaySettings,
        state: State,
        views: SharedViews,
        commands: Commands,
        arrivals: Arrivals,
        streams: Streams,
        logs: Logs,
        specs: Specs,
        clock: Clock,
        status: SharedStatus,
        account: AccountReader,
        quotes: SharedQuotes,
        asked: AskedQuotes,
    ) -> None:
        self._status, self._quotes = status, quotes
        accounts = AccountHandlers(state, account, clock, self._pools_of)
        self.account, self.usage = accounts.account, accounts.usage
        self._settings, self._state, self._views = settings, state, views
        self._submits = Submits(commands, state, settings.shard)
        self._commands, self._arrivals, self._streams, self._logs = commands, arrivals, streams, logs
        self._specs, self._clock = specs, clock
        self._kept = KeptAnswers(state, clock)
        self._lists = JobPages(state, views)
        free = SlotHandlers(state, clock, self._kept, self._pools_of, self._queues_of)
        self.slots, self.pod_slots, self.idle = free.slots, free.pod_slots, free.idle
        lists = ListHandlers(state, clock, self._sees_pool, self._queues_of, commands)
        self.services, self.datasets, self.budgets = lists.services, lists.datasets, lists.budgets
        self.reservations, self.reserve, self.end_reservation = lists.reservations, lists.reserve, lists.end_reservation
        self.tell_places = lists.tell_places
        self.report_health = HealthReports(state, commands).report_health
        sizes = SizeHandlers(state, arrivals, self._live, self._order, specs, settings.answer_seconds)
        self.scale_service, self.shift_roles = sizes.scale_service, sizes.shift_roles
        self.roll_service = sizes.roll_service
        self.resize_pods = sizes.resize_pods
        quoting = QuoteHandlers(state, clock, settings.shard, quotes, asked, self._submits, self._pools_of)
        self.quotes, self.quote_scores, self.quote = quoting.quotes, quoting.scores, quoting.quote
        self._starts: dict[str, tuple[float, dict[str, LineStart]]] = {}

    # -- jobs

    async def submit(self, request: web.Request) -> web.Response:
        """
        Submits a job under the caller's key: 201 queued, 200 existing or a dry run, 202 not yet known; else raises
        Refusal.
        """
        caller = request[CALLER]
        if caller.tenant is None:
            raise refused(Code.FORBIDDEN, "Authorization", "submit with a token of the job's tenant")
        command = await self._submits.read(request, caller)
        key = command["key"]
        if command.get("dry_run") is True:
            return await self._judged(caller.tenant, command, key)
        job = job_id(self._settings.shard, caller.tenant, key)
        existed = self._remembered(job) is not None
        async with self._arrivals.expecting(job) as arrival:
            answer = await self._commands.send(caller.tenant, command)
            reasons = None
            if answer is not None and not existed:
                reasons = await arrival.within(self._settings.answer_seconds)
        if answer is None:
            return self._submitted(caller, job, key, "stored", 202)
        known = self._remembered(job)
        if known is None:
            if reasons:
                raise all_of(reasons)
            return self._submitted(caller, job, key, "admitted", 202, answer.notes)
        if known.spec_hash != digest_of(command):
            raise all_of([key_conflict(key)])
        if existed:
            return self._submitted(caller, job, key, "existing", 200, number=known.number)
        notes = (*answer.notes, *self._budget_notes(caller.tenant, command))
        return self._submitted(caller, job, key, "queued", 201, notes, known.number)

    async def _judged(self, tenant: str, command: dict[str, Any], key: str) -> web.Response:
        # Answer that the job would be admitted. Raises Refusal with all that is against it.
        job = job_id(self._settings.shard, tenant, key)
        answer = await self._submits.judge(tenant, command, self._remembered(job))
        notes = (*answer.notes, *self._budget_notes(tenant, command))
        body = models.StoredSubmit(job_id=job, key=key, state="dry_run", as_of=self._state.n, notes=notes)
        return json_response(body)

    def _submitted(
        self,
        caller: Caller,
        job: str,
        key: str,
        state: Any,
        status: int,
        notes: tuple[str, ...] = (),
        number: int = 0,
    ) -> web.Response:
        log.info("job_submitted", job=job, tenant=caller.tenant, token=caller.token_id, state=state)
        body = models.StoredSubmit(job_id=job, key=key, state=state, as_of=self._state.n, notes=notes, number=number)
        return json_response(body, status, {"Location": f"/v1/jobs/{job}"})

    async def get_job(self, request: web.Request) -> web.Response:
        """Answers with the view of a job, or of refused work, of the caller; raises Refusal where neither is known."""
        known = self._own_work(request)
        n, view = await self._views.job(known.job_id, self._state.n)
        if view is None:
            ended = self._state.ended.get(known.job_id)
            raise no_such_job(known.job_id) if ended is None else Refusal(ended.not_shown(self._clock.now_ms()))
        quote = await self._quotes.of(known.job_id) if view.phase == Phase.QUEUED else None
        return json_response(models.OneJob(as_of=n, job=view, quote=quote))

    async def wait_for_job(self, request: web.Request) -> web.Response:
        """Answers as `get_job` once the job has ended, or with what it is when the caller's time is over."""
        query, known, clock = read_query(request, queries.WaitQuery), self._own(request), self._clock
        job, until = known.job_id, clock.monotonic() + query.timeout
        with self._streams.counting(request[CALLER]):
            while True:
                while self._state.jobs.get(job) is not None and clock.monotonic() < until:
                    await clock.sleep(WAIT_POLL_SECONDS)
                n, view = await self._views.job(job, self._state.n)
                if view is None:  # it was forgotten in between
                    raise no_such_job(job)
                if view.ended_ts or clock.monotonic() >= until:
                    return json_response(models.OneJob(as_of=n, job=view))
                await clock.sleep(WAIT_POLL_SECONDS)  # the views are a moment behind the fold

    async def list_jobs(self, request: web.Request) -> web.Response:
        """Answers with a page of jobs and the cursor of the next; raises Refusal for another tenant's."""
        query, caller = read_query(request, queries.JobQuery), request[CALLER]
        if query.tenant is not None and not caller.may_see(query.tenant):
            raise refused(Code.FORBIDDEN, "tenant", "a tenant's token lists its own jobs; leave tenant out")
        array = None if query.array is None else self._job_of(caller, query.array)
        return json_response(await self._lists.page(query, caller.tenant or query.tenant, array, request[SHARE].turn))

    async def work(self, request: web.Request) -> web.Response:
        """Answers with the caller's live jobs in groups."""
        n, jobs = await self._views.jobs()
        await request[SHARE].turn()
        live = list(jobs.live(request[CALLER].tenant))
        tenants, reasons = groups_of(live)
        return json_response(models.WorkGroups(as_of=n, tenants=tenants, reasons=reasons, idle=idle_groups(live)))

    async def cancel_job(self, request: web.Request) -> web.Response:
        """Sends the cancel of a job, with its reason and whether notice is cut short."""
        body = await read_body(request, models.CancelBody)
        return await self._order(request, CancelJob, "cancel_job", **body.model_dump())

    async def cancel_jobs(self, request: web.Request) -> web.Response:
        """Sends the cancels of many jobs, some at once; one that is refused keeps no other from being sent."""
        body, caller = await read_body(request, models.CancelJobsBody), request[CALLER]
        jobs, said = list(dict.fromkeys(body.jobs)), list[models.CancelledJob]()
        fields = body.model_dump(exclude={"jobs"})
        for at in range(0, len(jobs), CANCELS_AT_ONCE):
            said += await asyncio.gather(
                *(self._cancel_one(caller, job, fields) for job in jobs[at : at + CANCELS_AT_ONCE])
            )
        log.info("jobs_cancelled", jobs=len(jobs), token=caller.token_id)
        return json_response(models.CancelledJobs(as_of=self._state.n, items=tuple(said)), 202)

    async def _cancel_one(self, caller: Caller, job: str, fields: dict[str, Any]) -> models.CancelledJob:
        try:
            tenant = self._live_of(caller, job).tenant
            order = CancelJob(kind="cancel_job", v=1, job_id=job, tenant=tenant, **fields)
            data = order.model_dump(mode="json", exclude_defaults=True)
            answer = await self._commands.send(tenant, data, caller.tenant is None)
        except Refusal as refusal:
            reason = PublicReason.model_validate(refusal.reasons[0].model_dump())
            return models.CancelledJob(job_id=job, state="refused", reason=reason)
        return models.CancelledJob(job_id=job, state="stored" if answer is None else "accepted")

    async def hold_job(self, request: web.Request) -> web.Response:
        """Sends the order that puts a job on hold."""
        return await self._order(request, HoldJob, "hold_job")

    async def release_job(self, request: web.Request) -> web.Response:
        """Sends the order that ends a hold; raises Refusal for an operator's, which no tenant ends."""
        known = self._known(request.match_info["job_id"])
        if request[CALLER].tenant is not None and isinstance(known, Job) and known.operator_hold:
            self._live(request)  # another tenant's job is one that does not exist
            raise refused(Code.HELD_BY_OPERATOR, "job_id")
        return await self._order(request, ReleaseJob, "release_job")

    async def set_priority(self, request: web.Request) -> web.Response:
        """Sends the order that gives a job another priority class; users' own pods keep that of Kubernetes."""
        body, known = await read_body(request, models.PriorityBody), self._own(request)
        if isinstance(known, Job) and known.adopted is not None:
            detail = f"{known.adopted.owner} has the priority of its PriorityClass in Kubernetes; change it there"
            raise refused(Code.PRIORITY_NOT_ALLOWED, "priority_class", detail)
        return await self._order(request, SetPriority, "set_priority", **body.model_dump())

    async def move_job(self, request: web.Request) -> web.Response:
        """Sends the order that lets a waiting job wait in another queue; raises Refusal for a job that runs."""
        body, known = (await read_body(request, models.QueueBody)).model_dump(), self._own(request)
        if isinstance(known, Job) and known.phase is not Phase.QUEUED:
            raise refused(Code.NOT_WAITING, "job_id", f"the job is {known.phase.value}; only waiting jobs move")
        if isinstance(known, Job):
            fault = time_limit_fault(self._state.tree, body["queue"], known.tenant, known.time_limit_seconds)
            if fault is not None:
                raise all_of([fault])
        return await self._order(request, MoveJob, "move_job", **body)

    async def update_job(self, request: web.Request) -> web.Response:
        """Sends the order that changes the spec of a job; raises Refusal with all that is against it now."""
        body, known = await read_body(request, models.UpdateBody), self._own(request)
        if isinstance(known, EndedJob):
            raise refused(Code.ALREADY_ENDED, "job_id", known.phase.value)
        against = update_faults(self._state, known, body, by_tenant=request[CALLER].tenant is not None)
        if against:
            raise all_of(against)
        return await self._order(request, UpdateJob, "update_job", **body.given)

    async def requeue_job(self, request: web.Request) -> web.Response:
        """Sends the order that stops a job's run and puts the job back in line; one that waits stays there."""
        return await self._order(request, RequeueJob, "requeue_job")

    async def job_classes(self, request: web.Request) -> web.Response:
        """Answers with the classes granted to the job's tenant; raises Refusal for a job that has ended."""
        known, tree = self._live(request), self._state.tree
        names = () if known.adopted is not None else granted_classes(tree, known.tenant)
        found = [models.ClassValue(name=name, value=tree.priority(name)) for name in names]
        body = models.JobClasses(
            as_of=self._state.n,
            job_id=known.job_id,
            priority_class=known.priority_class,
            classes=tuple(sorted(found, key=lambda one: (-one.value, one.name))),
        )
        return json_response(body)

    async def job_spec(self, request: web.Request) -> web.Response:
        """Answers with the spec that was submitted, and with that of the change that is asked for, if one is."""
        query, known = read_query(request, queries.SpecQuery), self._own(request)
        spec = await self._specs.of(known)
        changed = spec
        if query.kind is not None:
            try:
                changed = changed_spec(spec, query.kind, query.role, query.value)
            except ValueError as error:
                wrong = "the changed spec would be invalid" if isinstance(error, ValidationError) else str(error)[:200]
                raise refused(Code.INVALID_FIELD, "kind", wrong) from error
        found = tuple(models.SpecDifference(**asdict(each)) for each in differences(spec, changed))
        body = models.ShownSpec(as_of=self._state.n, job_id=known.job_id, spec=changed, differences=found)
        return json_response(body)

    async def _order(self, request: web.Request, model: type[Strict], kind: str, **more: Any) -> web.Response:
        # Sent for the tenant of the job; an operator's goes where no tenant may write, so that it counts as one.
        job, tenant = self._target(request)
        by_operator = request[CALLER].tenant is None
        command = model.model_validate({"kind": kind, "v": 1, "job_id": job, "tenant": tenant, **more})
        data = command.model_dump(mode="json", exclude_defaults=True)
        answer = await self._commands.send(tenant, data, by_operator)
        log.info("job_ordered", kind=kind, job=job, tenant=tenant, token=request[CALLER].token_id)
        state: Any = "stored" if answer is None else "accepted"
        return json_response(models.Ordered(job_id=job, state=state, as_of=self._state.n), 202)

    async def report_checkpoint(self, request: web.Request) -> web.Response:
        """Reports a checkpoint of the present run; a late report of an earlier attempt does not count for it."""
        body = await read_body(request, models.CheckpointBody)
        run = self._running(request, body.attempt)
        fields = {**body.model_dump(), "attempt": run.attempt}
        return await self._order(request, ReportCheckpoint, "report_checkpoint", **fields)

    async def answer_move(self, request: web.Request) -> web.Response:
        """Answers for the present run, which is asked to move; raises Refusal where nobody asks."""
        body = await read_body(request, models.AnswerBody)
        run = self._running(request, body.attempt)
        if self._state.moves.get(run.run_id) is None:
            raise refused(Code.NO_MOVE_OFFERED, "job_id")
        return await self._order(request, AnswerMove, "answer_move", **{**body.model_dump(), "attempt": run.attempt})

    def _running(self, request: web.Request, attempt: int | None) -> Run:
        """The present run of the caller's job; raises Refusal without one, or for another attempt."""
        known = self._own(request)
        if isinstance(known, EndedJob):
            raise refused(Code.ALREADY_ENDED, "job_id", known.phase.value)
        run = self._state.runs.get(known.run_id)
        if run is None or not run.started or run.over:
            raise refused(Code.NOT_RUNNING, "job_id", known.phase.value)
        if attempt not in (None, known.attempt):
            numbers = {"attempt": known.attempt, "said": attempt or 0}
            raise refused(Code.NOT_RUNNING, "attempt", numbers=numbers)
        return run

    async def explain_job(self, request: web.Request) -> web.Response:
        """Answers why a job waits, as far as the caller may see, from the gateway's own state at this moment."""
        known = self._own_work(request)
        answer = self._kept.of(self._explained, known.job_id, request[CALLER].tenant)
        if answer is None:
            raise no_such_job(known.job_id)
        told = await self._logs.said_of_start(known) if isinstance(known, Job) else ""
        if told:
            answer = answer.model_copy(update={"said": (*answer.said, told), "notes": (told, *answer.notes)})
        if isinstance(known, Job) and answer.phase == Phase.QUEUED:
            answer = answer.model_copy(update={"quote": await self._quotes.of(known.job_id)})
        return json_response(answer)

    def _explained(self, job: str, tenant: str | None) -> models.Explained | None:
        return explained(self._state, job, tenant, self._clock.now_ms())

    async def consequences(self, request: web.Request) -> web.Response:
        """Answers what an order would do; raises Refusal for a tenant's unless it is about a job of its own."""
        order, caller = (await read_body(request, models.ConsequencesBody)).command, request[CALLER]
        if not isinstance(order, ApplyConfig | DrainNode | ReserveNodes):
            self._live_of(caller, order.job_id)
        elif caller.tenant is not None:
            raise refused(Code.FORBIDDEN, "command", "such orders are for operators")
        return json_response(told_consequences(self._state, order, caller.tenant, self._clock.now_ms()))

    async def job_logs(self, request: web.Request) -> web.StreamResponse:
        """Streams the log of one pod of the caller's job; raises Refusal where there is none."""
        query = read_query(request, queries.LogQuery)
        return await self._logs.serve(request, self._own(request), query)

    # -- the shard

    async def nodes(self, request: web.Request) -> web.Response:
        """A tenant sees the nodes of the pools that its queues use."""
        n, nodes = await self._views.nodes()
        caller = request[CALLER]
        pools = {pool for pool in {node.pool for node in nodes} if self._sees_pool(caller, pool)}
        seen = [node for node in nodes if node.pool in pools]
        return json_response(models.NodeList(as_of=n, items=tuple(seen)))

    async def queues(self, request: web.Request) -> web.Response:
        """A tenant sees the queues that take its jobs."""
        n, queues = await self._views.queues()
        caller = request[CALLER]
        names = {queue.name for queue in self._queues_of(caller)}
        seen = [queue for queue in queues if caller.tenant is None or queue.name in names]
        return json_response(models.QueueList(as_of=n, items=tuple(seen)))

    def _budget_notes(self, tenant: str, command: dict[str, Any]) -> tuple[str, ...]:
        spec = spec_of(command)
        ts = max(self._state.ts, self._clock.now_ms())
        return () if spec is None else tuple(budget_notes(self._state, tenant, spec, ts))

    async def line(self, request: web.Request) -> web.Response:
        """Answers with the order of the pools that the caller sees, and why its own jobs in it wait."""
        caller, ts = request[CALLER], self._clock.now_ms()
        await self._quotes.fresh()
        lines = [self._kept.of(self._line_of, pool, caller.tenant) for pool in sorted(self._pools_of(caller))]
        items = tuple(place for line in lines for place in line)
        return json_response(models.QueueLine(as_of=self._state.n, ts=ts, items=items))

    async def shares(self, request: web.Request) -> web.Response:
        """A tenant sees its queues, itself and its users by name, and other tenants of a queue in sum."""
        state, caller = self._state, request[CALLER]
        rows, queues = self._kept.of(shares, state), {queue.name for queue in self._queues_of(caller)}
        found, seconds = tuple(seen_by(rows, caller.tenant, queues)), state.tree.policy.fair_share.half_life_seconds
        return json_response(models.ShareList(as_of=state.n, ts=state.ts, half_life_seconds=seconds, items=found))

    def _line_of(self, pool: str, tenant: str | None) -> list[models.LinePlace]:
        starts = self._starts_of(pool, self._clock.now_ms())
        return list(list_positions(self._state, pool, tenant, starts, self._quotes.known))

    def _starts_of(self, pool: str, now_ms: int) -> dict[str, LineStart]:
        # Expected starts as they were a moment ago, so that the search takes a twentieth of the time at most.
        began, (until, found) = self._clock.monotonic(), self._starts.get(pool, (0.0, {}))
        if began >= until:
            found = known_starts(self._state, pool, now_ms)
            done = self._clock.monotonic()
            self._starts[pool] = done + max(STARTS_SECONDS, STARTS_REST * (done - began)), found
        return found

    async def me(self, request: web.Request) -> web.Response:
        """Answers with the tenant of the token, and the user to whom it is bound."""
        return json_response(models.Me(tenant=request[CALLER].tenant or "", user=request[CALLER].user))

    async def status(self, request: web.Request) -> web.Response:
        """Answers with how the shard is; names and words of instances are for operators."""
        seen, is_operator = await self._status.seen(), request[CALLER].tenant is None
        notes = await self._logs.stored.notes() if is_operator else ()
        return json_response(judge(seen, self._settings.shard, is_operator).model_copy(update={"notes": notes}))

    async def templates(self, request: web.Request) -> web.Response:
        """Whether a tenant may use the queue of one is judged when it does."""
        body = self._state.config.body
        found = sorted(() if body is None else body.templates, key=lambda template: template.name)
        items = tuple(models.TemplateView.model_validate(template.model_dump(exclude={"spec"})) for template in found)
        return json_response(models.TemplateList(as_of=self._state.n, items=items))

    async def config(self, request: web.Request) -> web.Response:
        """Answers an operator with the configuration in force, as the lists have it; raises Refusal for a tenant."""
        if request[CALLER].tenant is not None:
            raise refused(Code.FORBIDDEN, "Authorization", "the configuration is for operators")
        n, config = await self._views.config()
        return json_response(models.ShownConfig(as_of=n, config=config), in_full=True)  # a limit of None is no limit

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Streams the caller's events until the stream ends."""
        return await self._streams.serve(request, read_query(request, queries.EventQuery))

    # -- who may see what

    def _queues_of(self, caller: Caller) -> list[Queue]:
        body = self._state.config.body
        queues = () if body is None else body.queues
        return [queue for queue in queues if not queue.tenants or caller.tenant in queue.tenants]

    def _sees_pool(self, caller: Caller, pool: str) -> bool:
        return caller.tenant is None or any(queue.pool == pool for queue in self._queues_of(caller))

    def _pools_of(self, caller: Caller) -> set[str]:
        return {pool for pool in self._state.tree.queues_of if self._sees_pool(caller, pool)}

    async def until_known(self, request: web.Request) -> None:
        """
        Wait a moment for the job that is named, if the caller sees none.

        Another gateway, or admission, may have acknowledged it before our state has it. Another tenant's is waited for
        as one that does not exist.
        """
        job, until = request.match_info["job_id"], self._clock.monotonic() + KNOWN_SECONDS
        while JOB_ID.fullmatch(job) and KEY_HEADER not in request.headers:
            known = self._known(job) or self._state.refused.get(job)
            if (known and request[CALLER].may_see(known.tenant)) or self._clock.monotonic() >= until:
                return
            await self._clock.sleep(KNOWN_POLL_SECONDS)

    def _remembered(self, job: str) -> Job | EndedJob | None:
        # A job whose key is still its own; a quiet ledger keeps ended ones beyond that, until its next message.
        known = self._known(job)
        return None if isinstance(known, EndedJob) and known.forget_ts <= self._clock.now_ms() else known

    def _known(self, job: str) -> Job | EndedJob | None:
        return self._state.jobs.get(job) or self._state.ended.get(job)

    def _own_work(self, request: web.Request) -> Job | EndedJob | RefusedWork:
        # The job or refused work that is named; another tenant's is one that does not exist.
        return self._work_of(request[CALLER], request.match_info["job_id"])

    def _work_of(self, caller: Caller, job: str) -> Job | EndedJob | RefusedWork:
        known = self._known(job) or self._state.refused.get(job)
        if known is None or not caller.may_see(known.tenant):
            raise no_such_job(job)
        return known

    def _own(self, request: web.Request) -> Job | EndedJob:
        # The job that is named; refused work is none, and is mended in Kubernetes.
        return self._job_of(request[CALLER], request.match_info["job_id"])

    def _job_of(self, caller: Caller, job: str) -> Job | EndedJob:
        known = self._work_of(caller, job)
        if isinstance(known, RefusedWork):
            raise refused(
                Code.NO_SUCH_JOB, "job_id", f"{known.owner} is refused and was never a job; change it in Kubernetes"
            )
        return known

    def _live(self, request: web.Request) -> Job:
        # The job that is named, if it has not ended.
        return self._live_of(request[CALLER], request.match_info["job_id"])

    def _live_of(self, caller: Caller, job: str) -> Job:
        known = self._job_of(caller, job)
        if isinstance(known, EndedJob):
            raise refused(Code.ALREADY_ENDED, "job_id", known.phase.value)
        return known

    def _target(self, request: web.Request) -> tuple[str, str]:
        # A job that can be ordered about, and its tenant.
        # One that the ledger does not have yet is known by its key, from which its id is made: whoever names the key
        # may cancel what was stored but not taken in.
        job, caller, key = request.match_info["job_id"], request[CALLER], read_key(request, None)
        own = None if caller.tenant is None or key is None else job_id(self._settings.shard, caller.tenant, key)
        if job == own and caller.tenant is not None and self._known(job) is None:
            return job, caller.tenant
        return job, self._live(request).tenant
