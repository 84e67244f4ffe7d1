"""
Fields of a job's spec that may get other values after its submit, sizes of a run's roles and of their pods, and what a
service runs.
"""

from typing import TYPE_CHECKING, Annotated, Protocol, Self

from pydantic import Field, model_validator

from tessera_schemas.base import INT_MAX, Count, JobName, Key, Millis, Name, Positive, Strict
from tessera_schemas.work.arrays import DEPENDENCIES_MAX, REPLICAS_OF_SERVICE_MAX, Dependency
from tessera_schemas.work.pod_template import Arguments, Environment, Image, Path, Template
from tessera_schemas.work.tenant_shares import PodAmounts

if TYPE_CHECKING:  # commands that list and show read this module, and no spec
    from tessera_schemas.job import JobSpec, Role

TIME_LIMIT_MAX_SECONDS = 31_536_000

ROLES_MAX = 16

RoleSteps = Annotated[
    dict[Name, Annotated[int, Field(ge=-INT_MAX, le=INT_MAX, strict=True)]],
    Field(min_length=1, max_length=ROLES_MAX, description="Pods more, or with a minus fewer, of each role"),
]
RoleSizes = Annotated[
    dict[Name, Count],
    Field(max_length=ROLES_MAX, description="Pods that the sender knows roles to have; refused where it is otherwise"),
]
ShiftKey = Annotated[Key, Field(description="Key of the request, which is carried out once however often it is sent")]


class SpecChanges(Strict):
    """
    New values of some fields of a spec, as the spec says them; None for what stays.

    `name` stands last: the state's canonical form takes defaults of its own entities off the ends of objects, and an
    empty `after` looks like one.
    """

    time_limit_seconds: Annotated[
        Annotated[int, Field(ge=0, le=TIME_LIMIT_MAX_SECONDS, strict=True)] | None,
        Field(description="Seconds after which a run fails; 0: never"),
    ] = None
    after: Annotated[
        Annotated[tuple[Dependency, ...], Field(max_length=DEPENDENCIES_MAX)] | None,
        Field(description="Conditions on other jobs, all of which must hold before the job starts; empty: none"),
    ] = None
    begin_ts: Annotated[Millis | None, Field(description="Earliest start; 0: none")] = None
    name: Annotated[JobName | None, Field(description="Name of the job for people")] = None

    @model_validator(mode="after")
    def _changes_something(self) -> "SpecChanges":
        if not self.given:
            raise ValueError("nothing is to change: say time_limit_seconds, after, begin_ts or name")
        return self

    @property
    def given(self) -> dict[str, object]:
        """The fields that get a value, with their values."""
        found = {name: getattr(self, name) for name in SpecChanges.model_fields}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def waiting_only(self) -> tuple[str, ...]:
        """The fields that change while a job waits, and not while it runs."""
        return tuple(name for name in self.given if name != "time_limit_seconds")


ENV_CHARACTERS_MAX = 64 * 1024


class Program(Strict):
    """Program of the main container of a role's pods: all that a service may change of itself while it runs."""

    image: Annotated[Image, Field(description="Image of the container")]
    command: Annotated[Arguments, Field(description="Command in place of the image's entry point")] = ()
    args: Annotated[Arguments, Field(description="Arguments of the command")] = ()
    env: Annotated[Environment, Field(description="Environment variables")] = Field(default_factory=dict)
    working_dir: Annotated[Path | None, Field(description="Working directory; null: the image's")] = None

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if sum(len(name) + len(value) for name, value in self.env.items()) > ENV_CHARACTERS_MAX:
            raise ValueError("env: more than 64 KiB")
        return self

    @classmethod
    def made_of(cls, template: Template) -> "Program":
        """The program of a role's template."""
        return cls.model_validate({name: getattr(template, name) for name in PROGRAM_FIELDS})


PROGRAM_FIELDS = tuple(Program.model_fields)
Programs = Annotated[
    dict[Name, Program], Field(max_length=ROLES_MAX, description="What the pods of each role are to run")
]


