"""Facts about the health of nodes, and the record of what is known of it."""

from typing import Annotated, Literal

from pydantic import Field

from tessera_schemas.base import NodeName, Text
from tessera_schemas.cluster.health import Ailments, KnownAilment, Source
from tessera_schemas.events import NodeHealthChangedV1
from tessera_schemas.shard.records import AnyFact, AnyRecord, PoolTold


class HealthSeen(AnyFact, sender="reclamation"):
    """All that one source sees of a node's health now, in place of what it said before."""

    kind: Literal["health_seen"]
    node: NodeName
    source: Source
    ailments: Ailments = ()


class HealthReported(AnyFact, sender="admission"):
    """As `HealthSeen`, said by an agent or an operator; `by` is who, as its sender says."""

    kind: Literal["health_reported"]
    node: NodeName
    source: Source
    ailments: Ailments = ()
    by: Text = ""


class HealthNoted(AnyRecord, event=NodeHealthChangedV1):
    """
    Health of a node as it is known from here on, whoever said it; nothing is wrong with it without `ailments`.

    `overruled`: an operator has said that the node is good, until all of this is over. `held_back`: it would be kept
    out, and is not, since too many nodes of its pool are.
    """

    kind: Literal["health_noted"]
    node: NodeName
    ailments: Annotated[tuple[KnownAilment, ...], Field(max_length=256)] = ()
    overruled: bool = False
    held_back: bool = False
    pool: PoolTold = ""
