"""
Every service, declared once: what it reads and writes, what it may do to Kubernetes, how its replicas share the work.

From this table follow the writers and readers of each stream, the permissions and credentials at NATS and Redis, the
accounts and roles of the Helm chart, the processes of the local platform, the slots of the simulator,
and the tables of services in the docs. A service is the package `tessera.<name>`: `main.serve` and a settings model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tessera_schemas.cluster.cluster_roles import (
    BINDER,
    CLAIM_BINDER,
    CLAIM_READER,
    DEVICE_READER,
    LOG_READER,
    NODE_READER,
    OWNER_READER,
    POD_READER,
    READ_VERBS,
    SESSION_INGRESS,
    STEPS_KEYS,
    ClusterRole,
    Right,
)
from tessera_schemas.subjects import ADMINISTRATOR, BY_OPERATOR, KUBERNETES, OPERATOR, TENANT

FOLLOWED = ("LEDGER", "SNAP")
"""What every follower of the ledger reads: the ledger, and the snapshot that it starts from."""


class Replicas(StrEnum):
    """Sharing of a service's work among its replicas."""

    QUEUES = "share the queues"
    LEADER = "one leads, the others stand by"
    PARTITIONS = "share 16 partitions"
    ALONE = "any number, each alone"


class RedisUse(StrEnum):
    """Access of a service to Redis."""

    WRITES = "writes"
    NEEDS = "needs"  # it does not start without
    READS = "reads"
    GLANCES = "glances"  # at the cursor alone: whether the ledger still has its end


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSpec:
    """
    Role of a NATS client: the streams that it `reads` and `writes`, by kind.

    A writer writes its own part of a stream, or all of one that has no parts; subjects that `writes` gives, with
    `{shard}` in them and a blank between two, stand instead of that. `fetches` are streams of which any stored message
    may be fetched, without being told of new ones.
    """

    name: str
    reads: tuple[str, ...] = ()
    writes: Mapping[str, str] = field(default_factory=dict)
    fetches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec(RoleSpec):
    """
    One service.

    `cluster_roles` hold in the whole cluster and only read (but see `CLAIM_BINDER`); `tenant_role` holds in the
    namespace of each tenant, and there `tenant_options`, too, where the chart's value of that name is enabled.
    `answers`: to the private inbox of whoever sent a command. `speaks_for_tenants`: it sends commands for tenants, and
    hears the answers. `serves_http`: it is reached by others than through streams. `calls_out`: it connects to servers
    that are not of the installation. `yields`: no start of a pod and no release of a device waits
    on it, so that it takes less of a CPU that is short. `decides`, `without_it` and `outside` (what it reads besides)
    are for the docs.
    """

    decides: str
    without_it: str
    replicas: Replicas
    redis: RedisUse = RedisUse.GLANCES
    cluster_roles: tuple[ClusterRole, ...] = ()
    tenant_role: ClusterRole | None = None
    tenant_options: Mapping[str, ClusterRole] = field(default_factory=dict)
    outside: tuple[str, ...] = ()
    answers: bool = False
    speaks_for_tenants: bool = False
    serves_http: bool = False
    calls_out: bool = False
    yields: bool = False

    @property
    def calls_cluster(self) -> bool:
        """Whether it calls Kubernetes at all."""
        return bool(self.cluster_roles or self.tenant_role)

    @property
    def needs_cluster(self) -> bool:
        """Whether it does nothing without Kubernetes."""
        return bool(self.cluster_roles)

    @property
    def changes_cluster(self) -> bool:
        """Whether it may do more to Kubernetes than read."""
        return any(right.verb not in READ_VERBS for right in self.cluster_rights() | self.tenant_rights())

    def cluster_rights(self) -> frozenset[Right]:
        """Rights in the whole cluster."""
        return frozenset(right for role in self.cluster_roles for right in role.rights())

    def tenant_rights(self) -> frozenset[Right]:
        """Rights in the namespace of each tenant, besides those in the whole cluster, without any option."""
        return self.tenant_role.rights() if self.tenant_role else frozenset()


