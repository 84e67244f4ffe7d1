"""
Other ways to divide a node for an account: its GPUs by rack or model in place of flavor, its CPU, its memory. Pure.

Each hands out all of the node's capacity and no more, like `owners.divided`. CPU and memory that nobody has are free
without a reason: what waits is compared with free GPUs alone.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

from tessera.domain.devices.resources import Need, Node
from tessera.domain.state import State
from tessera.engine.accounts.account import Division, NodeDivider, gpus_by_flavor
from tessera.engine.accounts.owners import KEPT, GpuCause, GpuOwner, HeldPod, divided
from tessera_schemas.config import Level

RACK = "rack"


class Resource(StrEnum):
    """Resource whose owners an account names; amounts are thousandths, of memory bytes, times milliseconds."""

    GPU = "gpu"
    CPU = "cpu"
    MEMORY = "memory"


def rack_level(levels: Sequence[Level]) -> Level | None:
    """The topology level `rack`, else the narrowest one; None where none is configured."""
    return next((level for level in levels if level.name == RACK), levels[-1] if levels else None)


def gpus_by_rack(state: State, node: Node, held: Sequence[HeldPod], closed: bool) -> Division:
    """Owners of the node's GPUs, whose flavor is the name of its rack, "" where the node has none."""
    # The name takes the place of the flavor, so that rows are named and kept as those of flavors are.
    level = rack_level(state.tree.topology)
    return divided(node, ("" if level is None else node.label(level.label)) or "", held, closed)


def gpus_by_model(state: State, node: Node, held: Sequence[HeldPod], closed: bool) -> Division:
    """Owners of the node's GPUs, whose flavor is the name of its GPU model, "" where it is not known."""
    return divided(node, node.gpu_model, held, closed)


def gpus_by_decision(state: State, node: Node, held: Sequence[HeldPod], closed: bool) -> Division:
    """Owners of the node's GPUs; of a node that is out the flavor says which one, and who or what took it out."""
    drain, backoff, why = state.drains.get(node.name), state.backoffs.get(node.name), ""
    if drain is not None:
        why = f"drained: {drain.why}" if drain.why else "drained"
    elif node.cordoned:
        why = "cordoned"
    elif not node.ready:
        why = "not ready" if node.trouble is None else str(node.trouble.code)
    elif closed and backoff is not None:
        why = f"backed off: {backoff.reason.code}"
    return divided(node, f"out: {node.name} {why}" if why else "", held, closed)


def divider_of(resource: Resource) -> NodeDivider:
    """Way to divide nodes for an account of the resource."""
    return {Resource.GPU: gpus_by_flavor, Resource.CPU: _cpu, Resource.MEMORY: _memory}[resource]


def _cpu(state: State, node: Node, held: Sequence[HeldPod], closed: bool) -> Division:
    asked = ((pod, _need(pod).cpu_milli) for pod in held)
    return _shared(state, node, closed, (node.cpu_milli, node.others.cpu_milli), asked)


def _memory(state: State, node: Node, held: Sequence[HeldPod], closed: bool) -> Division:
    asked = ((pod, _need(pod).memory_bytes) for pod in held)
    return _shared(state, node, closed, (node.memory_bytes, node.others.memory_bytes), asked)


def _need(pod: HeldPod) -> Need:
    return next(role.need for role in pod.roles if role.name == pod.placement.role)


def _shared(
    state: State, node: Node, closed: bool, size: tuple[int, int], asked: Iterable[tuple[HeldPod, int]]
) -> Division:
    """First runs have theirs, then others, then earmarks, as far as there is any: a node may shrink under its pods."""
    capacity, others = size
    if node.gone or not capacity:
        return {}, None
    pool, flavor, is_out = node.pool, state.tree.flavor_of(node), closed or not node.ready

    # Claims go down in how sure they are: containers that run, containers of which only the sum is known, then room
    # that nobody has entered yet. A node may have less than that for a while, and somebody's claim has to give way.
    # The last claim is for all there is, so that whatever the others leave has an owner and the sum is the capacity.
    def claims() -> Iterator[tuple[GpuOwner, int]]:
        kept = list[tuple[GpuOwner, int]]()
        for pod, amount in asked:
            owner = GpuOwner(pool, flavor, pod.cause, pod.tenant, pod.queue, pod.user, pod.job, pod.project)
            # Earmarks come last: they lie on what runs that stop still have, and others are there already.
            if pod.cause in KEPT:
                kept.append((GpuOwner(pool, flavor, GpuCause.OUT) if is_out else owner, amount))
            else:
                yield owner, amount
        yield GpuOwner(pool, flavor, GpuCause.OTHERS), others
        yield from kept
        yield GpuOwner(pool, flavor, GpuCause.OUT if is_out else GpuCause.FREE), capacity

    found, left = Counter({GpuOwner(pool, flavor, GpuCause.CAPACITY): capacity}), capacity
    for owner, amount in claims():
        # At most what is left: a pod goes on on a node that shrank, and the kubelet gives it what there is.
        took = min(left, amount)
        left -= took
        found[owner] += took
    return +found, None
