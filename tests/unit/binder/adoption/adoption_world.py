"""
Users' pods at a simulated cluster with a small Job controller: binder and reclamation at work, admission and committer
as they decide.
"""

import asyncio
from typing import Any

from tessera.admission.decide import outcome
from tessera.admission.decide.policy import AdmissionPolicy as Admitted
from tessera.domain.entities import EndedJob, Job
from tessera_local.cluster.objects.jobs import JobController
from tessera_schemas import subjects
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import bound_for
from tessera_schemas.config import Queue
from tessera_schemas.facts import DrainRequested
from tessera_schemas.text import reading
from tests.builders import SHARD, config_body, config_proposed
from tests.unit.binder.cluster_world import RESERVED, World

NS = "lab"
JOB_FIELDS = ("suspend", "backoffLimit", "backoffLimitPerIndex", "maxFailedIndexes", "completionMode")
JOB_FIELDS += ("activeDeadlineSeconds",)


class AdoptionWorld(World):
    """What the binder submits is judged and committed at each turn; `commands` are what it sent."""

    def __init__(self, nodes: tuple[str, ...] = ("node-a",), **settings: Any) -> None:
        super().__init__(nodes=nodes, **settings)
        self.commands: list[Any] = []
        self._read = 0

    async def __aenter__(self) -> "AdoptionWorld":
        await super().__aenter__()
        self.start_jobs()
        return self

    def start_jobs(self) -> None:
        """The Job controller; `stop("jobs")` stops it."""
        self._tasks["jobs"] = [asyncio.create_task(JobController(self.core, self.clock).run())]

    async def turn(self) -> None:
        stored = self.broker.stream(f"SUBMIT_{SHARD}").messages
        for seq in sorted(seq for seq in stored if seq > self._read):
            await self._judge(seq, stored[seq].subject, stored[seq].data)
        self._read = max([self._read, *stored])
        await super().turn()

    async def _judge(self, seq: int, subject: str, data: bytes) -> None:
        tenant, adopted = subjects.sent_by(subject)
        assert adopted, subject
        parsed = reading.read_cluster_command(data)
        self.commands.append(parsed.command)
        policy = Admitted(self.state.n, self.state.tree)
        await self.commit(
            outcome.judge_tenant_command(parsed, outcome.Origin(SHARD, tenant, seq, adopted=True), policy).fact
        )

    async def configure(self, *queues: Queue, names: dict[str, str] | None = None) -> None:
        """What an operator applies."""
        version, policy = self.state.config.version, self.state.config.body.policy
        body = config_body(*queues, policy=policy).model_copy(update={"queue_names": names or {}})
        await self.commit(config_proposed(body, expected_version=version))

    async def drain(self, node: str, undo: bool = False) -> None:
        await self.commit(DrainRequested(kind="drain_requested", node=node, evict=not undo, undo=undo))

    # -- what users make and see

    def make_job(self, name: str = "train", **more: Any) -> None:
        self.core.create("jobs", NS, batch_job(name, **more))

    def make_pod(self, name: str, **more: Any) -> None:
        self.core.create("pods", NS, user_pod(name, **more))

    def job_object(self, name: str = "train") -> Json:
        return self.core.get("jobs", NS, name).object

    def owned(self, name: str = "train") -> list[Json]:
        """The pods whose names begin so."""
        return [pod for pod in self.pods() if pod["metadata"]["name"].startswith(name)]

    def condition(self, pod: Json) -> Json:
        return next((c for c in pod["status"].get("conditions", ()) if c["type"] == "PodScheduled"), {})

    def events(self) -> list[Json]:
        """What somebody was told, but for the event that every bound pod gets."""
        return [event for event in self.all_events() if event["reason"] != "Scheduled"]

    def all_events(self) -> list[Json]:
        return [event.object for event in self.core.list("events")[0]]

    def adopted(self, name: str = "train") -> list[Job]:
        """The live jobs of this name."""
        return [job for job in self.state.jobs.values() if job.name.startswith(name)]

    def ended(self, name: str = "train") -> list[EndedJob]:
        return [job for job in self.state.ended.values() if job.name.startswith(name)]

    def only(self, name: str = "train") -> Job:
        (job,) = self.adopted(name)
        return job


def user_pod(
    name: str,
    seconds: float = 600,
    gpus: int = 1,
    labels: dict[str, str] | None = None,
    notes: dict[str, str] | None = None,
    **spec: Any,
) -> Json:
    """A pod as users write it, but for the annotation that tells the simulated kubelet how long it runs."""
    amounts = {"cpu": "1", "memory": "1Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    container = {"name": "main", "image": "train:1", "resources": {"requests": amounts, "limits": amounts}}
    return {
        "metadata": {
            "name": name,
            "labels": {"tessera.io/queue": "research"} | (labels or {}),
            "annotations": {f"{RESERVED}seconds": str(seconds)} | (notes or {}),
        },
        "spec": {"schedulerName": "tessera", "restartPolicy": "Never", "containers": [container], **spec},
    }


def batch_job(name: str = "train", pods: int = 1, completions: int | None = None, **more: Any) -> Json:
    """A Job of so many pods at once, and as many in all unless `completions` says more."""
    job_fields = {key: more.pop(key) for key in JOB_FIELDS if key in more}
    template = user_pod(name, **more)
    del template["metadata"]["name"]
    spec = {"parallelism": pods, "completions": pods if completions is None else completions, "template": template}
    return {"metadata": {"name": name}, "spec": spec | job_fields}


def run_of(pod: Json) -> str:
    """The run that it was bound for."""
    return bound_for(pod)
