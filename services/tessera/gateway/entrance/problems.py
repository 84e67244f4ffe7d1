"""Every "no" of the API: its status and its body."""

from collections.abc import Mapping, Sequence

from aiohttp import web

from tessera.gateway.operations.models import Problem
from tessera_schemas.base import Lenient
from tessera_schemas.reasons import CODES, RETRY_NUMBER, Code, PublicReason, Reason

STATUS: Mapping[Code, int] = {
    Code.NOT_JSON: 400,
    Code.DUPLICATE_KEY: 400,
    Code.UNAUTHORIZED: 401,
    Code.FORBIDDEN: 403,
    Code.NO_SUCH_PATH: 404,
    Code.NO_SUCH_JOB: 404,
    Code.NO_SUCH_NODE: 404,
    Code.NO_SUCH_RESERVATION: 404,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.ALREADY_ENDED: 409,
    Code.NOT_RUNNING: 409,
    Code.NO_MOVE_OFFERED: 409,
    Code.NOT_WAITING: 409,
    Code.NO_LOGS: 409,
    Code.NOT_FREE_THEN: 409,
    Code.IDEMPOTENCY_CONFLICT: 409,
    Code.EVENTS_GONE: 409,
    Code.NO_LONGER_SHOWN: 410,
    Code.ROLLED_OVER: 410,
    Code.TOO_LARGE: 413,
    Code.RATE_LIMITED: 429,
    Code.BACKLOG_FULL: 429,
    Code.LIMIT_EXCEEDED: 429,
    Code.TENANT_BUDGET_EXCEEDED: 429,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.NOT_CONFIGURED: 503,
    Code.LEDGER_FULL: 503,
    Code.SHUTTING_DOWN: 503,
}
REFUSED = 422
# For every other code: the request is well formed, and what it says is refused.

RETRY_SECONDS: Mapping[Code, int] = {
    Code.RATE_LIMITED: 1,
    Code.BACKLOG_FULL: 5,
    Code.LIMIT_EXCEEDED: 30,
    Code.UNAVAILABLE: 1,
    Code.NOT_CONFIGURED: 5,
    Code.LEDGER_FULL: 60,
    Code.SHUTTING_DOWN: 1,
}


class Refusal(Exception):
    """Ends a request; the first reason decides its status."""

    def __init__(self, *reasons: PublicReason, retry_after: int | None = None) -> None:
        super().__init__("; ".join(reason.sentence() for reason in reasons))
        self.reasons, self._retry_after = reasons, retry_after

    @property
    def code(self) -> str:
        """Code of the first reason."""
        return str(self.reasons[0].code)

    @property
    def status(self) -> int:
        """HTTP status by the first reason; REFUSED for a code without a status of its own."""
        return STATUS.get(Code(self.code), REFUSED) if self.code in CODES else REFUSED

    @property
    def retry_after(self) -> int | None:
        """Seconds after which to try again, if the refusal, its reason or its code says so; else None."""
        if self._retry_after is not None:
            return max(1, self._retry_after)
        if RETRY_NUMBER in self.reasons[0].numbers:
            return max(1, self.reasons[0].numbers[RETRY_NUMBER])
        return RETRY_SECONDS.get(Code(self.code)) if self.code in CODES else None

    def problem(self) -> Problem:
        """Body of the answer: the first reason in a sentence, and all reasons."""
        first = self.reasons[0]
        return Problem(
            code=self.code,
            sentence=first.sentence(),
            field=first.field,
            retry_after=self.retry_after,
            reasons=tuple(PublicReason.model_validate(reason.model_dump()) for reason in self.reasons),
        )

    def response(self) -> web.Response:
        """Answer with status, body and, where they apply, `Retry-After` and `WWW-Authenticate`."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return _json(self.problem().model_dump_json(exclude_defaults=True), self.status, headers)


def refused(
    code: Code,
    field: str = "",
    detail: str = "",
    numbers: Mapping[str, int] | None = None,
    retry_after: int | None = None,
) -> Refusal:
    """A refusal for one reason."""
    return Refusal(
        Reason(code=code, field=field[:300], detail=detail[:200], numbers=dict(numbers or {})), retry_after=retry_after
    )


def json_response(
    body: Lenient, status: int = 200, headers: Mapping[str, str] | None = None, *, in_full: bool = False
) -> web.Response:
    """
    A JSON answer that no cache may keep: two tenants ask for the same path.

    Fields without a value are left out unless `in_full`, which a body needs whose defaults are values.
    """
    return _json(body.model_dump_json(exclude_none=not in_full), status, headers or {})


def _json(text: str, status: int, headers: Mapping[str, str]) -> web.Response:
    return web.Response(
        body=text.encode(),
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store", **headers},
    )


def all_of(reasons: Sequence[PublicReason]) -> Refusal:
    """A refusal with all reasons of admission or the ledger."""
    return Refusal(*reasons) if reasons else refused(Code.INTERNAL, detail="refused without a reason")


def name_spec(reason: PublicReason) -> PublicReason:
    """Of a submit's body, where a field is not known: those of a job may have been written beside its `spec`."""
    if reason.code != Code.UNKNOWN_FIELD:
        return reason
    return reason.model_copy(update={"detail": "the fields of a job stand in `spec`"})


def no_such_job(job: str) -> Refusal:
    """A refusal that names the job, where its id is one that a job could have."""
    return refused(Code.NO_SUCH_JOB, "job_id", job if job.isalnum() else "")
