"""
Steps per node: pieces to take so that a node takes one more pod, then another; of all nodes, cheapest per pod first.

A step is whole: it makes room for at least one pod of the largest kind. So eight GPUs that are wanted on one node are
never freed as one GPU here and one there.
"""

from collections.abc import Iterator, Mapping, Sequence

from tessera.domain.resources import Node
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.placement_groups import Part, bundles_for
from tessera.engine.preemption.candidates import Loss


def node_steps(
    parts: Sequence[Part], nodes: Mapping[str, Node], places: FeasibleNodes, losses: Sequence[Loss]
) -> list[list[Loss]]:
    """`losses` are cheapest first; those that no step needs are in none, and some are in the steps of two nodes."""
    part = max(parts, key=_size)
    here: dict[str, list[Loss]] = {}
    for loss in losses:
        for name in dict.fromkeys(placement.node for placement in loss.places):
            here.setdefault(name, []).append(loss)
    ranked: list[tuple[int, int, str, int, list[Loss]]] = []
    for name in here.keys() & places.suited(part).keys():
        dearest = 0
        for at, (picked, more) in enumerate(_steps(part, nodes[name], here[name])):
            dearest = max(dearest, sum(loss.cost for loss in picked) // more)  # a step comes after those before it
            ranked.append((dearest, len(picked), name, at, picked))
    ranked.sort(key=lambda entry: (entry[0], entry[2], entry[3]))
    return _each_once(ranked)


def _each_once(ranked: list[tuple[int, int, str, int, list[Loss]]]) -> list[list[Loss]]:
    seen: set[int] = set()
    steps = []
    for *_, picked in ranked:
        fresh = [loss for loss in picked if id(loss) not in seen]
        seen.update(map(id, fresh))
        if fresh:
            steps.append(fresh)
    return steps


def _steps(part: Part, node: Node, losses: Sequence[Loss]) -> Iterator[tuple[list[Loss], int]]:
    """Pieces to take next from the node, and the number of further pods that it takes then."""
    have, picked = bundles_for(part, node), list[Loss]()
    for loss in losses:
        if have >= part.count:
            return
        node = without(node, loss)
        picked.append(loss)
        now = min(part.count, bundles_for(part, node))
        if now <= have:
            continue
        for other in picked[-2::-1]:  # the dearest first; the last one is needed
            again = without(node, other, 1)
            if bundles_for(part, again) >= now:
                node = again
                picked.remove(other)
        yield picked, now - have
        have, picked = now, []


def without(node: Node, loss: Loss, sign: int = -1) -> Node:
    """The node without what the loss holds there, or with it again."""
    there = {node.name: node}
    loss.run.gang.take(there, loss.places, sign)
    return there[node.name]


def take(nodes: dict[str, Node], loss: Loss) -> None:
    """Change those of `nodes` that the loss is on to what they are without it."""
    loss.run.gang.take(nodes, loss.places, -1)


def _size(part: Part) -> tuple[int, int, int, str]:
    """Difficulty of placing one group of pods."""
    return (
        sum(need.total_gpu_milli for need in part.needs),
        sum(need.cpu_milli for need in part.needs),
        sum(need.memory_bytes for need in part.needs),
        part.role.name,
    )
