"""Jobs and runs as the rules checker knows them, from the ledger's records alone."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import sub
from typing import Any

from tessera.testkit.rules_checker.quotas import RESOURCES
from tessera_schemas import facts as f
from tessera_schemas.config import ConfigBody
from tessera_schemas.job import JobSpec, Role
from tessera_schemas.ledger import BackInLine
from tessera_schemas.shard.records import ScaleRequested
from tessera_schemas.work.adopted import Adopted
from tessera_schemas.work.placement import Placement
from tessera_schemas.work.run_ends import CANCELS_FROM_WITHIN
from tessera_schemas.work.spec_changes import SizeOfRole


@dataclass(slots=True, eq=False)  # jobs and runs of equal specs look the same, and are not
class JobRow:
    tenant: str
    spec: JobSpec
    priority_class: str
    amount: dict[str, int]
    held: bool = False
    operator_hold: bool = False
    evictions: int = 0
    adopted: Adopted | None = None
    away: bool = False
    preemptible: bool = True
    in_minimum: bool = False  # of its service, by the arithmetic of `service_rules`
    array: str = ""  # the one that it is a task of
    one_model: bool = False
    ended: bool = False
    then: str = ""  # what becomes of it after its run
    over: str = "requeue"  # the same, once the run is released; "" while it has one
    claimed: dict[tuple[str, str], int] = field(default_factory=dict)
    """Thousandths of GPUs that each claim of a role's pod counts for, by what was known of devices before it began."""
    due: SizeOfRole | None = None
    """Size of a role by the last resize; until its run is over, `spec` has what that holds."""

    @property
    def revocable(self) -> bool:
        """Whether its runs may be evicted, without which it borrows nothing."""
        return self.preemptible and not self.in_minimum and not (self.adopted and self.adopted.budget)

    def come_back(self, r: BackInLine) -> None:
        """Note that the owner has made the pods again, or that something else about them is known."""
        assert self.adopted is not None
        budget = self.adopted.budget if r.budget is None else r.budget
        service = self.adopted.service if r.service is None else r.service
        self.adopted = self.adopted.model_copy(update={"uids": r.uids, "budget": budget, "service": service})
        self.away, self.preemptible = False, self.preemptible if r.preemptible is None else r.preemptible


@dataclass(slots=True, eq=False)
class RunRow:
    job: JobRow
    flavor: str
    amount: dict[str, int]
    started_ts: int | None = None
    stopping: bool = False
    victim: bool = False
    reclaimed: bool = False
    succeeded: bool = False
    warned_ts: int | None = None
    kept_lent_ts: int = 0
    roles: dict[int, str] = field(default_factory=dict)  # of the pods that it grew by
    leaving: set[int] = field(default_factory=set)
    nodes: frozenset[str] = frozenset()
    places: dict[int, Placement] = field(default_factory=dict)

    @property
    def gang_amount(self) -> dict[str, int]:
        """Amount of its gang, without the pods that it grew by."""
        return both(self.amount, amount_at(self.job, self.places_of(self.roles)), sub)

    def places_of(self, ranks: Iterable[int]) -> list[Placement]:
        """Placements of those of the ranks that it holds."""
        return [self.places[rank] for rank in ranks if rank in self.places]


def names_of(job: JobRow) -> list[tuple[str, str]]:
    """Names of the configuration that the job uses; work of others has no class."""
    names = [("queue", job.spec.queue), ("tenant", job.tenant)]
    return names if job.adopted is not None else [*names, ("class", job.priority_class)]


FORMAT_OF_REFUSALS = 4
"""Before, a configuration could take away names of live jobs, and jobs of a missing tenant started."""
FORMAT_OF_ONE_MODEL = 6
"""Jobs that were taken in before have GPUs of any models."""
OLDER = "tessera-3"
"""The last engine by which work that may not be evicted could borrow."""
FORMAT_OF_BOOKS = 6
"""Before, what ran of a removed queue counted nowhere, and a run kept the flavor that it began with."""


def _end(fact: f.RunEnded) -> str:
    """A pod's own word cancels its job; of a run that was being stopped already the end says `Cancelled` alone."""
    return "cancelled" if fact.reason is not None and fact.reason.code in CANCELS_FROM_WITHIN else "ran"


