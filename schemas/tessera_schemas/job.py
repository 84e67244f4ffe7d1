"""
The job spec: everything a job may ask for.

Quantities are integers: CPU in thousandths of a core, memory in bytes, a GPU in thousandths per device. Fields that
nothing honours yet are part of the contract (`NOT_YET`); asking for one is refused with `NotSupportedYet`.
The pod template is a typed allow-list: what is not named here cannot reach a node.
"""

import hashlib
import json
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from tessera_schemas.base import INT_MAX, Count, Name, Positive, Strict

GPU_MILLI = 1000
REPLICAS_MAX = 2048

LabelKey = Annotated[
    str,
    StringConstraints(
        pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
    ),
]
LabelValue = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$")]
GpuModel = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,255}$")]
Argument = Annotated[str, StringConstraints(max_length=32_768, pattern=r"^[^\x00]*$")]
Path = Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=1024)]


class Resources(Strict):
    """What one pod needs. Whole GPUs or a share of one GPU, never both."""

    cpu_milli: Annotated[Positive, Field(description="Thousandths of a CPU core")]
    memory_bytes: Positive
    gpus: Annotated[Count, Field(le=64, description="Whole GPUs")] = 0
    gpu_milli: Annotated[int, Field(ge=0, lt=GPU_MILLI, strict=True, description="Thousandths of one GPU")] = 0
    gpu_memory_bytes: Count = 0
    mig_profile: Annotated[str, StringConstraints(pattern=r"^([1-9]g\.[0-9]{1,3}gb)?$")] = ""
    devices: Annotated[dict[LabelKey, Positive], Field(max_length=16, description="Further device counts")] = Field(
        default_factory=dict
    )

    @model_validator(mode="after")
    def _one_kind_of_gpu(self) -> Self:
        if self.gpus and self.gpu_milli:
            raise ValueError("ask for whole GPUs (gpus) or a share of one (gpu_milli), not both")
        return self


