"""
The job spec: everything a job may ask for.

Quantities are integers: CPU in thousandths of a core, memory in bytes, a GPU in thousandths per device. Fields that
nothing honours yet are part of the contract (`NOT_YET`); asking for one is refused with `NotSupportedYet`.
The pod template (`pod_template`) is a typed allow-list: what is not named there cannot reach a node.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from tessera_schemas.base import GPU_MILLI as GPU_MILLI
from tessera_schemas.base import INT_MAX, Count, JobName, Millis, Name, Positive, Strict, later
from tessera_schemas.cluster import mig
from tessera_schemas.cluster.device_claims import CLAIMS_MAX, SHARERS_MAX, DeviceClaim, GresName
from tessera_schemas.cluster.device_vendors import ResourceNameOrNone
from tessera_schemas.cluster.devices import Isolation, Kind
from tessera_schemas.cluster.gang_groups import GROUPS_MAX, RoleGroup, wrong_role_groups, wrong_shared_domains
from tessera_schemas.cluster.node_terms import LEVELS_MAX as LEVELS_MAX
from tessera_schemas.cluster.node_terms import PREFERRED_MAX as PREFERRED_MAX
from tessera_schemas.cluster.node_terms import AffinityTerm as AffinityTerm
from tessera_schemas.cluster.node_terms import AntiAffinity as AntiAffinity
from tessera_schemas.cluster.node_terms import DatasetHint as DatasetHint
from tessera_schemas.cluster.node_terms import LabelValue as LabelValue
from tessera_schemas.cluster.node_terms import Neighbours as Neighbours
from tessera_schemas.cluster.node_terms import Operator as Operator
from tessera_schemas.cluster.node_terms import PreferredTerm as PreferredTerm
from tessera_schemas.cluster.node_terms import RoleReach as RoleReach
from tessera_schemas.cluster.node_terms import Toleration as Toleration
from tessera_schemas.cluster.node_terms import Topology as Topology
from tessera_schemas.cluster.resource_kinds import FURTHER, KINDS, WHOLE_NODE, CountedResources, is_device
from tessera_schemas.work.arrays import DEPENDENCIES_MAX, AttachTo, Dependency, JobArray, ServiceSize, WholeJob
from tessera_schemas.work.measured_use import CheckpointAt as CheckpointAt
from tessera_schemas.work.measured_use import CheckpointPath as CheckpointPath
from tessera_schemas.work.measured_use import CheckpointPolicy as CheckpointPolicy
from tessera_schemas.work.measured_use import JobIdle as JobIdle
from tessera_schemas.work.measured_use import JobProgress as JobProgress
from tessera_schemas.work.measured_use import Session as Session
from tessera_schemas.work.pod_template import LabelKey as LabelKey
from tessera_schemas.work.pod_template import Template as Template
from tessera_schemas.work.pod_template import Volume as Volume
from tessera_schemas.work.pod_template import at_most_at_once
from tessera_schemas.work.run_ends import Retry as Retry
from tessera_schemas.work.run_ends import RetryLadder as RetryLadder

REPLICAS_MAX = 2048
GPU_PARTS_MAX = 64
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))

GpuModel = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class Resources(CountedResources):
    """
    Resources of one pod. Whole GPUs, shares of GPUs, or MIG instances of one profile: one of them.

    CPU and memory that nobody says are filled in by admission: the pod's share of a node, by its GPUs.
    """

    cpu_milli: Annotated[
        Positive, Field(description="Thousandths of a CPU core; left out: the GPUs' share of a node")
    ] = 0
    memory_bytes: Annotated[Positive, Field(description="Bytes of memory; left out: the GPUs' share of a node")] = 0
    gpus: Annotated[Count, Field(le=64, description="Whole GPUs")] = 0
    gpu_milli: Annotated[int, Field(ge=0, lt=GPU_MILLI, strict=True, description="Share of a GPU in thousandths")] = 0
    gpu_resource: Annotated[
        ResourceNameOrNone,
        Field(
            description="Resource by which its nodes offer the GPUs, such as amd.com/gpu; left out: that of the named "
            "`gpu_models`, else the pool's, which is nvidia.com/gpu where the configuration says no other"
        ),
    ] = later("")
    isolation: Annotated[
        Isolation,
        Field(
            description="Least isolation of its GPUs from other pods: memory (limited), compute (memory and cores "
            "limited), hardware (a GPU or an instance of its own)"
        ),
    ] = later("none")
    gpu_memory_bytes: Annotated[
        Count, Field(description="Least memory of each GPU in bytes; for a share of a GPU, of the share")
    ] = 0
    mig_profile: Annotated[
        str,
        Field(description="MIG profile of each instance that the pod gets"),
        StringConstraints(pattern=r"^([1-9]g\.[0-9]{1,3}gb)?$"),
    ] = ""
    gpu_parts: Annotated[
        Positive,
        Field(
            le=GPU_PARTS_MAX,
            description="Shares of each pod, each of another GPU of its node; or MIG instances, of one or several GPUs",
        ),
    ] = later(1)
    devices: Annotated[
        dict[LabelKey, Positive],
        Field(max_length=16, description="Further devices, by the node's name for them, such as rdma/hca"),
    ] = Field(default_factory=dict)
    claims: Annotated[
        tuple[DeviceClaim, ...],
        Field(max_length=CLAIMS_MAX, description="Claims on devices that drivers publish (DRA)"),
    ] = later(())
    gres: Annotated[
        dict[GresName, Positive],
        Field(
            max_length=16,
            description="Generic resources of a pod in Slurm's words, `nic` or `gpu:a100`; admission makes claims of "
            "those in the configuration's `gres`. GPUs that are not there are what the other fields say",
        ),
    ] = later({})
    numa_policy: Annotated[
        Literal["", "single-numa-node"],
        Field(description="single-numa-node: only nodes whose kubelet keeps each pod within one NUMA zone"),
    ] = later("")
    cpu_limit_milli: Annotated[
        Positive | None, Field(description="CPU ceiling while a node has some idle, in thousandths; null: as requested")
    ] = None
    memory_limit_bytes: Annotated[
        Positive | None, Field(description="Memory ceiling in bytes, where the pod is killed; null: as requested")
    ] = None

    @field_validator("mig_profile")
    @classmethod
    def _known_profile(cls, profile: str) -> str:
        if profile and profile not in mig.PROFILES:
            raise ValueError(f"no GPU can be cut into {profile}; there are, for example, 1g.10gb and 3g.40gb")
        return profile

    @field_validator("devices")
    @classmethod
    def _further_devices(cls, devices: dict[str, int]) -> dict[str, int]:
        for name in devices:
            if not is_device(name):
                raise ValueError(
                    f"{name}: not a further device; it is <domain>/<name>, and GPUs have fields of their own"
                )
        return devices

    @field_validator("claims")
    @classmethod
    def _distinct_claims(cls, claims: tuple[DeviceClaim, ...]) -> tuple[DeviceClaim, ...]:
        if len({claim.name for claim in claims}) < len(claims):
            raise ValueError("two claims have the same name")
        return claims

    @model_validator(mode="after")
    def _one_kind_of_gpu(self) -> Self:
        if self.gres and self.claims:
            raise ValueError("gres: becomes claims; say either")
        if bool(self.gpus) + bool(self.gpu_milli) + bool(self.mig_profile) > 1:
            raise ValueError("ask for one of: whole GPUs (gpus), a share of one (gpu_milli), an instance (mig_profile)")
        if self.gpu_memory_bytes and not (self.gpus or self.gpu_milli):
            raise ValueError("gpu_memory_bytes: goes with gpus or gpu_milli; a MIG profile says its memory itself")
        if self.gpu_parts > 1 and not (self.gpu_milli or self.mig_profile):
            raise ValueError("gpu_parts: goes with gpu_milli or mig_profile")
        if self.gpu_resource and not (self.gpus or self.gpu_milli):
            raise ValueError("gpu_resource: goes with gpus or gpu_milli")
        return self

    @model_validator(mode="after")
    def _in_one_zone(self) -> Self:
        if self.numa_policy and not (self.gpus or self.devices or self.cpu_milli):
            raise ValueError("numa_policy: goes with gpus, devices or cpu; nothing else has a NUMA zone")
        if self.numa_policy and (self.claims or self.gres or self.gpu_milli or self.mig_profile):
            raise ValueError("numa_policy: kubelets align no shares, instances and claims; claims have constraints")
        if self.numa_policy and (self.cpu_milli % 1000 or self.has_higher_limits):
            raise ValueError("numa_policy: a kubelet gives CPUs alone to whole CPUs with limits equal to requests")
        return self

    @model_validator(mode="after")
    def _limits(self) -> Self:
        if self.cpu_limit_milli is not None and self.cpu_limit_milli < self.cpu_milli:
            raise ValueError("cpu_limit_milli: below cpu_milli; a limit is no less than what is asked for")
        if self.memory_limit_bytes is not None and self.memory_limit_bytes < self.memory_bytes:
            raise ValueError("memory_limit_bytes: below memory_bytes; a limit is no less than what is asked for")
        return self

    @property
    def has_higher_limits(self) -> bool:
        """Whether it may use more than it asks for."""
        return (self.cpu_limit_milli or 0) > self.cpu_milli or (self.memory_limit_bytes or 0) > self.memory_bytes

    @property
    def kind(self) -> Kind | None:
        """The way in which it uses GPUs; None: not at all."""
        return "whole" if self.gpus else "share" if self.gpu_milli else "instance" if self.mig_profile else None

    @property
    def gpus_seen(self) -> int:
        """Number of GPUs that its programs see and may have a process each on: whole ones, or its shares' ones."""
        return self.gpus or (self.gpu_parts if self.gpu_milli else 0)

    @property
    def extended(self) -> dict[str, int]:
        """Devices that are neither whole GPU nor share, by the node's name for them."""
        return self.devices | ({mig.resource_of(self.mig_profile): self.gpu_parts} if self.mig_profile else {})

    @property
    def total_gpu_milli(self) -> int:
        """GPU of one pod that counts against quotas and limits, in thousandths; without its claims."""
        part = self.gpu_milli + mig.PROFILES.get(self.mig_profile, 0)
        return self.gpus * GPU_MILLI + self.gpu_parts * part


