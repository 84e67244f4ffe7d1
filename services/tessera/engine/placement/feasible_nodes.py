"""The nodes of a pool by what never changes within a pass: which suit a need at all, and which lie in which domain."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from functools import cached_property

from tessera.domain.devices.empty_nodes import emptied
from tessera.domain.devices.resources import Node
from tessera.domain.work.evidence import FitFailure
from tessera.engine.placement.fits import BundleKind, TaintParts, count_bundles, first_taint_against, never_fits
from tessera.engine.scoring.protocol import BEST_FIT, ScoringPolicy
from tessera_schemas.cluster.devices import isolation_of

NAMES_MAX = 2**25
"""Names of nodes that are remembered for all kinds of pods together."""


class FeasibleNodes:
    """
    Remembers what it was asked, so that gangs with equal constraints share the work.

    Allocations change what is free on a node, never its labels, taints or readiness: it serves for as long as the
    nodes are the same but for that.
    """

    def __init__(self, nodes: Mapping[str, Node], scoring: ScoringPolicy = BEST_FIT) -> None:
        """`scoring` says which node is taken of those that a pod fits."""
        self._nodes, self.scoring = nodes, scoring
        self._suited: dict[
            Hashable, tuple[dict[str, None], Counter[FitFailure], Counter[TaintParts], Counter[str]]
        ] = {}
        self._models: dict[Hashable, tuple[str, ...]] = {}
        self._values: dict[str, dict[str, str]] = {}
        self._domains: dict[str, dict[str, list[str]]] = {}
        self._holding: dict[tuple[BundleKind, str], list[str]] = {}

    def suited(self, kind: BundleKind) -> dict[str, None]:
        """The names of the nodes that suit every pod of a bundle, whatever room they have now."""
        return self._looked_at(kind)[0]

    def unsuited(self, kind: BundleKind) -> Counter[FitFailure]:
        """Number of other nodes, by the first test that they fail."""
        return self._looked_at(kind)[1]

    def taints(self, kind: BundleKind) -> Counter[TaintParts]:
        """Number of the nodes that fail the test of taints, by the first taint that keeps a pod out."""
        return self._looked_at(kind)[2]

    def isolations(self, kind: BundleKind) -> Counter[str]:
        """Number of the nodes that fail the test of isolation, by the one that their shares have."""
        return self._looked_at(kind)[3]

    def _looked_at(
        self, kind: BundleKind
    ) -> tuple[dict[str, None], Counter[FitFailure], Counter[TaintParts], Counter[str]]:
        # Kinds that differ only in amounts share an entry: amounts never decide whether a node could suit.
        key = kind.never
        found = self._suited.get(key)
        if found is None:
            # Conditions that follow from where pods stand are others every now and then.
            if len(self._suited) * len(self._nodes) > NAMES_MAX:
                self._suited.clear()
            found, needs = ({}, Counter(), Counter(), Counter()), tuple(dict.fromkeys(kind.needs))
            self._suited[key] = found
            for name, node in self._nodes.items():
                # All pods of a bundle go to one node, so that one of them that can never be there rules it out.
                missed = next(((need, miss) for need in needs if (miss := never_fits(need, node))), None)
                if missed is None:
                    found[0][name] = None
                    continue
                found[1][missed[1]] += 1
                if missed[1] is FitFailure.TAINT and (taint := first_taint_against(missed[0], node)) is not None:
                    found[2][taint] += 1
                if missed[1] is FitFailure.ISOLATION:
                    found[3][isolation_of(node.device_profile, "share")] += 1
        return found

    def models(self, kind: BundleKind) -> tuple[str, ...]:
        """GPU models of the nodes that suit it, in order; "" is the one of all GPUs whose model nobody names."""
        found = self._models.get(kind.never)
        if found is None:
            there = (self._nodes[name] for name in self.suited(kind))
            found = self._models[kind.never] = tuple(sorted({n.gpu_model for n in there if n.gpus or n.gpu_model}))
        return found

    @cached_property
    def any_ready(self) -> bool:
        """Whether a node takes pods at all."""
        return any(node.ready for node in self._nodes.values())

    @cached_property
    def cordoned(self) -> int:
        """Number of nodes that are well and take nothing new because somebody cordoned them."""
        return sum(node.cordoned for node in self._nodes.values())

    @cached_property
    def largest_gpus(self) -> Node | None:
        """The ready node whose GPUs have the most memory."""
        ready = (node for node in self._nodes.values() if node.ready)
        return max(ready, key=lambda node: node.gpu_memory_bytes, default=None)

    def values(self, level: str) -> dict[str, str]:
        """The domain of each node at this level; nodes without the label are in none and are left out."""
        found = self._values.get(level)
        if found is None:
            domains = self.domains(level)
            found = self._values[level] = {name: value for value, names in domains.items() for name in names}
        return found

    def holding(self, kind: BundleKind, label: str) -> list[str]:
        """The domains of the label with a node that would hold a bundle if it were empty."""
        found = self._holding.get((kind, label))
        if found is None:
            members = self.split(self.suited(kind), label)
            found = self._holding[kind, label] = [
                value
                for value, names in members.items()
                if any(count_bundles(kind, emptied(self._nodes[name])) for name in names)
            ]
        return found

    def domains(self, level: str) -> dict[str, list[str]]:
        """The nodes of each domain of this level."""
        found = self._domains.get(level)
        if found is None:
            found = self._domains[level] = {}
            for name, node in self._nodes.items():
                value = node.label(level)
                if value is not None:
                    found.setdefault(value, []).append(name)
        return found

    def split(self, names: Iterable[str], level: str) -> dict[str, list[str]]:
        """`names` by domain, without those that are in none."""
        values = self.values(level)
        domains: dict[str, list[str]] = {}
        for name in names:
            value = values.get(name)
            if value is not None:
                domains.setdefault(value, []).append(name)
        return domains
