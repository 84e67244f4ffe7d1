"""
Why bundles of a gang found no place, in numbers: how many nodes failed which test, and how near the nearest came.

Every node is counted once, under a name that begins with `nodes_`: the first test that it failed, or that it has room
for a pod but the pods together have none, or that pods of the gang itself, which had found a place, have filled it. How
near the nearest came is said of the nodes as they are, without these.
"""

from collections import Counter
from collections.abc import Container, Sequence

import numpy as np

from tessera.domain.devices.resources import Need, Node, RoleNeed, is_seat
from tessera.domain.work.evidence import FitFailure
from tessera.domain.work.gang import Gang
from tessera.engine.claims.claim_words import describe_shortage
from tessera.engine.claims.extended import shortage_on
from tessera.engine.claims.numa_zones import describe_zones
from tessera.engine.claims.shortages import Shortage
from tessera.engine.placement.attempt import Attempt
from tessera.engine.placement.fits import BundleKind, TaintParts, gpu_memory_for, kind_of, short_of
from tessera.engine.placement.mig import free_positions, has_profile, most_free_slices
from tessera.engine.placement.placement_groups import BundleSet, PlacementGroup
from tessera.engine.placement.rows.table import MISSES, WHOLE, Ints, NodeTable
from tessera.engine.placement.topology import by_domain, count_bundles_by_node, count_spread_bundles, room_anywhere
from tessera_schemas.cluster.devices import ISOLATIONS
from tessera_schemas.cluster.mig import GEOMETRIES
from tessera_schemas.cluster.resource_kinds import number_name
from tessera_schemas.reasons import Code, Reason

TAINTS_MAX = 3
UNLABELLED = "nodes_without_label"
IN_PART = "nodes_with_room_for_a_part"
OWN = "nodes_filled_by_its_own_pods"
EXCLUSIVE = "exclusive: a pod has a node to itself, and waits while anything of Tessera is on it"
Numbers = dict[str, int]


def no_fit(bundles: BundleSet, attempt: Attempt, pods: int) -> Reason:
    """No node has room for one pod more."""
    numbers, taints = _numbers(bundles, attempt, pods, ""), _describe_unsuited(bundles, attempt)
    # Of nodes as the gang's own pods leave them, since a gang may lack devices that its first pods have.
    need, counts = bundles.kind.whole, dict[str, int]()
    if need.claims or (attempt.table().any_offering and (need.gpus or need.devices)):
        before = {name: attempt.before(name) for name in attempt.changed}
        words, counts = describe_shortage(need, _lacking(need, attempt), before)
        taints = "; ".join(filter(None, (words, taints)))
    if need.exclusive and FitFailure.DEVICES in numbers:
        taints = "; ".join(filter(None, (EXCLUSIVE, taints)))
    if FitFailure.ZONES in numbers:
        taints = "; ".join(filter(None, (_describe_zones(bundles.kind, attempt), taints)))
    field = f"roles.{bundles.role.name}"
    return Reason(code=Code.NO_FIT, field=field, numbers=numbers | counts, detail=taints[:1024])


def _describe_zones(kind: BundleKind, attempt: Attempt) -> str:
    """Words for the nodes that lack nothing but a single NUMA zone with all that a pod asks for."""
    nodes = (attempt.node(name) for name in attempt.places.suited(kind))
    return describe_zones(kind.needs, [node for node in nodes if short_of(kind, node) is FitFailure.ZONES])


def no_domain(bundles: BundleSet, group: PlacementGroup, attempt: Attempt, pods: int) -> Reason:
    """The nodes may have the room, but no domain of the last level has it."""
    level = group.levels[-1]
    by_value = by_domain(bundles, level, attempt)
    most = max(by_value.values(), default=0)
    numbers = _numbers(bundles, attempt, pods, level) | {
        "domains": len(attempt.places.domains(level)),
        "pods_wanted_in_one_domain": bundles.count,
        "most_pods_that_fit_one_domain": most,
        "pods_that_fit_all_nodes": room_anywhere(bundles, attempt),
    }
    detail = f"{level}: no domain holds its pods"
    if most >= bundles.count:
        detail += " evenly spread" if len(group.bundle_sets) == 1 else " together with those of its group"
    taints = _describe_unsuited(bundles, attempt)
    detail = f"{detail}; {taints}" if taints else detail
    return Reason(code=Code.NO_FIT, field=f"roles.{bundles.role.name}.topology", numbers=numbers, detail=detail)


def no_copy(group: PlacementGroup, placed: int, attempt: Attempt, pods: int) -> Reason:
    """A copy of a group of pods found no domain within that of the copy it is in, beside `placed` pods of the gang."""
    bundles = group.bundle_sets[0]
    level, beside = group.levels[-1] if group.bound else "", f" beside {placed} placed pods" if placed else ""
    numbers = _numbers(bundles, attempt, pods, level) | {
        "pods_placed": placed,
        "pods_that_fit_all_nodes": room_anywhere(bundles, attempt),
    }
    field, words = f"groups.{group.name}" if group.name else f"roles.{bundles.role.name}", ""
    if level:
        numbers |= {
            "domains": len(attempt.places.domains(level)),
            "pods_wanted_in_one_domain": bundles.count,
            "most_pods_that_fit_one_domain": max(by_domain(bundles, level, attempt).values(), default=0),
        }
        field, words = f"{field}.topology", f"{level}: no domain is left for a copy of group {group.name}{beside}"
    elif group.name:
        words = f"no room is left for a copy of group {group.name}{beside}"
    words = "; ".join(filter(None, (words, _describe_unsuited(bundles, attempt))))
    return Reason(code=Code.NO_FIT, field=field, numbers=numbers, detail=words[:1024])