class Role(Strict):
    """
    A set of equal pods. All roles' minimum replicas together are the gang: all of it starts, or nothing.

    A role with `min_replicas` or `max_replicas` is elastic: it starts as its minimum, grows up to its maximum while
    nobody waits for the room, and shrinks down to its minimum before anybody is preempted.
    """

    name: Annotated[Name, Field(description="Name of the role, part of the names of its pods")]
    replicas: Annotated[Positive, Field(le=REPLICAS_MAX, description="Number of pods")] = 1
    min_replicas: Annotated[
        Annotated[Positive, Field(le=REPLICAS_MAX)] | None,
        Field(description="Number of pods with which an elastic role starts"),
    ] = None
    max_replicas: Annotated[
        Annotated[Positive, Field(le=REPLICAS_MAX)] | None,
        Field(description="Number of pods to which an elastic role grows"),
    ] = None
    resources: Annotated[Resources, Field(description="Resources of each pod")]
    gpu_models: Annotated[
        tuple[GpuModel, ...],
        Field(max_length=32, description="Acceptable GPU models, the first that holds all pods; empty: any"),
    ] = ()
    node_selector: Annotated[
        dict[LabelKey, LabelValue], Field(max_length=32, description="Labels that a node must have")
    ] = Field(default_factory=dict)
    tolerations: Annotated[
        tuple[Toleration, ...], Field(max_length=32, description="Node taints that the pods tolerate")
    ] = ()
    affinity: Annotated[
        tuple[AffinityTerm, ...], Field(max_length=32, description="Conditions on node labels, all of which must hold")
    ] = ()
    affinity_any: Annotated[
        tuple[Annotated[tuple[AffinityTerm, ...], Field(min_length=1, max_length=32)], ...],
        Field(max_length=16, description="Lists of such conditions; besides `affinity` all of one list must hold"),
    ] = later(())
    affinity_preferred: Annotated[
        tuple[PreferredTerm, ...],
        Field(
            max_length=PREFERRED_MAX,
            description="Of the nodes with room those of the highest sum of weights are taken first",
        ),
    ] = later(())
    topology: Annotated[Topology | None, Field(description="Domain, such as a rack, that holds all pods")] = None
    same_node_as: Annotated[
        Name | None, Field(description="Role whose n-th pod's node also takes the n-th pod of this one")
    ] = None
    spread: Annotated[
        LabelKey | None,
        Field(description="Label, or level, over which pods spread: numbers per value differ by at most `max_skew`"),
    ] = None
    max_skew: Annotated[
        Positive, Field(le=REPLICAS_MAX, description="Most by which the numbers of pods per value of `spread` differ")
    ] = later(1)
    anti_affinity: Annotated[
        tuple[AntiAffinity, ...],
        Field(max_length=8, description="Groups, of each of which at most one pod is on a node"),
    ] = later(())
    template: Annotated[Template, Field(description="Container of each pod")]
    release: Annotated[
        Literal["pod", "together"],
        Field(description="Release of GPUs. pod: as each pod ends. together: once the whole run has ended"),
    ] = "pod"
    mixed_models: Annotated[
        bool, Field(description="Whether its pods may be on several GPU models at a time; without, they are on one")
    ] = later(False)
    exclusive: Annotated[
        bool,
        Field(
            description="Whether each pod has a node of exactly its number of GPUs to itself, without other pods that "
            "Tessera places"
        ),
    ] = later(False)
    neighbours: Annotated[
        Neighbours | None, Field(description="Pods of other jobs that its pods stay away from, or go near to")
    ] = later(None)

    @property
    def is_tied(self) -> bool:
        """Whether it says itself where its pods are, to nodes or to each other."""
        shares = any(claim.shared_as for claim in self.resources.claims)
        return shares or bool(self.topology or self.spread or self.same_node_as)

    @property
    def gang(self) -> int:
        """Number of pods that it starts with, and never has less of."""
        return self.min_replicas or self.replicas

    @property
    def most(self) -> int:
        """Number of pods that it may grow to."""
        return self.max_replicas or self.replicas

    def amount_of(self, field: str) -> int:
        """Amount of a built-in kind that one pod takes, sidecars and init containers included."""
        own: int = getattr(self.resources, field)
        before = self.template.init_containers
        return at_most_at_once(own, ((c.sidecar, getattr(c.resources, field)) for c in before)) if before else own

    @property
    def cpu_milli(self) -> int:
        """CPU of one pod, sidecars and init containers included."""
        return self.amount_of("cpu_milli")

    @property
    def shares_cpus(self) -> bool:
        """Whether no kubelet gives the pod's CPUs to it alone: limits above the requests, or several containers."""
        return self.resources.has_higher_limits or bool(self.template.init_containers)

    @property
    def memory_bytes(self) -> int:
        """Memory of one pod, sidecars and init containers included."""
        return self.amount_of("memory_bytes")

    @property
    def named_amounts(self) -> dict[str, int]:
        """Amounts of one pod that count by name: further devices, kinds besides CPU and memory, and a whole node."""
        built_in = {kind.resource: amount for field, kind in FURTHER.items() if (amount := self.amount_of(field))}
        if self.exclusive:
            built_in[WHOLE_NODE] = 1
        return self.resources.devices | built_in if built_in else self.resources.devices

    @model_validator(mode="after")
    def _containers(self) -> Self:
        if any(container.name == self.name for container in self.template.init_containers):
            raise ValueError(f"template.init_containers: {self.name} is the name of the role's own container")
        most = self.resources.memory_limit_bytes or self.resources.memory_bytes
        for index, volume in enumerate(self.template.volumes):
            if volume.size_bytes is not None and volume.size_bytes > most:
                raise ValueError(
                    f"template.volumes[{index}].size_bytes: more than the container's memory limit, within which it "
                    "counts; ask for more memory or less of it"
                )
        return self

    @model_validator(mode="after")
    def _elastic(self) -> Self:
        if self.min_replicas is None and self.max_replicas is None:
            return self
        if not self.gang <= self.replicas <= self.most:
            raise ValueError("min_replicas <= replicas <= max_replicas does not hold")
        if self.gang < self.most and (self.topology or self.spread or self.same_node_as):
            raise ValueError("an elastic role's pods go wherever there is room: no topology, spread or same_node_as")
        return self

    @model_validator(mode="after")
    def _place(self) -> Self:
        if self.same_node_as and (self.topology or self.spread):
            raise ValueError("same_node_as: the other role's place is this one's; topology and spread belong there")
        if self.exclusive and self.same_node_as:
            raise ValueError("exclusive: a pod that has a node to itself is beside no other; leave out same_node_as")
        if self.exclusive and (self.resources.gpu_milli or self.resources.mig_profile):
            raise ValueError("exclusive: goes with all GPUs of a node (gpus) or none, and not with a part of a GPU")
        if self.neighbours is not None and self.gang < self.most:
            raise ValueError("neighbours: an elastic role's pods go wherever there is room")
        if self.max_skew > 1 and not self.spread:
            raise ValueError("max_skew: goes with spread")
        if len({each.group for each in self.anti_affinity}) < len(self.anti_affinity):
            raise ValueError("anti_affinity: a group is there twice")
        return self


