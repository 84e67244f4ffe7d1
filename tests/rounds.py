"""
A shard in rounds: the real committer and the real planners, and a cluster in which everything starts and stops at once.

Each round publishes the orders, starts what was allocated, undoes plans for jobs that `budgets` names (their disruption
budgets allow nothing), lets what was stopped be absent (unless a test holds it back), and proposes plans as the
services do. `settle` goes on until nothing changes, and fails when that does not end.
"""

from collections.abc import Sequence
from typing import Any

from tessera.domain.entities import Job
from tessera.engine.preemption.plans import Plan, plan, proposal
from tessera.preemption.decide import preemption_heads, preemption_plan
from tessera.reclamation.reclaim.decide import reclamation_heads, reclamation_plan
from tessera_schemas.base import job_id
from tessera_schemas.config import Flavor, Policy, PriorityClass, Queue, Quota
from tessera_schemas.facts import AnyFact, PlanCause, PodsMade, RunAbsent, RunEnded, RunStarted, RunUntouched
from tessera_schemas.ledger import EarmarkSet, LedgerMessage, PlanRefused, Revoked
from tessera_schemas.reasons import Code, Reason
from tests.builders import SHARD, admitted, config_body, config_proposed, job_spec, node_seen, role, run_absent
from tests.ledgers import Committed

ROUNDS_MAX = 200
AT_ONCE = {"min_runtime_seconds": 0}


def share(name: str, gpus: int, parent: str | None = "all", **more: Any) -> Queue:
    """A queue with a nominal quota of so many GPUs."""
    quota = Quota(resource="gpu_milli", nominal=gpus * 1000, **{k: more.pop(k) for k in list(more) if "limit" in k})
    return Queue(name=name, parent=parent, quotas=(quota,), **more)


