"""The checker's own reading of terms about pods of other jobs: which of them a placement breaks."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tessera_schemas.facts import NodeSeen
from tessera_schemas.job import Neighbours, Role

NOTHING = Neighbours()


@dataclass(frozen=True, slots=True)
class StandingPod:
    tenant: str
    role: Role
    node: str
    levels: Mapping[str, str]  # node label of each level, as its job knows it

    @property
    def terms(self) -> Neighbours:
        return self.role.neighbours or NOTHING


def crossed(pod: StandingPod, others: Iterable[StandingPod], nodes: Mapping[str, NodeSeen]) -> Iterator[str]:
    """Conditions, of the pod and of those that stood before, that do not hold where it is placed."""
    there = [other for other in others if other.tenant == pod.tenant]

    def domain(of: StandingPod, topology: str, levels: Mapping[str, str]) -> str | None:
        node = nodes.get(of.node)
        return None if node is None else node.labels.get(levels.get(topology, topology))

    def shared(one: StandingPod, other: StandingPod, topology: str) -> bool:
        own = domain(one, topology, one.levels)
        return own is not None and own == domain(other, topology, one.levels)

    for one, other in [(pod, other) for other in there] + [(other, pod) for other in there]:
        for term in one.terms.apart_from:
            is_meant = not term.weight and term.labels.items() <= other.terms.labels.items()
            if is_meant and shared(one, other, term.topology):
                yield f"{term.labels} is in its {term.topology}"
    for term in pod.terms.near:
        meant = [other for other in there if term.labels.items() <= other.terms.labels.items()]
        first = not meant and term.labels.items() <= pod.terms.labels.items()
        if not (term.weight or first or any(shared(pod, other, term.topology) for other in meant)):
            yield f"no {term.labels} is in its {term.topology}"