class JobSpec(Strict):
    """A job as its owner wrote it."""

    name: Annotated[JobName, Field(description="Name of the job for people; need not be unique")]
    queue: Annotated[Name, Field(description="Queue of the job, a leaf of the tree")]
    priority_class: Annotated[Name, Field(description="Name of a class; higher goes first")] = "normal"
    preemptible: Annotated[bool, Field(description="Whether other jobs may have this one evicted and requeued")] = True
    roles: Annotated[
        tuple[Role, ...], Field(min_length=1, max_length=16, description="Sets of pods that together are one gang")
    ]
    groups: Annotated[
        tuple[RoleGroup, ...], Field(max_length=GROUPS_MAX, description="Groups of pods, each copy in a domain")
    ] = later(())
    time_limit_seconds: Annotated[
        Annotated[Positive, Field(le=31_536_000)] | None,
        Field(description="Seconds after which a run fails; null: never"),
    ] = None
    termination_grace_seconds: Annotated[
        int, Field(ge=0, le=3600, strict=True, description="Seconds from SIGTERM to SIGKILL")
    ] = 30
    ttl_seconds_after_finished: Annotated[
        int, Field(ge=0, le=2_592_000, strict=True, description="Seconds for which the ended job's pods stay readable")
    ] = 3600
    retry: Annotated[Retry, Field(description="Retries after a failure of the program")] = Retry()
    checkpoint: Annotated[CheckpointPolicy | None, Field(description="How the program saves its work")] = None
    launcher: Annotated[
        Literal["plain", "torchrun", "accelerate", "jax", "steps", "mpi", "deepspeed", "ray"] | None,
        Field(
            description="torchrun, accelerate, jax: pods find one another by name and have the variables of that "
            "program. steps: the command runs once, in the first pod, and starts processes in the others; mpi, "
            "deepspeed, ray: the same, for that program. plain: none of these"
        ),
    ] = None
    datasets: Annotated[tuple[DatasetHint, ...], Field(max_length=16, description="Data that the pods read")] = ()
    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=32, description="Labels for the pods")] = Field(
        default_factory=dict
    )
    user: Annotated[
        LabelValue,
        Field(description="User within the tenant; users of a tenant share its part of the queue fairly"),
    ] = later("")
    project: Annotated[
        LabelValue, Field(description="Project within the tenant, for which its use is counted; empty: none")
    ] = later("")
    idle: Annotated[JobIdle | None, Field(description="Rule for idle GPUs, if the queue lets jobs set it")] = None
    session: Annotated[Session | None, Field(description="Its use by a person, where it is one")] = later(None)
    array: Annotated[JobArray | None, Field(description="Indexes of an array of equal tasks")] = None
    service: Annotated[ServiceSize | None, Field(description="Replicas of a service; null: no service")] = later(None)
    after: Annotated[
        tuple[Dependency, ...],
        Field(max_length=DEPENDENCIES_MAX, description="Conditions on other jobs; all must hold before the start"),
    ] = ()
    begin_ts: Annotated[Millis, Field(description="Earliest start")] = 0
    deadline_ts: Annotated[
        Millis,
        Field(
            description="Latest end: once a run of its time limit would be over later, the job is cancelled; 0: none"
        ),
    ] = later(0)
    start_by_ts: Annotated[
        Millis,
        Field(description="Time by which its start is to be promised, for the policy's price; 0: no promise"),
    ] = later(0)
    reservation: Annotated[
        Annotated[Name, Field(description="Advance reservation in whose windows, and on whose nodes alone, it runs")]
        | None,
        Field(description="Advance reservation; null: none"),
    ] = later(None)
    start_timeout_seconds: Annotated[
        Annotated[Positive, Field(le=86_400)] | None,
        Field(description="Seconds from allocation until all pods run, without work of nodes; null: policy"),
    ] = None
    attach_to: AttachTo = None
    progress: Annotated[
        JobProgress | None, Field(description="What follows where its pods report no progress; null: nothing")
    ] = later(None)

    @model_validator(mode="after")
    def _corresponds(self) -> Self:
        grows, near = any(role.gang < role.most for role in self.roles), any(role.neighbours for role in self.roles)
        limited = self.time_limit_seconds is not None
        fault = WholeJob(self.array, self.service, self.attach_to, self.after, grows, near, limited).fault()
        fault = fault or self._fault_of_deadline() or self._fault_of_promise()
        if fault := fault or self.retry.fault_in({role.name for role in self.roles}, self.service is not None):
            raise ValueError(fault)
        return self

    def _fault_of_deadline(self) -> str:
        if not self.deadline_ts:
            return ""
        if self.time_limit_seconds is None:
            return "deadline_ts: goes by how long a run may last; say time_limit_seconds, too"
        if self.begin_ts + self.time_limit_seconds * 1000 > self.deadline_ts:
            return "deadline_ts: a run of its time limit from begin_ts on ends later; lower the limit"
        return ""

    def _fault_of_promise(self) -> str:
        if not self.start_by_ts:
            return ""
        others = ("array", "service", "session", "attach_to", "reservation")
        if other := next((name for name in others if getattr(self, name) is not None), ""):
            return f"start_by_ts: a start is promised to a job of its own, without {other}"
        if self.time_limit_seconds is None:
            return "start_by_ts: the price goes by how long a run may last; say time_limit_seconds, too"
        if self.begin_ts > self.start_by_ts:
            return "start_by_ts: it is before begin_ts"
        return ""

    @model_validator(mode="after")
    def _roles(self) -> Self:
        if len({role.name for role in self.roles}) != len(self.roles):
            raise ValueError("roles: two roles have the same name")
        if sum(role.most for role in self.roles) > REPLICAS_MAX:
            raise ValueError(f"roles: more than {REPLICAS_MAX} pods in one job")
        for name in KINDS:
            if sum(role.most * role.amount_of(name) for role in self.roles) > INT_MAX:
                raise ValueError(f"roles: more {name} in one job than can be counted")
        if len({dataset.name for dataset in self.datasets}) != len(self.datasets):
            raise ValueError("datasets: two datasets have the same name")
        if self.groups or any(role.same_node_as or role.topology or role.resources.claims for role in self.roles):
            wrong = [*_wrong_companions(self.roles), *wrong_shared_domains(self.roles), *_wrong_sharing(self.roles)]
            wrong += wrong_role_groups(self.groups, self.roles) if self.groups else ()
            if wrong:
                raise ValueError("; ".join(wrong))
        return self

    def digest(self) -> str:
        """Hash of the canonical spec, whatever order its maps came in; the same key with another is a conflict."""
        said = self.__pydantic_serializer__.to_python(self, mode="json", exclude_defaults=True)
        return hashlib.sha256(_CANONICAL.encode(said).encode()).hexdigest()

    def gpu_milli(self) -> int:
        """Thousandths of GPUs that the whole gang holds while it runs."""
        return sum(role.gang * role.resources.total_gpu_milli for role in self.roles)

    def pods(self) -> int:
        """Number of pods in the gang."""
        return sum(role.gang for role in self.roles)


