"""`tessera submit` without its options: the spec of a command line, a dry run, and waiting for a job's end."""

import re
from collections.abc import Sequence
from typing import Any

import orjson

from tessera.client.outcomes import Exit, Failure, Refused
from tessera.client.shard_views import ENDED, ShardViews
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient
from tessera_schemas.commands import Answer
from tessera_schemas.events import CloudEvent, JobCancelledV1, JobFailedV1, JobRefusedV1
from tessera_schemas.reading import read_tenant_command
from tessera_schemas.reasons import Code, PublicReason
from tessera_schemas.views import JobView

POLL_SECONDS = 0.25
Json = dict[str, Any]


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
    cpu: str,
    memory: str,
    gpu_model: Sequence[str],
) -> Json:
    """A job of one role, as a file would say it."""
    resources: Json = {"cpu": cpu, "memory": memory}
    resources |= {"gpus": gpus} if gpus else {}
    resources |= {"gpu_milli": gpu_milli} if gpu_milli else {}
    role: Json = {"name": "worker", "replicas": replicas, "resources": resources}
    role |= {"gpu_models": list(gpu_model)} if gpu_model else {}
    role["template"] = {"image": image} | ({"command": list(command)} if command else {})
    return {"name": name or name_of(command), "queue": queue, "roles": [role]}


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
    """The submit as it would be sent."""
    return orjson.dumps({"kind": asked["kind"], "v": 1, "key": key, "tenant": tenant, **asked})


async def dry_run(views: ShardViews, data: bytes, shard: str, tenant: str) -> tuple[Answer, int]:
    """The answer that admission would give, and the ledger number that it holds for."""
    from tessera.admission.decide.outcome import Origin, judge_tenant_command
    from tessera.admission.decide.policy import AdmissionPolicy, NodeShapes, templates_of, tree_of

    n = await views.as_of()
    config = await views.config()
    nodes = await views.store.get_all("nodes")
    policy = AdmissionPolicy(n, tree_of(config), NodeShapes().update(nodes), templates_of(config))
    return judge_tenant_command(read_tenant_command(data), Origin(shard, tenant, 0), policy).answer, n


async def wait_for_end(views: ShardViews, job_id: str, seconds: float | None) -> JobView | None:
    """The job once it has ended; None when `seconds` are over. Redis being away only makes it longer."""
    clock = SystemClock()
    began = clock.monotonic()
    while seconds is None or clock.monotonic() - began < seconds:
        try:
            stored = await views.store.get("jobs", job_id)
        except Transient:
            stored = None
        job = None if stored is None else JobView.from_bytes(stored)
        if job is not None and job.phase in ENDED:
            return job
        await clock.sleep(POLL_SECONDS)
    return None


def exit_of_end(phase: str, reason: PublicReason | None) -> Exit:
    """The exit code for how a job ended."""
    if phase == "succeeded":
        return Exit.OK
    if phase == "cancelled":
        return Exit.CANCELLED
    return Exit.TIMED_OUT if reason is not None and reason.code == Code.TIME_LIMIT else Exit.FAILED


def check_entry(event: CloudEvent | None) -> None:
    """Raises Refused when the committer turned the job away after admission had found nothing against it."""
    if event is not None and event.type == JobRefusedV1.type:
        refused = JobRefusedV1.model_validate(event.data)
        raise Refused(refused.reasons, refused.job_id)


def end_of_event(event: CloudEvent) -> tuple[str, PublicReason | None]:
    """Phase and reason, as an event tells them."""
    phases = {JobFailedV1.type: "failed", JobCancelledV1.type: "cancelled"}
    reason = event.data.get("reason")
    return phases.get(event.type, "succeeded"), PublicReason.model_validate(reason) if reason is not None else None
