"""Whether a job may start at all, before any node is looked at: its phase, its pods, its quota. Pure."""

from collections.abc import Collection, Iterable

from tessera.domain.devices.amounts import Over
from tessera.domain.entities import Job, Run
from tessera.domain.folding.spending import KEPT_BY_BUDGETS, limit_of, spent_budgets, unit_of
from tessera.domain.queues import QueueTree, QuotaBook
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.domain.work.starting import closing
from tessera_schemas.base import INT_MAX
from tessera_schemas.facts import PlanCause
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import UNMADE_FROM
from tessera_schemas.work.budgets import day_text, month_end
from tessera_schemas.work.money import amount_text
from tessera_schemas.work.placement import Placement

UNMADE_MAX = 64
"""While so many runs of a tenant have no pods yet, no more of it start; a binder makes as many of a tenant at once."""


def startable(state: State, job: Job) -> bool:
    """Whether the job may start now, were there room: in line, and kept by no namespace, full array or spent budget."""
    return not job.tests and is_free_to_start(state, job)


def is_free_to_start(state: State, job: Job) -> bool:
    """As `startable`; also of a test of a node, which stands in no line."""
    free = closing(state, job) is None and full_array(state, job) is None
    return free and _is_ready(state, job) and budget_spent(state, job) is None


def is_in_line(state: State, job: Job) -> bool:
    """Whether the job waits for its turn: not held, no back-off, no missed deadline, its queue is there and open."""
    return not job.tests and _is_ready(state, job)


def _is_ready(state: State, job: Job) -> bool:
    return (
        job.phase is Phase.QUEUED
        and not job.is_kept_from_starting
        and job.not_before <= state.ts
        and (not job.deadline_ts or state.ts <= job.latest_start_ts)
        and state.tree.takes(job)
        and state.tree.stopped(job.queue) is None
    )


def named_in_line(state: State, pool: str) -> list[Job]:
    """The jobs of the pool's line, each once: it is made from an older state, so that some may not start any more."""
    newest = state.lines.get(pool)
    named, pool_of = state.jobs.found(dict.fromkeys(newest.jobs if newest else ())), state.tree.pool
    return [job for job in named if pool_of(job.queue) == pool]


def is_reserved(job: Job) -> bool:
    """Whether the job was told that room is kept for it."""
    return job.reason is not None and job.reason.code is Code.RESERVED


def full_array(state: State, job: Job) -> Reason | None:
    """Why a task does not start: as many tasks of its array run as the array's limit allows."""
    owner = state.jobs.get(job.task_of) if job.task_of else None
    if owner is None or owner.array is None or not owner.array.is_full:
        return None
    return Reason(code=Code.ARRAY_LIMIT, numbers={"running": owner.array.running, "limit": owner.array.limit})


def budget_spent(state: State, job: Job) -> Reason | None:
    """Why no run of a job begins: a budget that it is of is spent, and keeps new work until the month ends."""
    return spent_reason(state, job.queue, job.tenant, job.project, KEPT_BY_BUDGETS) if job.amount.gpu_milli else None


def spent_reason(state: State, queue: str, tenant: str, project: str, kinds: Collection[str]) -> Reason | None:
    """The first spent budget of the tenant's work in the queue that means one of `kinds`, as a reason; else None."""
    for budget in spent_budgets(state, queue, tenant, project, kinds) if state.budgets else ():
        row, unit = state.spending.found((budget.name,))[0], unit_of(state, budget)
        detail = f"{amount_text(limit_of(budget, row), unit)}, until {day_text(month_end(row.ts))} UTC"
        return Reason(code=Code.BUDGET_SPENT, field=f"budgets.{budget.name}", detail=detail)
    return None


def no_place_in_line(tree: QueueTree, job: Job) -> Reason | None:
    """Why the job stands in no line: the configuration has no such queue that takes jobs, or no such tenant."""
    if tree.pool(job.queue) is None:
        return Reason(code=Code.NO_SUCH_QUEUE, field="queue", detail=job.queue)
    if tree.lacks_tenant(job):
        return Reason(code=Code.NO_SUCH_TENANT, field="tenant", detail=job.tenant)
    return None


def awaits_placement(state: State, job: Job) -> bool:
    """Whether the job may start wherever it finds room; one with an earmark starts there and nowhere else."""
    return startable(state, job) and state.earmarks.get(job.job_id) is None


def rests(state: State, job: Job) -> int:
    """
    Number of its tenant's runs that have no pods yet, where the job starts after some of them; 0: it does not rest.

    It would only hold its GPUs until the binder has come to it. Room that is kept for a job is its own all the same.
    """
    unmade = state.unmade.get(job.tenant) or 0
    return unmade if unmade >= UNMADE_MAX and state.format >= UNMADE_FROM and not is_reserved(job) else 0


def explain_rest(unmade: int) -> Reason:
    """Why a job rests while so many runs of its tenant have no pods yet."""
    numbers = {"runs_without_pods": unmade, "runs_without_pods_max": UNMADE_MAX}
    detail = "the binder makes the pods of the tenant's earlier runs first"
    return Reason(code=Code.WAITING_FOR_TURN, numbers=numbers, detail=detail)


