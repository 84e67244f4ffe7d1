"""Terms by which a job says which nodes its pods may go to, and how near to each other and to their data."""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from tessera_schemas.base import Count, Name, NodeName, Positive, Strict
from tessera_schemas.work.pod_template import LabelKey

LEVELS_MAX = 4
HOSTNAME_LABEL = "kubernetes.io/hostname"
PREFERRED_MAX = 32

LabelValue = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$")]


class Operator(StrEnum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


COMPARED = frozenset({Operator.GT, Operator.LT})
"""Operators that compare the label, as an integer, with the one value."""


def label_holds(operator: str, values: Sequence[str], label: str | None) -> bool:
    """
    Tells whether a condition holds on a node with this value of the label; None: the label is missing.

    As in Kubernetes NotIn holds where the label is missing, and Gt and Lt hold nowhere that it is no integer.
    """
    if operator in ("In", "NotIn"):
        return (label in values) == (operator == "In")
    if operator in COMPARED:
        there, than = whole_number(label or ""), whole_number(values[0] if values else "")
        return there is not None and than is not None and (there > than if operator == "Gt" else there < than)
    return (label is not None) == (operator == "Exists")


def whole_number(text: str) -> int | None:
    """The integer of 64 bits that Kubernetes reads in a label's value; None for any other text."""
    if not re.fullmatch(r"[+-]?[0-9]{1,63}", text):
        return None
    found = int(text)
    return found if -(2**63) <= found < 2**63 else None


class AffinityTerm(Strict):
    """
    One condition on a node's labels; all terms must hold. NotIn also holds where the label is missing.

    Gt and Lt compare the label with one value, both as integers; they hold nowhere that the label is none.
    """

    key: Annotated[LabelKey, Field(description="Label of the node")]
    operator: Annotated[Operator, Field(description="Comparison of the label with `values`")]
    values: Annotated[tuple[LabelValue, ...], Field(max_length=64, description="Values to compare with")] = ()

    @model_validator(mode="after")
    def _values(self) -> Self:
        if self.operator in COMPARED:
            if len(self.values) != 1 or whole_number(self.values[0]) is None:
                raise ValueError("values: Gt and Lt need one, an integer")
        elif (self.operator in (Operator.IN, Operator.NOT_IN)) != bool(self.values):
            raise ValueError("values: In and NotIn need some, Exists and DoesNotExist have none")
        return self


class PreferredTerm(Strict):
    """A preference for nodes on which all terms hold; it keeps no pod off any node."""

    weight: Annotated[int, Field(ge=1, le=100, strict=True, description="What such a node gains; higher is preferred")]
    terms: Annotated[
        tuple[AffinityTerm, ...], Field(min_length=1, max_length=32, description="Conditions, all of which must hold")
    ]


class AntiAffinity(Strict):
    """
    At most one pod of the group on a node: pods of one group stand on different nodes, whatever jobs they are of.

    Pods that are not of the group are not looked at.
    """

    group: Annotated[
        Name | None,
        Field(description="Name that jobs of the tenant give in common; null: pods of this job, or of its array"),
    ] = None


class PodTerm(Strict):
    """Pods with all of these labels, of other jobs of the tenant, and the domain in which they count."""

    labels: Annotated[
        dict[LabelKey, LabelValue], Field(min_length=1, max_length=16, description="Labels that such a pod has")
    ]
    topology: Annotated[LabelKey, Field(description="Node label, or level, whose values are the domains")] = (
        HOSTNAME_LABEL
    )
    weight: Annotated[
        Annotated[int, Field(ge=1, le=100, strict=True)] | None,
        Field(description="Preference of that weight, as in `affinity_preferred`; null: a condition"),
    ] = None


class Neighbours(Strict):
    """
    Pods of other jobs that a role's pods stay away from or go near to, and the labels by which others find them.

    A condition to stay away holds both ways: later pods with those labels stay out of its pods' domains.
    """

    labels: Annotated[
        dict[LabelKey, LabelValue], Field(max_length=32, description="Labels of the pods, for terms of other jobs")
    ] = Field(default_factory=dict)
    apart_from: Annotated[
        tuple[PodTerm, ...], Field(max_length=16, description="Pods whose domains its pods stay out of")
    ] = ()
    near: Annotated[
        tuple[PodTerm, ...], Field(max_length=16, description="Pods of which one is in the domain of each of its pods")
    ] = ()


class RoleReach(Strict):
    """The nodes that the pods of a role may go to, as their volumes have it: those on which all terms hold."""

    role: Name
    terms: Annotated[tuple[AffinityTerm, ...], Field(min_length=1, max_length=64)]


class Toleration(Strict):
    """
    Lets a pod onto nodes with a taint of this key, and of this value and effect where they are given.

    An empty value tolerates every value, but with `operator` Equal the empty value alone.
    """

    key: Annotated[LabelKey, Field(description="Key of the taint")]
    value: Annotated[LabelValue, Field(description="Value of the taint; empty: any, unless `operator` is Equal")] = ""
    effect: Annotated[Literal["NoSchedule", "NoExecute", ""], Field(description="Effect of the taint; empty: any")] = ""
    operator: Annotated[
        Literal["Equal", "Exists", ""], Field(description="Equal: the value has to match. Exists: any value")
    ] = ""

    @model_validator(mode="after")
    def _value(self) -> Self:
        if self.value and self.operator == "Exists":
            raise ValueError("value: Exists tolerates every value, so it has none")
        return self

    @property
    def every_value(self) -> bool:
        return not self.value and self.operator != "Equal"


class Topology(Strict):
    """
    All pods of the role inside one domain: the nodes with one value of the label `level`, or of the label for which the
    configuration has this short name.

    `wider` are levels to go on to, narrowest first, where no domain of the ones before holds the pods. If required,
    the last level is the bound and the job waits; else the pods then go to as few domains as there can be.
    """

    level: Annotated[LabelKey, Field(description="Node label of the level, or its short name in the configuration")]
    required: Annotated[bool, Field(description="true: the job waits for such a domain. false: a preference")] = True
    wider: Annotated[
        tuple[LabelKey, ...], Field(max_length=LEVELS_MAX - 1, description="Levels to try next, narrowest first")
    ] = ()
    group: Annotated[Name | None, Field(description="Name that roles give in common to share one domain")] = None

    @model_validator(mode="after")
    def _levels(self) -> Self:
        if len({self.level, *self.wider}) != 1 + len(self.wider):
            raise ValueError("wider: a level is there twice")
        return self


class DatasetHint(Strict):
    """A data set that every pod of the job reads; its pods go to nodes that have it where that costs less."""

    name: Annotated[Name, Field(description="Name of the dataset, within the tenant")]
    size_bytes: Annotated[Positive, Field(description="Size of the dataset in bytes")]


class ToldPlaces(Strict):
    """Nodes that have a data set, and nodes that have it no more, as its tenant says; nothing is said of others."""

    size_bytes: Annotated[Count, Field(description="Size of the data set in bytes; required with `nodes`")] = 0
    nodes: Annotated[tuple[NodeName, ...], Field(max_length=256, description="Nodes that have the data set")] = ()
    gone: Annotated[
        tuple[NodeName, ...], Field(max_length=256, description="Nodes that do not have the data set any more")
    ] = ()

    @model_validator(mode="after")
    def _something_is_said(self) -> Self:
        if not self.nodes and not self.gone:
            raise ValueError("nodes: name a node that has the data set, or in gone one that has it no more")
        if self.nodes and not self.size_bytes:
            raise ValueError("size_bytes: nodes keep so many bytes of data sets at most")
        if both := sorted({*self.nodes} & {*self.gone}):
            raise ValueError(f"gone: {both[0]} is also in nodes")
        return self
