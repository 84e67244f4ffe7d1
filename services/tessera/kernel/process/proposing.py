"""
The loop of the services that propose plans: for the next jobs of their partitions, one open plan per job.

A plan never depends on what is in flight. What is in flight decides for which jobs to plan now: a job whose plan needs
what an open plan takes waits for that one's answer. The answer is the ledger having taken the fact in; a refusal makes
the job wait, longer each time, so that a proposer that is wrong about the state floods nobody.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from tessera.domain.entities import Job
from tessera.domain.resources import RoleNeed
from tessera.domain.state import State
from tessera.engine.preemption.plans import Plan, proposal
from tessera.engine.queueing.blocked_heads import stuck_heads
from tessera.kernel.errors import Transient
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.ledger.timestamps import LedgerTime
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.process.leases import Members, partition_of
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.waiting import wait_for
from tessera_schemas.ledger import EarmarkSet, PlanRefused
from tessera_schemas.reasons import Reason

TICK_SECONDS = 1.0  # runs grow old enough to be evicted while nothing happens
PAUSE_SECONDS = 0.05  # between two rounds, however fast the ledger moves
PLANS_PER_ROUND = 16  # computed, not published: a round must not keep the fold waiting
FRUITLESS_SECONDS = 5.0  # at most until a job for which there was no plan is thought of again
REFUSED_SECONDS = 30.0  # at most after refusals
FIRST_SECONDS = 0.5

PlanFor = Callable[[State, Job, int], Plan | Reason]
Alike = tuple[str, int, tuple[RoleNeed, ...], tuple[str, ...]]
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Open:
    """A proposal without an answer: its fact's sequence, and what it would take."""

    seq: int
    runs: frozenset[str]
    nodes: frozenset[str]

    def meets(self, plan: Plan) -> bool:
        """Whether both want the same victim or the same node."""
        runs = (victim.run_id for victim in plan.victims)
        return not self.runs.isdisjoint(runs) or not self.nodes.isdisjoint(plan.nodes)


@dataclass(slots=True)
class Pause:
    """Not before `until` (monotonic seconds); the next pause is twice as long."""

    until: float
    seconds: float


class Proposals:
    """`on_ledger` hears the answers; `propose` runs for ever."""

    def __init__(
        self, ports: Ports, shard: str, service: str, state: State, members: Members, plan_for: PlanFor, heads: int
    ) -> None:
        self._ports, self._state, self._members = ports, state, members
        self._plan_for, self._heads = plan_for, heads
        self._facts = Facts(ports.bus, shard, service)
        self._time = LedgerTime(ports.clock, state.ts)
        self._open: dict[str, Open] = {}
        self._pauses: dict[str, Pause] = {}
        self._changed = asyncio.Event()

    async def on_ledger(self, entries: list[Entry]) -> None:
        for entry in entries:
            for record in entry.message.records:
                if type(record) is PlanRefused:
                    log.info("plan_refused", job=record.job_id, n=entry.message.n, reason=record.reason.sentence())
                    self._pause(record.job_id, REFUSED_SECONDS)
                elif type(record) is EarmarkSet:
                    self._pauses.pop(record.owner, None)
        answered = [job_id for job_id, sent in self._open.items() if sent.seq <= self._state.facts_upto]
        for job_id in answered:
            del self._open[job_id]
        self._changed.set()

    async def propose(self) -> None:
        clock = self._ports.clock
        while True:
            await wait_for(self._changed, clock, TICK_SECONDS)
            self._changed.clear()
            await self._round()
            await clock.sleep(PAUSE_SECONDS)

    async def _round(self) -> None:
        """Plan for each job that is due, in the order of the line, and publish what stands in nobody's way."""
        ts, ours = self._time.now(self._state.ts), self._members.partitions()
        heads = stuck_heads(self._state, ts, self._heads)
        self._pauses = {job.job_id: self._pauses[job.job_id] for job in heads if job.job_id in self._pauses}
        planned, fruitless = 0, set[Alike]()
        for job_id in [job.job_id for job in heads]:
            job = self._state.jobs.get(job_id)
            if job is None or partition_of(job_id) not in ours or not self._is_due(job_id):
                continue
            alike = (job.queue, self._state.tree.priority_of(job), job.roles, job.avoid)
            if alike in fruitless:
                continue
            if planned == PLANS_PER_ROUND:
                self._changed.set()
                return
            planned += 1
            found = self._plan_for(self._state, job, ts)
            if isinstance(found, Reason):
                self._pause(job.job_id, FRUITLESS_SECONDS)
                fruitless.add(alike)
            elif any(sent.meets(found) for sent in self._open.values()):
                fruitless.add(alike)
            else:
                await self._publish(found, ts)
                return  # the state may have moved on while it was stored
            await self._ports.clock.sleep(0)  # plans take a while; leases and the fold go on in between

    def _is_due(self, job_id: str) -> bool:
        pause = self._pauses.get(job_id)
        return job_id not in self._open and (pause is None or pause.until <= self._ports.clock.monotonic())

    def _pause(self, job_id: str, at_most: float) -> None:
        last = self._pauses.get(job_id)
        seconds = FIRST_SECONDS if last is None else min(at_most, last.seconds * 2)
        self._pauses[job_id] = Pause(self._ports.clock.monotonic() + seconds, seconds)

    async def _publish(self, plan: Plan, ts: int) -> None:
        fact = proposal(self._state, plan, ts)
        runs = frozenset(victim.run_id for victim in plan.victims)
        try:
            seq = await self._facts.publish(fact)
        except Transient as error:
            log.warning("plan_not_published", job=plan.job_id, error=str(error))
            self._pause(plan.job_id, REFUSED_SECONDS)
            return
        if seq > self._state.facts_upto:
            self._open[plan.job_id] = Open(seq, runs, plan.nodes)
        self._changed.set()