def not_even(bundles: BundleSet, attempt: Attempt, pods: int) -> Reason:
    """The domains of the label cannot take numbers of pods that differ by the role's skew at most."""
    label, there = bundles.role.spread, count_bundles_by_node(bundles, None, attempt)
    by_value = count_spread_bundles(bundles, None, there, attempt)
    each, more = divmod(bundles.count, max(1, len(by_value)))
    numbers = _numbers(bundles, attempt, pods, label) | {
        "domains": len(by_value),
        "pods_per_domain": each,
        "domains_short": sum(fitting < each for fitting in by_value.values()),
        "domains_to_take_one_more": more,
        "domains_that_can_take_one_more": sum(fitting > each for fitting in by_value.values()),
        "pods_that_fit_all_nodes": sum(there.values()),
    }
    numbers |= {"max_skew": bundles.role.max_skew} if bundles.role.max_skew > 1 else {}
    return Reason(
        code=Code.NO_FIT,
        field=f"roles.{bundles.role.name}.spread",
        numbers=numbers,
        detail=f"{label}: the pods cannot be spread evenly",
    )


def no_model(gang: Gang, refused: Sequence[tuple[Gang, Attempt, Reason]]) -> Reason:
    """No GPU model has the room: the numbers are those of the model on which most pods found a place."""
    if not refused:
        detail = "no GPU model suits all of its roles with GPUs (`mixed_models`)"
        return Reason(code=Code.NO_FIT, field="roles", numbers={"pods_placed": 0, "pods": gang.pods}, detail=detail)
    nearest = max(refused, key=lambda each: _placed(each[1], each[2]))[2]
    counts = [words for name, roles in gang.one_model.items() if (words := _by_model(name, roles, refused))]
    said = [nearest.detail] if nearest.detail else []
    detail = "; ".join([*said, *(f"on one GPU model ({words})" for words in counts)])
    return nearest.model_copy(update={"detail": detail[:1024]})


def _placed(attempt: Attempt, reason: Reason, names: Container[str] | None = None) -> int:
    """Number of pods that found a place, of these roles or of all; of pods that lie together, how many would."""
    placed = sum(names is None or place.role in names for place in attempt.placed)
    return max(placed, reason.numbers.get("most_pods_that_fit_one_domain", 0))


def _by_model(name: str, roles: Sequence[RoleNeed], refused: Sequence[tuple[Gang, Attempt, Reason]]) -> str:
    """Number of the roles' pods that each model has room for; "" where something else is lacking."""
    if all(gang.one_model[name] == tuple(roles) for gang, _, _ in refused):
        return ""
    names, wanted, most = {role.name for role in roles}, sum(role.replicas for role in roles), Counter[str]()
    alone = True
    for gang, attempt, reason in refused:
        bound = gang.one_model[name][0]
        model = bound.need.gpu_models[0]
        most[model] = max(most[model], _placed(attempt, reason, names))
        suited = attempt.places.suited(kind_of((bound.need,)))
        alone = alone and all(2 * bound.need.gpus > attempt.before(node).gpus for node in suited)
    # A lone pod has no other to be beside, and where one model has the room the failure is about something else.
    if wanted == 1 or max(most.values()) >= wanted:
        return ""
    what = "nodes" if alone else "pods"  # where each pod takes a node, these are what people count
    first, *others = (f"{model or 'no model'}: {most[model]} of {wanted}" for model in dict.fromkeys(most))
    return "; ".join([f"{first} {what}", *others])


def _lacking(need: Need, attempt: Attempt) -> list[tuple[Shortage, Node]]:
    """Nodes that lack devices for a pod's claims, as the pods of the try leave them."""
    table = attempt.table()
    found, nodes = table.shortages(need).copy(), table.at.copy()
    # The table knows the nodes without the pods of this try, which may have themselves what is short.
    for name, node in attempt.changed.items():
        row = table.row_of[name]
        found[row], nodes[row] = shortage_on(need, node), node
    return [(short, node) for short, node in zip(found, nodes, strict=True) if short is not None]


def _describe_unsuited(bundles: BundleSet, attempt: Attempt) -> str:
    """Words beside the counts of nodes that do not suit its pods: taints, and the isolation that was found."""
    found = attempt.places.isolations(bundles.kind)
    counts = ", ".join(f"{each} ({_nodes(found[each])})" for each in ISOLATIONS if found[each])
    less = f"isolation of shares: {counts}" if counts else ""
    return "; ".join(filter(None, (_describe_taints(attempt.places.taints(bundles.kind)), less)))


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _describe_taints(taints: Counter[TaintParts]) -> str:
    """The taints that keep its pods off most nodes, by name, as `kubectl taint` writes them."""
    most = sorted(taints, key=lambda taint: (-taints[taint], taint))[:TAINTS_MAX]
    named = [f"{written(taint)} ({_nodes(taints[taint])})" for taint in most]
    further = f" and {len(taints) - len(most)} more" if len(taints) > len(most) else ""
    return f"not tolerated: {', '.join(named)}{further}" if named else ""


