"""Bytes that an allocation takes at most, so that no decision is made that no message holds. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from tessera.domain.devices.claims import RequestNeed
from tessera.domain.devices.offers import Offer
from tessera.domain.devices.resources import Need
from tessera.domain.entities import Job
from tessera.domain.state import State
from tessera_schemas.base import NODE_NAME_LENGTH_MAX
from tessera_schemas.cluster.device_claims import COUNT_MAX
from tessera_schemas.cluster.labels import GPU_RESOURCE
from tessera_schemas.cluster.resource_kinds import CLASS_PREFIX
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import EXTENDED_CLAIM, PASSED_MAX, DrawnDevice, Placement

ALLOCATION_BYTES = 128 + 64 * PASSED_MAX  # besides its placements
ALLOCATION_BYTES_MAX = 384 * 1024  # so that it gets into a message beside the facts that keep coming
_DRAWN_BYTES = 64  # a device of a claim, besides all names
_SHARES_BYTES, _SHARE_BYTES = 16, 26  # its capacity, and that of each name: 19 digits at most
_ADMIN_BYTES = 16
_STARTS_BYTES = 16  # the name of the first slices of several instances


@dataclass(frozen=True, slots=True)
class Longest:
    """Letters of the longest name of a node, and most bytes that name one device there; 0 where none can be drawn."""

    node: int
    device: int


ANYWHERE = Longest(NODE_NAME_LENGTH_MAX, 63 + NODE_NAME_LENGTH_MAX + 63 + _SHARES_BYTES + 32 * (127 + _SHARE_BYTES))


def longest_of(placements: Iterable[Placement]) -> Longest:
    """Longest names among these placements."""
    chosen = tuple(placements)
    drawn = (_name_bytes(each) for place in chosen for each in place.drawn)
    return Longest(max((len(place.node) for place in chosen), default=0), max(drawn, default=0))


def slot_bytes(placement: Placement) -> int:
    """Upper bound in bytes of the slots of a placement in a record, and of the first slices of its instances."""
    more = _STARTS_BYTES + 3 * len(placement.mig_starts) if placement.mig_starts else 0
    return 3 * len(placement.devices) + more


def drawn_bytes(drawn: Iterable[DrawnDevice]) -> int:
    """Upper bound in bytes of these devices in a record."""
    return sum(
        _DRAWN_BYTES + len(each.claim) + len(each.request) + _ADMIN_BYTES * each.admin + _name_bytes(each)
        for each in drawn
    )


def most_bytes(state: State, job: Job, longest: Longest) -> int:
    """Upper bound in bytes of the job's allocation record."""
    # A class answers on nodes of drivers alone, but before the search nobody knows on which nodes the pods will be.
    answered = frozenset(known.extended_resource for _, known in state.device_classes.items())
    return ALLOCATION_BYTES + sum(
        role.replicas
        * (
            64
            + len(role.name)
            + longest.node
            + 3 * max(1, role.need.gpus, role.need.gpu_parts)
            + 12 * bool(role.need.mig_profile)
            + (_STARTS_BYTES + 3 * role.need.gpu_parts) * (role.need.gpu_parts > 1)
            + _drawn_bytes(role.need, answered, longest.device)
        )
        for role in job.roles
    )


def most_bytes_in(state: State, job: Job, pool: str, bytes_left: int) -> int:
    """Upper bound as of `most_bytes` in a pool, whose nodes are looked at only where their names matter."""
    # The bound by the longest names that Kubernetes allows is enough for nearly all jobs, and saves a pass over the
    # nodes.
    anywhere = most_bytes(state, job, ANYWHERE)
    if anywhere <= min(ALLOCATION_BYTES_MAX, bytes_left):
        return anywhere
    # Nodes of one make share their offer, and its devices are looked through once.
    node, offers = 0, dict[Offer, int]()
    for each in state.nodes.values():
        if each.pool == pool:
            node = max(node, len(each.name))
            if each.offer is not None:
                offers[each.offer] = max(offers.get(each.offer, 0), len(each.name))
    device = max((_longest_device(offer, name) for offer, name in offers.items()), default=0)
    return most_bytes(state, job, Longest(node, device))


def too_large(size: int) -> Reason | None:
    """Reason why no allocation has so many bytes; None where it may."""
    if size <= ALLOCATION_BYTES_MAX:
        return None
    numbers = {"bytes": size, "bytes_max": ALLOCATION_BYTES_MAX}
    return Reason(code=Code.NO_FIT, field="roles", numbers=numbers, detail="one decision cannot name so many pods")


def _longest_device(offer: Offer, node: int) -> int:
    named = (
        len(each.driver) + (len(each.pool) or node) + len(each.name) + _share_bytes(each.capacity)
        for each in offer.devices
    )
    return max(named, default=0)


def _name_bytes(drawn: DrawnDevice) -> int:
    return len(drawn.driver) + len(drawn.pool) + len(drawn.device) + _share_bytes(name for name, _ in drawn.capacity)


def _share_bytes(names: Iterable[str]) -> int:
    # A whole device says no capacity, and most devices are whole ones.
    found = sum(len(name) + _SHARE_BYTES for name in names)
    return found and found + _SHARES_BYTES


def _drawn_bytes(need: Need, answered: frozenset[str], device: int) -> int:
    """Upper bound of what the devices of one pod take that are drawn for its claims and for what it counts on."""
    if not device:
        return 0
    counted = ((name, count) for name, count in (*need.devices, (GPU_RESOURCE, need.gpus)) if count)
    # Of the nodes of a pool some may answer counted resources by a class, and nobody knows yet which the pods get.
    asked = [
        (count, len(EXTENDED_CLAIM) + len(name))
        for name, count in counted
        if name in answered or name.startswith(CLASS_PREFIX)
    ]
    asked += [
        (_most_devices(each), len(claim.name) + _letters(each)) for claim in need.claims for each in claim.requests
    ]
    return sum(count * (_DRAWN_BYTES + letters + device) for count, letters in asked)


def _most_devices(request: RequestNeed) -> int:
    return max(choice.count or COUNT_MAX for choice in request.choices)


def _letters(request: RequestNeed) -> int:
    return len(request.name) + 1 + max(len(each.name) + _ADMIN_BYTES * each.admin for each in request.choices)
