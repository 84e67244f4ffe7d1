"""
Read, decide, publish, answer: a batch of commands at a time.

The facts of a batch are published together, under ids made from (stream, sequence); a client is answered only after
its fact was acknowledged.
"""

import re

import structlog

from tessera.admission.decide import outcome as decide
from tessera.admission.decide.outcome import Origin
from tessera.admission.decide.policy import AdmissionPolicy
from tessera.admission.known_jobs import ENDED, KnownJobs
from tessera.admission.limits import TenantLimits
from tessera.admission.orders import Case, Doubtful, Orders
from tessera.admission.policy_view import PolicyView
from tessera.admission.refusals import Refusals
from tessera.engine.queueing.entry import key_conflict
from tessera.kernel.errors import InvariantViolation, KernelError, Poison, Transient
from tessera.kernel.ledger.end import MADE_ANEW
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.ports import Delivery, Message, Outgoing
from tessera.kernel.process.known_formats import committer_format
from tessera.kernel.service.context import Ports
from tessera.kernel.service.job_log import log_fact
from tessera.kernel.service.spans import step_span
from tessera.kernel.service.trace import TRACEPARENT, bind, take_trace
from tessera_schemas import subjects
from tessera_schemas.base import DIGEST_CHARACTERS
from tessera_schemas.commands import END_HEADER, REPLY_HEADER, Answer, JobEnd
from tessera_schemas.facts import JobAdmitted, JobRefused
from tessera_schemas.text import reading
from tessera_schemas.text.reading import Parsed
from tessera_schemas.views import JobView

NOT_KNOWN = Transient("tenant policy is not known yet")
REPLY_CHARACTERS = 256
_TAIL = re.compile(r"(\.[A-Za-z0-9_-]+)+")

log = structlog.get_logger()


