"""Whether given placements may stand on given nodes, whoever chose them. Pure."""

from collections.abc import Iterator

from tessera.domain.devices.claims import ClaimNeed
from tessera.domain.devices.networks import spread
from tessera.domain.devices.resources import WHOLE_GPU, Need, Node, RoleNeed
from tessera.domain.storing.fast import replace
from tessera.domain.work.gang import gang_of
from tessera.engine.claims.drawing import Drawn, free_devices, is_answer
from tessera.engine.claims.extended import claims_on
from tessera.engine.placement.fits import fits
from tessera.engine.placement.mig import is_position
from tessera.engine.placement.relations import broken
from tessera_schemas.cluster.mig import GEOMETRIES
from tessera_schemas.work.placement import Placement


def placement_faults(
    roles: tuple[RoleNeed, ...], placements: tuple[Placement, ...], nodes: dict[str, Node]
) -> Iterator[str]:
    """Faults of placing the gang so on `nodes`, pod by pod; none when it can be placed so."""
    wanted = [role.name for role in roles for _ in range(role.replicas)]
    if [placement.role for placement in placements] != wanted:
        yield f"it is not placed whole: {len(placements)} of {len(wanted)} pods, or other roles"
        return
    if [placement.rank for placement in placements] != list(range(len(placements))):
        yield "ranks are not 0, 1, 2, …"
        return
    trial = dict(nodes)
    yield from pod_faults(roles, placements, trial)
    if all(placement.node in trial for placement in placements):
        yield from broken(roles, placements, trial)


def pod_faults(roles: tuple[RoleNeed, ...], placements: tuple[Placement, ...], trial: dict[str, Node]) -> Iterator[str]:
    """Faults of these pods, one after the other, on their nodes and devices; `trial` is left as with them."""
    gang = gang_of(roles)
    of_gpus = gang.amount.gpu_milli > 0
    for placement in placements:
        node, need = trial.get(placement.node), gang.need_at(placement)
        if node is None:
            yield f"rank {placement.rank}: no such node ({placement.node})"
            return
        # Which zone a kubelet chose for others is a guess: no record is wrong for it while an empty zone would do.
        miss = fits(need, replace(node, in_zones=()) if node.in_zones else node, of_gpus)
        if miss is not None:
            yield f"rank {placement.rank} does not fit node {node.name}: {miss.value}"
        yield from _device_faults(need, node, placement)
        trial[node.name] = node.taking(need, placement, 1)
        spread(trial, (placement,), 1)


def _device_faults(need: Need, node: Node, placement: Placement) -> Iterator[str]:
    at = f"rank {placement.rank} on node {node.name}"
    claims = claims_on(need, node)
    if (claims or placement.drawn) and not _answer_claims(claims, node, placement):
        yield f"{at}: its claims cannot have {[device.id for device in placement.drawn]}"
    if need.mig_profile:
        if not _are_free_instances(need, node, placement):
            where = placement.mig_starts or placement.mig
            yield f"{at}: devices {list(placement.devices)} have no {need.gpu_parts} free {need.mig_profile} at {where}"
        return
    devices = placement.devices
    # GPUs of a driver are drawn, and have been judged by then.
    gpus = 0 if node.device_profile == "dra" else need.gpus
    milli = WHOLE_GPU if gpus else need.gpu_milli
    count = gpus or (need.gpu_parts if need.gpu_milli else 0)
    if placement.gpu_milli != milli or len(devices) != count or len(set(devices)) != count or placement.mig:
        yield f"{at}: asked for {count} devices of {milli}, got {list(devices)} of {placement.gpu_milli}"
    for device in devices:
        left = node.gpu_free[device] if 0 <= device < len(node.gpu_free) else 0
        if left < milli:
            yield f"{at}: device {device} has {left} left, {milli} are taken"


def _answer_claims(claims: tuple[ClaimNeed, ...], node: Node, placement: Placement) -> bool:
    """Whether the pod's claims may have these devices of the node."""
    free, drawn = free_devices(node), list[Drawn]()
    for device in placement.drawn:
        index = free.offer.find(device.id, node.name)
        # A plan may be older than the layout: a device that is there no more is a fault of it, and no error here.
        if index is None:
            return False
        drawn.append(Drawn(device.claim, device.request, index, device.capacity, device.admin))
    return is_answer(free, claims, tuple(drawn))


def _are_free_instances(need: Need, node: Node, placement: Placement) -> bool:
    """Whether the placement is all instances of the pod, each at a position that it may have and nobody has."""
    geometry = GEOMETRIES.get(node.mig_geometry)
    profile = geometry.profiles.get(need.mig_profile) if geometry else None
    if geometry is None or profile is None or placement.mig is None or len(placement.devices) != need.gpu_parts:
        return False
    (start, size), instances = placement.mig, placement.instances
    if len(placement.mig_starts) != (need.gpu_parts if need.gpu_parts > 1 else 0) or instances[0][1] != start:
        return False
    milli = size * geometry.milli_per_slice
    is_each_once = len(set(instances)) == need.gpu_parts  # no two positions of one profile overlap
    of_size = is_each_once and size == profile.size and placement.gpu_milli == milli
    return of_size and all(is_position(need, node, slot, start) for slot, start in instances)
