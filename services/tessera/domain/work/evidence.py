"""
The table of what may refuse a job for good: for each test that a node fails, what must have been so of the node.

"Never" is not concluded from "now". A device plugin is rolled out, a label is away, a condition taints the nodes: the
job waits. `best_of` is a node as it is judged before a refusal for good: by the most that it has had, as far as that is
remembered. Everywhere else a node counts as it is. Pure.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any

from tessera.domain.devices.empty_nodes import emptied
from tessera.domain.devices.resources import Node
from tessera.domain.storing.fast import fast_init, replace
from tessera_schemas.cluster.labels import GPU_RESOURCE, tells_condition

REMEMBERED_MS = 7 * 24 * 3600 * 1000
"""How long a node counts with what it has lost, by the ledger's time since it last lost something."""
REMEMBERED_MAX = 4_096
"""Nodes that are remembered; of more, those that lost something longest ago are forgotten first."""


class FitFailure(StrEnum):
    """The test that a node failed. The values name the numbers in a reason."""

    NOT_READY = "nodes_not_ready"
    CORDONED = "nodes_cordoned"
    GPU_RESOURCE = "nodes_of_other_gpu_resource"
    GPU_MODEL = "nodes_of_other_gpu_model"
    GPU_NUMBER = "nodes_of_other_gpu_number"
    GPU_MEMORY = "nodes_of_less_gpu_memory"
    SELECTOR = "nodes_not_selected"
    AFFINITY = "nodes_outside_affinity"
    TAINT = "nodes_tainted"
    DEVICE_PROFILE = "nodes_of_other_device_profile"
    SHARE_SIZE = "nodes_of_other_share_size"
    ISOLATION = "nodes_of_less_isolation"
    MIG_PROFILE = "nodes_without_mig_profile"
    UNKNOWN_CLAIMS = "nodes_whose_devices_are_being_looked_at"
    CLAIMS = "nodes_without_claimed_devices"
    NO_ZONES = "nodes_that_align_no_numa_zone"
    GPU = "nodes_short_of_gpu"
    DEVICES = "nodes_short_of_devices"
    APART = "nodes_with_pods_to_keep_apart_from"
    FAR = "nodes_far_from_pods_to_be_near"
    CPU = "nodes_short_of_cpu"
    MEMORY = "nodes_short_of_memory"
    PODS = "nodes_full_of_pods"
    ZONES = "nodes_short_of_one_numa_zone"
    CLAIMED = "nodes_short_of_claimed_devices"
    KEPT = "nodes_with_room_kept_beside_gpus"


@fast_init
@dataclass(frozen=True, slots=True)
class RememberedNode:
    """A node as it was at its best before it lost something, or was gone, at `lost_ts`; nothing is on it."""

    name: str
    lost_ts: int
    node: Node


Changes = dict[str, Any]
Judged = Callable[[Node, Node], Changes]
"""Fields of a node as they are judged, from the node now and as it was at its best."""


def _ready(now: Node, was: Node) -> Changes:
    return {"ready": True}


def _model(now: Node, was: Node) -> Changes:
    return {"gpu_model": now.gpu_model or was.gpu_model}


def _gpu_memory(now: Node, was: Node) -> Changes:
    return {"gpu_memory_bytes": now.gpu_memory_bytes or was.gpu_memory_bytes}


def _labels(now: Node, was: Node) -> Changes:
    return {"labels": tuple(sorted({**dict(was.labels), **dict(now.labels)}.items()))}


def _taints(now: Node, was: Node) -> Changes:
    return {"taints": tuple(taint for taint in now.taints if taint in was.taints and not tells_condition(taint[0]))}


def _gpus(now: Node, was: Node) -> Changes:
    """
    GPUs, and what their slots are: of the node now, of its capacity, or as they were, whichever has most.

    The profile and the cut of MIG devices go with the GPUs, so that no mixture of two times is judged.
    """
    counted = dict(now.capacity).get(now.gpu_resource or GPU_RESOURCE, 0)
    most = max(now.gpus, counted if now.device_profile == "whole" else 0)
    chosen = was if was.gpus > most else now
    of_gpus = ("device_profile", "gpu_uuids", "mig_geometry", "mig_instances", "share_milli")
    names = (*of_gpus, "gpu_resource", "gpu_default")
    return {"gpus": max(was.gpus, most)} | {name: getattr(chosen, name) for name in names}


def _devices(now: Node, was: Node) -> Changes:
    most = dict(was.devices)
    for name, count in (*now.devices, *now.capacity):
        if name != (now.gpu_resource or GPU_RESOURCE):
            most[name] = max(most.get(name, 0), count)
    return {"devices": tuple(sorted(most.items()))}


def _nothing(now: Node, was: Node) -> Changes:
    return {}


def _at_most(name: str) -> Judged:
    return lambda now, was: {name: max(getattr(now, name), getattr(was, name))}


@dataclass(frozen=True, slots=True)
class FitEvidence:
    """`refuses`: whether the test may refuse for good. `text` says for people what it is judged by."""

    refuses: bool
    text: str
    judged: Judged