class CommandHandlers:
    """The two queues' handlers; each returns one outcome per delivery, as the work loop wants it."""

    def __init__(self, ports: Ports, shard: str, policy: PolicyView, limits: TenantLimits, refusals: Refusals) -> None:
        self._ports, self._shard, self._policy, self._refusals = ports, shard, policy, refusals
        self._limits = limits
        self._facts = Facts(ports.bus, shard, "admission")
        self._jobs = KnownJobs(ports.store, ports.ledger, ports.clock)
        self._orders = Orders(self._jobs)
        self._submits, self._controls = subjects.stream("SUBMIT", shard), subjects.stream("CONTROL", shard)
        self._reads = {
            subjects.control(shard): reading.read_operator_command,
            subjects.health_reports(shard): reading.read_health_report,
            subjects.reservations(shard): reading.read_reservation,
        }

    async def on_submits(self, batch: list[Delivery]) -> list[object]:
        """Jobs and cancels of tenants, and what the binder adopts for them."""
        began_ms = self._ports.clock.now_ms()
        self._note_redeliveries(batch)
        read = [(delivery.message, _read(delivery.message)) for delivery in batch]
        results: list[object] = [self._judge(message, parsed) for message, parsed in read]
        if any(isinstance(case, Case) and case.outcome.refused_by_policy for case in results):
            results = await self._judge_again(read, results)
        results = [
            self._limits.limit_tenant_command(case, delivery.deliveries) if isinstance(case, Case) else case
            for case, delivery in zip(results, batch, strict=True)
        ]
        for case in results:
            if isinstance(case, Case) and (job := case.taken_in) is not None:
                self._jobs.note(job.job_id)
        results = await self._orders.checked(batch, results, [_has_listener(case) for case in results])
        cases = [case for case in results if isinstance(case, Case)]
        await self._settle(cases, await self._look_for(cases))
        self._report_spans(results, began_ms)
        doubtful = [result.case for result in results if isinstance(result, Doubtful)]
        await self._ports.bus.publish_all([self._outgoing(case) for case in doubtful])
        return results

    async def on_controls(self, batch: list[Delivery]) -> list[object]:
        """Configuration, cancels by operators, reports of nodes' health, and reservations of nodes."""
        self._note_redeliveries(batch)
        cases = []
        for delivery in batch:
            message = delivery.message
            origin = Origin(self._shard, subjects.OPERATOR, message.seq, take_trace(message.headers))
            parsed = self._reads[message.subject](message.data)
            identity = _identity(self._controls, message)
            known = await self._committer_format() if decide.format_needed(parsed) else None
            case = Case(message, origin, decide.judge_operator_command(parsed, origin, known), identity)
            cases.append(self._limits.limit_operator_command(case))
        # Their queue is in order: what waits to be looked at again would keep the others waiting.
        results = await self._orders.checked(batch, cases, [_has_listener(case) for case in cases], patient=False)
        await self._settle([case for case in results if isinstance(case, Case)], {})
        return results

    async def _committer_format(self) -> int | None:
        try:
            return await committer_format(self._ports.bus, self._shard)
        except KernelError:
            return None  # then nothing can be published either

    async def flush_counted(self) -> None:
        """Publish the counts of refusals that have no record of their own; what fails is kept for the next time."""
        taken = self._refusals.take()
        if not taken:
            return
        try:
            await self._ports.bus.publish_all(
                [self._facts.outgoing(counted.fact(), counted.identity) for counted in taken]
            )
        except KernelError as error:
            log.warning("refusals_not_counted_yet", error=str(error))
            self._refusals.put_back(taken)

    def _judge(self, message: Message, parsed: Parsed) -> Case | KernelError:
        tenant, sender = subjects.sent_by(message.subject)
        if not decide.is_tenant_name(tenant):
            return Poison(f"{message.subject}: no tenant can be called so")
        policy = self._policy.known
        if (policy is None or self._policy.is_doubtful) and decide.needs_policy(parsed):
            return NOT_KNOWN
        policy = policy or AdmissionPolicy()
        trace, by_operator = take_trace(message.headers), sender == subjects.BY_OPERATOR
        adopted = sender == subjects.KUBERNETES
        origin = Origin(self._shard, tenant, message.seq, trace, adopted, by_operator)
        outcome = decide.judge_tenant_command(parsed, origin, policy, self._ports.clock.now_ms())
        return Case(message, origin, outcome, _identity(self._submits, message))

    async def _judge_again(self, read: list[tuple[Message, Parsed]], results: list[object]) -> list[object]:
        """A configuration may have come into force just now: look once more before refusing because of the old one."""
        before = self._policy.known
        if await self._policy.look_again() is before and not self._policy.is_doubtful:
            return results
        return [self._judge(message, parsed) for message, parsed in read]

    async def _settle(self, cases: list[Case], known: dict[str, JobView]) -> None:
        """
        Publish what is recorded, count the rest, then answer; a dry run is answered and leaves nothing.

        Raises InvariantViolation, and answers nobody, where a fact got a number that another one had.

        `known` are jobs that were there before, by the identity of the submit that repeats them.
        """
        outgoing: list[Outgoing] = []
        published: list[Case] = []
        uncounted: list[tuple[JobRefused, str]] = []
        for case in cases:
            fact = case.outcome.fact
            if case.outcome.dry_run:
                continue
            if isinstance(fact, JobRefused):
                self._note_refusal(fact)
                if not self._is_recorded(case, fact):
                    uncounted.append((fact, case.identity))
                    continue
            outgoing.append(self._outgoing(case))
            published.append(case)
        given = self._limits.facts_end
        seqs = await self._ports.bus.publish_all(outgoing)
        if seqs and min(seqs) <= given:
            stream = subjects.stream("FACTS", self._shard)
            raise InvariantViolation(f"{stream} gave number {min(seqs)} after {given}: {MADE_ANEW}; no command is lost")
        for case in published:
            with bind(case.message.headers):
                log_fact(case.outcome.fact)
        for refused, identity in uncounted:
            self._refusals.count(refused, identity)
        for case in cases:
            await self._answer(case, known.get(case.identity))

    def _report_spans(self, results: list[object], began_ms: int) -> None:
        spans, now_ms = self._ports.spans, self._ports.clock.now_ms()
        for case in results if spans.on else ():
            if isinstance(case, Case) and (job := case.taken_in) is not None:
                spans.report(step_span("admit", job.job_id, job.trace, began_ms, now_ms))

    def _is_recorded(self, case: Case, refused: JobRefused) -> bool:
        """
        Whether this refusal gets a record of its own.

        What is refused for now is only counted, or the ledger would keep a record of each time that it is tried. The
        binder, whom nobody answers, hears of it by the record.
        """
        if case.outcome.refused_for_now and not case.origin.adopted:
            return False
        return self._refusals.recorded(refused.tenant) and self._limits.may_record(refused)

    def _outgoing(self, case: Case) -> Outgoing:
        headers, identity = case.message.headers, case.identity
        if TRACEPARENT not in headers:
            return self._facts.outgoing(case.outcome.fact, identity)
        with bind(headers):
            return self._facts.outgoing(case.outcome.fact, identity)

    async def _answer(self, case: Case, known: JobView | None) -> None:
        """Sends the answer at most once; a client that gets none repeats the command under the same key."""
        inbox, answer, job = _inbox(case), case.outcome.answer, case.taken_in
        if inbox:
            answer = answer if known is None or job is None else answer_about(known, job, answer)
            try:
                await self._ports.bus.send(inbox, answer.to_bytes())
            except KernelError as error:
                log.warning("answer_not_sent", seq=case.message.seq, error=str(error))

    async def _look_for(self, cases: list[Case]) -> dict[str, JobView]:
        """
        Jobs by identity of the submits that ask for them, as the views show them before the submit counts.

        The ledger has the last word, of which the client hears by an event; of a job that was there before it says
        nothing, and a client that waited for one would wait in vain.
        """
        policy, found = self._policy.known, dict[str, JobView]()
        if policy is None or policy.tree is None:
            return found
        for case in cases:
            if END_HEADER in case.message.headers and (job := case.taken_in) is not None:
                known = await self._jobs.known(job.job_id, policy.tree.policy.key_memory_seconds)
                found |= {} if known is None else {case.identity: known}
        return found

    def _note_redeliveries(self, batch: list[Delivery]) -> None:
        again = sum(1 for delivery in batch if delivery.deliveries > 1)
        if again:
            self._ports.metrics.redeliveries.inc(again)

    def _note_refusal(self, fact: JobRefused) -> None:
        for reason in fact.reasons:
            self._ports.metrics.reason(reason.code)


