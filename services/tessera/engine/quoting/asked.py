"""
A quote of a job that is asked about before it is submitted, with the changes of its spec that would start it earlier.

In: the state, the record of quotes and the job as admission would take it in. Out: its quote, what its run is expected
to take and to cost, and the changes, each of them quoted from the same draws and kept where it brings the median
forward by a tenth at least. Equal inputs give equal answers. The futures are drawn in slices, between which the state
may move: all that is read of it is read before the first. Pure.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from tessera.domain.devices.costs import most_micros
from tessera.domain.entities import Job
from tessera.domain.folding.fold import apply_record
from tessera.domain.quota.queue_settings import granted_classes
from tessera.domain.runtimes import Sketch
from tessera.domain.state import State
from tessera.domain.table import Table
from tessera.engine.ahead.booked_nodes import BookedNodes
from tessera.engine.ahead.durations import expected, is_learnt
from tessera.engine.explain.changed_spec import changed_spec
from tessera.engine.explain.what_if import WhatIf
from tessera.engine.queueing.readiness import no_place_in_line
from tessera.engine.quoting import LEVELS, Quote, draw_quotes
from tessera.engine.quoting.outlook import Outlook
from tessera.engine.quoting.pool_now import JobShape, PoolNow, Terms, WaitingNow, pool_now, shape_of, terms_of
from tessera.engine.quoting.record import QuoteRecord, resting
from tessera_schemas.facts import JobAdmitted
from tessera_schemas.job import JobSpec
from tessera_schemas.ledger import JobQueued, TakenFact
from tessera_schemas.reasons import Code, Reason

ASKED_FUTURES, ASKED_STEPS = 12, 12_000
CHANGES_MAX = 5
VALUES_MAX = 3
"""Classes and queues that are tried, of each kind."""
TRY_FUTURES, TRY_STEPS = 3, 900
TRIES_MAX, TRIES_LEAST, TRIED_PARTS = 12, 4, 30_000
"""Each try begins with all nodes, runs and waiting jobs: of so many in all, as many are tried as keep to this sum."""
LEAST_GAIN = 10
"""A change counts where the median comes earlier by one in so many parts of the wait."""


class QuotedChange(NamedTuple):
    """A change of the spec, as `changed_spec` has it, with the quote and the cost of the changed job."""

    kind: str
    text: str
    role: str
    value: str
    spec: JobSpec
    quote: Quote
    cost_micros: int


class AskedQuote(NamedTuple):
    """
    Quote of a job that is not submitted; `length_ms` is what its run is expected to take, by what such runs took
    (`is_learnt`) or by its time limit, 0 where neither is known. Costs are by the dearest flavor that it may get.
    """

    pool: str
    quote: Quote
    length_ms: int
    is_learnt: bool
    cost_micros: int
    changes: tuple[QuotedChange, ...]
    tried: int


_Candidate = tuple[str, str, str, str]


class _Case(NamedTuple):
    """A job that is drawn beside those that wait in its pool."""

    shape: JobShape
    pool: str
    not_before: int
    deadline_ts: int
    cost_micros: int
    terms: Terms


class _Try(NamedTuple):
    kind: str
    text: str
    role: str
    value: str
    spec: JobSpec
    case: _Case


def quote_asked(
    state: State, record: QuoteRecord, fact: JobAdmitted, ts: int, with_changes: bool
) -> Generator[None, None, AskedQuote | Reason]:
    """The quote as of `ts`, or why there is none; nothing else has the fact's job id."""
    then = state.overlay()
    # Of a quiet ledger the last message may be hours old; runs have gone on since.
    then.ts = max(state.ts, ts)
    job = _taken_in(then, fact)
    case = _case_of(then, fact.spec, job)
    if isinstance(case, Reason):
        return case
    # Drawn futures count GPUs alone; whether a job starts now is known exactly, CPU and topology included.
    at_once = _starts_at_once(then, fact)
    tries = list(_tries(then, fact, job)) if with_changes and not at_once else []
    pools = {each: pool_now(then, each) for each in sorted({case.pool, *(one.case.pool for one in tries)})}
    sketches = resting(then.runtimes)
    length, learnt = _length_of(sketches, case.shape)
    then.check_base()
    drawing = _Drawing(record, pools, sketches, fact.job_id)
    yield
    told = yield from drawing.quote(case, 1 if at_once else ASKED_FUTURES, ASKED_STEPS)
    if at_once:
        told = told._replace(waits_ms=(0,) * len(LEVELS))
    changes: list[QuotedChange] = []
    # Both sides of a comparison are of as many futures, from one seed: of more of them one would be longer by chance.
    before = (yield from drawing.quote(case, TRY_FUTURES, TRY_STEPS)) if tries else told
    for one in tries:
        helps = {(each.kind, each.role) for each in changes}
        # Of one kind and role the smallest change that helps is told: the next one costs its owner more.
        if len(changes) == CHANGES_MAX or (one.kind, one.role) in helps:
            continue
        found = yield from drawing.quote(one.case, TRY_FUTURES, TRY_STEPS)
        if found.wait_at(500) * LEAST_GAIN <= before.wait_at(500) * (LEAST_GAIN - 1):
            changes.append(QuotedChange(*one[:5], found, one.case.cost_micros))
    return AskedQuote(case.pool, told, length, learnt, case.cost_micros, tuple(changes), len(tries))


