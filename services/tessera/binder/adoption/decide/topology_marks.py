"""
Where the pods of a group are to be relative to each other, by other systems' marks and by Volcano's PodGroup. Pure.
"""

from tessera.binder.adoption.decide.mark_table import PREFERRED_TOPOLOGY, REQUIRED_TOPOLOGY, SHARED_DOMAIN
from tessera.binder.adoption.decide.marks import said
from tessera.binder.adoption.decide.reading import Json, mapping, no, text
from tessera_schemas.reasons import Code, Reason

NETWORK = "PodGroup.spec.networkTopology"
HARD = "hard"


def topology_of(pod: Json) -> Json | None:
    """The contract's `Topology` that Kueue's marks ask for: one domain, or as few as there can be."""
    for key, required in ((REQUIRED_TOPOLOGY, True), (PREFERRED_TOPOLOGY, False)):
        if level := said(pod, key):
            return {"level": level, "required": required, "group": said(pod, SHARED_DOMAIN) or None}
    return None


def network_topology(pod_group: Json | None) -> Json | Reason | None:
    """
    The `Topology` that Volcano's PodGroup asks for; its default mode is hard.

    A tier is known by its name, as a level of the configuration or a node label: which nodes a tier's number stands for
    only Volcano knows.
    """
    asked = mapping(pod_group, "spec", "networkTopology")
    if not asked:
        return None
    required, level = (text(asked, "mode") or HARD) == HARD, text(asked, "highestTierName")
    if level:
        return {"level": level, "required": required}
    if not required:
        return None
    way_out = "tiers are known by name: set highestTierName to a topology level of the configuration or a node label"
    return no(Code.NOT_SUPPORTED_YET, f"{NETWORK}.highestTierAllowed", way_out)


def unnamed_preference(pod_group: Json) -> list[str]:
    """What is said of a soft network topology that names no tier."""
    asked = mapping(pod_group, "spec", "networkTopology")
    is_lost = bool(asked) and network_topology(pod_group) is None
    return [f"{NETWORK}: nodes are chosen without it; highestTierName is honoured"] if is_lost else []