class Rounds(Committed):
    def __init__(
        self,
        *queues: Queue,
        nodes: Sequence[AnyFact] | dict[str, int] | None = None,
        classes: Sequence[PriorityClass] = (),
        flavors: Sequence[Flavor] = (),
        **policy: Any,
    ) -> None:
        super().__init__()
        rules = Policy.model_validate({"preset": "fair", **AT_ONCE, **policy})
        more: dict[str, Any] = {"priority_classes": tuple(classes)} if classes else {}
        more["flavors"] = tuple(flavors)
        self.commit(holder="scheduler-1")
        self.commit(config_proposed(config_body(*(queues or (Queue(name="research"),)), policy=rules, **more)))
        named = {"node-a": 8} if nodes is None else nodes
        seen = [node_seen(name, gpus) for name, gpus in named.items()] if isinstance(named, dict) else named
        self.commit(*seen)
        self.held_back: set[str] = set()
        self.budgets: set[str] = set()
        self.plans: list[LedgerMessage] = []
        self.refusals: list[PlanRefused] = []

    # -- what tests say

    def configure(self, **policy: Any) -> None:
        """Other rules from now on."""
        body = self.state.config.body
        rules = body.policy.model_copy(update=policy)
        proposed = config_proposed(body.model_copy(update={"policy": rules}), self.state.config.version)
        self.commit(proposed)

    def shares(self, *queues: Queue) -> None:
        """Other quotas from now on, below the same root."""
        body = self.state.config.body
        root = tuple(queue for queue in body.queues if queue.parent is None)
        self.commit(config_proposed(body.model_copy(update={"queues": (*root, *queues)}), self.state.config.version))

    def submit(self, key: str, gpus: int = 1, pods: int = 1, queue: str = "research", **more: Any) -> str:
        """A job of equal pods; returns its id. `priority` is its class."""
        fields = ("gpu_models", "topology", "cpu_milli", "memory_bytes", "max_replicas", "mixed_models", "exclusive")
        fields += ("anti_affinity", "neighbours")
        shape = {name: more.pop(name) for name in fields if name in more}
        spec = job_spec(
            role(replicas=pods, gpus=gpus, **shape),
            name=key,
            queue=queue,
            priority_class=more.pop("priority", "normal"),
            **more,
        )
        self.commit(admitted(key, spec))
        return job_id(SHARD, "lab", key)

    def running(self, *keys: str) -> bool:
        return all((run := self.run(key)) is not None and not run.stopping for key in keys)

    def job(self, key: str) -> Job:
        found: Job = self.state.jobs.get(job_id(SHARD, "lab", key))
        return found

    def run(self, key: str) -> Any:
        job = self.state.jobs.get(job_id(SHARD, "lab", key))
        return None if job is None else self.state.runs.get(job.run_id)

    def finish(self, key: str) -> None:
        run = self.run(key).run_id
        self.commit(RunEnded(kind="run_ended", run_id=run))
        self.commit(run_absent(run))

    def plan(self, key: str, cause: PlanCause = "preemption") -> Plan | Reason:
        return plan(self.state, self.job(key), self.ts, cause)

    def victims(self, key: str, cause: PlanCause = "preemption") -> list[str]:
        """The names of the jobs that a plan for `key` would evict or shrink, in order; empty when there is none."""
        found = self.plan(key, cause)
        return [] if isinstance(found, Reason) else sorted(self.name(victim.job_id) for victim in found.victims)

    def name(self, job: str) -> str:
        return str(self.state.jobs.get(job).name)

    def evicted(self) -> list[list[str]]:
        """For each plan that was carried out, the names of the jobs it evicted."""
        return [
            sorted(self.name(r.run_id.rsplit("-", 1)[0]) for r in m.records if isinstance(r, Revoked) and r.by in m_ids)
            for m in self.plans
            if (m_ids := {r.owner for r in m.records if isinstance(r, EarmarkSet)})
        ]

    # -- rounds

    def settle(self, rounds: int = ROUNDS_MAX) -> "Rounds":
        """Until a round changes nothing; raises when that many are not enough."""
        for _ in range(rounds):
            if not self.round():
                return self
        raise AssertionError(f"not quiet after {rounds} rounds, {len(self.plans)} plans")

    def round(self, plans: bool = True) -> bool:
        """Whether anything happened; without `plans` nobody proposes any."""
        moved = [self._start(), self._spare(), self._stop(), self._line(), plans and self._propose()]
        return any(moved)

    def _line(self) -> bool:
        pools = sorted(self.state.tree.queues_of)
        return any(r.kind != "waiting" for r in self.commit(orders=[self.line(pool) for pool in pools]).records)

    def _start(self) -> bool:
        begun = [run for run in self.state.runs.values() if not run.started and not run.stopping]
        for run in begun:
            uids = tuple(f"{run.run_id}-{rank}" for rank in range(len(run.placements)))
            self.commit(PodsMade(kind="pods_made", run_id=run.run_id, uids=uids))
            self.commit(RunStarted(kind="run_started", run_id=run.run_id))
        return bool(begun)

    def _spare(self) -> bool:
        """As the binder does: nobody of a plan is stopped while a budget keeps one of its victims."""
        undone = False
        for mark in list(self.state.earmarks.values()) if self.budgets else ():
            runs = [run for run in self.state.runs.found(mark.victims) if run.revoked is not None]
            kept = {run.run_id for run in runs if self.name(run.job_id) in self.budgets and not run.called_in}
            for run in runs if kept else ():
                fact = {"run_id": run.run_id, "revoked_ts": run.stopped_ts, "kept": run.run_id in kept}
                why = Reason(code=Code.BLOCKED_BY_DISRUPTION_BUDGET, detail="budget keep")
                self.commit(RunUntouched(kind="run_untouched", reason=why, **fact))
                undone = True
        return undone

    def _stop(self) -> bool:
        gone = [r.run_id for r in self.state.runs.values() if r.stopping and r.run_id not in self.held_back]
        for run_id in gone:
            self.commit(run_absent(run_id))
        shrunk = [run for run in self.state.runs.values() if any(extra.leaving for extra in run.extra)]
        shrunk = [run for run in shrunk if not run.stopping and run.run_id not in self.held_back]
        for run in shrunk:
            ranks = tuple(extra.placement.rank for extra in run.extra if extra.leaving)
            self.commit(RunAbsent(kind="run_absent", run_id=run.run_id, ranks=ranks))
        return bool(gone or shrunk)

    def _propose(self) -> bool:
        """Each service plans for the first job that has a plan; both see the same state."""
        proposed = []
        services = ((preemption_heads, preemption_plan), (reclamation_heads, reclamation_plan))
        for heads, plan_for in services:
            for job in heads(self.state, self.ts, 64):
                found = plan_for(self.state, job, self.ts)
                if isinstance(found, Plan):
                    proposed.append(proposal(self.state, found, self.ts))
                    break
        if not proposed:
            return False
        message = self.commit(*proposed)
        self.refusals += [r for r in message.records if isinstance(r, PlanRefused)]
        if any(isinstance(r, EarmarkSet) for r in message.records):
            self.plans.append(message)
        return True