def _identity(stream: str, message: Message) -> str:
    """Names a stored command, also after its stream began anew and gives the same numbers to others."""
    return f"{stream}.{message.seq}.{message.stored_ms}"


def _read(message: Message) -> Parsed:
    """A command means what it says only on the subject where it belongs: the server knows who may write there."""
    adopted = subjects.sent_by(message.subject)[1] == subjects.KUBERNETES
    return reading.read_cluster_command(message.data) if adopted else reading.read_tenant_command(message.data)


def answer_about(known: JobView, job: JobAdmitted, answer: Answer) -> Answer:
    """The answer to the submit of a job that the views show already."""
    if known.digest not in ("", job.digest()[:DIGEST_CHARACTERS]):
        return Answer(accepted=False, job_id=job.job_id, reasons=(key_conflict(job.key),))
    end = JobEnd(phase=known.phase, reason=known.reason) if known.phase in ENDED else None
    return answer.model_copy(update={"existing": True, "number": known.number, "ended": end})


def _inbox(case: Case) -> str:
    return reply_inbox(case.message.headers.get(REPLY_HEADER, ""), case.origin.tenant)


def _has_listener(case: object) -> bool:
    """Whether somebody is to be answered."""
    return isinstance(case, Case) and bool(_inbox(case))


def reply_inbox(wanted: str, tenant: str) -> str:
    """
    The subject of the answer: `wanted` if it lies below the tenant's own inbox, else "".

    We may publish to everybody's inbox, so a client must not be able to send our answers to somebody else, and a name
    with a blank or a line end would be a command to the server.
    """
    own = subjects.inbox(tenant)
    if len(wanted) > REPLY_CHARACTERS or not wanted.startswith(own) or not _TAIL.fullmatch(wanted[len(own) :]):
        return ""
    return wanted
