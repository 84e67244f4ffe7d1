"""
Facts: what a service saw and the committer takes into the ledger. Each kind has exactly one allowed service.

A fact not yet taken in exists for nobody. The service is the subject's second token, which the server enforces.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, TypeAdapter

from tessera_schemas.base import Count, JobId, Key, Name, RunId, Strict, Text
from tessera_schemas.config import ConfigBody
from tessera_schemas.job import JobSpec, LabelKey, LabelValue
from tessera_schemas.reasons import Reason

NodeName = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]
Uid = Annotated[str, StringConstraints(min_length=1, max_length=64)]
TraceParent = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})?$")]


class JobAdmitted(Strict):
    """Admission found nothing against this job; limits that count are the committer's to check."""

    kind: Literal["job_admitted"]
    job_id: JobId
    tenant: Name
    key: Key
    spec: JobSpec
    origin: Literal["submit", "kubernetes"] = "submit"
    trace: TraceParent = ""


class JobRefused(Strict):
    """The audit record of input that has no other effect. `repeats` more were refused and not recorded each."""

    kind: Literal["job_refused"]
    tenant: Name
    job_id: str = ""
    name: str = ""
    reasons: Annotated[tuple[Reason, ...], Field(min_length=1, max_length=64)]
    repeats: Count = 0
    source_seq: Count = 0


class CancelRequested(Strict):
    """`tenant` is empty when an operator asked."""

    kind: Literal["cancel_requested"]
    job_id: JobId
    tenant: str = ""
    why: Text = ""


class ConfigProposed(Strict):
    kind: Literal["config_proposed"]
    expected_version: Count
    body: ConfigBody


class PodsMade(Strict):
    """Every pod of the run exists, unbound; its UIDs in rank order."""

    kind: Literal["pods_made"]
    run_id: RunId
    uids: Annotated[tuple[Uid, ...], Field(min_length=1)]


class PodsBound(Strict):
    kind: Literal["pods_bound"]
    run_id: RunId


class BindFailed(Strict):
    """Kubernetes refused to create or bind a pod for good; the run cannot start."""

    kind: Literal["bind_failed"]
    run_id: RunId
    rank: Count
    reason: Reason


class RunStarted(Strict):
    """Every pod of the run runs, or has run."""

    kind: Literal["run_started"]
    run_id: RunId


class RunEnded(Strict):
    """
    All pods succeeded (`reason` None), or one ended otherwise: then the gang is over.

    `own` tells whether the program itself failed: then the job is tried again only if its retry policy says so.
    """

    kind: Literal["run_ended"]
    run_id: RunId
    reason: Reason | None = None
    own: bool = False
    exit_code: int | None = None
    rank: Count = 0


class Taint(Strict):
    key: LabelKey
    value: LabelValue = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class NodeSeen(Strict):
    """A node as the cluster describes it now; `gone` when there is no such node any more."""

    kind: Literal["node_seen"]
    name: NodeName
    gone: bool = False
    ready: bool = True
    pool: Name = "default"
    cpu_milli: Count = 0
    memory_bytes: Count = 0
    pods: Count = 0
    gpus: Annotated[Count, Field(le=64)] = 0
    gpu_model: Annotated[str, StringConstraints(max_length=63)] = ""
    device_profile: Literal["whole", "shares", "plugin"] = "whole"
    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=256)] = Field(default_factory=dict)
    taints: Annotated[tuple[Taint, ...], Field(max_length=64)] = ()


class RunAbsent(Strict):
    """Every pod of the run is gone or ended by its kubelet: what it held is free."""

    kind: Literal["run_absent"]
    run_id: RunId


AnyFact = (
    JobAdmitted
    | JobRefused
    | CancelRequested
    | ConfigProposed
    | PodsMade
    | PodsBound
    | BindFailed
    | RunStarted
    | RunEnded
    | NodeSeen
    | RunAbsent
)
Fact = Annotated[AnyFact, Field(discriminator="kind")]

OWNERS: dict[type[Strict], str] = {
    JobAdmitted: "admission",
    JobRefused: "admission",
    CancelRequested: "admission",
    ConfigProposed: "admission",
    PodsMade: "binder",
    PodsBound: "binder",
    BindFailed: "binder",
    RunStarted: "binder",
    RunEnded: "binder",
    NodeSeen: "binder",
    RunAbsent: "reclamation",
}


class FactMessage(Strict):
    """A fact as it is stored on `fact.<shard>.<service>.<kind>`."""

    v: Literal[1]
    fact: Fact
    cause: Annotated[str, StringConstraints(max_length=200)] = ""


FACT_MESSAGE: TypeAdapter[FactMessage] = TypeAdapter(FactMessage)
