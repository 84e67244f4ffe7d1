"""The nodes of a pool by what never changes within a pass: which suit a need at all, and which lie in which domain."""

from collections.abc import Hashable, Iterable, Mapping

from tessera.domain.resources import Node
from tessera.engine.fits import never_fits, never_key
from tessera.engine.units import Part


class Places:
    """
    Remembers what it was asked, so that gangs with equal constraints share the work.

    Allocations change what is free on a node, never its labels, taints or readiness: it serves for as long as the
    nodes are the same but for that.
    """

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._suited: dict[Hashable, dict[str, None]] = {}
        self._values: dict[str, dict[str, str]] = {}
        self._domains: dict[str, dict[str, list[str]]] = {}

    def suited(self, part: Part) -> dict[str, None]:
        """The names of the nodes that suit every pod of a bundle, whatever room they have now."""
        key = tuple(never_key(need) for need in part.needs)
        found = self._suited.get(key)
        if found is None:
            needs = part.needs
            found = self._suited[key] = {
                name: None
                for name, node in self._nodes.items()
                if all(never_fits(need, node) is None for need in needs)
            }
        return found

    def values(self, level: str) -> dict[str, str]:
        """The domain of each node at this level; nodes without the label are in none and are left out."""
        found = self._values.get(level)
        if found is None:
            found = self._values[level] = {
                name: value for name, node in self._nodes.items() for key, value in node.labels if key == level
            }
        return found

    def domains(self, level: str) -> dict[str, list[str]]:
        """The nodes of each domain of this level."""
        found = self._domains.get(level)
        if found is None:
            found = self._domains[level] = self.split(self._nodes, level)
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
