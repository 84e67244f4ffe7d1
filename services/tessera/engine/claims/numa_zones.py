"""Pods on nodes whose kubelet keeps each within one NUMA zone, and refuses those that fit none now."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tessera.domain.devices.resources import Need, Node
from tessera.domain.devices.zones import ZoneAmounts, counted_in_zones, free_in_zones, holds
from tessera_schemas.cluster.labels import GPU_RESOURCE


def count_in_zones(needs: Sequence[Need], node: Node, most: int) -> int:
    """
    Number of bundles, `most` at most, of which each pod finds a zone of the node, as its zones are taken to be.

    Exact for bundles of one pod. Of a bundle of several each pod finds a zone for itself; which of them share one is
    left to the kubelet.
    """
    pods, free = _pods_in_zones(needs, node), _free_zones(node)
    # Whether two pods of a bundle find zones together is no search that a kubelet does: one pod comes after the other.
    if len(needs) > 1:
        return most if all(_is_held(pod, free) for pod in pods) else 0
    for pod in pods:
        # Each zone takes equal pods until the first of its amounts is short, whatever the other zones do.
        most = min(most, sum(min(zone.get(name, 0) // count for name, count in pod) for zone in free))
    return most


def describe_zones(needs: Sequence[Need], nodes: Iterable[Node]) -> str:
    """Words for nodes that have as much free as a pod of the bundle asks for, but in no single zone; "" without any."""
    found, small, most = Counter[ZoneAmounts](), Counter[ZoneAmounts](), dict[ZoneAmounts, tuple[int, list[int]]]()
    for node in nodes:
        free = _free_zones(node)
        pod = next((pod for pod in _pods_in_zones(needs, node) if not _is_held(pod, free)), None)
        if pod is None:
            continue
        found[pod] += 1
        # Nodes that would not do without any pod are told apart: waiting does not help there.
        small[pod] += not _is_held(pod, [dict(zone) for zone in node.zones])
        most[pod] = max(most.get(pod, (-1, [])), *(_nearness(pod, zone) for zone in free))
    if not found:
        return ""
    # Bundles may have several pods: the one that the most nodes are short of is told.
    pod, count = min(found.items(), key=lambda each: (-each[1], each[0]))
    names = sorted(range(len(pod)), key=lambda at: (pod[at][0] == "cpu", at))
    asked = _listed([_amount(*pod[at]) for at in names])
    there = _listed([str(most[pod][1][at] // (1000 if pod[at][0] == "cpu" else 1)) for at in names])
    empty = f", on {small[pod]} of them not even when empty" if small[pod] else ""
    return f"no NUMA zone of {count} {'node' if count == 1 else 'nodes'} has {asked}; at most {there}{empty}"


def _free_zones(node: Node) -> tuple[Mapping[str, int], ...]:
    """Amounts left of each zone of the node."""
    if not (node.gpu_others or node.others.devices):
        return free_in_zones(node.zones, node.in_zones)
    # Of pods of others no more is known than their sum: they are taken to be one pod, in the first zones that have it.
    asked = ((node.gpu_resource or GPU_RESOURCE, len(node.gpu_others)), *node.others.devices)
    return free_in_zones(node.zones, (*node.in_zones, counted_in_zones(asked, node.zones)))


def _pods_in_zones(needs: Sequence[Need], node: Node) -> list[ZoneAmounts]:
    """Amounts of each pod that the node's zones have; pods without any are left out."""
    pods = (counted_in_zones(need.by_the_piece(node.gpu_resource), node.zones) for need in needs)
    return [pod for pod in pods if pod]


def _is_held(pod: ZoneAmounts, free: Iterable[Mapping[str, int]]) -> bool:
    return any(holds(zone, pod) for zone in free)


def _nearness(pod: ZoneAmounts, zone: Mapping[str, int]) -> tuple[int, list[int]]:
    """Part of its scarcest amount that a pod would get in the zone, in thousandths; then each amount that it would."""
    there = [min(zone.get(name, 0), count) for name, count in pod]
    return min(had * 1000 // count for had, (_, count) in zip(there, pod, strict=True)), there


def _listed(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _amount(name: str, amount: int) -> str:
    if name != "cpu":
        return f"{amount} of {name}"
    return f"{amount // 1000} {'CPU' if amount == 1000 else 'CPUs'}"
