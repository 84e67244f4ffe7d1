"""Commands of a tenant through the gateway, which answers for admission and the ledger."""

from typing import Any

from tessera.client.api import JOBS, Api, path_of
from tessera.client.sdk import Submitted
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient
from tessera_schemas.base import Strict

PUBLISH_SECONDS = 60.0
RETRY_SECONDS = 1.0
ACTIONS = {
    "cancel_job": "cancel",
    "hold_job": "hold",
    "release_job": "release",
    "report_checkpoint": "checkpoint",
    "set_priority": "priority",
    "move_job": "queue",
}
"""By the kind of command: what the HTTP API calls it."""
Json = dict[str, Any]


async def submit_by_api(api: Api, asked: Json, key: str, publish_seconds: float = PUBLISH_SECONDS) -> Submitted:
    """
    The submit as it was stored; repeated under the same key until the gateway has stored it.

    Raises Refused, Failure, and Transient when it could not be stored in time.
    """
    clock = SystemClock()
    until = clock.monotonic() + publish_seconds
    body = {name: value for name, value in asked.items() if name != "kind"}
    while True:
        try:
            _, answer = await api.post(JOBS, body, key)
        except Transient:
            if clock.monotonic() > until:
                raise
            await clock.sleep(RETRY_SECONDS)
        else:
            notes = tuple(map(str, answer.get("notes") or ()))
            return Submitted(str(answer["job_id"]), answer["state"] != "stored", key, notes=notes)


async def order_by_api(api: Api, command: Strict, job: str) -> bool:
    """Send a command about a job; False when nobody has answered yet. Raises Refused, Failure, Transient."""
    action = ACTIONS[command.kind]  # type: ignore[attr-defined]  # every command has one
    body = command.model_dump(mode="json", exclude_defaults=True, exclude={"kind", "v", "job_id", "tenant"})
    _, answer = await api.post(path_of(job, action), body)
    return bool(answer.get("state") == "accepted")