TENANT_ROLE = RoleSpec(name=TENANT, reads=("EVENTS",), writes={"SUBMIT": ""})
"""Every tenant; its identity is the tenant's own name."""

OPERATOR_ROLE = RoleSpec(
    name=OPERATOR,
    reads=("FACTS", "ORDERS", *FOLLOWED, "EVENTS", "DLQ"),
    fetches=("LEASES",),  # to see who is alive and leads
    writes={"CONTROL": "control.{shard}"},
)

ADMINISTRATOR_ROLE = RoleSpec(
    name=ADMINISTRATOR,
    fetches=("LEDGER", "SNAP", "EVENTS", "ORDERS"),
    writes={"SNAP": "snap.{shard}.generation.>"},
)
"""Who makes the streams, and rolls the ledger over; no everyday command needs its rights."""

SPECS = (
    ServiceSpec(
        name="admission",
        decides="whether a command is taken in, with all reasons if not",
        without_it="commands wait in their queue; everything else goes on",
        replicas=Replicas.QUEUES,
        reads=("SUBMIT", "CONTROL"),
        fetches=("LEDGER",),  # to know how far it goes
        writes={"FACTS": "", "DLQ": ""},
        redis=RedisUse.NEEDS,
        answers=True,
    ),
    ServiceSpec(
        name="queueing",
        decides="who is next",
        without_it="nothing new gets into line; what is in line still starts",
        replicas=Replicas.LEADER,
        reads=FOLLOWED,
        writes={"ORDERS": ""},
    ),
    ServiceSpec(
        name="scheduler",
        decides="everything that counts: what is taken in, placed, permitted, revoked, released",
        without_it="nothing new starts or is released; what runs goes on; a standby takes over",
        replicas=Replicas.LEADER,
        reads=("FACTS", "ORDERS", *FOLLOWED),
        writes={"LEDGER": "", "DLQ": ""},
    ),
    ServiceSpec(
        name="preemption",
        decides="nothing; it proposes whom to evict for a waiting job, and where that goes then",
        without_it="nobody is evicted for a waiting job of the same queue; everything else goes on",
        replicas=Replicas.PARTITIONS,
        reads=FOLLOWED,
        writes={"FACTS": ""},
        yields=True,
    ),
    ServiceSpec(
        name="reclamation",
        decides="whether a run is absent; what pods are worth to the placement",
        without_it="nothing is released: ended runs keep their devices until it is back",
        replicas=Replicas.PARTITIONS,
        reads=FOLLOWED,
        writes={"FACTS": ""},
        cluster_roles=(NODE_READER, POD_READER, CLAIM_READER),
        outside=("Prometheus",),
    ),
    ServiceSpec(
        name="binder",
        decides="nothing; it carries out",
        without_it="nothing new reaches the cluster, nothing is seen to start or end; what runs goes on",
        replicas=Replicas.PARTITIONS,
        reads=FOLLOWED,
        # Adopted work is sent for the tenant of its namespace. That it came from Kubernetes is told by the subject
        # alone, as the tenant is: nobody else may say so.
        writes={"FACTS": "", "SUBMIT": f"submit.{{shard}}.*.{KUBERNETES}"},
        cluster_roles=(NODE_READER, POD_READER, OWNER_READER, DEVICE_READER, CLAIM_BINDER),
        tenant_role=BINDER,
        tenant_options={"steps": STEPS_KEYS, "sessionIngress": SESSION_INGRESS},
    ),
    ServiceSpec(
        name="projection",
        decides="nothing; it derives",
        without_it="readers see older views, subscribers wait; nothing else notices",
        replicas=Replicas.LEADER,
        reads=(*FOLLOWED, "EVENTS"),
        writes={"EVENTS": "events.{shard}.>", "SNAP": ""},  # the events of all tenants
        redis=RedisUse.WRITES,
        yields=True,
    ),
    ServiceSpec(
        name="notifier",
        decides="nothing; it delivers events to the webhooks that tenants declare",
        without_it="events for webhooks wait in their stream; nothing else notices",
        replicas=Replicas.QUEUES,
        reads=("EVENTS",),
        writes={"DLQ": ""},
        redis=RedisUse.READS,
        outside=("webhooks",),
        calls_out=True,
        yields=True,
    ),
    ServiceSpec(
        name="gateway",
        decides="nothing; it speaks for the tenant of a token",
        without_it="no HTTP requests, no lists, no streams of events; clients on NATS submit and subscribe, everything "
        "submitted goes on",
        replicas=Replicas.ALONE,
        reads=(*FOLLOWED, "EVENTS"),
        fetches=("FACTS",),  # to see since when the oldest waits
        # A request is sent for the tenant of its token, an operator's order for the tenant of the job. Of what is an
        # operator's alone to say it sends reports of health and reservations, on subjects of their own: no
        # configuration, no drain.
        writes={
            "SUBMIT": f"submit.{{shard}}.* submit.{{shard}}.*.{BY_OPERATOR}",
            "CONTROL": "control.{shard}.health control.{shard}.reservations",
        },
        redis=RedisUse.READS,
        tenant_role=LOG_READER,
        speaks_for_tenants=True,
        serves_http=True,
        yields=True,
    ),
)
SERVICES = tuple(spec.name for spec in SPECS)
SEPARATE, COMPACT, SINGLE = "separate", "compact", "single"
LAYOUTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    SEPARATE: {name: (name,) for name in SERVICES},
    COMPACT: {
        "scheduler": ("scheduler",),  # moves its state by its own append, and is waited for by all
        "binder": ("binder",),  # has the busiest loop, and may create pods
        "gateway": ("gateway",),  # is reached from outside
        "followers": ("queueing", "preemption", "reclamation", "projection", "admission", "notifier"),
    },
    SINGLE: {"services": SERVICES},
}
"""The processes of a shard, by name, and the services that each hosts."""
RESERVED_NAMES = (*SERVICES, OPERATOR, ADMINISTRATOR, TENANT)  # no tenant may be called so
BY_NAME: Mapping[str, ServiceSpec] = {spec.name: spec for spec in SPECS}

