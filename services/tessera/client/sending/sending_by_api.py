"""Commands of a tenant through the gateway, which answers for admission and the ledger."""

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from tessera.client.connect.api import JOBS, Api, path_of
from tessera.client.outcomes import Submitted
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient
from tessera_schemas.base import Json, Strict
from tessera_schemas.cluster.node_terms import ToldPlaces
from tessera_schemas.reasons import PublicReason

PUBLISH_SECONDS = 60.0
RETRY_SECONDS = 1.0
CANCELLED_AT_ONCE = 1000
ACTIONS = {
    "cancel_job": "cancel",
    "hold_job": "hold",
    "release_job": "release",
    "report_checkpoint": "checkpoint",
    "answer_move": "move",
    "set_priority": "priority",
    "move_job": "queue",
    "update_job": "update",
    "requeue_job": "requeue",
    "scale_service": "scale",
    "roll_service": "rollout",
    "shift_roles": "roles",
    "resize_pods": "resources",
}
"""By the kind of command: what the HTTP API calls it."""


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
            job, state = str(answer["job_id"]), answer["state"]
            number = int(answer.get("number") or 0)
            return Submitted(job, state != "stored", key, notes=notes, number=number, state=state)


async def cancel_by_api(api: Api, jobs: Sequence[str], why: str) -> list[tuple[str, PublicReason]]:
    """Cancel many jobs; those that are not cancelled, and why. Raises Refused, Failure, Transient."""
    against = list[tuple[str, PublicReason]]()
    for at in range(0, len(jobs), CANCELLED_AT_ONCE):
        _, answer = await api.post(f"{JOBS}/cancel", {"jobs": list(jobs[at : at + CANCELLED_AT_ONCE]), "why": why})
        items = [item for item in answer.get("items", ()) if item.get("reason")]
        against += [(str(item["job_id"]), PublicReason.model_validate(item["reason"])) for item in items]
    return against


async def order_by_api(api: Api, command: Strict, job: str) -> bool:
    """Send a command about a job; False when nobody has answered yet. Raises Refused, Failure, Transient."""
    action = ACTIONS[command.kind]  # type: ignore[attr-defined]  # every command has one
    body = command.model_dump(mode="json", exclude_defaults=True, exclude={"kind", "v", "job_id", "tenant"})
    _, answer = await api.post(path_of(job, action), body)
    return bool(answer.get("state") == "accepted")


async def tell_by_api(api: Api, name: str, places: ToldPlaces) -> Json:
    """Say which nodes have a data set, by name; the gateway's answer. Raises Refused, Failure, Transient."""
    body = places.model_dump(mode="json", exclude_defaults=True, include={*ToldPlaces.model_fields})
    return (await api.ask("PUT", f"/v1/datasets/{quote(name, safe='')}/places", {}, body))[1]


async def report_by_api(api: Api, node: str, ailments: Sequence[Mapping[str, str]], source: str | None) -> None:
    """Say what is wrong with a node. Raises Refused, Failure, Transient."""
    body: Json = {"ailments": [dict(each) for each in ailments]} | ({} if source is None else {"source": source})
    await api.post(f"/v1/nodes/{quote(node, safe='')}/health", body)