def _wrong_companions(roles: tuple[Role, ...]) -> Iterator[str]:
    named = {role.name: role for role in roles}
    for index, role in enumerate(roles):
        if role.same_node_as is None:
            continue
        path, other = f"roles[{index}].same_node_as", named.get(role.same_node_as)
        if other is None or other is role:
            yield f"{path}: there is no other role {role.same_node_as}"
        elif other.same_node_as is not None:
            yield f"{path}: {other.name} itself goes with {other.same_node_as}; name that role"
        elif other.exclusive:
            yield f"{path}: pods of {other.name} have a node to themselves (exclusive)"
        elif role.gang > other.gang or (other.spread and role.gang < other.gang):
            spread = " that are spread" if other.spread else ""
            yield f"{path}: {role.gang} pods do not go with {other.gang}{spread}"
        elif _disturb(role, other, roles):
            yield f"{path}: roles on one node have whole GPUs, or only one of them has a share or an instance"
        elif _kept_apart(role, other, roles):
            yield f"{path}: pods of one group of anti_affinity are never on one node"


def _kept_apart(role: Role, other: Role, roles: tuple[Role, ...]) -> bool:
    """Whether the role shares a group of anti-affinity with another one on the same nodes."""
    there = (each for each in roles if each is other or each.same_node_as == other.name)
    return any(each is not role and set(each.anti_affinity) & set(role.anti_affinity) for each in there)