ASKED: dict[type[Any], Callable[[Any], tuple[Any, ...]]] = {
    f.HoldRequested: lambda fact: ("held", fact.job_id, fact.undo, fact.tenant),
    f.PriorityRequested: lambda fact: ("priority_set", fact.job_id, fact.priority_class, fact.tenant),
    f.MoveRequested: lambda fact: ("job_moved", fact.job_id, fact.queue, fact.tenant),
    f.RequeueRequested: lambda fact: ("requeued", fact.job_id, True, fact.tenant),
    f.CancelRequested: lambda fact: ("cancelled", fact.job_id, True, fact.tenant),
    ScaleRequested: lambda fact: ("scaled", fact.job_id, fact.replicas, fact.tenant),
    f.OwnerEnded: lambda fact: ("ended", fact.job_id, "failed" if fact.reason else "succeeded", ""),
    f.RunEnded: lambda fact: (_end(fact), fact.run_id.rpartition("-")[0], True, ""),
    f.DrainRequested: lambda fact: ("node_drained", fact.node, fact.undo, ""),
    f.GrantRequested: lambda fact: ("budget_granted", fact.budget, fact.amount, ""),
}
"""Who asked for what, whenever it was: a record may only do what somebody asked for who may."""


COUNTED = {name: "total_gpu_milli" if name == "gpu_milli" else name for name in RESOURCES}
"""The property of a pod's resources that counts against the quotas of each."""


def group_of(role: Role, adopted: bool) -> object:
    """Equal for roles that are on one model together: of pods that others made those that may use the same nodes."""
    where = sorted(set(role.gpu_models)), role.node_selector, sorted(map(repr, set(role.affinity))), role.affinity_any
    return repr(where) if adopted else role.same_node_as or role.name


def amount_of(job: JobRow, pods: list[tuple[str, int]]) -> dict[str, int]:
    """
    Amount that these numbers of pods count against quotas; an unknown role counts nothing. What pods share counts once.
    """
    asked = {role.name: role.resources for role in job.spec.roles}
    pods = [(role, count) for role, count in pods if role in asked]
    found = {name: sum(count * getattr(asked[role], field) for role, count in pods) for name, field in COUNTED.items()}
    counted = set[str]()
    for role, count in pods:
        claims = [claim for claim in asked[role].claims if claim.shared_as not in counted]
        counted |= {claim.shared_as for claim in claims if claim.shared_as}
        for claim in claims:
            found["gpu_milli"] += (1 if claim.shared_as else count) * job.claimed.get((role, claim.name), 0)
        for once, request in ((bool(claim.shared_as), each) for claim in claims for each in claim.requests):
            counts = [(f"class:{c.device_class}", 0 if c.admin else 1 if c.every else c.count) for c in request.choices]
            for name in {name for name, _ in counts}:
                most = max(n for named, n in counts if named == name)
                found[name] = found.get(name, 0) + (1 if once else count) * most
    return found


def amount_drawn(spec: JobSpec, amount: Mapping[str, int], places: Iterable[Placement]) -> dict[str, int]:
    """The amount of a run with the devices that its claims got, by class, not those that they might have got."""
    found = {name: amount[name] for name in RESOURCES}
    asked = {role.name: role.resources for role in spec.roles}
    for place in places:
        for drawn in (each for each in place.drawn if not each.admin):
            request, _, choice = drawn.request.partition("/")
            claims = [claim for claim in asked[place.role].claims if claim.name == drawn.claim]
            choices = [c for claim in claims for r in claim.requests if r.name == request for c in r.choices]
            name = next((f"class:{c.device_class}" for c in choices if choice in ("", c.name)), "")
            found[name] = found.get(name, 0) + 1
    return found


def amount_at(job: JobRow, places: Sequence[Placement]) -> dict[str, int]:
    """Amount of some pods of a run with the devices that their claims got."""
    return amount_drawn(job.spec, amount_of(job, [(place.role, 1) for place in places]), places)


def both(one: Mapping[str, int], other: Mapping[str, int], by: Callable[[int, int], int]) -> dict[str, int]:
    """Of each resource that either has, what `by` makes of the two amounts."""
    return {name: by(one.get(name, 0), other.get(name, 0)) for name in {*one, *other}}


def names_in(body: ConfigBody) -> set[tuple[str, str]]:
    """Names that jobs may use: queues that take jobs, tenants, classes, flavors."""
    inner = {queue.parent for queue in body.queues}
    names = {("queue", queue.name) for queue in body.queues if queue.name not in inner}
    names |= {("tenant", tenant.name) for tenant in body.tenants}
    names |= {("class", entry.name) for entry in body.priority_classes}
    return names | {("flavor", flavor.name) for flavor in body.flavors}


def stranded(
    now: ConfigBody, wanted: ConfigBody, jobs: Iterable[JobRow], runs: Iterable[RunRow]
) -> set[tuple[str, str]]:
    """Names of live jobs that the next configuration takes away and that no entry of it says it `was`."""
    lost = names_in(now) - names_in(wanted)
    lost -= {("queue", queue.was or "") for queue in wanted.queues}
    lost -= {("class", entry.was or "") for entry in wanted.priority_classes}
    live = {name for job in jobs if not job.ended for name in names_of(job)}
    holders = [run.flavor for run in runs if not run.job.ended]
    return lost & (live | {("flavor", flavor) for flavor in holders})
