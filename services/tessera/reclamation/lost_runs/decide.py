"""Runs that lost a node, a device or their time. Pure; times are ledger milliseconds."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tessera.domain.devices.resources import Node
from tessera.domain.entities import Run
from tessera.domain.work.stops import missing_gpus
from tessera.engine.placement.capacity import standing
from tessera_schemas.cluster.labels import has_ended, has_succeeded
from tessera_schemas.cluster.resource_kinds import is_device
from tessera_schemas.facts import RunLost
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import Placement

NODES_MAX = 64
OTHER_DEVICES = (Code.DEVICES_CHANGED, Code.DEVICE_UNHEALTHY)
"""Troubles of nodes that name their cards: one that a run holds is not among them, or not well."""


def lost_with_nodes(run: Run, lost: Mapping[str, tuple[str, int]], told: Collection[str] = ()) -> RunLost | None:
    """
    The fact, if any of the run's nodes is among `lost` (name: what is wrong with it, seconds).

    `told` are the nodes that an operator said are off: one of them is named first, and its word is enough.
    """
    there = [placement for placement in standing(run) if placement.node in lost]
    if not there:
        return None
    names = sorted({placement.node for placement in there}, key=lambda name: (name not in told, name))
    what, seconds = lost[names[0]]
    numbers = {"seconds": seconds, "nodes": len(names)}
    reason = Reason(code=Code.NODE_LOST, field=f"nodes.{names[0]}", numbers=numbers, detail=f"{names[0]} is {what}")
    nodes, ranks = tuple(names[:NODES_MAX]), beyond_its_gang(run, there)
    said = names[0] in told
    return RunLost(kind="run_lost", run_id=run.run_id, reason=reason, nodes=nodes, ranks=ranks, told=said)


def find_drained(run: Run, cordoned: Mapping[str, int]) -> RunLost | None:
    """The fact, if any of the run's nodes is among `cordoned` (name: for how many seconds)."""
    lost = lost_with_nodes(run, {name: ("cordoned", seconds) for name, seconds in cordoned.items()})
    if lost is None:
        return None
    return lost.model_copy(update={"reason": lost.reason.model_copy(update={"code": Code.NODE_DRAINED})})


def beyond_its_gang(run: Run, there: Iterable[Placement]) -> tuple[int, ...]:
    """The ranks of these pods, when the run grew by all of them and so can go on without; () when it cannot."""
    ranks = tuple(sorted(placement.rank for placement in there))
    return ranks if ranks and ranks[0] >= len(run.placements) else ()


def is_short(node: Node, runs: Sequence[Run]) -> bool:
    """
    Whether the node offers fewer devices than its runs (none of them stopping) hold, or other cards than theirs.

    Where nobody names cards only sums compare: which slots a run has is a matter of our books. CPU and memory are not
    looked at: a kubelet that counts them anew ends itself what it cannot keep. Of a node that is gone or silent nothing
    is known.
    """
    if node.gone or node.silent or not runs:
        return False
    if node.trouble is not None and node.trouble.code in OTHER_DEVICES:
        return True
    return missing_gpus(node, runs) > 0 or any(
        sum(_held(run, node, name) for run in runs) > size for name, size in _device_sizes(node, runs).items()
    )


def broken(run: Run, node: Node, pods: Mapping[int, Sequence[str]]) -> RunLost | None:
    """
    The fact about a run on a node that is short, if its pods (rank: their devices that are not well) say that it lost.

    A plugin that is away offers nothing, and its containers go on: only the kubelet's word on the pod's own devices is
    proof. The run goes on if what it lost is beyond its gang.
    """
    there = [place for place in standing(run) if place.node == node.name and pods.get(place.rank)]
    if not there:
        return None
    numbers = {"gpus": node.gpus, "pods": len(there)}
    detail = f"{node.name} says that {', '.join(sorted({name for p in there for name in pods[p.rank]}))} is unhealthy"
    reason = Reason(code=Code.NODE_SHRUNK, field=f"nodes.{node.name}", numbers=numbers, detail=detail[:1024])
    ranks = beyond_its_gang(run, there)
    return RunLost(kind="run_lost", run_id=run.run_id, reason=reason, nodes=(node.name,), ranks=ranks)


def overdue(run: Run, limit_seconds: int, slack_seconds: int, seconds: int) -> RunLost | None:
    """
    The fact, if the run has gone on beyond its time limit; with slack, which its kubelets have had to end it.

    `seconds` it has run. One clock has counted them: the difference of two clocks is no time that passed.
    """
    if not run.started or run.stopping or seconds < limit_seconds + slack_seconds:
        return None
    numbers = {"limit_seconds": limit_seconds, "seconds": seconds}
    reason = Reason(code=Code.TIME_LIMIT, numbers=numbers, detail="its kubelet did not end it" if slack_seconds else "")
    return RunLost(kind="run_lost", run_id=run.run_id, reason=reason)


def works_still(run: Run, pods: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a pod of the run works and none of its gang has failed: what has ended is never overdue."""
    ours = [pod for pod in pods if pod["metadata"]["uid"] in run.permitted]
    failed = any(has_ended(pod) and not has_succeeded(pod) and pod["metadata"]["uid"] in run.uids for pod in ours)
    return not failed and any(not has_ended(pod) for pod in ours)


def _device_sizes(node: Node, runs: Sequence[Run]) -> dict[str, int]:
    """The further devices that are held on the node, and how many it has: 0 of those it does not name any more."""
    asked = {name for run in runs for role in run.roles for name, _ in role.need.devices if is_device(name)}
    return {name: dict(node.devices).get(name, 0) for name in sorted(asked)}


def _held(run: Run, node: Node, device: str) -> int:
    return sum(dict(run.gang.need_of[p.role].devices).get(device, 0) for p in standing(run) if p.node == node.name)
