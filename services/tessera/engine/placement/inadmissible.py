"""Jobs that no state of the nodes could ever hold: refused at once instead of waiting for ever."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tessera.domain.gang import gang_of
from tessera.domain.queues import BUT, QueueTree
from tessera.domain.resources import WHOLE_GPU, Node, RoleNeed, emptied
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.fits import never_fits
from tessera.engine.placement.gangs import place_gang
from tessera.engine.placement.placement_groups import Part, Unit, bundles_for, units
from tessera.engine.placement.topology import even_shares
from tessera_schemas.base import INT_MAX
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.resource_kinds import is_device, number_name

Rooms = dict[str, int]


def inadmissible(roles: tuple[RoleNeed, ...], nodes: Iterable[Node]) -> Reason | None:
    """
    Why no state of these nodes could ever hold the gang, naming the largest that would fit; None when one might.

    Nodes count as empty and ready. Without any nodes nothing is known and nothing is refused. Each role is tried alone,
    where best fit is exact since its pods are equal; of pods that lie together only sums are compared, since best fit
    may miss a way to place them that some other state of the nodes would lead it to.
    """
    empty = {node.name: emptied(node) for node in nodes if not node.gone}
    if not empty:
        return None
    places = FeasibleNodes(empty)
    for role in roles:
        alone = replace(role, levels=(), bound=False, group="", beside="", spread="")
        verdict = place_gang((alone,), empty, places)
        if isinstance(verdict, Reason):
            return _role_inadmissible(role, verdict, empty)
    for unit in units(roles):
        never = _never_together(unit, empty, places)
        if never is not None:
            return never
    return _too_much_together(roles, empty)


def unreachable(
    roles: tuple[RoleNeed, ...], nodes: Iterable[Node], tree: QueueTree, queue: str, flavors: Iterable[str]
) -> Reason | None:
    """
    Why no state of these nodes could ever hold the gang on any of these flavors, which the queue's quotas reach.

    A gang starts on nodes of one flavor. Without any nodes nothing is known, of any flavor.
    """
    there = [node for node in nodes if not node.gone]
    refused: list[tuple[str, Reason]] = []
    for flavor in flavors if there else ():
        of_it = [node for node in there if tree.is_on(node, flavor)]
        against = (
            inadmissible(roles, of_it) if of_it else Reason(code=Code.INADMISSIBLE, detail="there is no such node")
        )
        if against is None:
            return None
        refused.append((flavor, against))
    if not refused:
        return None
    anywhere = inadmissible(roles, there)
    if anywhere is not None:
        return anywhere
    tried = "; ".join(f"{describe_flavor(flavor)}: {against.detail}" for flavor, against in refused)
    detail = f"other nodes could hold it, but no quota of queue {queue} reaches them. Of those that one does: {tried}"
    first = refused[0][1]
    return Reason(code=Code.INADMISSIBLE, field="queue", numbers=first.numbers, detail=detail[:1024])


def describe_flavor(flavor: str) -> str:
    """A flavor as `flavors_for` names it, for people."""
    return f"any but {flavor[1:].replace(',', ', ')}" if flavor.startswith(BUT) else flavor


def _role_inadmissible(role: RoleNeed, verdict: Reason, nodes: dict[str, Node]) -> Reason:
    allowed = [n for n in nodes.values() if never_fits(role.need, n) is None]
    numbers = dict(verdict.numbers)
    numbers["largest_cpu_milli"] = max((n.cpu_milli for n in allowed), default=0)
    numbers["largest_memory_bytes"] = max((n.memory_bytes for n in allowed), default=0)
    numbers["largest_gpus"] = max((n.gpus for n in allowed), default=0)
    return Reason(code=Code.INADMISSIBLE, field=verdict.field, numbers=numbers, detail=_largest(role, numbers))


def _largest(role: RoleNeed, numbers: dict[str, int]) -> str:
    if not numbers["largest_cpu_milli"]:
        more = role.need.gpu_memory_bytes or role.need.affinity or role.need.mig_profile
        named = "GPU model, GPU memory, MIG profile, node selector, affinity" if more else "GPU model, node selector"
        return f"no node satisfies its {named} and tolerations"
    if numbers["pods_placed"]:
        return f"at most {numbers['pods_placed']} of its {numbers['pods']} pods fit into the empty pool"
    most = [(name, numbers[f"most_{number_name(name)}_free_on_a_node"]) for name, _ in role.need.devices]
    further = [f", {count}{' of ' if is_device(name) else ' bytes of '}{name}" for name, count in most]
    return (
        f"the largest suitable node has {numbers['largest_gpus']} GPUs{''.join(further)}, "
        f"{numbers['largest_cpu_milli']} thousandths of a CPU and "
        f"{numbers['largest_memory_bytes']} bytes of memory"
    )


def _never_together(unit: Unit, empty: Mapping[str, Node], places: FeasibleNodes) -> Reason | None:
    """Whether pods that must lie together, or evenly apart, could do so at best."""
    for part in unit.parts:
        there = {name: bundles_for(part, empty[name]) for name in places.suited(part)}
        if len(part.roles) > 1 and sum(there.values()) < part.count:
            numbers = {"pods_wanted": part.count, "pods_that_fit_empty_nodes": sum(there.values())}
            names = " and ".join(role.name for role in part.roles)
            detail = f"no node could hold pods of {names} side by side, or too few could"
            field = f"roles.{part.roles[1].name}.same_node_as"
            return Reason(code=Code.INADMISSIBLE, field=field, numbers=numbers, detail=detail)
        if part.role.spread and not unit.bound and not _ever_even(part, there, places):
            return _never(part, "spread", part.role.spread, places.split(there, part.role.spread), there)
    if not unit.bound:
        return None
    domains = places.domains(unit.levels[-1])
    if any(_ever_in(unit, members, empty, places) for members in domains.values()):
        return None
    there = {name: bundles_for(unit.parts[0], empty[name]) for name in places.suited(unit.parts[0])}
    return _never(unit.parts[0], "topology", unit.levels[-1], places.split(there, unit.levels[-1]), there)


def _never(part: Part, field: str, label: str, domains: Mapping[str, list[str]], there: Rooms) -> Reason:
    most = max((sum(there[name] for name in members) for members in domains.values()), default=0)
    numbers = {"domains": len(domains), "pods_wanted": part.count, "most_pods_that_fit_one_empty_domain": most}
    detail = f"{label}: even empty, no domain could hold its pods"
    if field == "spread":
        detail = f"{label}: even empty, its domains could not take equal numbers of pods"
    return Reason(code=Code.INADMISSIBLE, field=f"roles.{part.role.name}.{field}", numbers=numbers, detail=detail)


def _ever_in(unit: Unit, members: Iterable[str], empty: Mapping[str, Node], places: FeasibleNodes) -> bool:
    for part in unit.parts:
        suited = places.suited(part)
        there = {name: bundles_for(part, empty[name]) for name in members if name in suited}
        if sum(there.values()) < part.count or (part.role.spread and not _ever_even(part, there, places)):
            return False
    return True


def _ever_even(part: Part, there: Rooms, places: FeasibleNodes) -> bool:
    """With all domains, or without some: a domain whose nodes are all away does not count."""
    domains = places.split((name for name in there if there[name]), part.role.spread)
    sums = sorted((sum(there[name] for name in members) for members in domains.values()), reverse=True)
    return any(
        even_shares(part.count, {str(at): room for at, room in enumerate(sums[:count])}) is not None
        for count in range(1, len(sums) + 1)
    )


def _too_much_together(roles: tuple[RoleNeed, ...], nodes: dict[str, Node]) -> Reason | None:
    suitable = [n for n in nodes.values() if any(never_fits(role.need, n) is None for role in roles)]
    wanted = gang_of(roles).amount
    for name, want, have in (
        ("gpu_milli", _gpu_milli(roles), sum(n.gpus for n in suitable) * WHOLE_GPU),
        ("cpu_milli", wanted.cpu_milli, sum(n.cpu_milli for n in suitable)),
        ("memory_bytes", wanted.memory_bytes, sum(n.memory_bytes for n in suitable)),
        ("pods", gang_of(roles).pods, sum(n.pods for n in suitable)),
    ):
        if want > have:
            numbers = {f"wanted_{name}": min(want, INT_MAX), f"{name}_of_all_nodes": have}
            detail = "its roles together need more than all suitable nodes have"
            return Reason(code=Code.INADMISSIBLE, field="roles", numbers=numbers, detail=detail)
    return None


def _gpu_milli(roles: tuple[RoleNeed, ...]) -> int:
    """Without instances: what one counts against a quota is the most that it takes of any kind of GPU."""
    return sum(role.replicas * (role.need.gpus * WHOLE_GPU + role.need.gpu_milli) for role in roles)
