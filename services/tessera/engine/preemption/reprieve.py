"""A gang whose pods keep their nodes while losses there are given back one after the other: cheap, and never wrong."""

from collections.abc import Mapping, Sequence

from tessera.domain.devices.networks import pools_drawn, spread
from tessera.domain.devices.resources import Node, RoleNeed
from tessera.domain.work.gang import gang_of
from tessera.engine.placement.fits import closed, kind_of, placed_on, short_of
from tessera.engine.preemption.candidates import Candidate
from tessera.engine.preemption.node_steps import take, without
from tessera_schemas.work.placement import Placement


class Fixed:
    """The nodes that the gang is on, as they are without it and without what is still taken."""

    def __init__(
        self,
        roles: tuple[RoleNeed, ...],
        nodes: Mapping[str, Node],
        taken: Sequence[Candidate],
        placements: Sequence[Placement],
    ) -> None:
        self._gang, self._of_gpus = gang_of(roles), gang_of(roles).amount.gpu_milli > 0
        self._pods: dict[str, list[Placement]] = {}
        for placement in placements:
            self._pods.setdefault(placement.node, []).append(placement)
        self._nodes = {name: nodes[name] for name in self._pods}
        for candidate in taken:
            take(self._nodes, candidate)
        # Nodes here are without the gang: `_refit` places its pods anew with each candidate back, so that devices may
        # change while nodes do not.
        self._placed = {name: list(pods) for name, pods in self._pods.items()}

    def give_back(self, candidate: Candidate) -> bool:
        """Whether the pods still find room with the loss back in its place; if so, it is back."""
        # Where the gang has no pod the candidate takes nothing from it: there it comes back for free.
        names = {place.node: None for place in candidate.places if place.node in self._pods}
        ours = (place for placed in self._placed.values() for place in placed)
        if pools_drawn((*candidate.places, *ours)):
            names = dict.fromkeys(self._pods)  # what is had of a network on one node is gone on another
        nodes = {name: without(self._nodes[name], candidate, 1) for name in names}
        placed = self._refit(dict(nodes))
        if placed is None:
            return False
        # All or nothing: a gang of victims on several nodes is back on all of them or on none, and until here nothing
        # was changed.
        self._nodes |= nodes
        self._placed |= placed
        return True

    def _refit(self, nodes: dict[str, Node]) -> dict[str, list[Placement]] | None:
        """The gang's pods on these nodes placed anew there, which changes `nodes`; None where one finds no room."""
        found: dict[str, list[Placement]] = {name: [] for name in nodes}
        for pod in [pod for name in nodes for pod in self._pods[name]]:
            need, node = self._gang.need_at(pod), nodes[pod.node]
            # Whether the node suits the pod at all was answered when the pod was placed there, and nothing that comes
            # back changes labels, taints or models. Only amounts are compared, which is what makes this cheap.
            if short_of(kind_of((need,), self._of_gpus), node) is not None:
                return None
            placement = placed_on(node, need, pod.rank, pod.role)
            node = node.taking(need, placement, 1)
            nodes[pod.node] = closed(node, placement.devices) if need.apart else node
            if placement.drawn:
                spread(nodes, (placement,), 1)
            found[pod.node].append(placement)
        return found

    def placements(self) -> tuple[Placement, ...]:
        """Present placement of each pod, in rank order."""
        return tuple(sorted((p for placed in self._placed.values() for p in placed), key=lambda p: p.rank))