_ROLES: tuple[RoleSpec, ...] = (TENANT_ROLE, *SPECS, OPERATOR_ROLE, ADMINISTRATOR_ROLE)

EVERY_FETCHES = ("ORDERS", "EVENTS", "SNAP")
"""What every service may fetch: to see whether the ledger still has its end."""
EVERY_USES = ("LEASES",)
"""What every service reads and writes."""


def writers(stream: str) -> tuple[str, ...]:
    """The roles that write a kind of stream."""
    every = SERVICES if stream in EVERY_USES else ()
    return every or tuple(role.name for role in _ROLES if stream in role.writes)


def readers(stream: str) -> tuple[str, ...]:
    """The roles that are told of new messages of a kind of stream, or are handed them out."""
    every = SERVICES if stream in EVERY_USES else ()
    return every or tuple(role.name for role in _ROLES if stream in role.reads)


def fetchers(stream: str) -> tuple[str, ...]:
    """The roles that may fetch from a kind of stream of which nobody tells them."""
    every = SERVICES if stream in EVERY_FETCHES else ()
    return every + tuple(role.name for role in _ROLES if stream in role.fetches and role.name not in every)


def given(stream: str, shard: str) -> tuple[tuple[str, str], ...]:
    """The roles that write a kind of stream elsewhere than in a part of their own, and the subject of each."""
    return tuple(
        (role.name, subject.format(shard=shard)) for role in _ROLES for subject in role.writes.get(stream, "").split()
    )
