"""
Blockers: holders of what a waiting job needs. Pure.

A viewer sees own jobs by name; of other tenants, how many runs of which queue hold how much; of queues closed to the
viewer, not even the name.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tessera.domain.devices.resources import NOTHING, Amount
from tessera.domain.entities import Job, Run
from tessera.domain.queues import QueueTree
from tessera.domain.state import State
from tessera.domain.work.evidence import FitFailure
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.placement_groups import placement_groups
from tessera_schemas.cluster.device_claims import OF_CLASS
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.text.units import counted_by, format_memory

HOLDERS_MAX = 5


@dataclass(frozen=True, slots=True)
class Holder:
    """
    A run that holds something the job waits for, or (`kept`) a job for which room is kept until `until_ts`.

    `since_ts` is 0 for a run that has not started; `until_ts` is the end of a run by its job's time limit, 0 where it
    has none. Of another tenant's job the names are "", and so is that of a queue that is closed to whoever looks.
    `resource` is the field of `amount` that the job lacks.
    """

    name: str
    run_id: str
    job_id: str
    queue: str
    amount: Amount
    since_ts: int = 0
    until_ts: int = 0
    stopping: bool = False
    kept: bool = False
    resource: str = "gpu_milli"

    def describe(self) -> str:
        """Words for one run or earmark: how much is held or kept, by whom, and whether the run is being stopped."""
        who = f"{self.name} ({self.run_id or self.job_id})" if self.name else "a job of another tenant"
        ends = ", which is being stopped" if self.stopping else ""
        how = "kept for" if self.kept else "held by"
        return f"{describe_amount(self.amount, self.resource)} {how} {who} of {describe_queue(self.queue)}{ends}"


@dataclass(frozen=True, slots=True)
class UnnamedBlockers:
    """Holdings of runs that are not named: those of other tenants, and those beyond the first few."""

    queue: str
    runs: int
    amount: Amount
    resource: str = "gpu_milli"

    def describe(self) -> str:
        """Words for the runs that are not named: how much how many of them hold, and of which queue."""
        runs = "1 other run" if self.runs == 1 else f"{self.runs} other runs"
        return f"{describe_amount(self.amount, self.resource)} held by {runs} of {describe_queue(self.queue)}"


@dataclass(frozen=True, slots=True)
class Blockers:
    """The largest first, the older of equals before the younger."""

    named: tuple[Holder, ...] = ()
    others: tuple[UnnamedBlockers, ...] = ()

    def describe(self) -> Iterator[str]:
        """Yields one sentence per holder, those with a name first."""
        yield from (holder.describe() for holder in self.named)
        yield from (others.describe() for others in self.others)


NOBODY = Blockers()


@dataclass(slots=True)
class Viewer:
    """The viewer: a tenant, or (None) an operator, who sees all."""

    tree: QueueTree
    tenant: str | None
    _open: dict[str, bool] = field(default_factory=dict)

    def may_see(self, tenant: str) -> bool:
        """Tells whether the tenant's jobs may be named: to the tenant itself and to operators."""
        return self.tenant is None or self.tenant == tenant

    def may_use(self, queue: str) -> bool:
        """Whether the queue takes jobs of whoever looks; all do of an operator."""
        found = None if queue in self.tree.removed else self.tree.queues.get(queue)
        return self.tenant is None or (found is not None and (not found.tenants or self.tenant in found.tenants))

    def queue(self, name: str) -> str:
        """Name of the queue; "" when it is closed to the viewer."""
        return name if self.may_use(name) else ""


def find_quota_blockers(state: State, job: Job, resource: str, flavor: str, viewer: Viewer) -> Blockers:
    """Users of the quota: the runs of all queues that share it."""
    root = state.tree.roots.get(job.queue)
    runs = (
        run
        for run in state.runs.values()
        if state.tree.roots.get(run.queue) == root and (not flavor or run.flavor == flavor)
    )
    return _name_holders(state, job, runs, resource, viewer)


def find_capacity_blockers(
    state: State, job: Job, places: Iterable[FeasibleNodes], viewer: Viewer, resource: str
) -> Blockers:
    """Users of the resource, a field of an amount, on the nodes that suit the job."""
    suited: dict[str, None] = {}
    for found in places:
        for group in placement_groups(job.roles):
            for bundles in group.bundle_sets:
                suited |= found.suited(bundles.kind)
    # Runs on nodes that could never take the job are in nobody's way.
    names = {run_id for node in suited for run_id in state.index.runs_on.get(node, ())}
    runs = state.runs.found(sorted(names))
    return _name_holders(state, job, runs, resource, viewer, suited)


