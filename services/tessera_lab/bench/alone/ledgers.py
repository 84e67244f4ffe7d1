"""A ledger made in memory by the real decision: jobs that live their whole life on one pool, in batches of facts."""

from collections.abc import Iterator, Sequence

from tessera.engine import ENGINE_ID, ORDER_ENGINE_ID
from tessera.kernel.ledger.shard import Entry, Shard
from tessera.queueing.decide import order
from tessera.scheduler.decide import CapacityCache, Inputs, decide
from tessera_lab.bench.together.platform import GIB, GPUS_PER_NODE, QUEUE, TENANT, job
from tessera_schemas.base import job_id, run_id
from tessera_schemas.config import ConfigBody, Limits, Queue, Tenant
from tessera_schemas.facts import (
    AnyFact,
    ConfigProposed,
    JobAdmitted,
    NodeSeen,
    PodsBound,
    PodsMade,
    RunAbsent,
    RunEnded,
    RunStarted,
    owner,
)
from tessera_schemas.job import JobSpec
from tessera_schemas.ledger import Allocated, LedgerMessage, TakenFact
from tessera_schemas.shard.orders import Order

SHARD, POOL = "main", "default"
START_TS = 1_760_000_000_000


class BareCommitter:
    """The committer without anything around it: `commit` takes facts in, decides, folds and keeps the bytes."""

    def __init__(self, nodes: int) -> None:
        self.shard = Shard()
        self.capacity = CapacityCache()
        self.stored: list[bytes] = []
        self._facts_upto = 0
        tenants, queues = (Tenant(name=TENANT, limits=Limits(jobs=None)),), (Queue(name=QUEUE),)
        body = ConfigBody(tenants=tenants, queues=queues)
        self.commit([ConfigProposed(kind="config_proposed", expected_version=0, body=body)], holder="bench")
        for first in range(0, nodes, 256):
            self.commit([_node(f"gpu-{i}") for i in range(first, min(first + 256, nodes))])

    def inputs(self, facts: Sequence[AnyFact] = (), holder: str = "", line: bool = False, ms: int = 1) -> Inputs:
        """Inputs of the next message, `ms` later than the last; with `line` also the newest order."""
        state = self.shard.state
        taken = tuple(
            TakenFact(seq=self._facts_upto + i, service=owner(fact), fact=fact) for i, fact in enumerate(facts, 1)
        )
        n, ts = state.n + 1, max(START_TS, state.ts + ms)
        heads = order(state, POOL, ts) if line else ()
        made = {"basis_n": state.n, "ts": ts, "engine": ORDER_ENGINE_ID, "policy": 1}
        orders = (Order(v=1, pool=POOL, jobs=heads, **made),) if heads else ()
        upto = self._facts_upto + len(taken)
        return Inputs(n, ts, max(1, state.epoch), upto, holder, "", taken, orders)

    def commit(self, facts: Sequence[AnyFact] = (), holder: str = "", line: bool = False, ms: int = 1) -> LedgerMessage:
        inputs, state = self.inputs(facts, holder, line, ms), self.shard.state
        draft = decide(state, inputs, self.capacity)
        message = LedgerMessage(
            v=1,
            n=inputs.n,
            prev=state.chain,
            epoch=inputs.epoch,
            tx=f"bench-{inputs.n:08}",
            ts=inputs.ts,
            engine=ENGINE_ID,
            policy=state.config.version,
            holder=holder,
            facts_upto=inputs.facts_upto,
            facts=inputs.facts,
            orders=inputs.orders,
            records=tuple(draft.records),
        )
        self._facts_upto = inputs.facts_upto
        self.keep(Entry(message, message.join_bytes(**draft.stored)))
        return message

    def keep(self, entry: Entry) -> None:
        self.shard.fold(entry)
        self.stored.append(entry.stored)


def lives(jobs: int, at_once: int) -> BareCommitter:
    """The ledger of that many jobs from submit to release, `at_once` of them side by side."""
    books = BareCommitter(-(-at_once // GPUS_PER_NODE))
    live(books, 0, jobs, at_once)
    return books


def live(books: BareCommitter, begin: int, end: int, at_once: int) -> None:
    """Jobs number `begin` to `end` - 1, from submit to release."""
    spec = job(1.0)
    for first in range(begin, end, at_once):
        keys = [f"b{i}" for i in range(first, min(first + at_once, end))]
        books.commit([admitted(key, spec) for key in keys])
        runs = started(books, books.commit(line=True))
        for facts in (ended(runs), absent(runs)):
            books.commit(facts)


def started(books: BareCommitter, message: LedgerMessage) -> list[str]:
    """Runs that the message begins, and those that begin as these get pods; all of them have started then."""
    found, new = list[str](), begun(message)
    while new:
        parts = (new[first : first + 256] for first in range(0, len(new), 256))
        more = [run for part in parts for facts in life(part) for run in begun(books.commit(facts))]
        found, new = found + new, more
    return found


def begun(message: LedgerMessage) -> list[str]:
    return [run_id(each.job_id, each.attempt) for each in message.records if isinstance(each, Allocated)]


def life(runs: Sequence[str]) -> Iterator[list[AnyFact]]:
    """Facts about runs until they have started."""
    uid = "7f0c9a2b-0000-4000-8000-{:012}"
    yield [PodsMade(kind="pods_made", run_id=run, uids=(uid.format(i),)) for i, run in enumerate(runs)]
    yield [PodsBound(kind="pods_bound", run_id=run) for run in runs]
    yield [RunStarted(kind="run_started", run_id=run) for run in runs]


def ended(runs: Sequence[str]) -> list[AnyFact]:
    return [RunEnded(kind="run_ended", run_id=run) for run in runs]


def absent(runs: Sequence[str]) -> list[AnyFact]:
    return [RunAbsent(kind="run_absent", run_id=run) for run in runs]


def admitted(key: str, spec: JobSpec) -> JobAdmitted:
    name = job_id(SHARD, TENANT, key)
    return JobAdmitted(kind="job_admitted", job_id=name, tenant=TENANT, key=key, spec=spec)


def _node(name: str) -> NodeSeen:
    size = {"cpu_milli": 96_000, "memory_bytes": 768 * GIB, "pods": 1001, "gpus": GPUS_PER_NODE}
    return NodeSeen(kind="node_seen", name=name, device_profile="plugin", **size)
