"""
NUMA zones of a node whose kubelet keeps each pod within one, as its NodeResourceTopology object says them. Pure.

Source: the API `topology.node.k8s.io/v1alpha2`, and what the topology updater of node feature discovery writes there.
"""

import re
from dataclasses import dataclass

from tessera.binder.workloads.reading import items, text
from tessera_schemas.base import INT_MAX, Json
from tessera_schemas.text.quantities import QuantityError, quantity

ZONES_MAX, NAMES_MAX, WORDS_MAX = 64, 64, 8
SINGLE = "single-numa-node"
POLICIES = ("", "none", "best-effort", "restricted", SINGLE)
_NAME = re.compile(r"[A-Za-z0-9._-]{1,63}/[A-Za-z0-9._-]{1,63}")
_NAME_MAX = 97
ZoneFacts = tuple[dict[str, int], ...]


@dataclass(frozen=True, slots=True)
class ZonesSeen:
    """
    Allocatable amounts of each zone by name, CPU in thousandths; no zones where the kubelet may spread a pod over them.

    `ignored` are the parts of the object that nothing is made of, and why.
    """

    zones: ZoneFacts = ()
    ignored: tuple[str, ...] = ()


def read_zones(found: Json) -> ZonesSeen:
    """Read one object; what cannot be read is ignored by name, and no amount of it counts in any zone."""
    policy, there = _policy(found), items(found, "zones")
    if policy not in POLICIES:
        return ZonesSeen(ignored=(f"the policy {policy[:64]!r} is not known",))
    # Kubelets align NUMA nodes alone; exporters list sockets, dies and pools of CPUs as zones of other types.
    numa = sorted((zone for zone in there if text(zone, "type") == "Node"), key=_number)
    # With one zone each pod is within it, whatever the policy.
    if policy != SINGLE and len(numa) != 1:
        return ZonesSeen()
    names = [text(zone, "name") for zone in numa]
    if not numa:
        return ZonesSeen(ignored=(f"the policy is {SINGLE}, and no zone is of the type Node",))
    if len(numa) > ZONES_MAX or len(set(names)) < len(names):
        return ZonesSeen(ignored=(f"{len(names)} zones have {len(set(names))} names; {ZONES_MAX} are read",))
    faults = dict[str, str]()
    zones = [_amounts(zone, faults) for zone in numa]
    if max(map(len, zones)) > NAMES_MAX:
        return ZonesSeen(ignored=(f"a zone has more than {NAMES_MAX} resources",))
    # What one zone says and nobody can read may be anything: of such a resource nothing is known in the others.
    kept = tuple({name: zone[name] for name in sorted(zone) if name not in faults} for zone in zones)
    ignored = tuple(f"{name[:128]}: {faults[name]}" for name in sorted(faults)[:WORDS_MAX])
    return ZonesSeen(kept if any(kept) else (), ignored)


def _policy(found: Json) -> str:
    """The topology manager's policy by the attributes, else by the older list; "" where nothing says it."""
    said = (text(each, "value") for each in items(found, "attributes") if text(each, "name") == "topologyManagerPolicy")
    policy = next(said, "")
    older = found.get("topologyPolicies")
    if policy or not isinstance(older, list):
        return policy
    return SINGLE if any(str(each).startswith("SingleNUMANode") for each in older) else ""


def _number(zone: Json) -> tuple[int, str]:
    """Place of a zone among the others: by the number in its name, as kubelets prefer them."""
    name = text(zone, "name")
    number = re.search("[0-9]{1,9}$", name)
    return (int(number[0]) if number else INT_MAX), name


def _amounts(zone: Json, faults: dict[str, str]) -> dict[str, int]:
    """Amounts by the piece; `faults` gains the resources that cannot be read."""
    found = dict[str, int]()
    for each in items(zone, "resources"):
        name, said = text(each, "name"), each.get("allocatable")
        # Memory and huge pages have zones too, and are handed out by other rules.
        if name != "cpu" and "/" not in name:
            continue
        try:
            amount = int(quantity(said if isinstance(said, str | int) else "") * (1000 if name == "cpu" else 1))
        except QuantityError:
            faults[name] = "its allocatable amount is not a quantity"
            continue
        if name in found:
            faults[name] = "a zone has it twice"
        elif amount > INT_MAX or len(name) > _NAME_MAX or not (name == "cpu" or _NAME.fullmatch(name)):
            faults[name] = "its name or its amount is too long"
        # Of CPUs without a static CPU manager there are none to hand out, and they are of no zone.
        elif amount:
            found[name] = amount
    return found