def _name_holders(
    state: State, job: Job, runs: Iterable[Run], resource: str, viewer: Viewer, nodes: Iterable[str] | None = None
) -> Blockers:
    # Sorted by what is short and not by GPUs: with CPU short, a job without a GPU may be the one in the way.
    def size(amount: Amount) -> int:
        return amount.of(resource)

    found = [run for run in runs if size(run.amount)]
    found.sort(key=lambda run: (-size(run.amount), run.allocated_ts, run.run_id))
    # Earmarks first: what is kept for somebody counts as taken, although no run is to be seen there.
    named = [*_kept(state, job, resource, viewer, None if nodes is None else set(nodes))]
    rest: dict[str, tuple[int, Amount]] = {}
    for run in found:
        if viewer.may_see(run.tenant) and len(named) < HOLDERS_MAX:
            named.append(_holder(state, run, resource))
            continue
        # Others' runs are added up by queue, and those of closed queues into one sum: a list of them would tell their
        # number and sizes one by one.
        queue = viewer.queue(run.queue)
        count, amount = rest.get(queue, (0, NOTHING))
        rest[queue] = count + 1, amount.plus(run.amount)
    order = sorted(rest.items(), key=lambda entry: (-size(entry[1][1]), entry[0]))
    return Blockers(tuple(named[:HOLDERS_MAX]), tuple(UnnamedBlockers(queue, *held, resource) for queue, held in order))


def _holder(state: State, run: Run, resource: str) -> Holder:
    job = state.jobs.get(run.job_id)
    ended = state.ended.get(run.job_id)
    name = job.name if job else ended.name if ended else run.job_id
    limit = job.time_limit_seconds * 1000 if job and run.started_ts else 0
    until = run.started_ts + limit if limit else 0
    return Holder(
        name, run.run_id, run.job_id, run.queue, run.amount, run.started_ts, until, run.stopping, resource=resource
    )


def _kept(state: State, job: Job, resource: str, viewer: Viewer, nodes: set[str] | None) -> Iterator[Holder]:
    """Room that is kept for others, on these nodes or in the same tree of queues."""
    for owner, mark in sorted(state.earmarks.items()):
        other = state.jobs.get(owner)
        if other is None or owner == job.job_id:
            continue
        if nodes is None and state.tree.roots.get(other.queue) != state.tree.roots.get(job.queue):
            continue
        if nodes is not None and not any(place.node in nodes for place in mark.placements):
            continue
        name, job_id = (other.name, owner) if viewer.may_see(other.tenant) else ("", "")
        yield Holder(name, "", job_id, viewer.queue(other.queue), other.amount, 0, mark.deadline, False, True, resource)


def short_of(job: Job, reason: Reason) -> str:
    """
    The resource of a quota that is used up, else the one that most nodes are short of: GPUs before what lies beside
    them, since nodes name one lack each.
    """
    if reason.code is Code.WAITING_FOR_QUOTA:
        return counted_by(reason.field)
    short = {
        "gpu_milli": max(reason.numbers.get(each, 0) for each in (FitFailure.GPU, FitFailure.DEVICES)),
        "cpu_milli": reason.numbers.get(FitFailure.CPU, 0),
        "memory_bytes": reason.numbers.get(FitFailure.MEMORY, 0),
    }
    if not any(short.values()):
        return "gpu_milli" if job.amount.gpu_milli else "cpu_milli"
    return max(short, key=lambda resource: short[resource])


def name_some(names: Sequence[str]) -> str:
    """The first few of the names, and how many more there are."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def describe_queue(name: str) -> str:
    """Words for a queue; the empty name stands for queues that are closed to whoever looks."""
    return f"queue {name}" if name else "other queues"


def describe_amount(amount: Amount, resource: str = "gpu_milli") -> str:
    """An amount in words: of the resource, a field of it; where it has no GPUs, its CPUs."""
    if resource == "memory_bytes":
        return f"{format_memory(amount.memory_bytes)} of memory"
    if resource.startswith(OF_CLASS):
        count = amount.of(resource)
        return f"{count} {'device' if count == 1 else 'devices'} of class {resource.removeprefix(OF_CLASS)}"
    is_gpu = resource == "gpu_milli" and amount.gpu_milli
    milli, unit = (amount.gpu_milli, "GPU") if is_gpu else (amount.cpu_milli, "CPU")
    whole, rest = divmod(milli, 1000)
    number = f"{whole}.{rest:03}".rstrip("0") if rest else str(whole)
    return f"{number} {unit}" if milli == 1000 else f"{number} {unit}s"
