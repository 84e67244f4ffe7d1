"""
Counted resources that a class of published devices answers, such as `nvidia.com/gpu` (extended resources).

On a node where no device plugin offers a resource and a class answers it, a pod that counts on the resource has one
claim more than it says: so many devices of that class. A node of a device plugin answers the same pod by slots.
"""

from functools import lru_cache

from tessera.domain.devices.claims import ChoiceNeed, ClaimNeed, RequestNeed
from tessera.domain.devices.offers import Offer
from tessera.domain.devices.resources import WHOLE_GPU, Need, Node, is_seat
from tessera.domain.work.evidence import FitFailure
from tessera.engine.claims.drawing import NO_OFFER, by_pod, count_sets, draw, free_devices, named
from tessera.engine.claims.shortages import Shortage
from tessera_schemas.cluster.devices import serves
from tessera_schemas.cluster.labels import GPU_RESOURCE
from tessera_schemas.cluster.resource_kinds import WHOLE_NODE
from tessera_schemas.work.placement import EXTENDED_CLAIM, DrawnDevice

SHARED_MAX = 1 << 20
"""Free devices of a class as long as one of them is shared: the draw says how many pods it takes."""


def claims_on(need: Need, node: Node) -> tuple[ClaimNeed, ...]:
    """The claims of a pod on that node: its own, then the one for the counted resources that a class answers there."""
    if node.offer is None or not (need.gpus or need.devices):
        return need.claims
    # One claim for all of them, as Kubernetes makes it: no device is given twice, whatever two classes have in common.
    counted = ((name, count) for name, count in need.devices if _is_published(node, node.offer, name))
    gpus = ((GPU_RESOURCE, need.gpus),) if need.gpus and node.device_profile == "dra" else ()
    return need.claims + _extended_claims(node.offer, (*gpus, *counted), need.isolation)


def sets_of(need: Need, node: Node, most: int) -> int:
    """Number of pods, at most `most`, for whose claims the node has devices."""
    claims = claims_on(need, node)
    return count_sets(free_devices(node), claims, most) if claims and most else most


def draw_bundle(needs: tuple[Need, ...], whole: Need, node: Node) -> tuple[tuple[DrawnDevice, ...], ...] | Shortage:
    """
    Devices for each pod of a bundle, drawn at once. `whole` has the claims of all of its pods (`as_of_one_pod`).

    What is best for one pod may be all that another one could have: whoever counts bundles draws at once, too.
    """
    found = draw(free_devices(node), claims_on(whole, node))
    if isinstance(found, Shortage):
        return found
    of_pod = by_pod(each for each in found if each.claim != EXTENDED_CLAIM)
    counted = [each for each in found if each.claim == EXTENDED_CLAIM]
    for number, need in enumerate(needs):
        mine = of_pod.setdefault(number, [])
        # Devices that are counted are alike, so that each pod takes the first that are left.
        for name, count in ((GPU_RESOURCE, need.gpus), *need.devices):
            mine += [each for each in counted if each.request == name][:count]
        counted = [each for each in counted if each not in mine]
    offer = node.offer or NO_OFFER
    return tuple(named(tuple(of_pod[number]), offer, node.name) for number in range(len(needs)))


def shortage_on(need: Need, node: Node) -> Shortage | None:
    """Why the node's published devices do not answer a pod's claims now; None where they do, or there are none."""
    if node.offer is None or node.gone or not (claims := claims_on(need, node)):
        return None
    # The same question as the search asked, so that the answer is known by now for nearly every node.
    found = draw(free_devices(node), claims)
    return found if isinstance(found, Shortage) else None


def devices_free(node: Node, name: str) -> int:
    """
    Devices of a counted resource that are free, by the device plugin or by a class; an upper bound for a class.

    Of the seat of an anti-affinity group 1 while no pod of it is there.
    """
    if name == WHOLE_NODE:
        return 0 if node.is_held else 1
    if node.offer is None or not _is_published(node, node.offer, name):
        return dict(node.devices_free).get(name, int(is_seat(name)))
    offer = node.offer
    found = offer.selected(offer.class_for(name), ())
    if found is None:
        return 0
    # Devices that overlap with taken ones are counted as well: the number is for people and for a first look, and the
    # draw comes after it.
    taken = {at for at, _ in free_devices(node).taken}
    there = [at for at in range(len(offer.devices)) if found.devices >> at & 1]
    if any(offer.devices[at].is_shared for at in there):
        return SHARED_MAX
    return len(there) - len(taken.intersection(there))


def never_gpus(node: Node) -> FitFailure | None:
    """Why no pod gets whole GPUs by their number on a node of a driver; None where a class answers for them."""
    offer = node.offer
    if offer is None or not (name := offer.class_for(GPU_RESOURCE)):
        return FitFailure.DEVICE_PROFILE
    # Nobody has said yet what the class takes: the node may serve, and is no reason to refuse a job for good.
    found = offer.selected(name, ())
    if found is None or not offer.devices:
        return FitFailure.UNKNOWN_CLAIMS
    # A class that gives parts or shares of GPUs too would give a pod less than the whole ones that it counts as.
    taken = [device for at, device in enumerate(offer.devices) if found.devices >> at & 1]
    if any(device.gpu is None or device.gpu_milli != WHOLE_GPU or device.is_shared for device in taken):
        return FitFailure.DEVICE_PROFILE
    return None if taken else FitFailure.CLAIMS


def serves_whole_gpus(node: Node) -> bool:
    """Whether pods get whole GPUs of the node by their number, from a device plugin or from a class."""
    return never_gpus(node) is None if node.device_profile == "dra" else serves(node.device_profile, "whole")


def _is_published(node: Node, offer: Offer, name: str) -> bool:
    """Whether a class answers the resource on the node. As in Kubernetes a device plugin that has any comes first."""
    return not dict(node.devices).get(name, 0) and bool(offer.class_for(name))


@lru_cache(maxsize=4_096)
def _extended_claims(offer: Offer, counted: tuple[tuple[str, int], ...], isolation: str) -> tuple[ClaimNeed, ...]:
    # Requests are called as their resources, so that the binder finds which container counts on which.
    asked = ((name, count, offer.class_for(name)) for name, count in counted)
    requests = tuple(
        RequestNeed(name, (ChoiceNeed("", of, count=count, isolation=isolation),)) for name, count, of in asked if of
    )
    return (ClaimNeed(EXTENDED_CLAIM, requests),) if requests else ()
