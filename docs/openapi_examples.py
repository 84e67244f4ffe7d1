"""
Requests and answers of the main operations as `openapi.json` shows them.

They are values of the models, so that an example which the API would not say is none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel, JsonValue

from tessera.gateway.entrance.problems import refused
from tessera.gateway.operations.health_reports import NotedHealth
from tessera.gateway.operations.models import JobPage, OneJob, Ordered, StoredSubmit
from tessera_schemas.documents.registry import dataschema
from tessera_schemas.events import CloudEvent, JobAdmittedV1
from tessera_schemas.reasons import Code
from tessera_schemas.views import JobView

JOB = "mxq3k7h2vbc5d4zpt6wa"
EXAMPLE_ROLE: dict[str, JsonValue] = {
    "name": "worker",
    "replicas": 2,
    "resources": {"gpus": 8, "cpu_milli": 16_000, "memory_bytes": 64 * 2**30},
    "template": {"image": "registry.example/train:7", "command": ["python", "train.py"]},
}
EXAMPLE_JOB: dict[str, JsonValue] = {
    "key": "nightly-7",
    "spec": {
        "name": "nightly",
        "queue": "research",
        "roles": [EXAMPLE_ROLE],
    },
}
NOT_FOUND, INVALID = 404, 422
RUNNING = JobView(
    job_id=JOB,
    tenant="lab",
    queue="research",
    name="nightly",
    key="nightly-7",
    phase="running",
    priority=0,
    attempt=1,
    pods=2,
    gpu_milli=16_000,
    submitted_ts=1_795_744_800_000,
    started_ts=1_795_744_803_000,
    number=83,
)
ADMITTED = JobAdmittedV1(job_id=JOB, name="nightly", queue="research", key="nightly-7", gpu_milli=16_000, pods=2)
EVENT = CloudEvent(
    specversion="1.0",
    id="83.0",
    source="urn:tessera:main",
    type=JobAdmittedV1.type,
    subject=JOB,
    time="2026-11-27T02:00:00.000Z",
    dataschema=dataschema(JobAdmittedV1),
    tenant="lab",
    sequence="0000000000000083",
    data=ADMITTED.to_data(),
)


@dataclass(frozen=True, slots=True)
class Example:
    """A request's body, None where there is none, and answers by status."""

    body: JsonValue = None
    answers: Mapping[int, BaseModel | str] = field(default_factory=dict)


NO_JOB = refused(Code.NO_SUCH_JOB, "job_id").problem()
ORDERED = Example({}, {202: Ordered(job_id=JOB, state="accepted", as_of=90), NOT_FOUND: NO_JOB})
EXAMPLES: dict[str, Example] = {
    "submit": Example(
        EXAMPLE_JOB,
        {
            201: StoredSubmit(job_id=JOB, key="nightly-7", state="queued", as_of=83, number=83),
            200: StoredSubmit(job_id=JOB, key="nightly-7", state="existing", as_of=97, number=83),
            INVALID: refused(Code.NO_SUCH_QUEUE, "spec.queue", "research").problem(),
        },
    ),
    "list_jobs": Example(answers={200: JobPage(as_of=90, items=(RUNNING,))}),
    "get_job": Example(answers={200: OneJob(as_of=90, job=RUNNING), NOT_FOUND: NO_JOB}),
    "wait_for_job": Example(
        answers={
            200: OneJob(
                as_of=140,
                job=RUNNING.model_copy(update={"phase": "succeeded", "ended_ts": 1_795_748_403_000, "exit_code": 0}),
            )
        }
    ),
    "cancel_job": Example({"why": "superseded"}, ORDERED.answers),
    "hold_job": ORDERED,
    "release_job": ORDERED,
    "set_priority": Example({"priority_class": "low"}, ORDERED.answers),
    "report_health": Example(
        {"ailments": [{"cause": "link_errors", "evidence": "CRC errors on link 3"}]},
        {
            202: NotedHealth(node="gpu-7", source="rack-agent", state="accepted", as_of=90),
            NOT_FOUND: refused(Code.NO_SUCH_NODE, "node", "gpu-77").problem(),
        },
    ),
    "events": Example(answers={200: f"id: 83\ndata: {EVENT.to_bytes().decode()}\n\n"}),
}
"""By the name of the operation."""


def shown(value: BaseModel | JsonValue) -> JsonValue:
    """A body as a client sends or gets it."""
    return dict(value.model_dump(mode="json", exclude_defaults=True)) if isinstance(value, BaseModel) else value
