"""`tessera submit` without its options: the spec of a command line, and waiting for a job's end."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from tessera.client.connect.connecting import check_token_of, views_of
from tessera.client.connect.shard_views import ENDED
from tessera.client.connect.where import Where
from tessera.client.input.files import as_json
from tessera.client.outcomes import EXPECTED, Exit, Failure, Mistaken, Refused, Submitted, exit_of, with_all_else
from tessera.client.sending.ordering import PUBLISH_SECONDS, poll
from tessera.client.views.rendering import notify
from tessera_schemas.base import Json
from tessera_schemas.cluster.device_claims import COUNT_MAX
from tessera_schemas.events import CloudEvent, JobCancelledV1, JobFailedV1
from tessera_schemas.reasons import Code, PublicReason
from tessera_schemas.subjects import OPERATOR
from tessera_schemas.work.pod_template import literally

if TYPE_CHECKING:
    from tessera.client.sending.sdk import Tessera

WAIT_SECONDS = 0.25
"""Between two looks for a job's end."""


def name_of(command: Sequence[str]) -> str:
    """A job's name from what it runs: `python -m train.py` becomes `train-py`."""
    words = [word for word in command if not word.startswith("-") and word not in ("python", "python3", "bash", "sh")]
    made = re.sub(r"[^a-z0-9]+", "-", words[0].rsplit("/", 1)[-1].lower()).strip("-")[:63].strip("-") if words else ""
    return made or "job"


def spec_of_options(
    command: Sequence[str],
    *,
    name: str | None,
    queue: str,
    image: str,
    replicas: int,
    gpus: int,
    gpu_milli: int,
    gpu_parts: int = 1,
    cpu: str | None,
    memory: str | None,
    gpu_model: Sequence[str],
    toleration: Sequence[str] = (),
    device: Sequence[str] = (),
    match: str | None = None,
    gpu_resource: str | None = None,
    isolation: str | None = None,
) -> Json:
    """A job of one role, as a file would say it."""
    resources: Json = {} if cpu is None else {"cpu": cpu}
    resources |= {} if memory is None else {"memory": memory}
    resources |= {"gpus": gpus} if gpus else {}
    resources |= {"gpu_milli": gpu_milli} if gpu_milli else {}
    resources |= {"gpu_parts": gpu_parts} if gpu_parts > 1 else {}
    resources |= {"claims": claims_of(device, match)} if device or match else {}
    resources |= {"gpu_resource": gpu_resource} if gpu_resource else {}
    resources |= {"isolation": isolation} if isolation else {}
    role: Json = {"name": "worker", "replicas": replicas, "resources": resources}
    role |= {"gpu_models": list(gpu_model)} if gpu_model else {}
    role |= {"tolerations": list(toleration)} if toleration else {}
    role["template"] = {"image": image} | ({"command": [literally(word) for word in command]} if command else {})
    return {"name": name or name_of(command), "queue": queue, "roles": [role]}


def claims_of(device: Sequence[str], match: str | None) -> list[Json]:
    """
    Claims of `gpu.nvidia.com:2` (two devices of a class) and `gpu.nvidia.com+dra.net:4` (four pairs) each.

    With `match`, the devices of each pair have one value of this attribute, or all devices where there are no pairs;
    these are requests of one claim then. Raises Failure.
    """
    named = [_classes_of(text) for text in device]
    has_pairs = any(len(classes) > 1 for classes, _ in named)
    if match and not has_pairs and sum(count for _, count in named) < 2:
        raise Failure(Exit.USAGE, f"--match {match}: goes with several devices: --device gpu.nvidia.com+dra.net")
    claims = []
    for number, (classes, count) in enumerate(named):
        if len(classes) > 1:
            claims.append(_paired(f"devices-{number}", classes, count, match))
        else:
            choice = {"device_class": classes[0]} | ({"count": count} if count > 1 else {})
            claims.append({"name": f"devices-{number}", "requests": [{"name": "devices", "choices": [choice]}]})
    if not match or has_pairs:
        return claims
    requests = [request | {"name": claim["name"]} for claim in claims for request in claim["requests"]]
    return [{"name": "devices", "requests": requests, "constraints": [{"match": match}]}]


def _classes_of(text: str) -> tuple[list[str], int]:
    named, colon, count = text.partition(":")
    classes = named.split("+")
    if not all(classes) or (colon and not (count.isascii() and count.isdecimal() and 0 < int(count) <= COUNT_MAX)):
        example = "such as gpu.nvidia.com:1, or gpu.nvidia.com+dra.net:4 for pairs"
        raise Failure(Exit.USAGE, f"--device {text}: write CLASS or CLASS:COUNT, {example}")
    return classes, int(count) if colon else 1


def _paired(name: str, classes: Sequence[str], count: int, match: str | None) -> Json:
    """One claim on `count` sets of a device of each class, the devices of each alike in `match`."""
    sets = [[f"{name}-{at}-{place}" for place in range(len(classes))] for at in range(count)]
    requests = [
        {"name": request, "choices": [{"device_class": device_class}]}
        for of_set in sets
        for request, device_class in zip(of_set, classes, strict=True)
    ]
    alike = {"constraints": [{"requests": of_set, "match": match} for of_set in sets]} if match else {}
    return {"name": name, "requests": requests} | alike


