"""The API's refusals: each an ApiError with the real status and reason, and the Status object that carries it."""

from typing import Any

from tessera.kernel.errors import Transient
from tessera.kernel.ports import ApiError
from tessera_schemas.base import Json

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class AnswerLost(Transient):
    """The connection broke before the answer came; the call may have had its effect."""


def bad_request(message: str) -> ApiError:
    """Refusal 400 BadRequest: the request itself is malformed, or asks for what is not simulated."""
    return ApiError(400, "BadRequest", message)


def forbidden(message: str) -> ApiError:
    """Refusal 403 Forbidden: the identity has no right to the call."""
    return ApiError(403, "Forbidden", message)


def not_found(kind: str, name: str) -> ApiError:
    """Refusal 404 NotFound, in the API's words."""
    return ApiError(404, "NotFound", f'{kind} "{name}" not found')


def already_exists(kind: str, name: str) -> ApiError:
    """Refusal 409 AlreadyExists: an object of that name is stored."""
    return ApiError(409, "AlreadyExists", f'{kind} "{name}" already exists')


def conflict(kind: str, name: str, why: str) -> ApiError:
    """Refusal 409 Conflict: the object is not in the state that the call needs."""
    return ApiError(409, "Conflict", f'Operation cannot be fulfilled on {kind} "{name}": {why}')


def wrong_uid(kind: str, name: str, wanted: Any, actual: str) -> ApiError:
    """Refusal 409 Conflict: another object has the name by now; the text has both UIDs."""
    why = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {actual}"
    return conflict(kind, name, why)


def stale(kind: str, name: str) -> ApiError:
    """Refusal 409 Conflict: the object has a newer resourceVersion than the caller has seen."""
    return conflict(
        kind, name, "the object has been modified; please apply your changes to the latest version and try again"
    )


def expired(asked: int, oldest: int) -> ApiError:
    """Refusal 410 Expired: history begins after version `oldest`, too late for `asked`; the client must list again."""
    return ApiError(410, "Expired", f"too old resource version: {asked} ({oldest})")


def too_large(asked: int, newest: int) -> ApiError:
    """Refusal 504 Timeout, to be tried after 1 s: version `asked` lies in the future of this cluster."""
    return ApiError(504, "Timeout", f"Too large resource version: {asked}, current: {newest}", 1)


def invalid(kind: str, name: str, why: str) -> ApiError:
    """Refusal 422 Invalid: the object, or a change of it, breaks a rule of the API."""
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {why}')


def status_object(error: ApiError) -> Json:
    """The body that the API sends with a refusal."""
    body: Json = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": error.message,
        "reason": error.reason,
        "code": error.status,
    }
    if error.retry_after_seconds is not None:
        body["details"] = {"retryAfterSeconds": int(error.retry_after_seconds)}
    return body
