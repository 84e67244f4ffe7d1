"""
The loop of the services that propose plans: for the next jobs of their partitions, one open plan per job.

A plan never depends on what is in flight. What is in flight decides for which jobs to plan now: a job whose plan needs
what an open plan takes waits for that one's answer. The answer is the ledger having taken the fact in; a refusal makes
the job wait, longer each time, so that a proposer that is wrong about the state floods nobody.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import structlog

from tessera.domain.devices.resources import RoleNeed
from tessera.domain.entities import Job
from tessera.domain.state import State
from tessera.kernel.errors import Transient
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.ledger.timestamps import LedgerTime
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.process.leases import Members, partition_of
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.waiting import wait_for
from tessera_schemas.facts import PlanProposed
from tessera_schemas.ledger import EarmarkSet, PlanRefused
from tessera_schemas.reasons import Reason

TICK_SECONDS = 1.0  # runs grow old enough to be evicted while nothing happens
PAUSE_SECONDS = 0.05  # between two rounds, however fast the ledger moves
PLANS_PER_ROUND = 16  # computed, not published: a round must not keep the fold waiting
FRUITLESS_SECONDS = 5.0  # at most until a job for which there was no plan is thought of again
REFUSED_SECONDS = 30.0  # at most after refusals
FIRST_SECONDS = 0.5

Propose = Callable[[State, Job, int], PlanProposed | Reason]
BlockedHeads = Callable[[State, int, int], list[Job]]
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Open:
    """A proposal without an answer: its fact's sequence, and what it would take."""

    seq: int
    runs: frozenset[str]
    nodes: frozenset[str]

    @classmethod
    def of(cls, plan: PlanProposed) -> Self:
        """The runs that a proposal stops or shrinks and the nodes on which it keeps room, before it has a sequence."""
        runs = (*plan.victims, *(shrink.run_id for shrink in plan.shrinks))
        moved = (placement for move in plan.moves for placement in move.placements)
        return cls(0, frozenset(runs), frozenset(placement.node for placement in (*plan.placements, *moved)))

    def meets(self, other: Self) -> bool:
        """Whether both want the same victim or the same node."""
        return not self.runs.isdisjoint(other.runs) or not self.nodes.isdisjoint(other.nodes)


@dataclass(slots=True)
class Pause:
    """Pause until `until` (monotonic seconds); the next one is twice as long."""

    until: float
    seconds: float


class Proposals:
    """
    `on_ledger` hears the answers; `propose` runs for ever.

    `plan_for` gives the plan for one job at a time as the fact that proposes it, or why there is none; `blocked_heads`
    the next jobs in line that others keep waiting, at most so many.
    """

    def __init__(
        self,
        ports: Ports,
        shard: str,
        service: str,
        state: State,
        members: Members,
        plan_for: Propose,
        blocked_heads: BlockedHeads,
        heads: int,
    ) -> None:
        self._ports, self._state, self._members = ports, state, members
        self._plan_for, self._blocked_heads, self._heads = plan_for, blocked_heads, heads
        self._facts = Facts(ports.bus, shard, service)
        self._time = LedgerTime(ports.clock, state.ts)
        self._open: dict[str, Open] = {}
        self._pauses: dict[str, Pause] = {}
        self._changed = asyncio.Event()

    async def on_ledger(self, entries: list[Entry]) -> None:
        """Close proposals that the ledger has answered, pause refused jobs for longer, and wake `propose`."""
        for entry in entries:
            for record in entry.message.records:
                # A refused change of a node says nothing of the plans for the same job.
                if type(record) is PlanRefused and type(entry.message.facts[record.fact].fact) is PlanProposed:
                    log.info("plan_refused", job=record.job_id, n=entry.message.n, reason=record.reason.sentence())
                    self._pause(record.job_id, REFUSED_SECONDS)
                elif type(record) is EarmarkSet:
                    self._pauses.pop(record.owner, None)
        answered = [job_id for job_id, sent in self._open.items() if sent.seq <= self._state.facts_upto]
        for job_id in answered:
            del self._open[job_id]
        self._changed.set()

    async def propose(self) -> None:
        """Plan in rounds until cancelled: when the ledger has moved, or after a second in which it has not."""
        clock = self._ports.clock
        while True:
            await wait_for(self._changed, clock, TICK_SECONDS)
            self._changed.clear()
            await self._round()
            await clock.sleep(PAUSE_SECONDS)

    async def _round(self) -> None:
        """Plan for each job that is due, in the order of the line, and publish what stands in nobody's way."""
        ts, ours = self._time.now(self._state.ts), self._members.partitions()
        heads = self._blocked_heads(self._state, ts, self._heads)
        self._pauses = {job.job_id: self._pauses[job.job_id] for job in heads if job.job_id in self._pauses}
        planned, fruitless = 0, set[tuple[str, int, tuple[RoleNeed, ...], tuple[str, ...]]]()
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
            elif self._is_wanted(wanted := Open.of(found)):
                fruitless.add(alike)
            else:
                await self._publish(found, wanted)
                return  # the state may have moved on while it was stored
            await self._ports.clock.sleep(0)  # plans take a while; leases and the fold go on in between

    def _is_wanted(self, by: Open) -> bool:
        """Whether an open proposal wants a run or a node of these."""
        return any(sent.meets(by) for sent in self._open.values())

    def _is_due(self, job_id: str) -> bool:
        pause = self._pauses.get(job_id)
        return job_id not in self._open and (pause is None or pause.until <= self._ports.clock.monotonic())

    def _pause(self, job_id: str, at_most: float) -> None:
        last = self._pauses.get(job_id)
        seconds = FIRST_SECONDS if last is None else min(at_most, last.seconds * 2)
        self._pauses[job_id] = Pause(self._ports.clock.monotonic() + seconds, seconds)

    async def _publish(self, plan: PlanProposed, wanted: Open) -> None:
        try:
            seq = await self._facts.publish(plan)
        except Transient as error:
            log.warning("plan_not_published", job=plan.job_id, error=str(error))
            self._pause(plan.job_id, REFUSED_SECONDS)
            return
        if seq > self._state.facts_upto:
            self._open[plan.job_id] = replace(wanted, seq=seq)
        self._changed.set()
