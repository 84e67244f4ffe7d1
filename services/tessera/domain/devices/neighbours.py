"""
Terms about pods of other jobs, as decisions look at them, and the conditions on nodes that they amount to. Pure.

A term means pods by their labels and domains by a node's label. Where such pods stand is known to the fold, which turns
terms into conditions on the labels of nodes (`folding.standing`): so whatever looks for nodes needs to know no pods.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tessera.domain.storing.fast import fast_init, replace
from tessera_schemas.cluster.node_terms import Neighbours, PodTerm

Labels = tuple[tuple[str, str], ...]
"""Keys and values, in order."""
NodeConditions = tuple[tuple[str, str, tuple[str, ...]], ...]
"""Conditions on a node's labels, each of key, operator and values, in order."""
NodePreferences = tuple[tuple[int, NodeConditions], ...]
"""Weights, each of a node on which the conditions beside it all hold."""


@fast_init
@dataclass(frozen=True, slots=True, order=True)
class PodsMeant:
    """Pods with all of these labels; `at` is the node label whose values are domains, `weight` 0 a condition."""

    labels: Labels
    at: str
    weight: int = 0

    def selects(self, labels: Labels) -> bool:
        """Whether a pod with these labels is meant."""
        return set(self.labels) <= set(labels)


@fast_init
@dataclass(frozen=True, slots=True, order=True)
class NeighbourTerms:
    """
    Terms of a role's pods about those of other jobs of their tenant, and the labels by which others mean them.

    `preferred` are their own preferences for nodes, beside which those stand that follow from the terms.
    """

    tenant: str
    labels: Labels
    apart_from: tuple[PodsMeant, ...]
    near: tuple[PodsMeant, ...]
    preferred: NodePreferences = ()

    def bars(self, other: "NeighbourTerms") -> Iterator[str]:
        """Node labels in whose domains its pods keep those of the other out."""
        if other.tenant == self.tenant:
            yield from (term.at for term in self.apart_from if not term.weight and term.selects(other.labels))

    def heeds(self, other: "NeighbourTerms") -> bool:
        """Whether where pods of the other stand says anything about the nodes of its own."""
        own = any(term.selects(other.labels) for term in (*self.apart_from, *self.near))
        return self.tenant == other.tenant and (own or any(True for _ in other.bars(self)))

    def with_labels(self, levels: Mapping[str, str]) -> "NeighbourTerms":
        """The same with node labels in place of names of levels."""
        apart, near = (
            tuple(sorted(replace(term, at=levels.get(term.at, term.at)) for term in terms))
            for terms in (self.apart_from, self.near)
        )
        return replace(self, apart_from=apart, near=near)


def read_terms(said: Neighbours | None, tenant: str, preferred: NodePreferences) -> NeighbourTerms | None:
    """The terms of a role about pods of other jobs; None where it has none."""
    if said is None or not (said.labels or said.apart_from or said.near):
        return None
    labels = tuple(sorted(said.labels.items()))
    return NeighbourTerms(tenant, labels, _read(said.apart_from), _read(said.near), preferred)


def _read(terms: Iterable[PodTerm]) -> tuple[PodsMeant, ...]:
    return tuple(sorted({PodsMeant(tuple(sorted(t.labels.items())), t.topology, t.weight or 0) for t in terms}))


def own_pods_meant(roles: Sequence[tuple[Neighbours | None, int]]) -> Iterator[str]:
    """
    Fields of conditions that mean pods of their own job; `roles` are the terms and the number of pods of each role.

    A job of one pod may mean itself, and so other jobs like it; how pods of a gang lie to each other other fields say.
    """
    if sum(pods for _, pods in roles) < 2:
        return
    own = [said.labels.items() for said, _ in roles if said is not None]
    for at, (said, _) in enumerate(roles):
        for field in ("apart_from", "near") if said is not None else ():
            for index, term in enumerate(getattr(said, field)):
                if not term.weight and any(term.labels.items() <= labels for labels in own):
                    yield f"roles[{at}].neighbours.{field}[{index}]"
