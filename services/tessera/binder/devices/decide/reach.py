"""Nodes from which published devices can be had, as slices say them: one by name, those of a selector, or all. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tessera_schemas.base import Json
from tessera_schemas.cluster.node_terms import Operator, label_holds

LabelCondition = tuple[str, str, tuple[str, ...]]
"""Key, operator and values."""
_NAME = "metadata.name"


class UnreadableSlice(ValueError):
    """Error for a slice or a pool that cannot be used, in words for an operator."""


@dataclass(frozen=True, slots=True)
class NodeReach:
    """
    The node called `node`; else each one on which all conditions hold, those on its `labels` and those on its `names`.

    Without any of these it is every node.
    """

    node: str = ""
    labels: tuple[LabelCondition, ...] = ()
    names: tuple[LabelCondition, ...] = ()

    def includes(self, node: str, labels: Mapping[str, str]) -> bool:
        """Whether the devices can be had on a node of that name and labels."""
        if self.node:
            return self.node == node
        return all(label_holds(operator, values, labels.get(key)) for key, operator, values in self.labels) and all(
            label_holds(operator, values, node) for _, operator, values in self.names
        )


EVERY_NODE = NodeReach()


def read_reach(source: Json, owner: str) -> NodeReach:
    """The nodes that a slice or a device says. Raises UnreadableSlice, in which `owner` says whose they are."""
    node, selector, every = (source.get(name) for name in ("nodeName", "nodeSelector", "allNodes"))
    if len([each for each in (node, selector, every) if each]) != 1:
        raise UnreadableSlice(f"{owner} names not one of nodeName, nodeSelector and allNodes")
    if node:
        if type(node) is not str:
            raise UnreadableSlice(f"{node!r:.50} is no name of a node")
        return NodeReach(node)
    return EVERY_NODE if every is True else _read_selector(selector, owner)


def _read_selector(selector: Any, owner: str) -> NodeReach:
    terms = selector.get("nodeSelectorTerms") or [] if type(selector) is dict else []
    # The API takes exactly one term here, and an empty one would mean no node.
    if len(terms) != 1 or not (terms[0].get("matchExpressions") or terms[0].get("matchFields")):
        raise UnreadableSlice(f"the node selector of {owner} is not one term")
    labels = _conditions(terms[0].get("matchExpressions") or [])
    names = _conditions(terms[0].get("matchFields") or [])
    if any(key != _NAME for key, _, _ in names):
        raise UnreadableSlice(f"the node selector of {owner} looks at another field than {_NAME}")
    return NodeReach("", labels, names)


def _conditions(source: Sequence[Json]) -> tuple[LabelCondition, ...]:
    found = tuple((str(one["key"]), str(one["operator"]), tuple(map(str, one.get("values") or ()))) for one in source)
    if strange := [operator for _, operator, _ in found if operator not in frozenset(Operator)]:
        raise UnreadableSlice(f"{strange[0]!r:.50} is no operator of a node selector")
    return tuple(sorted(found))
