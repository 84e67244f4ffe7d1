"""A gang: the pods of a job that are placed all together or not at all, and what they take of nodes."""

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

from tessera.domain.devices.networks import spread
from tessera.domain.devices.resources import NOTHING, Amount, Need, Node, RoleNeed
from tessera.domain.storing.fast import fast_init, replace
from tessera_schemas.work.placement import Placement
from tessera_schemas.work.spec_changes import RoleAmounts


@fast_init
@dataclass(frozen=True, slots=True)
class RestartingCopy:
    """
    A copy of a group of a run's pods that was started again by itself: pods `ranks`, most lately at `ts`.

    `number` counts such restarts within the run, `count` those of this copy since it last held. Until all its pods run
    again it has until `deadline`, 0 from then on; they are made from `not_before` on, and once they are `permitted`
    their UIDs are the run's. Times are ledger milliseconds.
    """

    group: str
    copy: int
    ranks: tuple[int, ...]
    number: int
    count: int
    ts: int
    not_before: int
    deadline: int
    permitted: bool = False

    @property
    def is_out(self) -> bool:
        """Whether its former pods are on their way out, and the next ones not permitted yet."""
        return self.deadline > 0 and not self.permitted


def ranks_out(restarts: Iterable[RestartingCopy]) -> frozenset[int]:
    """The ranks whose pods are to go, or have gone, and whose next ones are not permitted yet."""
    return frozenset(rank for copy in restarts if copy.is_out for rank in copy.ranks)


