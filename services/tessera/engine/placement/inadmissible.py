"""Jobs that no state of the nodes could ever hold: refused at once instead of waiting for ever."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tessera.domain.devices.empty_nodes import emptied
from tessera.domain.devices.mig.changes import changes_by_pool, config_of, cut_to
from tessera.domain.devices.resources import WHOLE_GPU, Node, RoleNeed, is_seat
from tessera.domain.queues import BUT, QueueTree
from tessera.domain.work.gang import gang_of
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.fits import BundleKind, count_bundles, kind_of, never_fits
from tessera.engine.placement.gangs import place_gang
from tessera.engine.placement.placement_groups import BundleCounts, BundleSet, PlacementGroup, placement_groups
from tessera.engine.placement.rows.room_counts import RoomTable
from tessera.engine.placement.rows.shortage import able_domains, even_shares
from tessera_schemas.base import INT_MAX
from tessera_schemas.cluster.resource_kinds import WHOLE_NODE, is_device, number_name
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.text.units import format_memory, format_milli


class EmptyNodes:
    """
    Nodes as if nothing were on them, and ready; nodes that are gone are left out. Room is counted for each kind once.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = {node.name: _with_slots(emptied(node)) for node in nodes if not node.gone}
        self.counted = {name for node in self.nodes.values() for name, _ in node.devices}
        """Names of the devices that device plugins offer."""
        self.any_offering = any(node.offer is not None for node in self.nodes.values())
        self.places = FeasibleNodes(self.nodes)
        self._table = RoomTable(self.nodes, self.places)

    def hold(self, kind: BundleKind, count: int) -> bool:
        """Whether so many bundles have room."""
        return self._table.total(kind) >= count

    def hold_in_one_domain(self, bundle_sets: Iterable[BundleSet], level: str) -> bool:
        """Whether one domain has room for each of them on its own."""
        return bool(able_domains(bundle_sets, level, self._table))

    def sums(self, roles: Iterable[RoleNeed]) -> dict[str, int]:
        """Amounts of all nodes that suit one of the roles."""
        table, suited = self._table, np.zeros(len(self.nodes), np.bool_)
        for role in roles:
            suited |= table.suits(kind_of((role.need,)))
        pods, cpu, memory, gpus = (int(each) for each in table.free[:, suited].sum(axis=1))
        return {"gpu_milli": gpus * WHOLE_GPU, "cpu_milli": cpu, "memory_bytes": memory, "pods": pods}


def inadmissible(roles: tuple[RoleNeed, ...], nodes: Iterable[Node] | EmptyNodes) -> Reason | None:
    """
    Why no state of these nodes could ever hold the gang, naming the largest that would fit; None when one might.

    Nodes count as empty and ready. Without any nodes nothing is known and nothing is refused. Each role is tried alone,
    where best fit is exact since its pods are equal; of pods that lie together only sums are compared, since best fit
    may miss a way to place them that some other state of the nodes would lead it to.
    """
    known = nodes if isinstance(nodes, EmptyNodes) else EmptyNodes(nodes)
    if not known.nodes:
        return None
    # Layouts, classes and what expressions take may all come later, with a driver or an answer of the binder.
    # And a node at its best may have more GPUs than now: of whole nodes only amounts refuse for good.
    roles = tuple(_with_company(role) if role.need.exclusive else role for role in roles)
    roles = tuple(_without_passing(role, known) for role in roles)
    for role in roles:
        # Counts first, for nearly all jobs; a placement is made only to put numbers and words to a refusal that is
        # certain by then.
        if not known.hold(kind_of((role.need,)), role.replicas):
            alone = replace(role, levels=(), bound=False, group="", beside="", spread="", groups=())
            verdict = place_gang((alone,), known.nodes, known.places)
            if isinstance(verdict, Reason):
                return _role_inadmissible(role, verdict, known.nodes)
    groups = [each for group in placement_groups(roles) for each in (group, *group.kinds_of_groups)]
    for group in groups:
        # A group whose sums are in order is not placed on trial: this answers most gangs without a look at a single
        # node.
        never = None if _lie_together(group, known) else _never_together(group, known.nodes, known.places)
        if never is not None:
            return never
    return _too_much_together(roles, known) if len(roles) > 1 else None


def _without_passing(role: RoleNeed, known: EmptyNodes) -> RoleNeed:
    """Published devices, a kubelet's policy, and where pods stand may be others tomorrow: no reason for good."""
    counted = role.need.devices
    if known.any_offering:
        counted = tuple((name, count) for name, count in counted if name in known.counted or is_seat(name))
    passing = role.need.claims or role.need.single_numa or role.need.by_pods
    if not passing and counted == role.need.devices:
        return role
    return replace(role, need=replace(role.need, claims=(), devices=counted, single_numa=False, by_pods=()))


def _with_slots(node: Node) -> Node:
    """The node whose published GPUs count as slots, whatever class may answer for them one day, and of no zones."""
    node = replace(node, zones=()) if node.zones else node
    return replace(node, device_profile="whole") if node.device_profile == "dra" and node.gpus else node


