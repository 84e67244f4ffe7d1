"""Commands on their way: stored on the tenant's own subject, answered by admission, and by the ledger for a job."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import structlog
from aiohttp import web
from pydantic import ValidationError

from tessera.domain.entities import EndedJob, Job
from tessera.domain.state import State
from tessera.engine.queueing.entry import entry_faults, key_conflict
from tessera.gateway.entrance.bodies import read_body, written
from tessera.gateway.entrance.problems import REFUSED, Refusal, all_of, name_spec, refused
from tessera.gateway.entrance.tokens import Caller
from tessera.gateway.operations import models
from tessera.gateway.settings import GatewaySettings
from tessera.kernel.errors import Full, Poison, Transient, UnknownOutcome
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.messaging.requests import Requester
from tessera.kernel.ports import Clock
from tessera.kernel.tasks.waiting import wait_for
from tessera_schemas import subjects
from tessera_schemas.base import Strict, job_id
from tessera_schemas.commands import (
    TENANT_COMMAND,
    Answer,
    EndReservation,
    ReportHealth,
    ReserveNodes,
    SubmitJob,
    SubmitTemplate,
)
from tessera_schemas.facts import JobAdmitted, JobRefused
from tessera_schemas.job import JobSpec
from tessera_schemas.ledger import JobQueued, JobTurnedAway
from tessera_schemas.reasons import Code, Reason, is_temporary
from tessera_schemas.shard.records import ResizeBegun, ResizeRequested, RolesRequested, RolesShifted
from tessera_schemas.text.reading import besides
from tessera_schemas.work.short_form import ShortFormError

log = structlog.get_logger()
KEY_HEADER = "Idempotency-Key"
SubmitForm = TypeVar("SubmitForm", bound=Strict)


class Commands:
    """Sends for a tenant; the caller has made sure that it may."""

    def __init__(self, requester: Requester, settings: GatewaySettings) -> None:
        self._asking, self._settings = requester, settings

    async def send(self, tenant: str, command: Mapping[str, Any], by_operator: bool = False) -> Answer | None:
        """
        Store a command and wait for admission; None when it has not answered in time.

        `by_operator`: an operator orders it about a job of the tenant, on a subject where no tenant may write.
        Raises Refusal when the command could not be stored, or was not accepted.
        """
        data = written(command)
        if len(data) > subjects.SUBMIT_BYTES_MAX:
            numbers = {"bytes": len(data), "bytes_max": subjects.SUBMIT_BYTES_MAX}
            raise refused(Code.TOO_LARGE, numbers=numbers)
        subject = subjects.submit_by_operator if by_operator else subjects.submit
        return await self._accepted(subject(self._settings.shard, tenant), tenant, data)

    async def report_health(self, report: ReportHealth) -> Answer | None:
        """As `send`, for what an agent or an operator says of a node; no other command is taken where this goes."""
        return await self._accepted(subjects.health_reports(self._settings.shard), subjects.OPERATOR, report.to_bytes())

    async def reserve(self, order: ReserveNodes | EndReservation) -> Answer | None:
        """As `send`, for what an operator reserves; no other command is taken where this goes."""
        return await self._accepted(subjects.reservations(self._settings.shard), subjects.OPERATOR, order.to_bytes())

    async def _accepted(self, subject: str, tenant: str, data: bytes) -> Answer | None:
        answer = await self._stored_and_answered(subject, tenant, data)
        if answer is not None and not answer.accepted:
            raise all_of(answer.reasons)
        return answer

    async def _stored_and_answered(self, subject: str, tenant: str, data: bytes) -> Answer | None:
        try:
            return await self._asking.ask(
                subject,
                data,
                tenant=tenant,
                answer_seconds=self._settings.answer_seconds,
                publish_seconds=self._settings.publish_seconds,
                when_full=False,
            )
        except Full as error:
            raise refused(Code.BACKLOG_FULL) from error
        except UnknownOutcome as error:
            detail = "whether it was stored is not known; send it again with the same key"
            raise refused(Code.UNAVAILABLE, detail=detail) from error
        except Poison as error:
            raise refused(Code.TOO_LARGE) from error
        except Transient as error:
            log.warning("command_not_stored", tenant=tenant, error=str(error))
            raise refused(Code.UNAVAILABLE, detail="nothing was stored") from error


class Submits:
    """Submits as clients send them, read as the commands that admission judges."""

    def __init__(self, commands: Commands, state: State, shard: str) -> None:
        self._commands, self._state, self._shard = commands, state, shard

    async def read(self, request: web.Request, caller: Caller) -> dict[str, Any]:
        """The command that the body asks for, with its key. Raises Refusal."""
        body = await read_submit(request, models.SubmitEnvelope)
        key, missing = read_key(request, body.key), list[Reason]()
        if key is None:
            said = "an idempotency key is required, so that a retry finds the same job"
            missing.append(Reason(code=Code.MISSING_FIELD, field=KEY_HEADER, detail=said))
        if body.spec is None and body.template is None:
            said = "a job's spec, or a template with its parameters"
            missing.append(Reason(code=Code.MISSING_FIELD, field="spec", detail=said))
        if key is None or missing:
            raise all_of(missing)
        return await self.command(body, key, caller)

    async def command(self, body: models.SubmitEnvelope, key: str, caller: Caller) -> dict[str, Any]:
        """The command under a key, as the user to whom the token is bound. Raises Refusal."""
        tenant = caller.tenant or ""
        try:
            return _as_user(body.command(key, tenant), caller.user)
        except ShortFormError as error:
            raise await self._all_against(body, key, tenant, error) from error

    async def _all_against(self, body: models.SubmitEnvelope, key: str, tenant: str, error: ShortFormError) -> Refusal:
        # All that is against a job with quantities that are none: admission says the rest, if it answers.
        own = error.reasons("spec.")
        rest = body.model_copy(update={"spec": error.made, "dry_run": True})
        try:
            await self._commands.send(tenant, rest.command(key, tenant))
        except Refusal as refusal:
            return Refusal(*besides(own, refusal.reasons if refusal.status == REFUSED else ()))
        return Refusal(*own)

    async def judge(self, tenant: str, command: Mapping[str, Any], known: Job | EndedJob | None) -> Answer:
        """Admission's answer to a dry run that the ledger would take in, too. Raises Refusal with all against it."""
        answer = await self._commands.send(tenant, command)
        if answer is None:
            raise refused(Code.UNAVAILABLE, detail="admission has not answered; nothing was stored")
        job = job_id(self._shard, tenant, command["key"])
        if against := find_ledger_faults(self._state, known, tenant, command, job):
            raise all_of(against)
        return answer


