"""
Why a part of a gang found no place, in numbers: how many nodes failed which test, and how near the nearest came.

Every node is counted once, under a name that begins with `nodes_`: the first test that it failed, or that it has room
for a pod but the pods together have none, or that pods of the gang itself, which had found a place, have filled it. How
near the nearest came is said of the nodes as they are, without these.
"""

from collections import Counter

from tessera.domain.resources import WHOLE_GPU, Need, Node
from tessera.engine.placement.attempt import Attempt
from tessera.engine.placement.fits import FitFailure, gpu_memory_for, short_of
from tessera.engine.placement.mig import free_positions, has_profile, most_free_slices
from tessera.engine.placement.placement_groups import Part, Unit
from tessera.engine.placement.topology import by_domain, rooms, spread_rooms
from tessera_schemas.mig import GEOMETRIES
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.resource_kinds import number_name

UNLABELLED = "nodes_without_label"
IN_PART = "nodes_with_room_for_a_part"
OWN = "nodes_filled_by_its_own_pods"
Numbers = dict[str, int]


def no_fit(part: Part, attempt: Attempt, pods: int) -> Reason:
    """No node has room for one pod more."""
    return Reason(code=Code.NO_FIT, field=f"roles.{part.role.name}", numbers=_numbers(part, attempt, pods, ""))


def no_domain(part: Part, unit: Unit, attempt: Attempt, pods: int) -> Reason:
    """The nodes may have the room, but no domain of the unit's last level has it."""
    level, there = unit.levels[-1], rooms(part, None, attempt)
    by_value = by_domain(there, level, attempt)
    most = max(by_value.values(), default=0)
    numbers = _numbers(part, attempt, pods, level) | {
        "domains": len(attempt.places.domains(level)),
        "pods_wanted_in_one_domain": part.count,
        "most_pods_that_fit_one_domain": most,
        "pods_that_fit_all_nodes": sum(there.values()),
    }
    detail = f"{level}: no domain holds its pods"
    if most >= part.count:
        detail += " evenly spread" if len(unit.parts) == 1 else " together with those of its group"
    return Reason(code=Code.NO_FIT, field=f"roles.{part.role.name}.topology", numbers=numbers, detail=detail)


def not_even(part: Part, attempt: Attempt, pods: int) -> Reason:
    """The domains of the label cannot take equal numbers of pods, give or take one."""
    label, there = part.role.spread, rooms(part, None, attempt)
    by_value = spread_rooms(part, None, there, attempt)
    each, more = divmod(part.count, max(1, len(by_value)))
    numbers = _numbers(part, attempt, pods, label) | {
        "domains": len(by_value),
        "pods_per_domain": each,
        "domains_short": sum(room < each for room in by_value.values()),
        "domains_to_take_one_more": more,
        "domains_that_can_take_one_more": sum(room > each for room in by_value.values()),
        "pods_that_fit_all_nodes": sum(there.values()),
    }
    return Reason(
        code=Code.NO_FIT,
        field=f"roles.{part.role.name}.spread",
        numbers=numbers,
        detail=f"{label}: the pods cannot be spread evenly",
    )


def _numbers(part: Part, attempt: Attempt, pods: int, label: str) -> Numbers:
    """The counts in an order that no table's order changes, then the nearest miss of each device that is asked for."""
    values = attempt.places.values(label) if label else {}
    counted = Counter({miss.value: count for miss, count in attempt.places.unsuited(part).items()})
    suited = [attempt.before(name) for name in attempt.suited(part)]
    for node in suited:
        miss = short_of(part.kind, attempt.node(node.name))
        if miss is not None:
            counted[miss.value if short_of(part.kind, node) is not None else OWN] += 1
        else:
            counted[IN_PART if not label or node.name in values else UNLABELLED] += 1
    ordered = (*(miss.value for miss in FitFailure), OWN, UNLABELLED, IN_PART)
    numbers = {name: counted[name] for name in ordered if counted[name]}
    numbers |= {"nodes": counted.total(), "pods_placed": len(attempt.placed), "pods": pods}
    for need in part.needs:
        numbers |= _nearest(need, suited)
        if need.gpu_memory_bytes:
            numbers["gpu_memory_bytes_wanted"] = need.gpu_memory_bytes
            most = max((gpu_memory_for(need, node) for node in attempt.nodes() if node.ready), default=0)
            numbers["most_gpu_memory_bytes"] = most
    return numbers


def _nearest(need: Need, suitable: list[Node]) -> Numbers:
    numbers: Numbers = {}
    if need.gpus:
        numbers["gpus_wanted"] = need.gpus
        numbers["most_gpus_free_on_a_node"] = max((n.gpu_free.count(WHOLE_GPU) for n in suitable), default=0)
        theirs = sum(len(n.gpu_others) for n in suitable)
        numbers |= {"gpus_held_by_pods_not_of_tessera": theirs} if theirs else {}
    if need.gpu_milli:
        numbers["gpu_milli_wanted"] = need.gpu_milli
        numbers["most_gpu_milli_free_on_a_device"] = max((max(n.gpu_free, default=0) for n in suitable), default=0)
    if need.mig_profile:
        numbers["most_slices_free_on_a_device"] = max((most_free_slices(n) for n in suitable), default=0)
        numbers["gpus_cut_so_that_none_fits"] = sum(_fragmented(need, n) for n in suitable)
        made = sum(dict(n.mig_instances).get(need.mig_profile, 0) for n in suitable)
        numbers |= {"instances_made": made} if made else {}
    for name, count in need.devices:
        said, free = number_name(name), (dict(n.devices_free).get(name, 0) for n in suitable)
        numbers |= {f"{said}_wanted": count, f"most_{said}_free_on_a_node": max(free, default=0)}
    return numbers


def _fragmented(need: Need, node: Node) -> int:
    """GPUs with enough slices free, but not at a legal position; of instances that were made none can be."""
    if node.mig_instances or not has_profile(need, node) or free_positions(need, node):
        return 0
    size = GEOMETRIES[node.mig_geometry].profiles[need.mig_profile].size
    return sum(taken.count(0) >= size for taken in node.mig_taken)
