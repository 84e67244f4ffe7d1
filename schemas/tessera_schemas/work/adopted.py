"""Data kept of work that users made in Kubernetes themselves, and that Tessera schedules as one job."""

from typing import Annotated

from pydantic import Field, StringConstraints

from tessera_schemas.base import NodeName, Strict, Uid, later
from tessera_schemas.job import REPLICAS_MAX

PRIORITY_MIN, PRIORITY_MAX = -(2**31), 2**31 - 1
FAILED_ON_MAX = 16
OwnerKind = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Za-z][A-Za-z0-9]*$")]


class Service(Strict):
    """
    The scalable object whose replica a job is, by its own name and UID, and how many of its replicas no plan stops.

    A replica is a pod or a gang, and a job of its own. Of several numbers that live replicas of one service were given
    the highest counts.
    """

    kind: OwnerKind
    name: Annotated[str, StringConstraints(min_length=1, max_length=253)]
    uid: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    min_replicas: Annotated[
        int, Field(ge=0, le=REPLICAS_MAX, strict=True, description="Replicas that keep running; 0: no such number")
    ]

    def __str__(self) -> str:
        """Name for people: `Deployment/chat`."""
        return f"{self.kind}/{self.name}"


class Adopted(Strict):
    """
    The object that an adopted job belongs to, and the priority that Kubernetes gave its pods.

    The owner is whoever makes the pods again when they are evicted; the pod itself when nobody does. `priority` is the
    value of the pods' PriorityClass and stands in place of the job's own class: who may use which is Kubernetes' to
    say. `group` is by what its pods are found again, also those of its next attempt. `uids` are the pods that wait to
    be placed, in rank order: what is allocated to the job may be bound to them at once. Without them, as of a suspended
    Job, its pods are looked for once it has room.
    """

    api_version: Annotated[str, StringConstraints(max_length=200)] = ""
    owner_kind: OwnerKind
    owner_name: Annotated[str, StringConstraints(min_length=1, max_length=253)]
    owner_uid: Annotated[str, StringConstraints(max_length=64)] = ""
    group: Annotated[str, StringConstraints(max_length=600, pattern=r"^[\x21-\x7e]*$")] = ""
    priority: Annotated[int, Field(ge=PRIORITY_MIN, le=PRIORITY_MAX, strict=True)] = 0
    priority_class: Annotated[str, StringConstraints(max_length=253)] = ""
    uids: Annotated[tuple[Uid, ...], Field(max_length=REPLICAS_MAX)] = ()
    suspended: Annotated[bool, Field(description="Whether the owner is suspended and has no pods yet")] = False
    failed_on: Annotated[
        tuple[NodeName, ...],
        Field(
            max_length=FAILED_ON_MAX,
            description="Nodes to avoid, on which earlier pods of the owner's controller failed",
        ),
    ] = later(())
    budget: Annotated[
        str, Field(max_length=600, description="Disruption budget that lets none of its pods go; empty: some may go")
    ] = later("")
    service: Annotated[
        Service | None, Field(description="Service with a guaranteed minimum whose replica the job is; null: of none")
    ] = later(None)
    late_pods: Annotated[
        int,
        Field(
            ge=0,
            le=REPLICAS_MAX,
            strict=True,
            description="Pods that its owner makes once the others run, the last in rank order; their room is held",
        ),
    ] = later(0)

    @property
    def owner(self) -> str:
        """Owner's name for people: `Job/train`."""
        return f"{self.owner_kind}/{self.owner_name}"

    def news_of(self, budget: str, service: Service | None) -> tuple[str | None, Service | None]:
        """The budget and the service where they are not as before, else None; a minimum that was taken back is 0."""
        before = self.service
        if service is None and before is not None:
            service = before.model_copy(update={"min_replicas": 0})
        return None if budget == self.budget else budget, None if service == before else service