async def read_submit(request: web.Request, model: type[SubmitForm]) -> SubmitForm:
    """The body of a submit, which tells of a field within the spec by its whole path. Raises Refusal."""
    try:
        return await read_body(request, model)
    except Refusal as refusal:
        raise Refusal(*map(name_spec, refusal.reasons)) from refusal


class Arrivals:
    """Outcomes in the ledger of submits, shifts and resizes: () for what was taken in, else the reasons."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._expected: dict[str, list[FirstRecord]] = {}
        self.expected = asyncio.Event()  # set while there are any

    async def on_ledger(self, entries: list[Entry]) -> None:
        """Settles each expected job, shift or resize that new entries take in or turn away for good."""
        if not self._expected:
            return
        for entry in entries:
            for record in entry.message.records:
                if isinstance(record, JobQueued):
                    self._arrived(record.job_id, ())
                elif isinstance(record, RolesShifted | ResizeBegun):
                    self._arrived(shift_of(record.run_id.rpartition("-")[0], record.request), ())
                elif isinstance(record, JobTurnedAway):
                    fact = entry.message.facts[record.fact].fact
                    if isinstance(fact, JobAdmitted):
                        self._arrived(fact.job_id, record.reasons)
                    elif isinstance(fact, RolesRequested | ResizeRequested):
                        self._arrived(shift_of(fact.job_id, fact.key), record.reasons)
                    elif isinstance(fact, JobRefused) and not is_temporary(fact.reasons):
                        self._arrived(fact.job_id, record.reasons or fact.reasons)

    @asynccontextmanager
    async def expecting(self, key: str) -> AsyncIterator["FirstRecord"]:
        """From before the command is sent, so that nothing is missed."""
        arrival = FirstRecord(self._clock)
        self._expected.setdefault(key, []).append(arrival)
        self.expected.set()
        try:
            yield arrival
        finally:
            left = [other for other in self._expected[key] if other is not arrival]
            if left:
                self._expected[key] = left
            else:
                del self._expected[key]
            if not self._expected:
                self.expected.clear()

    def _arrived(self, key: str, reasons: tuple[Reason, ...]) -> None:
        for arrival in self._expected.get(key, ()):
            arrival.settle(reasons)


class FirstRecord:
    """The first thing that the ledger says of an expected job or shift."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._came, self._since = clock, asyncio.Event(), clock.monotonic()
        self._reasons: tuple[Reason, ...] = ()

    def settle(self, reasons: tuple[Reason, ...]) -> None:
        """Notes the outcome, () for what is in the ledger; only the first outcome counts."""
        if not self._came.is_set():
            self._reasons = reasons
            self._came.set()

    async def within(self, seconds: float) -> tuple[Reason, ...] | None:
        """
        The ledger's reasons, empty for yes; None when there was no answer within so many seconds from when it was
        expected.
        """
        left = max(0.0, seconds - (self._clock.monotonic() - self._since))
        return self._reasons if await wait_for(self._came, self._clock, left) else None


