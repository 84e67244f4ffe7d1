"""Settings of the binder."""

from typing import ClassVar

from pydantic import Field

from tessera.kernel.process.settings import ServiceSettings


class BinderSettings(ServiceSettings):
    service: ClassVar[str] = "binder"

    runs_at_once: int = Field(
        128, ge=1, le=1024, description="Runs being worked on; each has one call in flight per pod"
    )
    resync_seconds: float = Field(10.0, gt=0, le=600, description="How often every run is looked at again")
    orphan_seconds: float = Field(
        60.0, ge=0, description="How long a bound pod that the ledger does not explain is only reported, then deleted"
    )
    node_gone_seconds: float = Field(
        10.0, ge=0, le=3600, description="A node without an object for so long is gone; one that is back earlier is not"
    )
    node_back_seconds: float = Field(
        12.0,
        ge=0,
        le=600,
        description="How long a node that did not answer is back before pods on it are told to stop: kubelets "
        "say every ten seconds what has ended",
    )
    others_seconds: float = Field(
        1.0, ge=0, le=60, description="What pods of others take of one node is said no more often"
    )
    ended_pod_seconds: float = Field(
        0.0, ge=0, le=86_400, description="An ended pod stays at least so long, for whoever collects its log"
    )
    checkpoint_seconds: float = Field(2.0, ge=0, le=600, description="Checkpoints of one run are said no more often")
    groups_at_once: int = Field(
        64, ge=1, le=1024, description="Groups of users' pods being looked at, to be submitted or told why they wait"
    )
    tell_seconds: float = Field(
        2.0,
        ge=0,
        le=600,
        description="Users' pods that wait no longer than this are not told why, nor are their owners suspended by "
        "policy; refused ones are told at once",
    )
    settle_seconds: float = Field(
        3.0,
        ge=0,
        le=600,
        description="A gang of which nobody says the size is whole once no further pod has come for so long",
    )
    claim_seconds: float = Field(
        5.0, ge=0, le=3600, description="How long an allocated job waits for users' pods that nobody is about to make"
    )
    resumed_seconds: float = Field(
        60.0,
        ge=0,
        le=3600,
        description="How long an allocated job waits for the pods of an owner whose controller has acted on its "
        "resumption; a controller makes 20 a second unless it is told otherwise",
    )
    controller_seconds: float = Field(
        600.0,
        ge=0,
        le=86_400,
        description="How long an allocated job waits for the pods of an owner whose controller has not acted on its "
        "resumption yet: thousands of new Jobs stand before it, and before any other Job that might have its room",
    )
    pods_gone_seconds: float = Field(
        900.0,
        ge=0,
        le=86_400,
        description="How long a queued job waits for its owner to make its pods again; batch Jobs wait up to 600 s",
    )
    scheduled_events_per_second: float = Field(
        20.0, ge=0, le=1000, description="Events `Scheduled` and `Preempted` on pods, made no faster than this; 0: none"
    )
    pod_warnings_per_second: float = Field(
        5.0, ge=0, le=1000, description="Pods that do not start, and whose events are read for why, a second; 0: none"
    )
    owner_conditions_per_second: float = Field(
        20.0,
        ge=0,
        le=1000,
        description="Conditions `tessera.io/Placed` on Jobs and their like, written no faster than this; 0: none",
    )
    attempts: int = Field(
        5, ge=1, le=100, description="Tries of a call that the API server cannot answer, before the run is given back"
    )