def awaits_room(state: State, job: Job) -> bool:
    """Whether nothing but room keeps the job from starting: room is made for such jobs alone."""
    # First what is known of its tenant: while that has many runs without pods, nearly all of a line rests.
    return not rests(state, job) and awaits_placement(state, job)


def explain_missing_pods(job: Job) -> Reason:
    """Why an adopted job is out of line after a run: only its owner makes its pods again, and in its own time."""
    owner = job.adopted.owner if job.adopted is not None else ""
    return Reason(code=Code.GANG_INCOMPLETE, numbers={"pods_wanted": job.pods}, detail=f"{owner} makes its pods again")


def not_in_line(job: Job, ts: int) -> Reason | None:
    """Why a job that has come is not in line, or no job to start: it waits for others or a time, or is an array."""
    if job.after:
        named = "; ".join(each.text() for each in job.after[:4])
        return Reason(code=Code.DEPENDENCY_NOT_MET, numbers={"left": len(job.after)}, detail=named)
    if job.detached and job.attached is not None:
        return Reason(code=Code.TARGET_NOT_RUNNING, field="attach_to", detail=job.attached.job)
    # One field for two meanings: before the first attempt it is the begin that its user asked for, later a back-off.
    if job.not_before > ts and not job.attempt:
        return Reason(code=Code.BEGIN_TIME, numbers={"seconds_left": (job.not_before - ts + 999) // 1000})
    if job.tests:
        detail = "the test of a node runs there or nowhere, once what it asks for is free"
        return Reason(code=Code.NO_FIT, field=f"nodes.{job.tests}", detail=detail)
    if job.array is None:
        return None
    array = job.array
    if array.is_service:
        if array.rollout is not None and array.rollout.stopped is not None:
            return array.rollout.stopped
        numbers = {"replicas": array.wanted, "running": array.running, "min_replicas": array.least}
        numbers |= {"max_replicas": array.most} | ({} if array.rollout is None else {"revision": array.revision})
        detail = "its replicas get this revision one after the other" if array.rollout_state else ""
        return Reason(code=Code.SERVICE_REPLICAS, numbers=numbers, detail=detail)
    counts = {name: getattr(array, name) for name in ("waiting", "succeeded", "failed", "cancelled")}
    numbers = {"tasks": array.count, "not_queued": array.left, "running": array.running, **counts}
    return Reason(code=Code.ARRAY_TASKS, numbers=numbers)


def in_backoff(job: Job, ts: int) -> Reason | None:
    """Why a job that was tried already waits at `ts` for its next attempt, and after what; None once it may start."""
    if job.phase is not Phase.QUEUED or job.not_before <= ts or not job.attempt or job.after:
        return None
    detail = f"after: {job.reason.sentence()}" if job.reason is not None else ""
    numbers = {"seconds_left": (job.not_before - ts + 999) // 1000, "attempts": job.attempt}
    return Reason(code=Code.BACKOFF, numbers=numbers, detail=detail[:1024])


def book_without(state: State, gone: Iterable[tuple[Run, tuple[Placement, ...]]]) -> QuotaBook:
    """Use and lending of quota once these pods are gone."""
    book = state.quota_book()
    for run, places in gone:
        book.add(run.queue, run.flavor, run.gang.amount_of(places), -1)
    return book


def quota_reason(over: Over) -> Reason:
    """The numbers of a quota that is used up."""
    flavor, resource = over.cell
    numbers = {
        "wanted": over.wanted,
        "available": over.available,
        "used": min(over.used, INT_MAX),
        "nominal_quota": over.nominal,
    } | ({} if over.percent is None else {"percent_of_pool": over.percent})
    detail = ""
    # Which rule kept it waiting is told by its words alone; the numbers of all three look alike.
    if over.firm:
        keeps = f", or until {over.until}" if over.until else ""
        detail = f"work that may not be evicted does not borrow: it waits for its own queue's quota{keeps}"
    elif over.used + over.wanted <= over.nominal:
        detail = "others borrow what is its own"
    return Reason(
        code=Code.WAITING_FOR_QUOTA,
        field=(f"queues.{over.queue}.{resource}" + (f" of {flavor}" if flavor else ""))[:300],
        numbers=numbers,
        detail=detail,
    )


def lacks_quota(book: QuotaBook, job: Job, flavor: str, cause: PlanCause, keeper: str) -> Reason | None:
    """Why the job may not start as the book stands; what is reclaimed is for `keeper`, which then keeps to its own."""
    over = book.lacks(job, flavor)
    if over is not None:
        return quota_reason(over)
    borrows = cause == "reclaim" and keeper not in book.keepers(job.queue, flavor, job.amount)
    return would_borrow(job.queue) if borrows else None


def would_borrow(queue: str) -> Reason:
    """The reason against taking quota back for a queue that would then hold more than its own."""
    return Reason(code=Code.NOT_ALLOWED_BY_PRESET, field=f"queues.{queue}", detail="it would borrow itself")