def _disturb(role: Role, other: Role, roles: tuple[Role, ...]) -> bool:
    """Whether it would depend on the order of the pods which GPU each gets, and so how many fit."""
    there = [each.resources for each in roles if each is other or each.same_node_as == other.name]
    using = [asked for asked in there if asked.total_gpu_milli]
    return len(using) > 1 and not all(asked.gpus for asked in using) and bool(role.resources.total_gpu_milli)


def _wrong_sharing(roles: tuple[Role, ...]) -> Iterator[str]:
    """Faults of roles that share claims for which devices are drawn."""
    found: dict[str, list[tuple[int, DeviceClaim]]] = {}
    for index, role in enumerate(roles):
        for claim in role.resources.claims:
            if claim.shared_as and not claim.allocated:
                found.setdefault(claim.shared_as, []).append((index, claim))
    for name, sharing in found.items():
        pods, (at, first) = sum(roles[index].most for index, _ in sharing), sharing[0]
        if pods > SHARERS_MAX:
            yield f"roles: claim {name} is shared by {pods} pods; at most {SHARERS_MAX} use a claim"
        for index, claim in sharing if pods > 1 else ():
            if (claim.requests, claim.constraints, claim.config) != (first.requests, first.constraints, first.config):
                yield f"roles[{index}].resources.claims: claim {name} is shared and differs from that of roles[{at}]"
            yield from (f"roles[{index}]{why} ({name})" for why in _parted(roles[index], roles[at], roles))


def _parted(role: Role, one: Role, roles: tuple[Role, ...]) -> Iterator[str]:
    """Reasons why the role's pods cannot be on one node with all of another one, whose claim they share."""
    if role.gang < role.most:
        yield ": an elastic role has no claim that its pods share"
    if role.spread or role.same_node_as or any(other.same_node_as == role.name for other in roles):
        yield ": pods that share a claim are on one node: no spread, and no same_node_as"
    if role.anti_affinity:
        yield ".anti_affinity: pods that share a claim are on one node"
    if role.topology != one.topology:
        yield f".topology: differs from that of {one.name}, with whose pods it shares a claim"
    if role.resources.gpu_milli or role.resources.mig_profile:
        yield ".resources: pods that share a claim have no share and no MIG instance beside it"
