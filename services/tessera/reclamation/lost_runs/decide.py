"""Runs that lost a node, a device or their time. Pure; times are ledger milliseconds."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tessera.domain.entities import Run
from tessera.domain.resources import Node
from tessera.engine.placement.capacity import standing
from tessera_schemas.facts import RunLost
from tessera_schemas.labels import has_ended, has_succeeded
from tessera_schemas.placement import Placement
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.resource_kinds import is_device

NODES_MAX = 64


def lost_with_nodes(run: Run, lost: Mapping[str, tuple[str, int]]) -> RunLost | None:
    """The fact, if any of the run's nodes is among `lost` (name: what is wrong with it, seconds)."""
    there = [placement for placement in standing(run) if placement.node in lost]
    if not there:
        return None
    names = sorted({placement.node for placement in there})
    what, seconds = lost[names[0]]
    numbers = {"seconds": seconds, "nodes": len(names)}
    reason = Reason(code=Code.NODE_LOST, field=f"nodes.{names[0]}", numbers=numbers, detail=f"{names[0]} is {what}")
    nodes, ranks = tuple(names[:NODES_MAX]), beyond_its_gang(run, there)
    return RunLost(kind="run_lost", run_id=run.run_id, reason=reason, nodes=nodes, ranks=ranks)


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


def shrunk_under(node: Node, runs: Iterable[Run]) -> list[Run]:
    """
    The fewest of the node's runs (none of them stopping) without which it has what the others hold.

    Who holds a GPU that is not there any more has lost it. Of further devices only the number is known: who holds most
    goes first. CPU and memory are no reason: a kubelet that counts them anew ends itself what it cannot keep, and what
    it keeps runs well. A node that is not ready says nothing about its size.
    """
    if node.gone or not node.ready:
        return []
    staying = sorted((run for run in runs if not run.stopping), key=lambda run: run.run_id)
    lost = [run for run in staying if _beyond(run, node)]
    staying = [run for run in staying if run not in lost]
    for name, size in _device_sizes(node, staying).items():
        by_amount = sorted(staying, key=lambda run: (-_held(run, node, name), run.run_id))
        while sum(_held(run, node, name) for run in staying) > size:
            worst = next(run for run in by_amount if run in staying)
            staying.remove(worst)
            lost.append(worst)
    return lost


def shrunk(run: Run, node: Node) -> RunLost:
    """The fact about one of `shrunk_under`: it goes on if what it has there, or what it lost, is beyond its gang."""
    numbers = {"gpus": node.gpus}
    reason = Reason(code=Code.NODE_SHRUNK, field=f"nodes.{node.name}", numbers=numbers, detail=node.name)
    ranks = beyond_its_gang(run, _beyond(run, node) or [p for p in standing(run) if p.node == node.name])
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


def _beyond(run: Run, node: Node) -> list[Placement]:
    """Pods of the run on GPUs that no longer exist, without pods that are already leaving."""
    return [p for p in standing(run) if p.node == node.name and any(d >= node.gpus for d in p.devices)]


def _device_sizes(node: Node, runs: Sequence[Run]) -> dict[str, int]:
    """The further devices that are held on the node, and how many it has: 0 of those it does not name any more."""
    asked = {name for run in runs for role in run.roles for name, _ in role.need.devices if is_device(name)}
    return {name: dict(node.devices).get(name, 0) for name in sorted(asked)}


def _held(run: Run, node: Node, device: str) -> int:
    return sum(dict(run.gang.need_of[p.role].devices).get(device, 0) for p in standing(run) if p.node == node.name)