LABEL = "the value that the node has, or had last"
EVIDENCE: dict[FitFailure, FitEvidence] = {
    FitFailure.NOT_READY: FitEvidence(False, "nothing: a node that is not ready, or drained, may be back", _ready),
    FitFailure.CORDONED: FitEvidence(False, "nothing: a cordoned node may be back", _ready),
    FitFailure.GPU_RESOURCE: FitEvidence(True, "the resource under which the node had the most GPUs", _gpus),
    FitFailure.GPU_MODEL: FitEvidence(True, LABEL, _model),
    FitFailure.GPU_NUMBER: FitEvidence(False, "nothing: a node may get or lose GPUs", _nothing),
    FitFailure.GPU_MEMORY: FitEvidence(True, LABEL, _gpu_memory),
    FitFailure.SELECTOR: FitEvidence(True, "the labels that the node has, and those that it had last", _labels),
    FitFailure.AFFINITY: FitEvidence(True, "the labels that the node has, and those that it had last", _labels),
    FitFailure.TAINT: FitEvidence(
        True, "the taints that the node has had all the time; those that tell a condition never count", _taints
    ),
    FitFailure.DEVICE_PROFILE: FitEvidence(True, "the profile under which the node had the most GPUs", _gpus),
    FitFailure.SHARE_SIZE: FitEvidence(True, "the size of shares when the node had the most GPUs", _gpus),
    FitFailure.ISOLATION: FitEvidence(True, "the profile under which the node had the most GPUs", _gpus),
    FitFailure.MIG_PROFILE: FitEvidence(True, "the instances of the time when the node had the most GPUs", _gpus),
    FitFailure.UNKNOWN_CLAIMS: FitEvidence(False, "nothing: the binder is about to say", _nothing),
    FitFailure.CLAIMS: FitEvidence(False, "nothing: a driver may publish other devices", _nothing),
    FitFailure.NO_ZONES: FitEvidence(False, "nothing: a kubelet may get another policy", _nothing),
    FitFailure.GPU: FitEvidence(True, "the most GPUs that the node has had, its capacity included", _gpus),
    FitFailure.DEVICES: FitEvidence(True, "the most that the node has had of each, its capacity included", _devices),
    FitFailure.APART: FitEvidence(False, "nothing: a pod that it keeps apart from may leave", _nothing),
    FitFailure.FAR: FitEvidence(False, "nothing: a pod that it is to be near to may come", _nothing),
    FitFailure.CPU: FitEvidence(True, "the most CPU that the node could allocate", _at_most("cpu_milli")),
    FitFailure.MEMORY: FitEvidence(True, "the most memory that the node could allocate", _at_most("memory_bytes")),
    FitFailure.PODS: FitEvidence(True, "the most pods that the node could take", _at_most("pods")),
    FitFailure.ZONES: FitEvidence(False, "nothing: a kubelet may get another policy", _nothing),
    FitFailure.CLAIMED: FitEvidence(False, "nothing: a driver may publish other devices", _nothing),
    FitFailure.KEPT: FitEvidence(False, "nothing: beside GPUs in use nothing is kept", _nothing),
}
"""One row for each test; no other place says what "never" rests on."""


def best_of(now: Node, was: Node | None) -> Node:
    """
    The node, empty, as it is judged before a refusal for good; `was` is the node as remembered, None if it is not.
    """
    changes: Changes = {}
    for evidence in EVIDENCE.values():
        changes |= evidence.judged(now, was or now)
    # What drivers publish may be other devices tomorrow, and a kubelet's policy another one: they refuse nothing for
    # good, and nobody remembers them.
    return emptied(replace(now, offer=None, tainted=(), missing=(), zones=(), **changes))


def remember(known: RememberedNode | None, before: Node | None, now: Node, ts: int) -> RememberedNode | None:
    """
    Memory of a node that changed from `before` (None: it was not there) to `now`; None while it has all it had.

    A node that went to another pool is remembered for the one that it left.
    """
    before = None if before is None or before.gone else before
    if before is not None and _shape(before) == _shape(now):  # as while pods of others come and go
        return known
    if known is not None and known.node.pool != now.pool and (before is None or before.pool == now.pool):
        return known
    was = None if known is None else known.node
    if before is not None and (was is None or was.pool == before.pool):
        was = best_of(before, was)
    if was is None or (was.pool == now.pool and not _lacks(now, was)):
        return None
    lost = known is None or (before is not None and _lacks(now, before))
    return RememberedNode(now.name, ts if lost or known is None else known.lost_ts, was)


_shape = attrgetter(
    "gone",
    "pool",
    "cpu_milli",
    "memory_bytes",
    "pods",
    "gpus",
    "gpu_model",
    "gpu_memory_bytes",
    "device_profile",
    "gpu_uuids",
    "mig_geometry",
    "mig_instances",
    "devices",
    "capacity",
    "labels",
    "taints",
    "gpu_resource",
    "gpu_default",
    "share_milli",
)
"""Fields that the rows of EVIDENCE look at."""


def _lacks(now: Node, was: Node) -> bool:
    """Whether the node had something before that it does not have now."""
    return now.gone or best_of(now, was) != best_of(now, None)


def at_their_best(nodes: Iterable[Node], remembered: Iterable[RememberedNode]) -> list[Node]:
    """
    Nodes as they are judged before a refusal for good, those that are gone as they were.

    Of a pool that has no nodes at all now nothing is known, and none are given.
    """
    known = {each.name: each.node for each in remembered}
    present = {node.name: node for node in nodes if not node.gone}
    pools = {node.pool for node in present.values()}
    there = {name for name, was in known.items() if name in present and present[name].pool == was.pool}
    judged = [best_of(node, known[name] if name in there else None) for name, node in present.items()]
    judged += [best_of(was, None) for name, was in known.items() if name not in there and was.pool in pools]
    return sorted(judged, key=lambda node: (node.name, node.pool))
