"""
Nodes from a file: CSV in the form of the public traces, or YAML.

CSV: `sn,cpu_milli,memory_mib,gpu,model`. YAML: a list of {name, cpu, memory, gpus, gpu_model, pool, device_profile,
gpu_memory, gpu_resource, devices, mig, labels, taints, count}; `gpu_resource` is nvidia.com/gpu unless said; `devices`
are further ones by name, such as rdma/hca: 2; `mig` the instances of each profile, such as 1g.10gb: 7; `count` n makes
`<name>-0` to `<name>-<n-1>`.
"""

import csv
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from tessera.kernel.errors import StartupError
from tessera.kernel.process.files import read_text
from tessera_local.cluster.api.values import thousandths, units
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import (
    DEVICE_PROFILE_ANNOTATION,
    GPU_MEMORY_LABEL,
    GPU_MODEL_LABEL,
    GPU_REPLICAS_LABEL,
    GPU_RESOURCE,
    GPU_SHARING_LABEL,
    GPU_UUIDS_ANNOTATION,
    MIG_RESOURCE_PREFIX,
    MPS_CAPABLE_LABEL,
    POOL_LABEL,
)
from tessera_schemas.cluster.mig import PROFILES
from tessera_schemas.cluster.resource_kinds import is_counted_by_name

RowModel = TypeVar("RowModel", bound=BaseModel)

KubernetesName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]


