"""
Steps per node: pieces to take so that a node takes one more pod, then another; of all nodes, cheapest per pod first.

A step is whole: it makes room for at least one pod of the largest kind. So eight GPUs that are wanted on one node are
never freed as one GPU here and one there.
"""

from collections.abc import Iterator, Mapping, Sequence

from tessera.domain.devices.resources import Node
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.fits import count_bundles
from tessera.engine.placement.placement_groups import BundleSet
from tessera.engine.preemption.candidates import Candidate


def node_steps(
    bundle_sets: Sequence[BundleSet], nodes: Mapping[str, Node], places: FeasibleNodes, candidates: Sequence[Candidate]
) -> list[list[Candidate]]:
    """`candidates` are cheapest first; those that no step needs are in none, and some are in the steps of two nodes."""
    # The largest kind of pods decides what a step is: where one of them fits, the smaller ones of the gang find room
    # more easily. A step for the small kind would free crumbs that the large one cannot use.
    bundles = max(bundle_sets, key=_size)
    here: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        for name in dict.fromkeys(placement.node for placement in candidate.places):
            here.setdefault(name, []).append(candidate)
    ranked: list[tuple[int, int, str, int, list[Candidate]]] = []
    # Room on a node that does not suit the pods helps nobody, so that a run there gets no step and stays.
    for name in here.keys() & places.suited(bundles.kind).keys():
        # A node's second step can only be taken after its first. Its price per pod is therefore raised to the dearest
        # so far: the sort below then never names a later step of a node before an earlier one.
        dearest = 0
        for at, (picked, more) in enumerate(_steps(bundles, nodes[name], here[name])):
            dearest = max(
                dearest, sum(candidate.cost for candidate in picked) // more
            )  # a step comes after those before it
            ranked.append((dearest, len(picked), name, at, picked))
    # The count of pieces is left out: of equal prices the name of the node decides, then the order of steps, so that
    # equal inputs give equal plans.
    ranked.sort(key=lambda entry: (entry[0], entry[2], entry[3]))
    return _each_once(ranked)


def _each_once(ranked: list[tuple[int, int, str, int, list[Candidate]]]) -> list[list[Candidate]]:
    seen: set[int] = set()
    steps = []
    for *_, picked in ranked:
        # A gang on two nodes stands in the steps of both. Whichever comes first takes all of it, and the other node's
        # step gets cheaper by that.
        fresh = [candidate for candidate in picked if id(candidate) not in seen]
        seen.update(map(id, fresh))
        if fresh:
            steps.append(fresh)
    return steps


def _steps(bundles: BundleSet, node: Node, candidates: Sequence[Candidate]) -> Iterator[tuple[list[Candidate], int]]:
    """Pieces to take next from the node, and the number of further pods that it takes then."""
    have, picked = count_bundles(bundles.kind, node), list[Candidate]()
    for candidate in candidates:
        if have >= bundles.count:
            return
        node = without(node, candidate)
        picked.append(candidate)
        now = min(bundles.count, count_bundles(bundles.kind, node))
        if now <= have:
            continue
        # Cheapest first is not fewest: a piece taken early may turn out useless once a larger one behind it is gone. So
        # each earlier piece is put back on trial, quadratic in the pieces of one node, of which there are few.
        for other in picked[-2::-1]:  # the dearest first; the last one is needed
            again = without(node, other, 1)
            if count_bundles(bundles.kind, again) >= now:
                node = again
                picked.remove(other)
        yield picked, now - have
        have, picked = now, []


def without(node: Node, candidate: Candidate, sign: int = -1) -> Node:
    """The node without what the loss holds there, or with it again."""
    there = {node.name: node}
    candidate.run.gang.take(there, candidate.places, sign)
    return there[node.name]


def take(nodes: dict[str, Node], candidate: Candidate) -> None:
    """Change those of `nodes` that the loss is on to what they are without it."""
    candidate.run.gang.take(nodes, candidate.places, -1)


def _size(bundles: BundleSet) -> tuple[int, int, int, str]:
    """Difficulty of placing one group of pods."""
    return (
        sum(need.total_gpu_milli for need in bundles.needs),
        sum(need.cpu_milli for need in bundles.needs),
        sum(need.memory_bytes for need in bundles.needs),
        bundles.role.name,
    )
