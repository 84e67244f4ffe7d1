"""
The live engine by itself: facts of a trace, the order that queueing would publish, and the committer's decision.

Each call does at once what the services do within milliseconds: what has come and ended is taken in, the order follows
from the state, and the decision takes it in. No message is stored, and nothing takes time.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush

from tessera.domain.folding.fold import apply_record, take_in
from tessera.domain.runtimes import JobKind, learn
from tessera.domain.state import State
from tessera.engine.preemption.plans import Plan, proposal
from tessera.engine.queueing.ordering import stuck_heads
from tessera.engine.quoting.pool_now import JobShape
from tessera.queueing.decide import orders
from tessera.reclamation.reclaim.decide import reclamation_plan
from tessera.scheduler.decide import CapacityCache, Inputs, decide
from tessera.testkit.end_to_end.services import MIB
from tessera_lab.queue.configured import CPU_MILLI_PER_GPU, QUEUE, TENANT, config_of, name_of, spec_of
from tessera_lab.traces.philly import TraceJob
from tessera_schemas.base import job_id, run_id
from tessera_schemas.facts import (
    AnyFact,
    ConfigProposed,
    JobAdmitted,
    NodeSeen,
    PodsMade,
    RunAbsent,
    RunEnded,
    RunStarted,
    owner,
)
from tessera_schemas.ledger import Allocated, AnyRecord, Revoked, TakenFact, Waiting
from tessera_schemas.reasons import Code
from tessera_schemas.shard.orders import Order

SHARD = "main"
FACTS_MAX = 256
"""So many facts are taken in by one message, as the committer bounds them."""
LOOK_MS = 1_800_000
HEADS = 4
"""How often, and for how many blocked jobs, relocations are looked for: a search takes some hundredths of a second."""


class LiveEngine:
    """A shard of nothing but its decisions, on nodes of the `sizes`, with runtimes learnt from `history`."""

    def __init__(self, policy: str, sizes: Sequence[int], history: Sequence[TraceJob]) -> None:
        self._state, self._capacity = State(), CapacityCache()
        self._node_gpus, self._policy = sizes[0], policy
        self._facts: list[AnyFact] = []
        self._published: dict[str, tuple[str, ...]] = {}
        self._lines: dict[str, int] = {}
        self._runs: dict[int, str] = {}
        self._stopped: list[int] = []
        self._looked_ms = 0
        self._waits: list[int] = []
        config = ConfigProposed(kind="config_proposed", expected_version=0, body=config_of(policy))
        self._commit(0, [config], holder="lab")
        for first in range(0, len(sizes), FACTS_MAX):
            self._commit(0, [node_seen(at, sizes[at]) for at in range(first, min(first + FACTS_MAX, len(sizes)))])
        for job in sorted(history, key=lambda job: (job.submit_s + job.duration_s, job.line)):
            learn(
                self._state.runtimes, self.kind_of(job), job.duration_s * 1000, (job.submit_s + job.duration_s) * 1000
            )

    @property
    def state(self) -> State:
        """The shard's state, as it stands."""
        return self._state

    @staticmethod
    def kind_of(job: TraceJob) -> JobKind:
        """Kind by which run times of the job are learnt."""
        return JobKind(TENANT, QUEUE, name_of(job.vc), job.gpus)

    def shape_of(self, job: TraceJob) -> JobShape:
        """The job as quotes of starts look at it, also before it is submitted."""
        spec, tree = spec_of(job, self._node_gpus, self._policy), self._state.tree
        pieces = tuple(sorted(((role.resources.gpus, role.gang) for role in spec.roles), reverse=True))
        limit_ms = (spec.time_limit_seconds or 0) * 1000
        return JobShape(self.kind_of(job), pieces, (), tree.path(QUEUE), spec.user or "", tree.priority(""), limit_ms)

    def arrived(self, job: TraceJob) -> None:
        """A job was submitted and admitted."""
        name = job_id(SHARD, TENANT, str(job.line))
        self._lines[name] = job.line
        spec = spec_of(job, self._node_gpus, self._policy)
        self._facts.append(JobAdmitted(kind="job_admitted", job_id=name, tenant=TENANT, key=str(job.line), spec=spec))

    def ended(self, job: TraceJob, now_ms: int) -> None:
        """All pods of the job's run have succeeded and are gone."""
        run = self._runs.pop(job.line)
        self._facts += (RunEnded(kind="run_ended", run_id=run), RunAbsent(kind="run_absent", run_id=run))

    def started(self, now_ms: int) -> Sequence[int]:
        """The lines of the jobs that start now, and with `defragment` those of the jobs that were stopped for them."""
        self._stopped.clear()
        begun = self._settle(now_ms)
        while (plan := self._relocations(now_ms)) is not None:
            records = self._commit(now_ms, [proposal(self._state, plan, now_ms)])
            revoked = [record.run_id for record in records if isinstance(record, Revoked)]
            self._stopped += [self._lines[run.rpartition("-")[0]] for run in revoked]
            self._facts += [RunAbsent(kind="run_absent", run_id=run) for run in revoked]
            if not revoked:  # refused: it would be proposed again
                self._looked_ms = now_ms
            begun += self._settle(now_ms)
        return begun

    def stopped(self) -> Sequence[int]:
        """The lines of the jobs that were relocated; each is in line again, or was started again at once."""
        return self._stopped

    def next_wait_s(self) -> int | None:
        """Second at which the first of the jobs that wait for their data waits no more."""
        return -(-self._waits[0] // 1000) if self._waits else None

    def _relocations(self, now_ms: int) -> Plan | None:
        """Plan that reclamation would propose first; None until half an hour after there was none."""
        if not self._state.tree.policy.defragment or now_ms - self._looked_ms < LOOK_MS:
            return None
        heads = stuck_heads(self._state, now_ms, HEADS)
        plans = (reclamation_plan(self._state, job, now_ms) for job in heads)
        found = next((plan for plan in plans if isinstance(plan, Plan)), None)
        if found is None:
            self._looked_ms = now_ms
        return found

    def _settle(self, now_ms: int) -> list[int]:
        """Decides until no new order follows from what was decided; the lines of the jobs that start."""
        begun: list[int] = []
        fresh: Sequence[Order] = ()
        while self._facts or fresh or self._is_wait_over(now_ms):
            facts, self._facts = self._facts[:FACTS_MAX], self._facts[FACTS_MAX:]
            for record in self._commit(now_ms, facts, fresh):
                if isinstance(record, Allocated):
                    begun.append(self._lines[record.job_id])
                    self._runs[begun[-1]] = run_id(record.job_id, record.attempt)
                    self._facts += started_at_once(record)
                elif isinstance(record, Waiting) and record.reason.code is Code.WAITING_FOR_DATA:
                    heappush(self._waits, record.reason.numbers["until_ts"])
            fresh = orders(self._state, self._published, now_ms)
            self._published |= {order.pool: order.jobs for order in fresh}
        return begun

    def _is_wait_over(self, now_ms: int) -> bool:
        """Whether a job waits for its data no more since the last call; the committer's tick finds out by itself."""
        over = False
        while self._waits and self._waits[0] <= now_ms:
            heappop(self._waits)
            over = True
        return over

    def _commit(
        self, ts: int, facts: Iterable[AnyFact], fresh: Sequence[Order] = (), holder: str = ""
    ) -> tuple[AnyRecord, ...]:
        state = self._state
        seq = state.facts_upto
        taken = tuple(TakenFact(seq=seq + i, service=owner(fact), fact=fact) for i, fact in enumerate(facts, start=1))
        upto = seq + len(taken)
        inputs = Inputs(state.n + 1, ts, 1, upto, holder, facts=taken, orders=tuple(fresh))
        records = tuple(decide(state, inputs, self._capacity).records)
        take_in(state, inputs.n, ts, upto, inputs.orders)
        for record in records:
            apply_record(state, record, taken)
        return records


def started_at_once(record: Allocated) -> Iterator[AnyFact]:
    """Facts of a run whose pods are made and run as soon as they have a place."""
    run = run_id(record.job_id, record.attempt)
    yield PodsMade(kind="pods_made", run_id=run, uids=tuple(f"{run}-{at}" for at in range(len(record.placements))))
    yield RunStarted(kind="run_started", run_id=run)


def node_seen(at: int, gpus: int) -> NodeSeen:
    """A node with exactly the CPU and memory that its GPUs' jobs ask for."""
    size = {"cpu_milli": CPU_MILLI_PER_GPU * gpus, "memory_bytes": MIB * gpus, "pods": gpus, "gpus": gpus}
    return NodeSeen(kind="node_seen", name=f"node-{at:05d}", device_profile="plugin", **size)