class Operator(StrEnum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class AffinityTerm(Strict):
    """One condition on a node's labels."""

    key: LabelKey
    operator: Operator
    values: Annotated[tuple[LabelValue, ...], Field(max_length=64)] = ()


class Toleration(Strict):
    """Lets a pod onto nodes with a taint; an empty value tolerates every value of the key."""

    key: LabelKey
    value: LabelValue = ""
    effect: Literal["NoSchedule", "NoExecute", ""] = ""


class Topology(Strict):
    """All pods of the role inside one domain: required, or preferred."""

    level: LabelKey
    required: bool = True


class Volume(Strict):
    """Where files come from. A path of the host is not among the kinds, on purpose."""

    kind: Literal["empty", "claim", "config_map", "secret"]
    mount_path: Path
    name: Annotated[str, StringConstraints(max_length=253, pattern=r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$")] = ""
    read_only: bool = False

    @model_validator(mode="after")
    def _named(self) -> Self:
        if (self.kind == "empty") != (self.name == ""):
            raise ValueError("a claim, config_map or secret needs a name; an empty volume has none")
        return self


class Template(Strict):
    """The container of every pod of a role."""

    image: Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$")]
    command: Annotated[tuple[Argument, ...], Field(max_length=256)] = ()
    args: Annotated[tuple[Argument, ...], Field(max_length=256)] = ()
    env: Annotated[dict[EnvName, Argument], Field(max_length=500)] = Field(default_factory=dict)
    working_dir: Path | None = None
    volumes: Annotated[tuple[Volume, ...], Field(max_length=32)] = ()
    annotations: Annotated[dict[LabelKey, Argument], Field(max_length=64)] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if sum(len(k) + len(v) for k, v in self.env.items()) > 64 * 1024:
            raise ValueError("env: more than 64 KiB")
        return self


class Role(Strict):
    """A set of equal pods. All roles' replicas together are the gang."""

    name: Name
    replicas: Annotated[Positive, Field(le=REPLICAS_MAX)] = 1
    min_replicas: Annotated[Positive, Field(le=REPLICAS_MAX)] | None = None
    max_replicas: Annotated[Positive, Field(le=REPLICAS_MAX)] | None = None
    resources: Resources
    gpu_models: Annotated[tuple[GpuModel, ...], Field(max_length=32, description="Any of these; empty: any")] = ()
    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] = Field(default_factory=dict)
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = ()
    affinity: Annotated[tuple[AffinityTerm, ...], Field(max_length=32)] = ()
    topology: Topology | None = None
    same_node_as: Name | None = None
    spread: LabelKey | None = None
    template: Template


class Checkpoint(Strict):
    """How often the program saves its work, and what it wants before it is stopped."""

    interval_seconds: Positive
    notice_seconds: Count = 0


class Retry(Strict):
    """How often a job is tried again when something other than its own program failed, and how long between."""

    max_attempts: Annotated[int, Field(ge=1, le=1000, strict=True)] = 3
    backoff_seconds: Annotated[int, Field(ge=0, le=86_400, strict=True, description="Doubled each time")] = 10
    backoff_max_seconds: Annotated[int, Field(ge=0, le=86_400, strict=True)] = 600
    on_failure: Annotated[bool, Field(description="Also when the program itself failed")] = False


class DatasetHint(Strict):
    name: Name
    size_bytes: Count = 0


class JobSpec(Strict):
    """A job as its owner wrote it."""

    name: Name
    queue: Name
    priority_class: Name = "normal"
    preemptible: bool = True
    roles: Annotated[tuple[Role, ...], Field(min_length=1, max_length=16)]
    time_limit_seconds: Annotated[Positive, Field(le=31_536_000)] | None = None
    termination_grace_seconds: Annotated[int, Field(ge=0, le=3600, strict=True)] = 30
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=2_592_000, strict=True)] = 3600
    retry: Retry = Retry()
    checkpoint: Checkpoint | None = None
    launcher: Literal["torchrun", "mpi"] | None = None
    datasets: Annotated[tuple[DatasetHint, ...], Field(max_length=16)] = ()
    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _roles(self) -> Self:
        names = [role.name for role in self.roles]
        if len(set(names)) != len(names):
            raise ValueError("roles: two roles have the same name")
        if sum(role.replicas for role in self.roles) > REPLICAS_MAX:
            raise ValueError(f"roles: more than {REPLICAS_MAX} pods in one job")
        for name in ("cpu_milli", "memory_bytes"):
            if sum(role.replicas * getattr(role.resources, name) for role in self.roles) > INT_MAX:
                raise ValueError(f"roles: more {name} in one job than can be counted")
        return self

    def digest(self) -> str:
        """Hash of the canonical spec, whatever order its maps came in; the same key with another is a conflict."""
        canonical = json.dumps(
            self.model_dump(mode="json", exclude_defaults=True), sort_keys=True, separators=(",", ":")
        )
        return hashlib.sha256(canonical.encode()).hexdigest()

    def gpu_milli(self) -> int:
        """Thousandths of GPUs that the whole gang holds while it runs."""
        return sum(role.replicas * (role.resources.gpus * GPU_MILLI + role.resources.gpu_milli) for role in self.roles)


NOT_YET_JOB = ("checkpoint", "launcher", "datasets")
NOT_YET_ROLE = ("min_replicas", "max_replicas", "affinity", "topology", "same_node_as", "spread")
NOT_YET_RESOURCES = ("gpu_memory_bytes", "mig_profile", "devices")


def not_supported_yet(spec: JobSpec) -> list[str]:
    """The fields of `spec` that ask for something nothing honours yet, by path."""
    asked = [name for name in NOT_YET_JOB if getattr(spec, name)]
    for index, role in enumerate(spec.roles):
        asked += [f"roles[{index}].{name}" for name in NOT_YET_ROLE if getattr(role, name)]
        asked += [f"roles[{index}].resources.{name}" for name in NOT_YET_RESOURCES if getattr(role.resources, name)]
    return asked