def shift_of(job_id: str, key: str) -> str:
    """What a request to shift roles or to resize pods is expected by; no job id has such a letter."""
    return f"{job_id}/{key}"


def find_ledger_faults(
    state: State, known: Job | EndedJob | None, tenant: str, command: Mapping[str, Any], job: str
) -> list[Reason]:
    """
    All that the ledger would have against a submit that admission takes; of a template what its key says alone.

    `known` is the job that has the key.
    """
    if known is not None:
        return [] if known.spec_hash == digest_of(command) else [key_conflict(command["key"])]
    read = TENANT_COMMAND.validate_json(written(command))
    if not isinstance(read, SubmitJob):
        return []
    return entry_faults(
        state, JobAdmitted(kind="job_admitted", job_id=job, tenant=tenant, key=read.key, spec=read.spec)
    )


def spec_of(command: Mapping[str, Any]) -> JobSpec | None:
    """Spec that a submit names; None of a template's."""
    read = TENANT_COMMAND.validate_json(written(command))
    return read.spec if isinstance(read, SubmitJob) else None


def digest_of(command: Mapping[str, Any]) -> str:
    """Hash of what an accepted submit asked for, as the ledger has it."""
    return cast(SubmitJob | SubmitTemplate, TENANT_COMMAND.validate_json(written(command))).digest()


def read_key(request: web.Request, in_body: str | None) -> str | None:
    """Key in a request's header or body, None for none; raises Refusal when they differ, or the header's is none."""
    given = request.headers.get(KEY_HEADER)
    if given is None:
        return in_body
    if in_body is not None and in_body != given:
        raise refused(Code.INVALID_FIELD, KEY_HEADER, "differs from the key in the body; send one of them")
    try:
        return models.SubmitEnvelope(key=given).key
    except ValidationError:
        raise refused(Code.INVALID_FIELD, KEY_HEADER, "1 to 200 printable characters without blanks") from None


def _as_user(command: dict[str, Any], user: str) -> dict[str, Any]:
    # The submit as that of the user to whom the token is bound, if it is. Raises Refusal where it names another.
    if not user:
        return command
    said, at = (command["spec"], "spec.user") if command["kind"] == "submit_job" else (command, "user")
    if said.get("user") not in (None, "", user):
        way_out = f"the token is bound to user {user}; leave user out, or submit with a token of the one it names"
        raise refused(Code.FORBIDDEN, at, way_out)
    return command | ({"user": user} if said is command else {"spec": said | {"user": user}})