def parameters_of(said: Sequence[str]) -> dict[str, str]:
    """`lr=0.1` as name and value; what they mean is the template's to say. Raises Failure."""
    found: dict[str, str] = {}
    for text in said:
        name, equals, value = text.partition("=")
        if not equals or not name or name in found:
            raise Failure(Exit.USAGE, f"--parameter {text}: write NAME=VALUE, each name once")
        found[name] = value
    return found


def command_bytes(asked: Json, key: str, tenant: str) -> bytes:
    """The submit as it would be sent; by HTTP the token says whose it is."""
    whose = {"tenant": tenant} if tenant else {}
    return as_json({"kind": asked["kind"], "v": 1, "key": key, **whose, **asked})


End = tuple[str, PublicReason | None]
"""Phase in which a job ended, and its reason."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A submit that is stored, and a way to wait for the job's end: None when it did not come within the seconds."""

    done: Submitted
    wait: Callable[[float | None], Awaitable[End | None]]


async def refuse(
    find: Callable[[], Where], identity: str | None, asked: Json, key: str | None, against: Mistaken | Refused
) -> NoReturn:
    """Raises the reasons against the submit, with all others that admission has where it can be asked."""
    try:
        async with submitted(find(), identity, asked, key, against.reasons):
            pass
    except Refused as refused:
        raise with_all_else(against, refused.reasons) from refused
    except EXPECTED as error:
        if exit_of(error) is Exit.USAGE:  # as whom, for example; where nobody answers, that is not told
            notify(f"error: {error}")
    raise against


@asynccontextmanager
async def connected(where: Where, identity: str | None) -> "AsyncIterator[Tessera]":
    """Connect as the tenant, by HTTP where a token is at hand, else by NATS. Raises Failure, StartupError."""
    from tessera.client.sending.sdk import Tessera

    by_http = where.login is not None and (identity is None or not where.can_be(identity))
    if by_http and identity is not None:
        await check_token_of(where, identity)
    async with Tessera.at(where, None if by_http else where.tenant(identity)) as tessera:
        yield tessera


@asynccontextmanager
async def submitted(
    where: Where,
    identity: str | None,
    asked: Json,
    key: str | None,
    against: Sequence[PublicReason] = (),
    say: Callable[[str], None] = notify,
) -> AsyncIterator[Sent]:
    """
    Submit once, by HTTP where a token is at hand, else by NATS. Raises Refused with all reasons, Failure, Transient.

    `wait` asks the views, which miss nothing; a tenant that cannot read them listens to its events from before the
    submit on, and asks with it whether the job has ended before.
    """
    async with connected(where, identity) as tessera:
        if not tessera.tenant:
            done = await tessera.send(asked, key, publish_seconds=PUBLISH_SECONDS, notify=say, against=against)
            yield Sent(done, lambda seconds: wait_by_views(where, done.job_id, seconds, done.number))
            return
        watch = await tessera.watch()
        done = await tessera.send(asked, key, publish_seconds=PUBLISH_SECONDS, notify=say, against=against)

        async def wait(seconds: float | None) -> End | None:
            if where.login is not None or where.can_be(OPERATOR):
                return await wait_by_views(where, done.job_id, seconds, done.number)
            if done.ended is not None:
                return done.ended.phase, done.ended.reason
            event = await watch.ended(done.job_id, seconds)
            return None if event is None else end_of_event(event)

        yield Sent(done, wait)


async def wait_by_views(where: Where, job_id: str, seconds: float | None, number: int = 0) -> End | None:
    """
    The job's end as the views tell it. Raises Failure once they may not be read.

    A key that is used again after its memory names the old job's successor by the same id: the views, which are a
    moment behind, may show the old one still, with another `number`. 0: any is meant.
    """
    found: list[End] = []

    async def has_ended() -> bool:
        try:
            job = await views.job(job_id)
        except Failure as failure:
            if failure.code is not Exit.NOT_FOUND:  # a token that was taken back, which no waiting mends
                raise
            return False  # the views do not have it yet
        found[:] = [(job.phase, job.reason)]
        return job.phase in ENDED and number in (0, job.number)

    views = views_of(where)
    return found[0] if await poll(has_ended, seconds, WAIT_SECONDS) else None


def exit_of_end(phase: str, reason: PublicReason | None) -> Exit:
    """The exit code for how a job ended."""
    if phase == "succeeded":
        return Exit.OK
    if phase == "cancelled":
        return Exit.CANCELLED
    return Exit.TIMED_OUT if reason is not None and reason.code == Code.TIME_LIMIT else Exit.FAILED


def end_of_event(event: CloudEvent) -> tuple[str, PublicReason | None]:
    """Phase and reason, as an event tells them."""
    phases = {JobFailedV1.type: "failed", JobCancelledV1.type: "cancelled"}
    reason = event.data.get("reason")
    return phases.get(event.type, "succeeded"), PublicReason.model_validate(reason) if reason is not None else None