class Gang(tuple[RoleNeed, ...]):
    """
    The roles of a job in rank order, each with its replicas.

    A gang compares and hashes by content and remembers its hash; `gang_of` gives one object for equal gangs. So what
    is kept by gang is found at once, also by whoever restored the gang from a snapshot.
    """

    def __hash__(self) -> int:
        return self._content_hash

    @cached_property
    def _content_hash(self) -> int:
        return super().__hash__()

    @cached_property
    def need_of(self) -> Mapping[str, Need]:
        """Need of each pod, by the name of its role."""
        return {role.name: role.need for role in self}

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        """Need of each pod, in rank order; a claim that pods share is the first one's alone."""
        return tuple(need for role in self for need in self.needs_in(role))

    def needs_in(self, role: RoleNeed) -> tuple[Need, ...]:
        """Need of each pod of one of its roles, as `needs` has them."""
        first, further = self._needs_by_role[role.name]
        return (first, *(further,) * (role.replicas - 1))

    def need_at(self, place: Placement) -> Need:
        """Need of the pod of that rank, surplus ones included, as `needs` has them."""
        first, further = self._needs_by_role[place.role]
        return first if place.rank == self.first_rank[place.role] else further

    @cached_property
    def _needs_by_role(self) -> Mapping[str, tuple[Need, Need]]:
        """Need of the first pod of each role, and of each further one."""
        # By rank, and not by who has devices: a plan is judged by it, and may have drawn for the wrong pod.
        found, had = dict[str, tuple[Need, Need]](), frozenset[str]()
        for role in self:
            first, had = role.need.joining(had), had | role.need.shared
            found[role.name] = first, role.need.joining(had)
        return found

    @cached_property
    def first_rank(self) -> Mapping[str, int]:
        """The rank of the first pod of each role, by the role's name."""
        firsts = accumulate((role.replicas for role in self), initial=0)
        return {role.name: rank for role, rank in zip(self, firsts, strict=False)}

    def copy_of(self, group: str, rank: int) -> tuple[int, tuple[int, ...]] | None:
        """Number of the copy of a group that the pod of this rank is in, and the ranks of its pods; None for none."""
        sizes = {role.name: pods or role.replicas for role in self for name, pods, *_ in role.groups if name == group}
        for role in self:
            at = rank - self.first_rank[role.name]
            if role.name in sizes and 0 <= at < role.replicas:
                copy = at // sizes[role.name]
                firsts = ((self.first_rank[name] + copy * size, size) for name, size in sizes.items())
                return copy, tuple(each for first, size in firsts for each in range(first, first + size))
        return None

    @cached_property
    def growing(self) -> Mapping[str, int]:
        """Pods by role of a copy of the group by which its run grows; empty where that grows pod by pod, or never."""
        elastic = next((role for role in self if role.more and any(pods for _, pods, *_ in role.groups)), None)
        if elastic is None:
            return {}
        widest = next(name for name, pods, *_ in elastic.groups if pods)
        return {role.name: pods for role in self for name, pods, *_ in role.groups if name == widest}

    def whole_copies(self, ranks: Iterable[int]) -> set[int]:
        """Ranks of all pods of the copies beyond the gang that these pods are in; themselves where it grows singly."""
        # Ranks are never used again within a run, and a growth is whole copies, so that they divide by number alone.
        size, first = sum(self.growing.values()), self.pods
        if not size:
            return set(ranks)
        firsts = {first + (rank - first) // size * size for rank in ranks}
        return {rank for at in firsts for rank in range(at, at + size)}

    def groups_around(self, group: str) -> set[str]:
        """Names of the groups that copies of this one are within."""
        chains = ([name for name, *_ in role.groups] for role in self)
        return {name for names in chains if group in names for name in names[: names.index(group)]}

    @cached_property
    def reads_data(self) -> bool:
        """Whether its pods read data sets."""
        return any(role.need.data for role in self)

    @cached_property
    def has_neighbours(self) -> bool:
        """Whether its pods say anything of pods of other jobs, or others may mean them by their labels."""
        return any(role.neighbours is not None for role in self)

    @cached_property
    def pods(self) -> int:
        """The replicas of all roles, without surplus pods."""
        return sum(role.replicas for role in self)

    @cached_property
    def amount(self) -> Amount:
        """Amount that the whole gang holds while it has a run."""
        total = NOTHING
        for role in self:
            first, further = self._needs_by_role[role.name]
            total = total.plus(first.amount).plus(further.amount, role.replicas - 1)
        return total

    @cached_property
    def one_model(self) -> Mapping[str, tuple[RoleNeed, ...]]:
        """The roles whose pods are on one GPU model at a time, by the name of the first of them."""
        found: dict[str, tuple[RoleNeed, ...]] = {}
        for role in self:
            if role.one_model:
                found[role.one_model] = (*found.get(role.one_model, ()), role)
        return found

    @cached_property
    def claims(self) -> bool:
        """Whether pods of it have claims on published devices."""
        return any(role.need.claims for role in self)

    @cached_property
    def apart(self) -> bool:
        """Whether shares of it are on distinct devices."""
        return any(role.need.apart for role in self)

    def amount_of(self, placements: Iterable[Placement]) -> Amount:
        """Amount that these pods of the gang's roles hold."""
        total = NOTHING
        for placement in placements:
            total = total.plus(self.need_at(placement).amount_drawn(placement))
        return total

    def take(self, nodes: MutableMapping[str, Node], placements: Iterable[Placement], sign: int = 1) -> None:
        """
        Change the nodes of the placements, as far as they are among `nodes`: pods came (1) or left (-1).

        So are those that a network reaches of which the pods have devices.
        """
        drawing = list[Placement]()
        for placement in placements:
            node = nodes.get(placement.node)
            if node is not None:
                nodes[node.name] = node.taking(self.need_of[placement.role], placement, sign)
            if placement.drawn:
                drawing.append(placement)
        # Once for all pods: each of a thousand nodes is another one once, and not once for each pod.
        if drawing:
            spread(nodes, drawing, sign)


@lru_cache(maxsize=65_536)
def _known(roles: tuple[RoleNeed, ...]) -> Gang:
    return Gang(roles)


def gang_of(roles: tuple[RoleNeed, ...]) -> Gang:
    """The gang of these roles: one object for equal roles, as long as it is used."""
    return roles if isinstance(roles, Gang) else _known(roles)


def bearing(roles: tuple[RoleNeed, ...], tolerated: tuple[tuple[str, str, str], ...]) -> Gang:
    """The gang of these roles with the standing tolerations of its tenant, in place of those that it had before."""
    if all(role.need.tolerated == tolerated for role in roles):
        return gang_of(roles)
    return gang_of(tuple(replace(role, need=replace(role.need, tolerated=tolerated)) for role in roles))


def sized(roles: tuple[RoleNeed, ...], size: RoleAmounts) -> Gang:
    """The gang of these roles, of which one has pods of another size."""
    amounts = {"cpu_milli": size.cpu_milli, "memory_bytes": size.memory_bytes}
    of_size = (replace(role, need=replace(role.need, **amounts)) if role.name == size.role else role for role in roles)
    return gang_of(tuple(of_size))


def size_of(roles: tuple[RoleNeed, ...], name: str) -> RoleAmounts | None:
    """CPU and memory of each pod of a role; None where there is no such role."""
    need = gang_of(roles).need_of.get(name)
    return None if need is None else RoleAmounts(role=name, cpu_milli=need.cpu_milli, memory_bytes=need.memory_bytes)


def larger(one: RoleAmounts, other: RoleAmounts) -> RoleAmounts:
    """The larger of both sizes of a role, resource by resource: pods that go from one to the other may hold it."""
    cpu, memory = max(one.cpu_milli, other.cpu_milli), max(one.memory_bytes, other.memory_bytes)
    return RoleAmounts(role=one.role, cpu_milli=cpu, memory_bytes=memory)
