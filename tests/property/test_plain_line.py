"""The order of a line, whose branches are made as they are needed, is the one in which each place asks everybody."""

from collections.abc import Iterator
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.domain.devices.resources import NOTHING, Amount
from tessera.domain.entities import Job
from tessera.domain.folding.decayed_usage import PER_LN2
from tessera.domain.state import State
from tessera.engine.queueing.ordering import PoolLine, order_jobs, weighted_share
from tessera.queueing.decide import OrderCache
from tessera_schemas.config import Limits, Queue, Quota, Tenant
from tessera_schemas.facts import AnyFact, BindFailed, RunEnded
from tessera_schemas.reasons import Code, Reason
from tests.builders import admitted, config_body, job_spec, node_seen, role, run_absent
from tests.ledgers import Committed

Where = tuple[str, ...]
"""A queue with all above it from the root on, then the tenant, then the user."""


class PlainLine:
    """One place after the other: from the top down, every branch with somebody waiting is asked anew."""

    def __init__(self, state: State, pool: str, ts: int) -> None:
        self.state, self.tree, self.left = state, state.tree, dict[Where, list[Job]]()
        self.capacity = state.index.capacity.get(pool, NOTHING)
        for queue in self.tree.queues_of.get(pool, ()):
            for job in state.jobs.found(place[-1] for place in state.index.waiting.get(queue, ())):
                if self.tree.stopped(queue) is None and job.not_before <= ts:
                    self.left.setdefault(where(state, job), []).append(job)
        parts = {each[:depth] for each in self.left for depth in range(1, len(each) + 1)}
        self.held = {part: held_at(state, part) for part in parts}
        self.past = {part: past_at(state, part, self.capacity.gpu_milli, ts) for part in parts}

    def order(self) -> list[str]:
        found = list[str]()
        while self.left:
            job, _ = self.first(())
            found.append(job.job_id)
            at = where(self.state, job)
            self.left[at].remove(job)
            if not self.left[at]:
                del self.left[at]
            for depth in range(1, len(at) + 1):
                self.held[at[:depth]] = self.held[at[:depth]].plus(job.amount)
        return found

    def first(self, at: Where) -> tuple[Job, bool]:
        if at in self.left:
            return self.left[at][0], self.borrows(at, self.left[at][0])
        below = self.branches(at)
        job, owes = self.first(min(below, key=self.key))
        alone = any(each[-1] not in self.tree.queues for each in below)
        return job, self.borrows(at, job) and (owes or alone)

    def branches(self, at: Where) -> set[Where]:
        return {each[: len(at) + 1] for each in self.left if each[: len(at)] == at and len(each) > len(at)}

    def borrows(self, at: Where, job: Job) -> bool:
        if not at or at[-1] not in self.tree.queues or self.tree.queues[at[-1]].parent is None:
            return False
        more, own = self.held[at].plus(job.amount), self.tree.own[at[-1]]
        gpus = job.amount.gpu_milli > 0 and more.gpu_milli > own[2]
        return more.cpu_milli > own[0] or more.memory_bytes > own[1] or gpus

    def key(self, at: Where) -> tuple[object, ...]:
        job, over = self.first(at)
        share = weighted_share(self.held[at], self.capacity, weight(self.state, at), self.past[at])
        return over, -self.tree.priority_of(job), *share, job.taken_n, job.fact_index, job.job_id


def where(state: State, job: Job) -> Where:
    path = tuple(reversed(state.tree.path(job.queue)))
    strict = state.tree.queues[job.queue].queueing_strategy == "strict_fifo"
    return path if strict else (*path, f"tenant/{job.tenant}", f"user/{job.user}")


def held_at(state: State, at: Where) -> Amount:
    queue = next(name for name in reversed(at) if name in state.tree.queues)
    names = [name.partition("/")[2] for name in at if name not in state.tree.queues]
    runs, total = list(state.runs.values()), NOTHING
    for run in runs:
        if not names:
            counts = queue in state.tree.path(run.queue)
        else:
            mine = (run.queue, run.tenant) == (queue, names[0])
            counts = mine and (len(names) < 2 or run.user == names[1])
        total = total.plus(run.amount) if counts else total
    return total


