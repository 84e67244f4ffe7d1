"""The checker's own book of nodes: what each has, what is held on it, and whether a pod may be there at all."""

from collections import Counter
from collections.abc import Iterable, Sequence, Set

from tessera.testkit.devices_checker import ANY, CheckedDevices, drawn_amounts, fits_a_zone
from tessera_schemas.cluster.devices import NAMES_NO_CARDS, OF_REPLICAS, serves
from tessera_schemas.cluster.labels import GPU_RESOURCE
from tessera_schemas.cluster.mig import milli_at
from tessera_schemas.cluster.resource_kinds import WHOLE_NODE
from tessera_schemas.config import Pool, Queue, Tenant
from tessera_schemas.facts import NodeSeen
from tessera_schemas.job import AffinityTerm, JobSpec, Resources, Role
from tessera_schemas.work.placement import Placement

NO_NODE = NodeSeen(kind="node_seen", name="none", gone=True)
ENOUGH = {"memory": ("hami", "mps"), "compute": ("hami", "mps"), "hardware": ()}
"""Device profiles whose shares are kept apart so, by the isolation that is asked for."""
HeldAmounts = Counter[tuple[str, str]]
"""(node, what) to amount: cpu_milli, memory_bytes, pods, whole_node, gpus (whole), gpu/<slot> in thousandths,
device/<name>, one/<anti-affinity group>, and of devices that drivers publish as `drawn_amounts` has them."""


def amounts(gang: Iterable[Role], placements: Iterable[Placement], tenant: str = "", job_id: str = "") -> HeldAmounts:
    """
    Amounts that these pods hold, node by node and device by device; `job_id` is that of an array for its tasks.
    """
    total = HeldAmounts()
    for role, place in zip(gang, placements, strict=True):
        held = {"cpu_milli": role.cpu_milli, "memory_bytes": role.memory_bytes, "pods": 1}
        slots = Counter(place.devices)
        held |= {"gpus": role.resources.gpus} | {f"gpu/{at}": n * place.gpu_milli for at, n in slots.items()}
        held |= {f"device/{name}": n for name, n in (role.resources.extended | role.named_amounts).items()}
        held |= {WHOLE_NODE: held.pop(f"device/{WHOLE_NODE}")} if role.exclusive else {}
        held |= {f"one/{tenant}/{of.group or ''}/{'' if of.group else job_id}": 1 for of in role.anti_affinity}
        held |= drawn_amounts(place.drawn)
        total.update({(place.node, what): amount for what, amount in held.items()})
    return total


