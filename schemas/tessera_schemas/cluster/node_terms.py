"""Terms by which a job says which nodes its pods may go to, and how near to each other."""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from tessera_schemas.base import Name, Strict
from tessera_schemas.work.pod_template import LabelKey

LEVELS_MAX = 4

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
