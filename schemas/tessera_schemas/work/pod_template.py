"""
The pod template of a role: a typed allow-list of what may reach a node. What is not named here cannot get in.

What goes beyond a container, its files and its environment is granted to tenants by the configuration (`pod_grants`).
"""

import posixpath
import re
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from tessera_schemas.base import Name, Positive, Strict, later
from tessera_schemas.cluster.resource_kinds import CountedResources

ARGUMENT_CHARACTERS = 32_768
"""Longest argument or value of a variable in a job, as it is written there; Linux takes 128 KiB in one."""

_READ_BY_KUBERNETES = re.compile(r"\$(?=[$(]|[^\x00-\x7f]|\Z)")
"""It means something before `$` and `(`; what is not ASCII behind it is broken; at the end more may follow."""


def literally(text: str) -> str:
    """
    The text of which the kubelet makes `text`.

    Source: third_party/forked/golang/expansion/expand.go in Kubernetes.
    """
    return _READ_BY_KUBERNETES.sub("$$", text)


LabelKey = Annotated[
    str,
    StringConstraints(
        pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
    ),
]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,255}$")]
Argument = Annotated[str, StringConstraints(max_length=ARGUMENT_CHARACTERS, pattern=r"^[^\x00]*$")]
Arguments = Annotated[tuple[Argument, ...], Field(max_length=256)]
Environment = Annotated[dict[EnvName, Argument], Field(max_length=500)]
UserId = Annotated[int, Field(ge=1, lt=2**31, strict=True)]
Path = Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=1024)]
Image = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$")]
ObjectName = Annotated[
    str,
    StringConstraints(max_length=253, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$"),
]
"""The name of an object of Kubernetes, such as a secret: a DNS subdomain."""
PortName = Annotated[str, StringConstraints(max_length=15, pattern=r"^([a-z0-9]+(-[a-z0-9]+)*)?$")]

SHARED_MEMORY_PATH = "/dev/shm"  # noqa: S108 - a mount point, no file of ours
"""Where programs share memory: NCCL, data loaders. Without a volume the container runtime gives it 64 MB."""

NOTICE_DIRECTORY, NOTICE_FILE = "/etc/tessera", "evict-at"
"""Where a job that declares checkpoints reads its notice."""

IDLE_WARNING_FILE = "/tmp/tessera-idle-warning"  # noqa: S108 a path in a container of its own
"""Where a notebook's watch writes that it is idle; empty or not there while it is in use."""

STEPS_DIRECTORY, STEPS_KEY_DIRECTORY, STEPS_CONTAINER = "/tessera", "/tessera-key", "tessera-steps"
"""Where pods with the step runner have it and its key, and the container that puts the runner there."""
DEEPSPEED_LIST = "/job/hostfile"
"""Where DeepSpeed looks for its list of hosts."""
STEPS_PATHS = (STEPS_DIRECTORY, STEPS_KEY_DIRECTORY, DEEPSPEED_LIST)
"""Paths at which pods with the step runner have files of ours."""
STEPS_LAUNCHERS = ("steps", "mpi", "deepspeed", "ray")
"""Launchers of jobs whose command runs once, in the first pod, and reaches the others by the step runner."""


VOLUMES_MAX = 32


class Volume(Strict):
    """Source of files. A path of the host is not among the kinds, on purpose."""

    kind: Annotated[
        Literal["empty", "claim", "config_map", "secret", "memory", "mapped"],
        Field(description="Source of the files; mapped: the claim to which the configuration maps `path`"),
    ]
    mount_path: Annotated[Path, Field(description="Directory in the container")]
    name: Annotated[
        str,
        StringConstraints(max_length=253, pattern=r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$"),
        Field(description="Name of the claim, config map or secret"),
    ] = ""
    read_only: Annotated[bool, Field(description="Mount without write access")] = False
    size_bytes: Annotated[
        Positive | None,
        Field(description="Size limit of a memory volume in bytes; counts within the pod's memory limit"),
    ] = None
    path: Annotated[
        str,
        StringConstraints(pattern=r"^(/[^\x00]*)?$", max_length=1024),
        Field(description="Path of a mapped volume, below a path in the configuration's `mounts`"),
    ] = later("")
    sub_path: Annotated[
        str,
        StringConstraints(pattern=r"^([^/\x00][^\x00]*)?$", max_length=1024),
        Field(description="Folder of a claim to mount; empty: the whole claim"),
    ] = later("")

    @model_validator(mode="after")
    def _named(self) -> Self:
        if (self.kind in ("empty", "memory", "mapped")) != (self.name == ""):
            raise ValueError("a claim, config_map or secret needs a name; an empty, memory or mapped volume has none")
        if (self.kind == "mapped") != bool(self.path):
            raise ValueError("path: a mapped volume needs one; no other volume has one")
        if self.sub_path and (self.kind != "claim" or ".." in self.sub_path.split("/")):
            raise ValueError("sub_path: only a claim has one, without .. in it")
        if (self.kind == "memory") != (self.size_bytes is not None):
            raise ValueError("size_bytes: a memory volume needs one; no other volume has one")
        return self


class EnvSource(Strict):
    """A variable's value: one key of a secret or config map in the tenant's namespace."""

    kind: Annotated[Literal["secret", "config_map"], Field(description="Kind of the object that holds the value")]
    name: Annotated[ObjectName, Field(description="Name of the object")]
    key: Annotated[
        str,
        StringConstraints(min_length=1, max_length=253, pattern=r"^[-._A-Za-z0-9]+$"),
        Field(description="Key within the object"),
    ]
    optional: Annotated[bool, Field(description="Start without the variable if the key is missing")] = False


class Port(Strict):
    """A port on which the container listens, told to whoever looks; nothing is opened or closed by it."""

    port: Annotated[int, Field(ge=1, le=65_535, strict=True, description="Port number")]
    name: Annotated[PortName, Field(description="Name of the port")] = ""
    protocol: Annotated[Literal["TCP", "UDP", "SCTP"], Field(description="Protocol of the port")] = "TCP"

    @model_validator(mode="after")
    def _has_a_letter(self) -> Self:
        if self.name and self.name.replace("-", "").isdigit():
            raise ValueError("name: needs a letter")
        return self


class ContainerResources(CountedResources):
    """Resources of a container beside or before the role's own; its limits are the same. It has no devices."""


class InitContainer(Strict):
    """
    A container that runs to its end before the role's own starts, in the order of the list; it sees the same volumes.

    A sidecar starts in that order too, but goes on beside the role's container, and is ended after it.
    """

    name: Annotated[Name, Field(description="Name of the container")]
    image: Annotated[Image, Field(description="Image of the container")]
    command: Annotated[Arguments, Field(description="Command in place of the image's entry point")] = ()
    args: Annotated[Arguments, Field(description="Arguments of the command")] = ()
    env: Annotated[Environment, Field(description="Environment variables")] = Field(default_factory=dict)
    env_from: Annotated[
        dict[EnvName, EnvSource], Field(max_length=100, description="Variables from secrets and config maps")
    ] = Field(default_factory=dict)
    working_dir: Annotated[Path | None, Field(description="Working directory; null: the image's")] = None
    resources: Annotated[ContainerResources, Field(description="Resources of the container")]
    sidecar: Annotated[bool, Field(description="Run beside the role's container, instead of before")] = False

    @model_validator(mode="after")
    def _environment(self) -> Self:
        _check_environment(self.env, self.env_from)
        return self


class Template(Strict):
    """The container of every pod of a role, and what goes with it."""

    image: Annotated[Image, Field(description="Image of the container")]
    command: Annotated[Arguments, Field(description="Command in place of the image's entry point")] = ()
    args: Annotated[Arguments, Field(description="Arguments of the command")] = ()
    env: Annotated[Environment, Field(description="Environment variables")] = Field(default_factory=dict)
    working_dir: Annotated[Path | None, Field(description="Working directory; null: the image's")] = None
    run_as_user: Annotated[
        UserId | None, Field(description="User id; needed where a namespace enforces the restricted level")
    ] = None
    volumes: Annotated[tuple[Volume, ...], Field(max_length=VOLUMES_MAX, description="Volumes to mount")] = ()
    annotations: Annotated[dict[LabelKey, Argument], Field(max_length=64, description="Annotations of the pod")] = (
        Field(default_factory=dict)
    )
    env_from: Annotated[
        dict[EnvName, EnvSource], Field(max_length=100, description="Variables from secrets and config maps")
    ] = Field(default_factory=dict)
    init_containers: Annotated[
        tuple[InitContainer, ...],
        Field(max_length=16, description="Containers that run before and beside the main container"),
    ] = ()
    ports: Annotated[tuple[Port, ...], Field(max_length=32, description="Ports on which the container listens")] = ()
    ipc_lock: Annotated[bool, Field(description="Capability IPC_LOCK to pin memory, which RDMA needs")] = False
    host_network: Annotated[bool, Field(description="Network of the node instead of the pod's own")] = False
    runtime_class: Annotated[
        ObjectName | None, Field(description="RuntimeClass of the pods; their overhead counts from the bind on")
    ] = None

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        _check_environment(self.env, self.env_from)
        if self.host_network and self.ports:
            raise ValueError("ports: with host_network a program takes its node's ports itself; say none")
        if len({(port.port, port.protocol) for port in self.ports}) != len(self.ports):
            raise ValueError("ports: one is there twice")
        names = [port.name for port in self.ports if port.name]
        if len(set(names)) != len(names):
            raise ValueError("ports: two have the same name")
        if len({container.name for container in self.init_containers}) != len(self.init_containers):
            raise ValueError("init_containers: two have the same name")
        return self

    @property
    def has_shared_memory(self) -> bool:
        """Whether the job says itself what is mounted where programs share memory."""
        return any(volume.mount_path.rstrip("/") in ("/dev", SHARED_MEMORY_PATH) for volume in self.volumes)


def at_most_at_once(main: int, before: Iterator[tuple[bool, int]]) -> int:
    """
    The most that a pod's containers take at the same time, by Kubernetes' rule; `before` says (is a sidecar, takes).

    Init containers run one after the other, each beside the sidecars that began before it.
    """
    beside = highest = 0
    for is_sidecar, takes in before:
        highest = max(highest, beside + takes)
        beside += takes if is_sidecar else 0
    return max(beside + main, highest)


def _check_environment(env: dict[str, str], sources: dict[str, EnvSource]) -> None:
    if env and sum(len(k) + len(v) for k, v in env.items()) > 64 * 1024:
        raise ValueError("env: more than 64 KiB")
    if twice := sorted(env.keys() & sources.keys()):
        raise ValueError(f"env_from: {twice[0]} is in env, too; say one of them")


class Mount(Strict):
    """
    Path under which jobs know the files of a claim: in a volume's `path`, and in `--container-mounts` of scripts.

    The claim is one of the namespace of the job's tenant. A path below this one is the same folder within the claim.
    """

    path: Annotated[Path, Field(description="Path as jobs give it, such as /data")]
    claim: Annotated[ObjectName, Field(description="Name of the volume claim, the same in each tenant's namespace")]
    read_only: Annotated[bool, Field(description="Mount read-only, whatever the job asks for")] = False
    tenants: Annotated[tuple[Name, ...], Field(description="Tenants whose jobs may mount the path; empty: all")] = ()
    in_every_pod: Annotated[
        bool, Field(description="Each pod of their submitted jobs has it at `path`, unless it mounts something there")
    ] = later(False)

    @model_validator(mode="after")
    def _plain(self) -> Self:
        if self.path == "/" or posixpath.normpath(self.path) != self.path:
            raise ValueError("path: write a directory below /, without .. and without a slash at its end")
        return self


class PodGrants(Strict):
    """
    Grants for the pods of a tenant's own jobs; a job that asks for more is refused by the name of the field.

    Default grants give no right beyond the tenant's namespace. Users' own pods are Kubernetes' to judge.
    """

    memory_volumes: Annotated[bool, Field(description="Volumes in memory, such as /dev/shm")] = True
    env_from: Annotated[bool, Field(description="Variables from secrets and config maps of the tenant's namespace")] = (
        True
    )
    init_containers: Annotated[bool, Field(description="Init containers and sidecars")] = True
    ports: Annotated[bool, Field(description="Ports declared by containers")] = True
    higher_limits: Annotated[bool, Field(description="Limits above the requests, which may overcommit nodes")] = False
    ipc_lock: Annotated[bool, Field(description="Capability IPC_LOCK, which RDMA needs")] = False
    host_network: Annotated[bool, Field(description="Network of the node instead of the pod's own")] = False
    runtime_classes: Annotated[
        tuple[ObjectName, ...], Field(max_length=32, description="RuntimeClasses that pods may name")
    ] = ()
    session_ingress: Annotated[
        bool, Field(description="Sessions that browsers reach by an Ingress (`defaults.sessions.ingress`)")
    ] = later(False)
