"""
Devices of each pod of a job, in words, and the isolation of programs that have parts of one.

Slots of a node whose kubelet picks the cards are counted and are no certain cards; a card has a name where the node's
profile names it, or a driver publishes it.
"""

from collections.abc import Iterator

from tessera.domain.devices.resources import WHOLE_GPU, Node
from tessera.domain.entities import Job, Run
from tessera.domain.state import State
from tessera.engine.explain.blockers import name_some
from tessera_schemas.cluster.devices import NAMES_ITS_CARDS, isolation_of
from tessera_schemas.text.units import format_milli
from tessera_schemas.work.placement import DrawnDevice, Placement

PODS_TOLD_MAX = 8


def describe_held_devices(state: State, job: Job, run: Run) -> Iterator[str]:
    """Sentences about each of the first pods that have devices, and the number of the others."""
    profiles = {role.name: role.need.mig_profile for role in job.roles}
    having = [place for place in run.places if place.devices or place.drawn]
    for place in having[:PODS_TOLD_MAX]:
        node = state.nodes.get(place.node)
        slots = [_describe_slots(place, node, profiles.get(place.role, ""))] if place.devices else []
        claimed = [_describe_drawn(each, place.node, node) for each in place.drawn]
        yield f"Pod {place.rank} has on {place.node}: {name_some([*slots, *claimed])}."
    if len(having) > PODS_TOLD_MAX:
        yield f"{len(having) - PODS_TOLD_MAX} further pods have devices, too; `tessera get` lists them."


def _describe_slots(place: Placement, node: Node | None, mig_profile: str) -> str:
    """Slots of a pod on a node of a device plugin."""
    profile, names = ("", ()) if node is None else (node.device_profile, node.gpu_uuids)
    is_named = profile in NAMES_ITS_CARDS and max(place.devices) < len(names)
    cards = [names[slot] if is_named else str(slot) for slot in place.devices]
    if place.mig is not None:
        at = [f"slice {start} of GPU {card}" for card, (_, start) in zip(cards, place.instances, strict=True)]
        what = "MIG instance" if len(at) == 1 else f"{len(at)} MIG instances"
        return f"{what} {mig_profile} at {name_some(at)} (isolation: hardware)"
    which = f"{'GPU' if len(cards) == 1 else 'GPUs'} {name_some(cards)}"
    is_share = place.gpu_milli < WHOLE_GPU
    part = f"{format_milli(place.gpu_milli)} of {'' if len(cards) == 1 else 'each of '}" if is_share else ""
    return f"{part}{which} (isolation: {isolation_of(profile, 'share' if is_share else 'whole')})"


def _describe_drawn(drawn: DrawnDevice, node_name: str, node: Node | None) -> str:
    """A device that a driver publishes. What is published no more has its name alone."""
    offer = None if node is None else node.offer
    at = None if offer is None else offer.find(drawn.id, node_name)
    said = [f"claim {drawn.claim}"]
    if drawn.admin:
        said.append("looks after it")
    elif offer is not None and at is not None:
        device = offer.devices[at]
        if device.gpu is not None:
            said.append(f"{format_milli(device.part(dict(drawn.capacity)))} of GPU {device.gpu}")
        # Where a device is no GPU nobody says what keeps its shares apart.
        if device.gpu is not None or device.is_shared_gpu:
            said.append(f"isolation: {device.isolation}")
    return f"{drawn.id} ({', '.join(said)})"