class _Drawing:
    """Pools as they were when they were read, from which any number of jobs is drawn."""

    def __init__(self, record: QuoteRecord, pools: Mapping[str, PoolNow], sketches: Table[Sketch], job_id: str) -> None:
        self._record, self._pools, self._sketches, self._job_id = record, pools, sketches, job_id
        self._outlooks: dict[str, Outlook] = {}

    def quote(self, case: _Case, futures: int, steps: int) -> Generator[None, None, Quote]:
        outlook = self._outlooks.get(case.pool)
        if outlook is None:
            outlook = self._record.outlook(self._pools[case.pool], case.pool, self._sketches)
            self._outlooks[case.pool] = outlook
        ts = outlook.now.ts
        outlook.join(WaitingNow(self._job_id, case.shape, ts, case.not_before, case.deadline_ts, case.terms))
        (drawn,) = yield from draw_quotes(outlook, ts, (self._job_id,), futures, steps)
        outlook.leave()
        return self._record.correct(drawn, case.pool, case.shape)


def _taken_in(state: State, fact: JobAdmitted) -> Job:
    """The job as the fold makes it of an admitted spec."""
    return _take_in(state.overlay(), fact)


def _take_in(state: State, fact: JobAdmitted) -> Job:
    record = JobQueued(kind="job_queued", fact=0, job_id=fact.job_id)
    apply_record(state, record, (TakenFact(seq=1, service="admission", fact=fact),))
    return state.jobs.found((fact.job_id,))[0]


def _case_of(state: State, spec: JobSpec, job: Job) -> _Case | Reason:
    tree = state.tree
    if (absent := no_place_in_line(tree, job)) is not None:
        return absent
    if (stopped := tree.stopped(job.queue)) is not None:
        return Reason(code=Code.QUEUE_STOPPED, field=f"queues.{stopped}")
    if job.after or job.detached:
        detail = "there is no quote of a job that waits for others, whose ends are not known"
        return Reason(code=Code.INVALID_FIELD, field="after" if job.after else "attach_to", detail=detail)
    shape, pool = shape_of(tree, job), tree.pool(job.queue)
    if shape is None or pool is None:
        return Reason(code=Code.INVALID_FIELD, field="roles", detail="there is no quote of a job without GPUs")
    length, _ = _length_of(state.runtimes, shape)
    priced = spec.model_copy(update={"time_limit_seconds": -(-length // 1000)})
    cost = most_micros(tree, priced, state.ts) if length else 0
    terms = terms_of(BookedNodes(state, pool), job)
    return _Case(shape, pool, job.not_before, job.deadline_ts, cost, terms)


def _length_of(sketches: Table[Sketch], shape: JobShape) -> tuple[int, bool]:
    """Expected length of a run, and whether it is learnt of such runs; else the time limit, 0 for none."""
    learnt = is_learnt(sketches, shape.kind, 0)
    length = expected(sketches, shape.kind) if learnt else shape.limit_ms
    return min(length, shape.limit_ms or length), learnt


def _starts_at_once(state: State, fact: JobAdmitted) -> bool:
    """Whether the committer would place the job in its next message; coarse capacity could not tell."""
    then = state.overlay()
    job = _take_in(then, fact)
    what_if = WhatIf(then, job, then.ts)
    return not what_if.crowded and not isinstance(what_if.verdict(job), Reason)


def _tries(state: State, fact: JobAdmitted, job: Job) -> Iterator[_Try]:
    """Changed jobs that the tenant could have, those that cost the owner least first."""
    parts = max(1, len(state.nodes) + len(state.runs) + len(state.jobs))
    most = max(TRIES_LEAST, min(TRIES_MAX, TRIED_PARTS // parts))
    for kind, text, role, value in islice(_by_turns(_candidates(state, fact, job)), most):
        try:
            spec = changed_spec(fact.spec, kind, role, value)
        except ValueError:
            continue
        case = _case_of(state, spec, _taken_in(state, fact.model_copy(update={"spec": spec})))
        if isinstance(case, _Case):
            yield _Try(kind, text, role, value, spec, case)


def _by_turns(candidates: Iterable[_Candidate]) -> list[_Candidate]:
    """The first of each kind and role before the second of any."""
    seen = Counter[tuple[str, str]]()
    ranked = []
    # On a large shard few are tried: five classes would leave no try for a smaller gang.
    for each in candidates:
        of = each[0], each[2]
        ranked.append((seen[of], each))
        seen[of] += 1
    return [each for _, each in sorted(ranked, key=lambda one: one[0])]


def _candidates(state: State, fact: JobAdmitted, job: Job) -> Iterator[_Candidate]:
    """Changes by their kind, text, role and value, in the words of `suggest_changes`."""
    tree, spec = state.tree, fact.spec
    if any(role.gpu_models for role in spec.roles):
        yield "model", "any GPU model", "", ""
    now = tree.priority(job.priority_class)
    above = [name for name in granted_classes(tree, fact.tenant) if tree.priority(name) > now]
    for name in sorted(above, key=lambda name: (tree.priority(name), name))[:VALUES_MAX]:
        yield "class", f"priority class {name}", "", name
    open_to = [name for name, queue in tree.queues.items() if not queue.tenants or fact.tenant in queue.tenants]
    others = (name for name in sorted(open_to) if name != job.queue and tree.pool(name) is not None)
    for name in islice(others, VALUES_MAX):
        yield "queue", f"queue {name} instead of {job.queue}", "", name
    for role in spec.roles:
        where = f" in role {role.name}" if len(spec.roles) > 1 else ""
        for less in _less(role.gang):
            yield "pods", f"{less} instead of {role.gang} pods{where}", role.name, str(less)
        for less in _less(role.resources.gpus):
            yield "gpus", f"{less} instead of {role.resources.gpus} GPUs per pod{where}", role.name, str(less)


def _less(now: int) -> list[int]:
    """Three quarters and a half of a number; nothing less of one."""
    # Not every number below: each try is a drawing, and neighbours start at about the same time.
    return sorted({now * 3 // 4, now // 2} - {0, now}, reverse=True)