def _lie_together(group: PlacementGroup, known: EmptyNodes) -> bool:
    """Whether counts alone say that nothing about how its pods lie to each other stands against the group."""
    if any(bundles.role.spread for bundles in group.bundle_sets):
        return False
    if not all(known.hold(bundles.kind, bundles.count) for bundles in group.bundle_sets):
        return False
    return not group.bound or known.hold_in_one_domain(group.bundle_sets, group.levels[-1])


def _with_company(role: RoleNeed) -> RoleNeed:
    devices = tuple(each for each in role.need.devices if each[0] != WHOLE_NODE)
    return replace(role, need=replace(role.need, devices=devices))


def unreachable(
    roles: tuple[RoleNeed, ...],
    nodes: Iterable[Node],
    tree: QueueTree,
    queue: str,
    flavors: Iterable[str],
    known: dict[str, EmptyNodes] | None = None,
) -> Reason | None:
    """
    Why no state of these nodes could ever hold the gang on any of these flavors, which the queue's quotas reach.

    A gang starts on nodes of one flavor. Without any nodes nothing is known, of any flavor. `known` carries the nodes
    of each flavor from one question about the same nodes and tree to the next.
    """
    known = {} if known is None else known
    there, refused = [*nodes], list[tuple[str, Reason]]()
    there += _cut_otherwise(there, tree)
    for flavor in flavors:
        of_it = known.get(flavor)
        if of_it is None:
            of_it = known[flavor] = EmptyNodes(node for node in there if tree.is_on(node, flavor))
        against = inadmissible(roles, of_it)
        # A flavor without nodes refuses while other nodes are there; where there are none at all, nothing is known yet.
        if not of_it.nodes and any(not node.gone for node in there):
            against = Reason(code=Code.INADMISSIBLE, detail="there is no such node")
        # One flavor that may hold it is enough.
        if against is None:
            return None
        refused.append((flavor, against))
    if not refused:
        return None
    # Asked last: whether nodes are too small or only quota does not reach them are two things to mend.
    anywhere = inadmissible(roles, there)
    if anywhere is not None:
        return anywhere
    tried = "; ".join(f"{describe_flavor(flavor)}: {against.detail}" for flavor, against in refused)
    detail = f"other nodes could hold it, but no quota of queue {queue} reaches them. Of those that one does: {tried}"
    first = refused[0][1]
    return Reason(code=Code.INADMISSIBLE, field="queue", numbers=first.numbers, detail=detail[:1024])


def _cut_otherwise(nodes: Sequence[Node], tree: QueueTree) -> list[Node]:
    """Nodes under the other configurations that their pools allow: instances that may be made are no "never"."""
    pools = changes_by_pool(tree.pools)
    allowed = [(node, pools[node.pool]) for node in nodes if node.pool in pools]
    found: list[Node] = []
    for node, changes in allowed:
        # Of a node whose label and instances do not agree nobody knows how many GPUs it has.
        now = config_of(node, changes)
        others = [(config, cut_to(node, config, now[1] if now else node.gpus)) for config in changes.configs]
        found += [replace(other, name=f"{node.name}/{config.name}") for config, other in others if other is not None]
    return found


def describe_flavor(flavor: str) -> str:
    """A flavor as `flavors_for` names it, for people."""
    return f"any but {flavor[1:].replace(',', ', ')}" if flavor.startswith(BUT) else flavor


def _role_inadmissible(role: RoleNeed, verdict: Reason, nodes: dict[str, Node]) -> Reason:
    allowed = [n for n in nodes.values() if never_fits(role.need, n) is None]
    numbers = dict(verdict.numbers)
    numbers["largest_cpu_milli"] = max((n.cpu_milli for n in allowed), default=0)
    numbers["largest_memory_bytes"] = max((n.memory_bytes for n in allowed), default=0)
    numbers["largest_gpus"] = max((n.gpus for n in allowed), default=0)
    detail = _largest(role, numbers) + (f"; {verdict.detail}" if verdict.detail else "")
    return Reason(code=Code.INADMISSIBLE, field=verdict.field, numbers=numbers, detail=detail[:1024])


def _largest(role: RoleNeed, numbers: dict[str, int]) -> str:
    if not numbers["largest_cpu_milli"]:
        more = role.need.gpu_memory_bytes or role.need.affinity or role.need.affinity_any or role.need.mig_profile
        named = "GPU model, GPU memory, MIG profile, node selector, affinity" if more else "GPU model, node selector"
        return f"no node satisfies its {named} and tolerations"
    if numbers["pods_placed"]:
        return f"at most {numbers['pods_placed']} of its {numbers['pods']} pods fit into the empty pool"
    counted = [name for name, _ in role.need.devices if not is_seat(name)]
    most = [(name, numbers[f"most_{number_name(name)}_free_on_a_node"]) for name in counted]
    further = [f", {count if is_device(name) else format_memory(count)} of {name}" for name, count in most]
    if (instances := numbers.get("most_instances_free_on_a_node")) is not None:
        further.insert(0, f", {_count(str(instances), 'instance')} of {role.need.mig_profile}")
    gpus, cpus = _count(str(numbers["largest_gpus"]), "GPU"), _count(format_milli(numbers["largest_cpu_milli"]), "CPU")
    memory = format_memory(numbers["largest_memory_bytes"])
    return f"the largest suitable node has {gpus}{''.join(further)}, {cpus} and {memory} of memory"