class RolloutPace(Strict):
    """Pace of a rollout: how many replicas it replaces at once, and when a new one counts as running."""

    max_surge: Annotated[
        Annotated[Count, Field(le=REPLICAS_OF_SERVICE_MAX)],
        Field(description="Replicas beyond the wanted number that a rollout starts before it stops older ones"),
    ] = 1
    max_unavailable: Annotated[
        Annotated[Count, Field(le=REPLICAS_OF_SERVICE_MAX)],
        Field(description="Replicas below the wanted number that a rollout may do without; never below the minimum"),
    ] = 0
    min_ready_seconds: Annotated[
        Annotated[Count, Field(le=3600)],
        Field(description="Seconds for which a new replica must have run before an older one is stopped for it"),
    ] = 10

    @model_validator(mode="after")
    def _moves(self) -> Self:
        if not (self.max_surge or self.max_unavailable):
            raise ValueError("max_surge: with max_unavailable 0 it is at least 1, or no replica could be replaced")
        return self

    @property
    def pace(self) -> dict[str, int]:
        """The fields of the pace by name."""
        return {name: getattr(self, name) for name in RolloutPace.model_fields}


class RolloutWish(RolloutPace):
    """
    Another program for a service's replicas, or with `undo` the one that they had before.

    `revision` is what the sender knows the service to have: another one in between, and the wish is not carried out.
    """

    revision: Annotated[Positive, Field(description="Revision of the service that the sender knows")]
    programs: Programs = Field(default_factory=dict)
    undo: Annotated[bool, Field(description="Go back to the programs before the present ones")] = False

    @model_validator(mode="after")
    def _asks_for_one(self) -> Self:
        if bool(self.programs) is self.undo:
            raise ValueError("programs: say what each role is to run, or undo")
        return self

    @property
    def wish(self) -> dict[str, object]:
        """The fields of the wish by name."""
        return {name: getattr(self, name) for name in RolloutWish.model_fields}


class PodSize(PodAmounts):
    """CPU and memory that each pod of a role is to have; what is not said, or null, stays as it is."""

    role: Annotated[
        Name | None, Field(description="Role whose pods change; may be left out where the job has one role")
    ] = None

    @model_validator(mode="after")
    def _says_something(self) -> "PodSize":
        if self.cpu_milli is None and self.memory_bytes is None:
            raise ValueError("nothing is to change: say cpu_milli, memory_bytes or both")
        return self

    @property
    def size(self) -> "PodSize":
        """The size, apart from whose it is."""
        return PodSize(cpu_milli=self.cpu_milli, memory_bytes=self.memory_bytes, role=self.role)


class RoleAmounts(Strict):
    """CPU and memory of each pod of a role, in place of what the submit said: sidecars and init containers included."""

    role: Name
    cpu_milli: Positive
    memory_bytes: Positive


class PodResize(Strict):
    """
    A resize of the pods of one role that is under way: until their nodes have taken it, they hold the larger of both.

    `to` is what they are to have, and `before` what they had. `is_first`: the role had never been resized before.
    `is_back`: the resize was refused, and `to` is what they had.
    """

    request: ShiftKey
    to: RoleAmounts
    before: RoleAmounts
    is_first: bool = False
    is_back: bool = False

    @property
    def leaves_as_it_was(self) -> bool:
        """Whether the pods are to have what they had: a node that says nothing of resizes has not left it."""
        return self.to == self.before


class SizeOfRole(Protocol):
    """CPU and memory of each pod of a role, as states and records say them."""

    @property
    def role(self) -> str: ...
    @property
    def cpu_milli(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...


def with_size(spec: "JobSpec", size: SizeOfRole) -> "JobSpec":
    """The spec with another size of the pods of one role."""
    roles = tuple(resized_role(role, size) if role.name == size.role else role for role in spec.roles)
    return spec.model_copy(update={"roles": roles})


def resized_role(role: "Role", size: SizeOfRole) -> "Role":
    """
    The role with pods of another size. Its own container changes, by what sidecars leave of the size.

    A limit above the request stays, as long as the request is within.
    """
    given = dict[str, int]()
    for field, limit in (("cpu_milli", "cpu_limit_milli"), ("memory_bytes", "memory_limit_bytes")):
        wanted = getattr(size, field)
        if role.amount_of(field) == wanted:
            continue  # what an init container takes for a while may be more, and is no reason to change the program's
        beside = sum(getattr(each.resources, field) for each in role.template.init_containers if each.sidecar)
        given[field] = wanted - beside
        if (most := getattr(role.resources, limit)) is not None:
            given[limit] = max(most, given[field])
    return role.model_copy(update={"resources": role.resources.model_copy(update=given)})


def larger_of(role: "Role", size: SizeOfRole) -> RoleAmounts:
    """The larger of what each pod of the role has and of a size, resource by resource."""
    cpu, memory = max(role.cpu_milli, size.cpu_milli), max(role.memory_bytes, size.memory_bytes)
    return RoleAmounts(role=role.name, cpu_milli=cpu, memory_bytes=memory)
