"""
Devices of a node that drivers publish for dynamic resource allocation (DRA), as the ledger keeps them.

A node's complete pools make one layout. Nodes of one make have equal layouts, so that a park of thousands of GPUs with
all the instances into which each may be cut is a few descriptions: the ledger takes in each once, and a node names its
own. What is different on every node (serial numbers, the pool's name where it is the node's) is left out for that.

A pool of several nodes (network-attached devices) stands in the layout of each node that reaches it, with all of its
devices whose counters another node draws on as well, so that what is left of it can be told from there.

Amounts are thousandths of Kubernetes' unit, so that `500m` is exact. Source: Kubernetes 1.36, `resource.k8s.io/v1`.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from tessera_schemas.base import Count, Digest, Strict

DEVICES_MAX = 1_024
"""Devices of one node; a node that publishes more has none here, and says so."""
LAYOUT_BYTES_MAX = 400_000
"""Stored form of one layout."""

Milli = Annotated[int, Field(ge=0, le=2**62, strict=True)]
"""Thousandths of a quantity of a driver's device."""
QualifiedName = Annotated[str, StringConstraints(min_length=1, max_length=97, pattern=r"^[A-Za-z0-9._/-]+$")]
"""Name of an attribute or capacity, its domain before a slash."""
DeviceId = Annotated[str, StringConstraints(min_length=5, max_length=384, pattern=r"^[a-z0-9.-]+/[a-z0-9./-]+$")]
"""`driver/pool/device`, as drivers call them; a pool's name may have slashes."""
Expression = Annotated[str, StringConstraints(min_length=1, max_length=10_240)]
"""A condition on one device in CEL."""
NumaZones = Annotated[tuple[Annotated[dict[QualifiedName, Count], Field(max_length=64)], ...], Field(max_length=64)]
"""Amounts by Kubernetes' name of each NUMA zone, that a kubelet gives out by the piece; CPU in thousandths."""
ClassName = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]


class DevicePool(Strict):
    """
    `name` is "" where the pool is called as its node.

    `network`: its devices, or its counters, are of several nodes. What a claim on one of them has is gone for all.
    """

    driver: Annotated[str, StringConstraints(min_length=1, max_length=63)]
    name: Annotated[str, StringConstraints(max_length=253)] = ""
    network: bool = False


class DeviceCapacity(Strict):
    """
    An amount that a device has, and what of it a share may ask for.

    Without `default` a share that asks for nothing takes all of it. `valid`: a request is rounded up to one of these;
    `step`: to `least` and whole steps above it, `most` at most.
    """

    value: Milli
    default: Milli | None = None
    valid: Annotated[tuple[Milli, ...], Field(max_length=10)] = ()
    least: Milli | None = None
    most: Milli | None = None
    step: Milli | None = None


class OfferedDevice(Strict):
    """
    One device. `pool` is a place in the layout's pools, and each pair of `uses` a place in its counters and how much of
    it the device takes while any claim has it.

    `same` has a number for each attribute; devices of the node with an equal number have an equal value. `gpu` is the
    GPU of the node that the device is or is a part of, and `gpu_milli` how much of it; None for other devices.
    `beyond`: pods of other nodes alone can have it, and it draws on counters of a pool that this node reaches.
    """

    pool: Count
    name: Annotated[str, StringConstraints(min_length=1, max_length=63)]
    same: Annotated[dict[QualifiedName, Count], Field(max_length=64)] = Field(default_factory=dict)
    uses: Annotated[tuple[tuple[Count, Milli], ...], Field(max_length=64)] = ()
    capacity: Annotated[dict[QualifiedName, DeviceCapacity], Field(max_length=32)] = Field(default_factory=dict)
    is_shared: Annotated[bool, Field(description="Whether several claims may have shares of it at a time")] = False
    gpu: Count | None = None
    gpu_milli: Annotated[Count, Field(le=1000)] = 0
    beyond: bool = False


class DeviceLayout(Strict):
    """
    All devices of a node. `counters` are the amounts of all counter sets of its pools, one after the other.

    `kinds` is a digest of what selectors may tell devices apart by, so that a selector takes the same devices of every
    node of this layout.
    """

    pools: Annotated[tuple[DevicePool, ...], Field(min_length=1, max_length=64)]
    counters: Annotated[tuple[Milli, ...], Field(max_length=4_096)] = ()
    devices: Annotated[tuple[OfferedDevice, ...], Field(min_length=1, max_length=DEVICES_MAX)]
    kinds: Digest

    def digest(self) -> str:
        """The name by which nodes mean this layout."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


class DeviceTaint(Strict):
    """A taint that a driver or an administrator put on one device."""

    device: DeviceId
    key: Annotated[str, StringConstraints(min_length=1, max_length=317)]
    value: Annotated[str, StringConstraints(max_length=63)] = ""
    effect: Literal["NoSchedule", "NoExecute"]


class TakenDevice(Strict):
    """A device, or a share of one, that a claim has which Tessera did not allocate."""

    device: DeviceId
    capacity: Annotated[dict[QualifiedName, Milli], Field(max_length=32)] = Field(default_factory=dict)


class NodeOffer(Strict):
    """
    Offer of a node by DRA: the digest of its layout, taints of its devices, and what others' claims have of them.

    `missing` are pools, as `driver/pool`, whose newest generation is not complete or that cannot be read: their devices
    are in no layout.
    """

    layout: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")] = ""
    tainted: Annotated[tuple[DeviceTaint, ...], Field(max_length=DEVICES_MAX)] = ()
    taken: Annotated[tuple[TakenDevice, ...], Field(max_length=4 * DEVICES_MAX)] = ()
    missing: Annotated[tuple[Annotated[str, StringConstraints(max_length=320)], ...], Field(max_length=64)] = ()


def selectors_digest(selectors: Sequence[str]) -> str:
    """Name of a set of expressions, all of which must hold; whatever their order."""
    return hashlib.sha256(json.dumps(sorted(set(selectors))).encode()).hexdigest()
