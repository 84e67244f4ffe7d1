"""A shard's life by chance: everything that services may report, in any order, decided by the real committer."""

from random import Random

from tessera.domain.entities import Job, Run
from tessera.testkit.sim.chaos import prices_by_chance
from tessera.testkit.sim.planner import plan_by_chance
from tessera_schemas.config import ConfigBody, Flavor, Policy, PriorityClass, Queue, Quota
from tessera_schemas.facts import (
    AnyFact,
    BindFailed,
    CancelRequested,
    CheckpointSaved,
    DrainRequested,
    HoldRequested,
    JobRefused,
    MoveRequested,
    Others,
    PodsBound,
    PodsLost,
    PodsMade,
    PriorityRequested,
    RequeueRequested,
    RunEnded,
    RunIdle,
    RunLost,
    RunStarted,
    RunUsed,
    StartDelayed,
    UpdateRequested,
)
from tessera_schemas.ledger import LedgerMessage
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.records import RolloutRequested, ScaleRequested
from tessera_schemas.work.arrays import SERVICE_TASKS, Dependency, JobArray, ServiceSize
from tessera_schemas.work.measured_use import MeasuredUse
from tessera_schemas.work.spec_changes import SpecChanges
from tests.builders import admitted, config_body, config_proposed, job_spec, node_seen, role, run_absent
from tests.ledgers import Committed

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
QUEUES = ("research", "batch", "forgotten")
TENANTS = ("lab", "other")
NODES = ("node-a", "node-b", "node-c")
CLASSES = ("low", "high")
FLAVORS = (Flavor(name="fast", gpu_models=("h100",)), Flavor(name="slow", gpu_models=("a100",)))


def random_ledger(seed: int, messages: int = 80, ts: int = 1_760_000_000_000) -> Committed:
    """Starts configured; every fourth message or so has a checkpoint."""
    life = Life(Random(seed), ts)
    while life.ledger.state.n < messages:
        life.go_on()
    return life.ledger