def past_at(state: State, at: Where, gpu_milli: int, ts: int) -> int:
    """What was held on average until the tick began, or somebody's holdings changed, in millionths of the pool."""
    decay, names = state.decay, [name.partition("/")[2] for name in at if name not in state.tree.queues]
    if decay is None or not gpu_milli:
        return 0
    below = [name for name in state.tree.queues if at[-1] in state.tree.path(name)]
    queue = next(name for name in reversed(at) if name in state.tree.queues)
    rows = state.decayed.found(["/".join([queue, *names])] if names else below)
    used = sum(decay.used(row, max(row.ts, ts // decay.tick_ms * decay.tick_ms)) for row in rows)
    return int(used * 10**12 // (decay.half_life_ms * PER_LN2)) // gpu_milli


def weight(state: State, at: Where) -> int:
    if at[-1] in state.tree.queues:
        return state.tree.queues[at[-1]].weight
    kind, _, name = at[-1].partition("/")
    return state.tree.tenants[name].weight if kind == "tenant" else 1


def trees(random: Random, parent: str | None, name: str, depth: int) -> Iterator[Queue]:
    inner = depth < 3 and random.random() < 0.6
    quotas = [Quota(resource="gpu_milli", nominal=random.choice((0, 2000, 4000)))] if random.random() < 0.5 else []
    yield Queue(
        name=name,
        parent=parent,
        weight=random.choice((0, 1, 1, 3)),
        quotas=tuple(quotas),
        queueing_strategy="strict_fifo" if random.random() < 0.1 and not inner else "best_effort_fifo",
        stop_policy="hold" if random.random() < 0.05 else "none",
    )
    if inner:
        for number in range(random.choice((1, 2, 3))):
            yield from trees(random, name, f"{name}-{number}", depth + 1)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1))
def test_who_stands_where_is_what_asking_everybody_for_each_place_gives(seed: int) -> None:
    random, keys, known = Random(seed), 0, OrderCache()
    queues = [queue for root in range(random.choice((1, 2, 4))) for queue in trees(random, None, f"r{root}", 0)]
    leaves = sorted({queue.name for queue in queues} - {queue.parent for queue in queues})
    tenants = tuple(Tenant(name=f"t{i}", weight=random.choice((0, 1, 2)), limits=Limits(jobs=None)) for i in range(3))
    half_life = random.choice((0, 3600, 604_800))
    body = config_body(*queues, policy={"fair_share": {"half_life_seconds": half_life}})
    body = body.model_copy(update={"tenants": tenants})
    ledger = Committed().begin(*(node_seen(f"n{number}", gpus=4) for number in range(2)), body=body)
    for _ in range(6):
        facts = list[AnyFact]()
        for _ in range(random.randrange(6)):
            asked = role(gpus=random.choice((0, 1, 1, 2)), cpu_milli=random.choice((1, 1000)))
            classes, users = ("low", "normal", "high"), ("", "ann", "bob")
            spec = job_spec(
                asked, queue=random.choice(leaves), priority_class=random.choice(classes), user=random.choice(users)
            )
            facts.append(admitted(f"k{keys}", spec, tenant=random.choice(tenants).name))
            keys += 1
        for run in sorted(name for name, _ in ledger.state.runs.items()):
            if random.random() < 0.3:
                refused = BindFailed(
                    kind="bind_failed", run_id=run, rank=0, reason=Reason(code=Code.BIND_REFUSED, field="x")
                )
                facts += [random.choice((refused, RunEnded(kind="run_ended", run_id=run))), run_absent(run)]
        ledger.commit(
            *facts, orders=(ledger.line(),) if random.random() < 0.6 else (), ms=random.choice((1, 1000, 1_000_000))
        )
        line = list(order_jobs(ledger.state, "default", ledger.ts))
        assert line == PlainLine(ledger.state, "default", ledger.ts).order()
        bounds = known.bounds(ledger.state, "default")
        assert line == list(PoolLine(ledger.state, "default", ledger.ts, known=bounds).jobs())