class NodesFileError(StartupError):
    """A line or entry of a nodes file cannot be used; the text says which, and which field."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TaintRow(_Strict):
    key: str
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class NodeRow(_Strict):
    """
    One kind of node; CPU and memory are Kubernetes quantities. `pods` leaves room for shares of GPUs; `replicas` is how
    often a device plugin that shares GPUs offers each.
    """

    name: KubernetesName
    cpu: str
    memory: str
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    gpu_model: str = ""
    gpu_memory: str = ""
    gpu_resource: str = GPU_RESOURCE
    devices: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    pool: str = "default"
    mig: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    device_profile: Literal["whole", "shares", "plugin", "visible-devices", "mig", "time-slicing", "mps"] = "plugin"
    replicas: Annotated[int, Field(ge=1)] = 1
    pods: Annotated[int, Field(ge=1)] = 1001
    labels: dict[str, str] = Field(default_factory=dict)
    taints: tuple[TaintRow, ...] = ()
    count: Annotated[int, Field(ge=1, le=100_000)] | None = None

    @classmethod
    def sized(cls, name: str, cpu_milli: int, memory_mib: int, gpus: int, gpu_model: str = "") -> "NodeRow":
        """A node as traces count it: thousandths of a CPU, MiB of memory."""
        return cls(name=name, cpu=f"{cpu_milli}m", memory=f"{memory_mib}Mi", gpus=gpus, gpu_model=gpu_model)

    @field_validator("cpu", "memory", mode="before")
    @classmethod
    def _quantity(cls, value: Any, info: Any) -> str:
        read = thousandths if info.field_name == "cpu" else units
        read(str(value))
        return str(value)

    @field_validator("gpu_memory", mode="after")
    @classmethod
    def _whole_mebibytes(cls, value: str) -> str:
        if value and units(value) % 2**20:
            raise ValueError("must be whole mebibytes, as GPU feature discovery says them")
        return value

    @field_validator("devices", mode="after")
    @classmethod
    def _further(cls, value: dict[str, int]) -> dict[str, int]:
        wrong = [name for name in value if not is_counted_by_name(name)]
        if wrong:
            raise ValueError(f"neither further devices nor built-in kinds: {', '.join(wrong)}")
        return value

    @field_validator("mig", mode="after")
    @classmethod
    def _instances(cls, value: dict[str, int]) -> dict[str, int]:
        wrong = [name for name in value if name not in PROFILES]
        if wrong:
            raise ValueError(f"not profiles that GPUs can be cut into: {', '.join(wrong)}")
        return value


class _TraceRow(_Strict):
    sn: KubernetesName
    cpu_milli: Annotated[int, Field(ge=0)]
    memory_mib: Annotated[int, Field(ge=0)]
    gpu: Annotated[int, Field(ge=0, le=64)]
    model: str = ""

    def as_node(self) -> NodeRow:
        cpu, memory = f"{self.cpu_milli}m", f"{self.memory_mib}Mi"
        return NodeRow(name=self.sn, cpu=cpu, memory=memory, gpus=self.gpu, gpu_model=self.model)


def nodes_from_file(path: Path) -> list[Json]:
    """Node objects, ready to be created. Raises NodesFileError: file, line or entry, field, what is wrong."""
    text = read_text(path)
    rows = _from_csv(path, text) if path.suffix == ".csv" else _from_yaml(path, text)
    nodes: dict[str, Json] = {}
    for where, row in rows:
        for name in [row.name] if row.count is None else [f"{row.name}-{number}" for number in range(row.count)]:
            if name in nodes:
                raise NodesFileError(f"{path}: {where}: name: {name!r} is there twice")
            nodes[name] = node_object(row, name)
    return list(nodes.values())


def node_object(row: NodeRow, name: str) -> Json:
    """The Kubernetes object of one node."""
    offered = 0 if row.device_profile in ("visible-devices", "mig") else row.gpus * row.replicas
    sizes = {"cpu": row.cpu, "memory": row.memory, "pods": str(row.pods), row.gpu_resource: str(offered)}
    sizes |= {device: str(count) for device, count in row.devices.items()}
    sizes |= {MIG_RESOURCE_PREFIX + profile: str(count) for profile, count in row.mig.items()}
    labels = {
        POOL_LABEL: row.pool,
        DEVICE_PROFILE_ANNOTATION: row.device_profile,
        "kubernetes.io/hostname": name,
        **row.labels,
    }
    if row.replicas > 1:
        labels |= {GPU_REPLICAS_LABEL: str(row.replicas), GPU_SHARING_LABEL: row.device_profile}
        labels |= {MPS_CAPABLE_LABEL: str(row.device_profile == "mps").lower()}
    if row.gpu_model:
        labels[GPU_MODEL_LABEL] = row.gpu_model
    if row.gpu_memory:
        labels[GPU_MEMORY_LABEL] = str(units(row.gpu_memory) // 2**20)
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": name, "labels": labels} | _named_cards(row, name),
        "spec": {"taints": [taint.model_dump() for taint in row.taints]} if row.taints else {},
        "status": {"capacity": sizes, "allocatable": sizes},
    }


def _named_cards(row: NodeRow, name: str) -> Json:
    by_uuid = row.device_profile == "visible-devices"
    return {"annotations": {GPU_UUIDS_ANNOTATION: cards_of(name, row.gpus)}} if by_uuid else {}


def cards_of(node: str, gpus: int) -> str:
    """The UUIDs of its first GPUs, as the node's annotation has them."""
    card = hashlib.sha256(node.encode()).hexdigest()[:12]
    return ",".join(f"GPU-{card}-{slot}" for slot in range(gpus))


def _from_csv(path: Path, text: str) -> Iterator[tuple[str, NodeRow]]:
    reader = csv.DictReader(text.splitlines())
    wanted = list(_TraceRow.model_fields)
    if reader.fieldnames is None or list(reader.fieldnames) != wanted:
        raise NodesFileError(f"{path}: line 1: the columns must be {','.join(wanted)}")
    for row in reader:
        where = f"line {reader.line_num}"
        if None in row or None in row.values():
            raise NodesFileError(f"{path}: {where}: {len(wanted)} fields are needed")
        yield where, _checked(path, where, _TraceRow, row).as_node()


def _from_yaml(path: Path, text: str) -> Iterator[tuple[str, NodeRow]]:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        entries = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise NodesFileError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(entries, list) or root is None:
        raise NodesFileError(f"{path}: line 1: a list of nodes is needed")
    for node, entry in zip(root.value, entries, strict=True):
        where = f"line {node.start_mark.line + 1}"
        yield where, _checked(path, where, NodeRow, entry)


def _checked(path: Path, where: str, model: type[RowModel], row: Any) -> RowModel:
    try:
        return model.model_validate(row)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "entry"
        raise NodesFileError(f"{path}: {where}: {field}: {first['msg']}") from error