def _count(number: str, of: str) -> str:
    return f"{number} {of}" if number == "1" else f"{number} {of}s"


def _never_together(group: PlacementGroup, empty: Mapping[str, Node], places: FeasibleNodes) -> Reason | None:
    """Whether pods that must lie together, or evenly apart, could do so at best."""
    for bundles in group.bundle_sets:
        there = {name: count_bundles(bundles.kind, empty[name]) for name in places.suited(bundles.kind)}
        if len(bundles.roles) > 1 and sum(there.values()) < bundles.count:
            numbers = {"pods_wanted": bundles.count, "pods_that_fit_empty_nodes": sum(there.values())}
            names = " and ".join(role.name for role in bundles.roles)
            detail = f"no node could hold pods of {names} side by side, or too few could"
            field = f"roles.{bundles.roles[1].name}.same_node_as"
            return Reason(code=Code.INADMISSIBLE, field=field, numbers=numbers, detail=detail)
        if bundles.role.spread and not group.bound and not _ever_even(bundles, there, places):
            return _never(bundles, "spread", bundles.role.spread, places.split(there, bundles.role.spread), there)
    if not group.bound:
        return None
    domains = places.domains(group.levels[-1])
    if any(_ever_in(group, members, empty, places) for members in domains.values()):
        return None
    there = {
        name: count_bundles(group.bundle_sets[0].kind, empty[name]) for name in places.suited(group.bundle_sets[0].kind)
    }
    domains, of_group = places.split(there, group.levels[-1]), f"groups.{group.name}" if group.name else ""
    return _never(group.bundle_sets[0], "topology", group.levels[-1], domains, there, of_group)


def _never(
    bundles: BundleSet,
    field: str,
    label: str,
    domains: Mapping[str, list[str]],
    there: BundleCounts,
    of_group: str = "",
) -> Reason:
    most = max((sum(there[name] for name in members) for members in domains.values()), default=0)
    numbers = {"domains": len(domains), "pods_wanted": bundles.count, "most_pods_that_fit_one_empty_domain": most}
    detail = f"{label}: even empty, no domain could hold its pods"
    if field == "spread":
        detail = f"{label}: even empty, its domains could not take equal numbers of pods"
    path = f"{of_group or f'roles.{bundles.role.name}'}.{field}"
    return Reason(code=Code.INADMISSIBLE, field=path, numbers=numbers, detail=detail)


def _ever_in(group: PlacementGroup, members: Iterable[str], empty: Mapping[str, Node], places: FeasibleNodes) -> bool:
    for bundles in group.bundle_sets:
        suited = places.suited(bundles.kind)
        there = {name: count_bundles(bundles.kind, empty[name]) for name in members if name in suited}
        if sum(there.values()) < bundles.count or (bundles.role.spread and not _ever_even(bundles, there, places)):
            return False
    return True


def _ever_even(bundles: BundleSet, there: BundleCounts, places: FeasibleNodes) -> bool:
    """Tells whether the pods can ever be spread evenly; a domain whose nodes are all away does not count."""
    domains = places.split((name for name in there if there[name]), bundles.role.spread)
    sums = sorted((sum(there[name] for name in members) for members in domains.values()), reverse=True)
    return any(
        even_shares(bundles.count, {str(at): room for at, room in enumerate(sums[:count])}, bundles.role.max_skew)
        is not None
        for count in range(1, len(sums) + 1)
    )


def _too_much_together(roles: tuple[RoleNeed, ...], known: EmptyNodes) -> Reason | None:
    wanted, sums = gang_of(roles).amount, known.sums(roles)
    for name, want in (
        ("gpu_milli", _gpu_milli(roles)),
        ("cpu_milli", wanted.cpu_milli),
        ("memory_bytes", wanted.memory_bytes),
        ("pods", gang_of(roles).pods),
    ):
        have = sums[name]
        if want > have:
            numbers = {f"wanted_{name}": min(want, INT_MAX), f"{name}_of_all_nodes": have}
            detail = "its roles together need more than all suitable nodes have"
            return Reason(code=Code.INADMISSIBLE, field="roles", numbers=numbers, detail=detail)
    return None


def _gpu_milli(roles: tuple[RoleNeed, ...]) -> int:
    """Thousandths of GPUs without MIG instances, which count by the most that they take of any kind of GPU."""
    needs = ((role.replicas, role.need) for role in roles)
    return sum(pods * (need.gpus * WHOLE_GPU + need.gpu_milli * need.gpu_parts) for pods, need in needs)
