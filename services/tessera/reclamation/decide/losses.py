"""Which runs lost what they stand on: a node, a device of it, or their time. Pure; times are ledger milliseconds."""

from collections.abc import Iterable, Mapping, Sequence

from tessera.domain.entities import Run
from tessera.domain.resources import Node
from tessera_schemas.facts import RunLost
from tessera_schemas.reasons import Code, Reason

NODES_MAX = 64


def lost_with_nodes(run: Run, lost: Mapping[str, tuple[str, int]]) -> RunLost | None:
    """The fact, if any of the run's nodes is among `lost` (name: what is wrong with it, seconds)."""
    names = sorted({placement.node for placement in run.places} & lost.keys())
    if not names:
        return None
    what, seconds = lost[names[0]]
    numbers = {"seconds": seconds, "nodes": len(names)}
    reason = Reason(code=Code.NODE_LOST, field=f"nodes.{names[0]}", numbers=numbers, detail=f"{names[0]} is {what}")
    return RunLost(kind="run_lost", run_id=run.run_id, reason=reason, nodes=tuple(names[:NODES_MAX]))


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
    lost = [run for run in staying if _holds_gpu_beyond(run, node)]
    staying = [run for run in staying if run not in lost]
    for name, size in _device_sizes(node, staying).items():
        by_amount = sorted(staying, key=lambda run: (-_held(run, node, name), run.run_id))
        while sum(_held(run, node, name) for run in staying) > size:
            worst = next(run for run in by_amount if run in staying)
            staying.remove(worst)
            lost.append(worst)
    return lost


def shrunk(run: Run, node: Node) -> RunLost:
    numbers = {"gpus": node.gpus}
    reason = Reason(code=Code.NODE_SHRUNK, field=f"nodes.{node.name}", numbers=numbers, detail=node.name)
    return RunLost(kind="run_lost", run_id=run.run_id, reason=reason, nodes=(node.name,))


def overdue(run: Run, limit_seconds: int, slack_seconds: int, now_ms: int) -> RunLost | None:
    """The fact, if the run has gone on beyond its time limit and its kubelets have not ended it."""
    if not run.started or run.stopping or now_ms < run.started_ts + (limit_seconds + slack_seconds) * 1000:
        return None
    numbers = {"limit_seconds": limit_seconds, "seconds": (now_ms - run.started_ts) // 1000}
    reason = Reason(code=Code.TIME_LIMIT, numbers=numbers, detail="its kubelet did not end it")
    return RunLost(kind="run_lost", run_id=run.run_id, reason=reason)


def _holds_gpu_beyond(run: Run, node: Node) -> bool:
    return any(d >= node.gpus for p in run.places if p.node == node.name for d in p.devices)


def _device_sizes(node: Node, runs: Sequence[Run]) -> dict[str, int]:
    """The further devices that are held on the node, and how many it has: 0 of those it does not name any more."""
    asked = {name for run in runs for role in run.roles for name, _ in role.need.devices}
    return {name: dict(node.devices).get(name, 0) for name in sorted(asked)}


def _held(run: Run, node: Node, device: str) -> int:
    needs = {role.name: dict(role.need.devices) for role in run.roles}
    return sum(needs[p.role].get(device, 0) for p in run.places if p.node == node.name)
