"""Settings of the binder."""

from typing import ClassVar, Literal

from pydantic import Field

from tessera.kernel.process.settings import ServiceSettings


class BinderSettings(ServiceSettings):
    service: ClassVar[str] = "binder"

    runs_at_once: int = Field(
        128, ge=1, le=1024, description="Runs in work at once; each has one call in flight per pod"
    )
    runs_at_once_per_tenant: int = Field(64, ge=1, le=1024, description="Of these, runs of one tenant")
    resync_seconds: float = Field(10.0, gt=0, le=600, description="Interval of looks at every run")
    orphan_seconds: float = Field(
        60.0,
        ge=0,
        description="Time for which a bound pod without an explanation in the ledger is reported, before it is deleted",
    )
    node_gone_seconds: float = Field(
        10.0, ge=0, le=3600, description="Time without an object after which a node counts as gone"
    )
    node_back_seconds: float = Field(
        12.0,
        ge=0,
        le=600,
        description="Time that a node has to answer again before pods on it are told to stop; kubelets report "
        "ended pods every ten seconds",
    )
    others_seconds: float = Field(
        1.0, ge=0, le=60, description="Least time between two reports of what other pods take of one node"
    )
    ended_pod_seconds: float = Field(
        0.0, ge=0, le=86_400, description="Least time that an ended pod stays, for log collectors"
    )
    checkpoint_seconds: float = Field(
        2.0, ge=0, le=600, description="Least time between two checkpoint reports of one run"
    )
    groups_at_once: int = Field(
        64, ge=1, le=1024, description="Groups of users' pods in work at once, to be submitted or told why they wait"
    )
    tell_seconds: float = Field(
        2.0,
        ge=0,
        le=600,
        description="Wait after which users' pods are told why they wait, and their owners are suspended by "
        "policy; refused pods are told at once",
    )
    settle_seconds: float = Field(
        3.0, ge=0, le=600, description="Time without a further pod after which a gang of unknown size counts as whole"
    )
    claim_seconds: float = Field(
        5.0,
        ge=0,
        le=3600,
        description="Time that an allocated job waits for users' pods that no controller is about to make",
    )
    resumed_seconds: float = Field(
        60.0,
        ge=0,
        le=3600,
        description="Time that an allocated job waits for the pods of an owner whose controller has acted on the "
        "resumption; a controller makes 20 pods a second by default",
    )
    controller_seconds: float = Field(
        600.0,
        ge=0,
        le=86_400,
        description="Time that an allocated job waits for the pods of an owner whose controller has not acted on "
        "the resumption yet; the room stays taken meanwhile, and a controller may have thousands of new Jobs to "
        "handle first",
    )
    pods_gone_seconds: float = Field(
        900.0,
        ge=0,
        le=86_400,
        description="Time that a queued job waits for its owner to make its pods again; batch Jobs wait up to 600 s",
    )
    scheduled_events_per_second: float = Field(
        20.0, ge=0, le=1000, description="Most events `Scheduled` and `Preempted` made on pods per second; 0: none"
    )
    pod_warnings_per_second: float = Field(
        5.0,
        ge=0,
        le=1000,
        description="Most pods per second whose events are read to find why they do not start; 0: none",
    )
    owner_conditions_per_second: float = Field(
        20.0,
        ge=0,
        le=1000,
        description="Most conditions `tessera.io/Placed` written on Jobs and their like per second; 0: none",
    )
    steps_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        "IfNotPresent", description="When nodes pull the image of the step runner"
    )
    cluster_domain: str = Field(
        "cluster.local",
        pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$",
        description="Domain of the cluster's names of Services",
    )
    attempts: int = Field(
        5, ge=1, le=100, description="Tries of a call that the API server fails to answer, before the run is given back"
    )