def written(taint: TaintParts) -> str:
    """A taint as `key=value:effect`."""
    key, value, effect = taint
    return f"{key}{f'={value}' if value else ''}:{effect}"


def _numbers(bundles: BundleSet, attempt: Attempt, pods: int, label: str) -> Numbers:
    """The counts in an order that no table's order changes, then the nearest miss of each device that is asked for."""
    table, counted = attempt.table(), Counter[str]()
    _count_rows(bundles, table, attempt, label, counted)
    counted.update({miss.value: count for miss, count in attempt.places.unsuited(bundles.kind).items()})
    ordered = (*(miss.value for miss in FitFailure), OWN, UNLABELLED, IN_PART)
    numbers = {name: counted[name] for name in ordered if counted[name]}
    numbers |= {"nodes": counted.total(), "pods_placed": len(attempt.placed), "pods": pods}
    for need in bundles.needs:
        numbers |= _nearest(need, table, table.suited_rows(bundles.kind))
        if need.gpu_memory_bytes:
            numbers["gpu_memory_bytes_wanted"] = need.gpu_memory_bytes
            largest = attempt.places.largest_gpus
            numbers["most_gpu_memory_bytes"] = 0 if largest is None else gpu_memory_for(need, largest)
    return numbers


def _count_rows(bundles: BundleSet, table: NodeTable, attempt: Attempt, label: str, counted: Counter[str]) -> None:
    """Count the nodes by the first test that they fail; those with pods of the try one by one."""
    values = attempt.places.values(label) if label else {}
    misses, others = table.misses(bundles.kind), table.suits(bundles.kind).copy()
    for row in map(table.row_of.__getitem__, attempt.changed):
        if others[row]:
            others[row] = False
            now = short_of(bundles.kind, attempt.node(table.names[row]))
            if now is not None:
                counted[now.value if misses[row] else OWN] += 1
            else:
                counted[IN_PART if not label or table.names[row] in values else UNLABELLED] += 1
    fitting, *missing = np.bincount(misses[others], minlength=len(MISSES) + 1).tolist()
    counted.update({miss.value: many for miss, many in zip(MISSES, missing, strict=True)})
    labelled = fitting
    if label and fitting:
        labelled = sum(table.names[row] in values for row in np.flatnonzero(others & (misses == 0)).tolist())
    counted[IN_PART] += labelled
    counted[UNLABELLED] += fitting - labelled


def _nearest(need: Need, table: NodeTable, rows: Ints) -> Numbers:
    numbers: Numbers = {}
    nodes = [table.at[row] for row in rows.tolist()] if need.mig_profile else []
    if need.gpus:
        theirs = int(table.gpus_of_others[rows].sum())
        numbers |= {"gpus_wanted": need.gpus, "most_gpus_free_on_a_node": _most(table.free[WHOLE][rows])}
        numbers |= {"gpus_held_by_pods_not_of_tessera": theirs} if theirs else {}
    if need.gpu_milli:
        numbers |= {"gpu_milli_wanted": need.gpu_milli, "most_gpu_milli_free_on_a_device": _most(table.most[rows])}
        if need.gpu_parts > 1:
            most = _most(table.gpus_with(need.gpu_milli)[rows])
            numbers |= {"shares_wanted": need.gpu_parts, "most_gpus_with_a_share_free_on_a_node": most}
    if need.mig_profile:
        numbers["most_slices_free_on_a_device"] = max(map(most_free_slices, nodes), default=0)
        numbers["gpus_cut_so_that_none_fits"] = sum(_fragmented(need, node) for node in nodes)
        made = sum(dict(node.mig_instances).get(need.mig_profile, 0) for node in nodes)
        numbers |= {"instances_made": made} if made else {}
        if need.gpu_parts > 1:
            most = max((free_positions(need, node) for node in nodes), default=0)
            numbers |= {"instances_wanted": need.gpu_parts, "most_instances_free_on_a_node": most}
    for name, count in need.devices:
        if is_seat(name):  # the number of nodes with a pod of the group says it all
            continue
        short = number_name(name)
        numbers |= {f"{short}_wanted": count, f"most_{short}_free_on_a_node": _most(table.devices_free(name)[rows])}
    return numbers


def _most(free: Ints) -> int:
    return int(free.max()) if len(free) else 0


def _fragmented(need: Need, node: Node) -> int:
    """GPUs with enough slices free, but not at a legal position; of instances that were made none can be."""
    if node.mig_instances or not has_profile(need, node) or free_positions(need, node):
        return 0
    size = GEOMETRIES[node.mig_geometry].profiles[need.mig_profile].size
    return sum(taken.count(0) >= size for taken in node.mig_taken)
