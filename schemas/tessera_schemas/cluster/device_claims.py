"""
Claims of a pod on devices that drivers publish for dynamic resource allocation (DRA), in the words of a job's spec.

A claim is one set of devices, all of one node and decided together. What it asks for has the meaning of Kubernetes'
`resource.k8s.io/v1`; amounts are thousandths of its units.
"""

from collections import Counter
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from tessera_schemas.base import Json, Name, Strict
from tessera_schemas.cluster.device_layouts import ClassName, Expression, Milli, QualifiedName

OF_CLASS = "class:"
"""Begins the resource of a quota of devices of one class: `class:dra.net`."""
DevicesOfClass = Annotated[
    str, StringConstraints(max_length=259, pattern=rf"^{OF_CLASS}[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")
]
"""Devices of one DeviceClass as a resource that quotas count: `class:dra.net`."""
CLAIMS_MAX, REQUESTS_MAX, CHOICES_MAX, COUNT_MAX = 16, 32, 8, 32
SHARERS_MAX = 256
"""Pods that Kubernetes lets use one claim."""


GresName = Annotated[
    str, StringConstraints(max_length=127, pattern=r"^[a-z][a-z0-9_-]{0,62}(:[A-Za-z0-9][A-Za-z0-9._-]{0,62})?$")
]
"""A generic resource as Slurm names it: `nic`, or with its type `gpu:a100`."""


class GresClass(Strict):
    """Devices that a generic resource of Slurm stands for: what `--gres=NAME:2` asks for is two of them."""

    name: Annotated[GresName, Field(description="Name, or name:type, as `--gres` gives it")]
    device_class: Annotated[ClassName, Field(description="DeviceClass of the cluster")]
    selectors: Annotated[
        tuple[Expression, ...], Field(max_length=32, description="Conditions on a device in CEL; all have to hold")
    ] = ()


class DeviceToleration(Strict):
    """Taints of devices that a request bears; an empty key is every key, an empty effect every effect."""

    key: Annotated[str, StringConstraints(max_length=317), Field(description="Key of the taint; empty: any")] = ""
    operator: Annotated[
        Literal["Exists", "Equal"], Field(description="Equal: the value has to match. Exists: any value")
    ] = "Equal"
    value: Annotated[str, StringConstraints(max_length=63), Field(description="Value of the taint")] = ""
    effect: Annotated[Literal["NoSchedule", "NoExecute", ""], Field(description="Effect; empty: any")] = ""


class DeviceChoice(Strict):
    """
    Devices of one class. `name` is given where there are several choices.
    """

    name: Annotated[Name | Literal[""], Field(description="Name of the choice, where there are several")] = ""
    device_class: Annotated[ClassName, Field(description="DeviceClass of the cluster")]
    selectors: Annotated[
        tuple[Expression, ...], Field(max_length=32, description="Conditions on a device in CEL; all have to hold")
    ] = ()
    count: Annotated[int, Field(ge=1, le=COUNT_MAX, strict=True, description="Number of devices")] = 1
    every: Annotated[bool, Field(description="Every device of the node that matches, instead of a number")] = False
    admin: Annotated[bool, Field(description="Access beside others, for those who look after devices")] = False
    tolerations: Annotated[
        tuple[DeviceToleration, ...], Field(max_length=16, description="Taints of devices that are borne")
    ] = ()
    capacity: Annotated[
        dict[QualifiedName, Milli],
        Field(max_length=32, description="Part of each device that is asked for, in thousandths of its unit"),
    ] = Field(default_factory=dict)


class DeviceRequest(Strict):
    """One choice, or several in the user's order, of which the first that can be had is taken."""

    name: Annotated[Name, Field(description="Name of the request within its claim")]
    choices: Annotated[
        tuple[DeviceChoice, ...],
        Field(min_length=1, max_length=CHOICES_MAX, description="What would do, best first"),
    ]

    @model_validator(mode="after")
    def _names(self) -> Self:
        names = [choice.name for choice in self.choices]
        if len(names) > 1 and (len(set(names)) < len(names) or "" in names):
            raise ValueError("choices: each of several has a name of its own")
        if any(choice.admin for choice in self.choices) and len(self.choices) > 1:
            raise ValueError("choices: admin access is for a request of one choice")
        return self


class DeviceConstraint(Strict):
    """
    All devices of these requests (of all requests, where none are named) have an equal value of the attribute `match`,
    or each another one of `distinct`.
    """

    requests: Annotated[tuple[str, ...], Field(max_length=REQUESTS_MAX, description="Requests; empty: all")] = ()
    match: Annotated[QualifiedName | Literal[""], Field(description="Attribute of which all have one value")] = ""
    distinct: Annotated[QualifiedName | Literal[""], Field(description="Attribute that differs for each device")] = ""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if bool(self.match) is bool(self.distinct):
            raise ValueError("one of match and distinct")
        return self


class DriverConfig(Strict):
    """Parameters that a driver reads itself, for these requests, or for all."""

    requests: Annotated[tuple[str, ...], Field(max_length=REQUESTS_MAX, description="Requests; empty: all")] = ()
    driver: Annotated[str, StringConstraints(min_length=1, max_length=63), Field(description="Name of the driver")]
    parameters: Annotated[Json, Field(description="Parameters that the driver reads")]


class DeviceClaim(Strict):
    """
    A claim of each pod of a role. Where `object_name` is set the claim stands in the cluster already, by that name, and
    all pods that name it share its devices. `shared`: all pods of the job whose roles have a shared claim of that name
    have one claim, which is made with the first of them. `allocated`: it has devices already, so that none are drawn
    for it, and the role's affinity says the nodes of its allocation.
    """

    name: Annotated[Name, Field(description="Name of the claim within the pod")]
    requests: Annotated[
        tuple[DeviceRequest, ...],
        Field(min_length=1, max_length=REQUESTS_MAX, description="Requests, answered together by one node"),
    ]
    constraints: Annotated[
        tuple[DeviceConstraint, ...], Field(max_length=32, description="Conditions between its devices")
    ] = ()
    config: Annotated[tuple[DriverConfig, ...], Field(max_length=32, description="Parameters for drivers")] = ()
    object_name: Annotated[
        str, StringConstraints(max_length=253), Field(description="Claim that stands in the cluster; users' pods alone")
    ] = ""
    allocated: Annotated[
        bool, Field(description="The claim that stands in the cluster has devices already; users' pods alone")
    ] = False
    shared: Annotated[
        bool, Field(description="One claim for all pods of the job that have a claim of this name; they share a node")
    ] = False

    @property
    def shared_as(self) -> str:
        """Name by which pods of the job share the claim; "" where each has its own."""
        return self.object_name or (self.name if self.shared else "")

    @model_validator(mode="after")
    def _names(self) -> Self:
        if self.shared and self.object_name:
            raise ValueError("shared: a claim that stands in the cluster (object_name) is shared by all that name it")
        if self.allocated and not self.object_name:
            raise ValueError("allocated: is of a claim that stands in the cluster (object_name)")
        counts = Counter(request.name for request in self.requests)
        if twice := [name for name, count in counts.items() if count > 1]:
            raise ValueError(f"requests: {twice[0]} is there twice")
        known = {*counts} | {f"{r.name}/{choice.name}" for r in self.requests for choice in r.choices if choice.name}
        for named in [part.requests for part in self.constraints] + [part.requests for part in self.config]:
            if strange := [name for name in named if name not in known]:
                raise ValueError(f"no request is called {strange[0]}")
        return self