class Life:
    def __init__(self, random: Random, ts: int) -> None:
        self.random, self.ledger = random, Committed(ts)
        self._keys = 0
        self.ledger.begin(body=self._body())

    def go_on(self) -> LedgerMessage:
        chance = self.random
        facts = [fact for _ in range(chance.randrange(6)) if (fact := self._fact()) is not None]
        return self.ledger.commit(
            *facts,
            orders=(self.ledger.line(),) if chance.random() < 0.6 else (),
            ms=chance.choice((0, 1, 900, 20_000)),
            holder="scheduler-2" if chance.random() < 0.03 else "",
            checkpoint=chance.random() < 0.25,
        )

    def _fact(self) -> AnyFact | None:
        chance = self.random
        runs = sorted(run_id for run_id, _ in self.ledger.state.runs.items())
        if runs and chance.random() < 0.6:
            return self._about_run(chance.choice(runs))
        kind = chance.randrange(20)
        if kind < 7:
            return self._submit()
        if kind == 7:
            why = (Reason(code=Code.NO_SUCH_QUEUE, field="queue", detail="n\u00f6pe"),)
            named = {"job_id": "abcdefghij234567abcd", "name": "train", "repeats": 3} if chance.random() < 0.5 else {}
            return JobRefused.model_validate({"kind": "job_refused", "tenant": "lab", "reasons": why, **named})
        if kind == 8:
            return self._configuration()
        if kind < 12 and self._keys:
            return self._about_job(self._job_id(f"k{chance.randrange(self._keys)}"))
        if kind == 12:
            return prices_by_chance(self.ledger.state, chance)
        if kind < 16:
            return plan_by_chance(self.ledger.state, chance)
        name = chance.choice(NODES)
        if kind == 16:
            evict, undo = chance.random() < 0.3, chance.random() < 0.5
            return DrainRequested(kind="drain_requested", node=name, evict=evict, undo=undo, why="fans")
        gone = chance.random() < 0.2
        model = chance.choice(("h100", "a100", "t4"))
        others = Others(pods=3, cpu_milli=chance.choice((0, 40_000)), gpus=chance.choice((0, 0, 2)))
        gpus = chance.choice((0, 4, 8, 8))
        return node_seen(name, gpus=gpus, gone=gone, ready=not gone, gpu_model=model, others=others)

    def _job_id(self, key: str) -> str:
        return admitted(key, tenant=self._tenant(key)).job_id

    @staticmethod
    def _tenant(key: str) -> str:
        return TENANTS[len(key) % 2 if key[-1] in "02468" else 0]

    def _about_job(self, job_id: str) -> AnyFact:
        chance = self.random
        tenant = chance.choice((*TENANTS, ""))
        asked = chance.choice(
            (
                CancelRequested(kind="cancel_requested", job_id=job_id, tenant=tenant, why="enough"),
                HoldRequested(kind="hold_requested", job_id=job_id, tenant=tenant, undo=chance.random() < 0.6),
                PriorityRequested(
                    kind="priority_requested", job_id=job_id, tenant=tenant, priority_class=chance.choice(CLASSES)
                ),
                MoveRequested(kind="move_requested", job_id=job_id, tenant=tenant, queue=chance.choice(QUEUES)),
                RequeueRequested(kind="requeue_requested", job_id=job_id, tenant=tenant),
                UpdateRequested(kind="update_requested", job_id=job_id, tenant=tenant, changes=self._changes()),
            )
        )

        job = self.ledger.state.jobs.get(job_id)
        if isinstance(asked, PriorityRequested) and job is not None and job.array is not None:
            replicas = self.ledger.state.n % 5  # by no draw, so that the other ledgers stay what they were
            return ScaleRequested(kind="scale_requested", job_id=job_id, tenant=tenant, replicas=replicas)
        if isinstance(asked, RequeueRequested) and job is not None and job.array is not None and job.array.is_service:
            return self._rollout(job, tenant)
        return asked

    def _rollout(self, job: Job, tenant: str) -> RolloutRequested:
        """Other programs of a service, or those before; by no draw, as above."""
        n, revision = self.ledger.state.n, 1 if job.array is None else job.array.revision
        undo = n % 3 == 0 and revision > 1
        programs = {} if undo else {each.name: {"image": f"serve:{n}"} for each in job.roles}
        pace = {"max_surge": n % 2 + 1, "max_unavailable": n % 2, "min_ready_seconds": n % 4}
        wish = {"revision": revision, "undo": undo, "programs": programs, **pace}
        asked = {"kind": "rollout_requested", "job_id": job.job_id, "tenant": tenant}
        return RolloutRequested.model_validate(asked | wish)

    def _changes(self) -> SpecChanges:
        chance, ts = self.random, self.ledger.state.ts
        others = tuple(self._job_id(f"k{chance.randrange(self._keys)}") for _ in range(chance.choice((0, 1, 1, 2))))
        waits = [Dependency(condition=chance.choice(("afterok", "afterany", "after")), job=job) for job in others]
        values = {
            "time_limit_seconds": chance.choice((0, 5, 60, 3600)),
            "after": (*waits, *((Dependency(condition="singleton"),) if chance.random() < 0.3 else ())),
            "begin_ts": ts + chance.choice((-1000, 0, 500, 30_000)) if ts else 0,
            "name": chance.choice(("train", "tune", "sweep")),
        }
        chosen = chance.sample(sorted(values), k=chance.choice((1, 1, 2, 4)))
        return SpecChanges.model_validate({field: values[field] for field in chosen})

    def _submit(self) -> AnyFact:
        """Mostly a new job, sometimes a key that was used before, sometimes a queue that is not there."""
        chance = self.random
        again = self._keys and chance.random() < 0.2
        key = f"k{chance.randrange(self._keys)}" if again else f"k{self._keys}"
        self._keys += not again
        replicas, more = chance.choice((1, 1, 1, 2, 5)), chance.choice((0, 0, 0, 1, 3))
        asked = role(replicas=replicas, max_replicas=replicas + more, gpus=chance.choice((0, 1, 4, 4)))
        spec = job_spec(
            asked,
            queue=chance.choice(("research", "research", "research", "batch", "batch", "forgotten")),
            priority_class=chance.choice(CLASSES),
            preemptible=chance.random() < 0.9,
            retry={"max_attempts": chance.choice((1, 3)), "backoff_seconds": 10},
        )
        if replicas == 1 and not more and int(key[1:]) % 5 == 2:
            size = ServiceSize(min_replicas=int(key[1:]) % 2, max_replicas=3, replicas=2)
            spec = spec.model_copy(update={"service": size, "array": JobArray(tasks=SERVICE_TASKS)})
        return admitted(key, spec, self._tenant(key)).model_copy(update={"trace": chance.choice(("", TRACE))})

    def _configuration(self) -> AnyFact:
        stale, abandon = self.random.random() < 0.2, self.random.random() < 0.6
        return config_proposed(self._body(), self.ledger.state.config.version - stale, abandon)

    def _body(self) -> ConfigBody:
        chance = self.random
        names = QUEUES[: chance.choice((1, 2, 2))]
        queues = [self._queue(name) for name in names]
        if len(names) < len(QUEUES) and chance.random() < 0.5:
            queues[0] = queues[0].model_copy(update={"was": QUEUES[-1]})
        return config_body(
            Queue(name="all", quotas=(Quota(resource="gpu_milli", nominal=2000),)),
            *queues,
            tenants=TENANTS[: chance.choice((1, 2, 2, 2))],
            priority_classes=(
                PriorityClass(name="low", value=-1),
                PriorityClass(name="high", value=chance.randrange(3)),
            ),
            flavors=FLAVORS,
            policy=Policy(
                preset=chance.choice(("off", "priority", "fair", "fair", "fair")),
                min_runtime_seconds=chance.choice((0, 0, 0, 30)),
                evictions_max=chance.choice((0, 5, 5, 5)),
                earmark_seconds=chance.choice((10, 600)),
                grow_after_seconds=chance.choice((0, 0, 30)),
                idle=chance.choice(("off", "warn", "requeue", "fail")),
                idle_warn_seconds=10,
                idle_reclaim_seconds=1,
                key_memory_seconds=chance.choice((1, 30, 3600)),
                start_timeout_seconds=60,
            ),
        )

    def _queue(self, name: str) -> Queue:
        chance = self.random
        inside = chance.random() < 0.8
        limits = {name: chance.choice((None, 2000)) for name in ("borrowing_limit", "lending_limit") if inside}
        return Queue(
            name=name,
            parent="all" if inside else None,
            weight=chance.randrange(3),
            quotas=tuple(
                Quota.model_validate({"resource": "gpu_milli", "nominal": 4000, "flavor": flavor, **limits})
                for flavor in chance.choice(((), ("",), ("fast", "slow")))
            ),
            stop_policy=chance.choice((*["none"] * 8, "hold", "hold_and_drain")),
            **chance.choice(({}, {"order": "expected"}, {}, {"queueing_strategy": "strict_fifo"})),
        )

    def _used(self, run: Run) -> RunUsed:
        """Any measurement of a run: of more than it has held, or less than is known, too."""
        measured, gpus = self.random.randint(1, 4_000_000), self.random.randint(0, 8)
        use = MeasuredUse(
            measured_gpu_milli_ms=measured, worked_gpu_milli_ms=measured // 3, gpus=gpus, busy_gpus=gpus // 2
        )
        return RunUsed(kind="run_used", run_id=run.run_id, use=use)

    def _about_run(self, run_id: str) -> AnyFact:
        chance = self.random
        run = self.ledger.state.runs.get(run_id)
        pods = len(run.placements)
        if run.stopping:
            return run_absent(run_id)
        if run.extra and chance.random() < 0.5:
            return self._about_extra(run)
        if run.started and chance.random() < 0.85:
            return chance.choice(
                (
                    *(PodsBound(kind="pods_bound", run_id=run_id),) * 8,
                    RunIdle(kind="run_idle", run_id=run_id, idle_seconds=chance.choice((0, 5, 50))),
                    self._used(run),
                    CheckpointSaved(kind="checkpoint_saved", run_id=run_id, path=chance.choice(("", "/data/1"))),
                    RunLost(
                        kind="run_lost",
                        run_id=run_id,
                        reason=Reason(code=Code.NODE_LOST),
                        nodes=(run.placements[0].node,),
                    ),
                )
            )
        why = Reason(code=Code.POD_FAILED, numbers={"exit_code": 3}, detail="oom")
        failed = RunEnded(kind="run_ended", run_id=run_id, reason=why, own=chance.random() < 0.5, exit_code=3)
        if not run.uids:
            made = PodsMade(kind="pods_made", run_id=run_id, uids=tuple(f"{run_id}-{i}" for i in range(pods)))
            no = Reason(code=Code.BIND_REFUSED, numbers={"status": 403})
            refused = BindFailed(kind="bind_failed", run_id=run_id, rank=0, reason=no)
            return refused if chance.random() < 0.1 else made
        if not run.started and (draw := chance.random()) < 0.9:
            late = Reason(code=Code.START_TIMEOUT, detail="no container of it was created")
            delayed = StartDelayed(kind="start_delayed", run_id=run_id, works=draw < 0.05, reason=late, nodes=("n",))
            return delayed if draw < 0.1 else RunStarted(kind="run_started", run_id=run_id)
        return chance.choice(
            (
                PodsBound(kind="pods_bound", run_id=run_id),
                RunEnded(kind="run_ended", run_id=run_id, exit_code=0),
                failed,
            )
        )

    def _about_extra(self, run: Run) -> AnyFact:
        """What an elastic run grew by: made, lost, or gone once it was to leave."""
        chance, name = self.random, run.run_id
        leaving = tuple(extra.placement.rank for extra in run.extra if extra.leaving)
        if leaving:
            return run_absent(name).model_copy(update={"ranks": leaving})
        new = tuple(extra.placement.rank for extra in run.extra if not extra.uid)
        if new and chance.random() < 0.8:
            return PodsMade(kind="pods_made", run_id=name, uids=tuple(f"{name}-{rank}" for rank in new), ranks=new)
        ranks = (chance.choice(run.extra).placement.rank,)
        return PodsLost(kind="pods_lost", run_id=name, ranks=ranks, reason=Reason(code=Code.POD_FAILED))