class CheckedNodes:
    """
    Two sums: `held` by runs that are not released, and `kept` for runs that go on and for earmarks.

    An earmark may lie on devices that a stopping run still holds; a run may not. So a run must fit into both sums
    and an earmark only into `kept`. A node that shrinks breaks nothing: only what is added to it is judged.
    """

    def __init__(self) -> None:
        self.nodes, self.held, self.kept = dict[str, NodeSeen](), HeldAmounts(), HeldAmounts()
        self.devices = CheckedDevices(self.nodes)
        self.bearing: tuple[Pool | Tenant, ...] = ()
        """Pools and tenants, some with standing tolerations."""
        self.kept_percent = 0
        """Part of CPU, memory and places that jobs without GPUs leave beside each free GPU."""

    def take(self, book: HeldAmounts, added: HeldAmounts) -> list[tuple[str, str]]:
        """Add, and return what of the places added to is used above its size."""
        book.update(added)
        over = [place for place, more in added.items() if more and self._held(book, *place) > self._size(book, *place)]
        for node in {node for node, what in added if what.startswith("drawn/")}:
            drawn = {w[6:]: more for (at, w), more in added.items() if at == node and more and w.startswith("drawn/")}
            over += [(node, what) for what in self.devices.overdrawn(book, self.nodes.get(node, NO_NODE), drawn)]
        return over

    def _held(self, book: HeldAmounts, node: str, what: str) -> int:
        if not what.startswith(("drawn/", "part/")):
            return book[node, what]
        return self.devices.held(book, self.nodes.get(node, NO_NODE), what)

    def crowded(self, used: HeldAmounts, added: HeldAmounts) -> list[str]:
        """Nodes that, with `added` of a job without GPUs among `used`, leave too little of it beside free GPUs."""
        return [at[0] for at, more in added.items() if more and self.kept_percent and not self._leaves(used, *at)]

    def _leaves(self, used: HeldAmounts, node: str, what: str) -> bool:
        seen = self.nodes.get(node, NO_NODE)
        if what not in ("cpu_milli", "memory_bytes", "pods") or any(
            used[node, f"gpu/{slot}"] for slot in range(seen.gpus, 64)
        ):
            return True  # where slots are held that the node has lost nobody knows which cards are free
        free = [1000 - used[node, f"gpu/{slot}"] for slot in range(seen.gpus)]
        for slot, milli in self.devices.gpu_parts(used, seen):
            free[slot] -= milli
        idle = sum(milli for milli in free if milli > 0) - 1000 * min(free.count(1000), seen.others.gpus)
        left = getattr(seen, what) - getattr(seen.others, what) - used[node, what]
        return bool(getattr(seen, what) * self.kept_percent * idle // (100_000 * max(1, seen.gpus)) <= left)

    def take_over(self, role: Role, node: str) -> None:
        """Take a pod of this role off what others use of the node."""
        seen = self.nodes.get(node, NO_NODE)
        others, asked = seen.others, {**role.resources.extended, **role.named_amounts}
        left = others.model_copy(
            update={
                "cpu_milli": max(0, others.cpu_milli - role.cpu_milli),
                "memory_bytes": max(0, others.memory_bytes - role.memory_bytes),
                "pods": max(0, others.pods - 1),
                "gpus": max(0, others.gpus - role.resources.gpus),
                "devices": {k: v - asked.get(k, 0) for k, v in others.devices.items() if v > asked.get(k, 0)},
            }
        )
        self.nodes[node] = seen.model_copy(update={"others": left})

    def _size(self, book: HeldAmounts, node: str, what: str) -> int:
        """
        Less what pods of others take; of which GPUs nobody says, so that only their number counts. Who still holds a
        slot that its node has lost takes none of those that it has, unless nobody says which card a slot is.
        """
        seen = self.nodes.get(node, NO_NODE)
        if what == WHOLE_NODE or (what == "pods" and book[node, WHOLE_NODE]):
            return 1  # who has the node to itself is the only pod of ours there
        if what.startswith("one/"):
            return 1
        if what.startswith("gpu/"):
            return 1000 if 0 <= int(what[4:]) < seen.gpus else 0
        if what.startswith(("drawn/", "part/")):
            return self.devices.size(seen, what)
        counted = GPU_RESOURCE if what == "gpus" else what.removeprefix("device/") if what.startswith("device/") else ""
        if counted and self.devices.class_for(counted, seen):
            return ANY  # what is had of it are devices of a claim, each of which is judged by itself
        have, theirs = (seen.extended, seen.others.devices) if "/" in what else (vars(seen), vars(seen.others))
        certain = what == "gpus" and seen.device_profile not in NAMES_NO_CARDS
        lost = sum(book[node, f"gpu/{slot}"] // 1000 for slot in range(seen.gpus, 64)) if certain else 0
        return int(have.get(what.removeprefix("device/"), 0) - theirs.get(what.removeprefix("device/"), 0)) + lost

    def misplaced(
        self,
        role: Role,
        place: Placement,
        queue: Queue | None,
        tenant: str,
        adopted: bool = False,
        joined: Set[str] = frozenset(),
    ) -> str:
        """
        Why this pod of the tenant may not be on its node, whatever room there is; "" if it may. The resource of the
        GPUs of an `adopted` pod stands in it. `joined` are shared claims that a pod before it has.
        """
        node, asked = self.nodes.get(place.node, NO_NODE), role.resources
        part = asked.gpu_milli or _milli_of(asked, place, node)
        count, milli = (asked.gpus, 1000) if asked.gpus else (asked.gpu_parts, part) if asked.kind else (0, 0)
        claims = self.devices.claims_on(role, node)
        driven = bool(asked.gpus) and node.device_profile == "dra" and len(claims) > len(asked.claims)
        slots = (0, 0, 0) if driven else (count, count, milli)
        bears = [role, *(of for of in self.bearing if (type(of), of.name) in ((Pool, node.pool), (Tenant, tenant)))]
        lets = {(t.key, None if t.every_value else t.value, t.effect) for of in bears for t in of.tolerations}
        taints = [t for t in node.taints if t.effect != "PreferNoSchedule"]
        of = node.gpu_resource or GPU_RESOURCE
        lets |= {(name, None, "NoSchedule") for name in (*asked.extended, *([of] if asked.kind else []))}
        suffers = [t for t in taints if not lets & {(t.key, v, e) for v in (None, t.value) for e in ("", t.effect)}]
        wrong = {
            "the node is not ready": node.gone or not node.ready or node.trouble is not None,
            f"the node is in pool {node.pool}": queue is None or node.pool != queue.pool,
            "wrong devices": (len(place.devices), len(_apart(place)), place.gpu_milli) != slots,
            f"its GPUs are {of}": bool(asked.gpus or asked.gpu_milli) and not _may_use(role, node, of, adopted),
            f"the node has {node.gpu_model}": bool(role.gpu_models) and node.gpu_model not in role.gpu_models,
            "its GPUs have less memory": asked.gpu_memory_bytes * 1000 > node.gpu_memory_bytes * milli,
            "the node's labels do not match": not role.node_selector.items() <= node.labels.items(),
            "its affinity does not hold": not _affinity_holds(role, node.labels),
            f"the node serves {node.device_profile}": asked.kind
            and not (driven or serves(node.device_profile, asked.kind)),
            "replicas may be of one GPU": asked.gpu_parts > 1 and node.device_profile in OF_REPLICAS,
            f"its shares are of {node.share_milli}": asked.gpu_milli and node.share_milli not in (0, asked.gpu_milli),
            f"its GPUs are less isolated than {asked.isolation}": asked.isolation != "none"
            and not self._isolates(role, place, node),
            f"it does not tolerate {suffers}": bool(suffers),
            (unanswered := self.devices.unanswered(claims, place.drawn, node, joined)): bool(unanswered),
            f"the node has {node.gpus} GPUs": role.exclusive and node.gpus != asked.gpus,
            "its kubelet keeps no pod within a NUMA zone": bool(asked.numa_policy) and not node.zones,
        }
        return "; ".join(text for text, holds in wrong.items() if holds)

    def _isolates(self, role: Role, place: Placement, node: NodeSeen) -> bool:
        """Whether a pod's share, and shared GPUs of its claims, are apart as it asks; other GPUs are its own."""
        own = not role.resources.gpu_milli or node.device_profile in ENOUGH[role.resources.isolation]
        return own and self.devices.are_isolated(place.drawn, node, role.resources.isolation)

    def scattered(
        self, job: JobSpec, places: Sequence[Placement], labels: dict[str, str], beside: Sequence[Placement] = ()
    ) -> str:
        """
        A copy of a group of pods that is not in the domain which it needs; "" if there is none. `beside` are pods of
        the job in whose domain all others are to be, where it asks for one of them all.
        """
        wrong = []
        for group in job.groups:
            copies: dict[int, list[NodeSeen]] = {}
            for role in job.roles if group.topology is not None and group.topology.required else ():
                pods = places if group.pods else (*beside, *places)
                at = [self.nodes.get(place.node, NO_NODE) for place in pods if place.role == role.name]
                size = group.pods.get(role.name, 0) if group.pods else len(at)
                for number, node in enumerate(at if size else ()):
                    copies.setdefault(number // size, []).append(node)
            asked = [] if group.topology is None else [group.topology.level, *group.topology.wider]
            for number, there in copies.items():
                values = [{node.labels.get(labels.get(level, level)) for node in there} for level in asked]
                if not any(len(found) == 1 and None not in found for found in values):
                    wrong.append(f"copy {number} of group {group.name} is in no one domain")
        return "; ".join(wrong)

    def apart(self, gang: Iterable[Role], places: Sequence[Placement], labels: dict[str, str]) -> str:
        """
        A placement rule between the pods of roles that is broken; "" if none. `labels` name the node label of each
        level.
        """
        gang = list(gang)
        roles, wrong = {role.name: role for role in gang}, []
        # Which pods of a node share a zone is a kubelet's to choose; of one pod alone it is certain that none holds it.
        there = zip(gang, (self.nodes.get(place.node, NO_NODE) for place in places), strict=True)
        wrong += [f"{role.name} fits no NUMA zone" for role, node in there if not fits_a_zone(role.resources, node)]
        at = {name: [self.nodes.get(p.node, NO_NODE) for p in places if p.role == name] for name in roles}
        for name, role in roles.items():
            if (topology := role.topology) is not None and topology.required:
                grouped = [other for other, r in roles.items() if topology.group and r.topology == topology] or [name]
                asked = [labels.get(level, level) for level in (topology.level, *topology.wider)]
                levels = [{n.labels.get(label) for other in grouped for n in at[other]} for label in asked]
                wrong += [] if any(len(v) == 1 and None not in v for v in levels) else [f"{name} is in no one domain"]
            if role.same_node_as and at[name] != at[role.same_node_as][: len(at[name])]:
                wrong.append(f"{name} is not where {role.same_node_as} is")
            if role.spread:
                pods = Counter(n.labels.get(labels.get(role.spread, role.spread)) for n in at[name])
                uneven = None in pods or max(pods.values()) - min(pods.values()) > role.max_skew
                wrong += [f"{name} is not evenly spread over {role.spread}"] if uneven else []
        sharing: dict[str, list[NodeSeen]] = {}
        for name, role in roles.items():
            for claim in (each for each in role.resources.claims if each.shared_as and not each.allocated):
                sharing.setdefault(claim.shared_as, []).extend(at[name])
        parted = [name for name, nodes in sharing.items() if len({node.name for node in nodes}) > 1]
        return "; ".join([*wrong, *(f"pods that share claim {name} are on several nodes" for name in parted)])


def _affinity_holds(role: Role, labels: dict[str, str]) -> bool:
    lists = [(*role.affinity, *terms) for terms in role.affinity_any or ((),)]
    return any(all(_holds(term, labels) for term in terms) for terms in lists)


def _holds(term: AffinityTerm, labels: dict[str, str]) -> bool:
    there = labels.get(term.key)
    if term.operator in ("Gt", "Lt"):
        found = int(there) if there is not None and there.isascii() and there.isdecimal() else None
        than = int(term.values[0])
        return found is not None and (found > than if term.operator == "Gt" else found < than)
    by = {"In": there in term.values, "NotIn": there not in term.values, "Exists": there is not None}
    return by.get(term.operator, there is None)


def _may_use(role: Role, node: NodeSeen, of: str, adopted: bool) -> bool:
    """Whether the role's pods run with GPUs `of` that resource, which the node offers."""
    said = role.resources.gpu_resource or (GPU_RESOURCE if adopted else "")
    return said == of if said else bool(role.gpu_models) or node.gpu_default


def _milli_of(asked: Resources, place: Placement, node: NodeSeen) -> int:
    """Thousandths of its GPU that each instance of the pod takes; -1 where one of them is at no legal position."""
    starts = place.mig_starts or ((place.mig[0],) if place.mig else ())
    size = place.mig[1] if place.mig else 0
    if len(starts) != asked.gpu_parts or starts[:1] != (place.mig or ())[:1]:
        return -1
    found = {milli_at(node.mig_geometry, asked.mig_profile, (start, size)) for start in starts}
    return found.pop() if len(found) == 1 else -1


def _apart(place: Placement) -> set[object]:
    """Devices of the placement, or its instances, each once: no two legal positions of one profile overlap."""
    return set(zip(place.devices, place.mig_starts, strict=False)) if place.mig_starts else set(place.devices)
