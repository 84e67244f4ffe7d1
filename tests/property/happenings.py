"""
A shard to which everything happens, in orders that make sense and in orders that do not.

The driver says facts that fit the state, facts that are early, late, repeated or about runs that nobody knows, and
lets orders be stale. What the committer makes of it must hold whatever was said.
"""

from random import Random
from typing import Any

from tessera.domain.entities import Run
from tessera.domain.state import State
from tessera_schemas.base import run_id
from tessera_schemas.config import ConfigBody, Limits, Policy, Tenant
from tessera_schemas.facts import (
    AnyFact,
    BindFailed,
    CancelRequested,
    NodeSeen,
    Others,
    PodsBound,
    PodsMade,
    RunEnded,
    RunStarted,
    StartDelayed,
)
from tessera_schemas.job import Retry
from tessera_schemas.ledger import LedgerMessage
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.orders import Order
from tessera_schemas.work.run_ends import RUN_ENDS
from tests.builders import admitted, config_body, config_proposed, job_spec, node_seen, queue, role, run_absent
from tests.ledgers import Committed

KEYS = [f"k{number}" for number in range(12)]
NODES = ("node-a", "node-b", "node-c")
QUOTA_MILLI = 2000
LIES: tuple[dict[str, Any], ...] = (
    *({},) * 4,
    {"topology": {"level": "rack"}},
    {"spread": "rack"},
    {"devices": {"rdma/hca": 1}},
    {"gpus": 0, "mig_profile": "3g.20gb"},
    {"gpus": 0, "mig_profile": "3g.20gb", "gpu_parts": 2},
    {"gpus": 0, "gpu_milli": 400, "gpu_parts": 2},
)
"""How the pods of a job lie, and what they have besides GPUs."""


DEVICES: tuple[dict[str, Any], ...] = (
    *({"device_profile": "mig", "mig_geometry": "40gb"},) * 2,
    {"device_profile": "mig", "mig_geometry": "40gb", "mig_instances": {"3g.20gb": 3, "1g.5gb": 2}, "gpus": 2},
    {"device_profile": "mig", "mig_geometry": "40gb", "mig_instances": {"3g.20gb": 1}, "gpus": 1},
    {"device_profile": "visible-devices", "gpu_uuids": ("GPU-a", "GPU-b"), "gpus": 2},
    {"device_profile": "visible-devices", "gpu_uuids": ("GPU-b", "GPU-a"), "gpus": 2},
)
"""Who hands out the GPUs of a node, and which they are; else the stock plugin does."""


class Happenings:
    """Call `go_on` as often as you like; `ledger` holds what became of it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.ledger = Committed()
        self.ledger.commit(holder="scheduler-1")
        self._orders: list[Order] = []
        self._said: list[AnyFact] = []

    @property
    def state(self) -> State:
        return self.ledger.shard.state

    def go_on(self) -> LedgerMessage:
        """One message: some facts, perhaps an order, perhaps an old one."""
        chance = self.random
        facts = [self._fact() for _ in range(chance.randrange(8))]
        self._said += facts
        if chance.random() < 0.5:
            self._orders.append(self.ledger.line(chance.choice(("default", "blue"))))
        orders = {order.pool: order for order in chance.sample(self._orders, min(len(self._orders), 2))}
        if chance.random() < 0.7 and self._orders:
            orders[self._orders[-1].pool] = self._orders[-1]
        return self.ledger.commit(
            *facts,
            orders=tuple(orders.values()),
            ms=chance.choice((0, 1, 1000, 1000, 30_000, 30_000, 700_000)),
            holder="scheduler-2" if chance.random() < 0.02 else "",
            checkpoint=chance.random() < 0.2,
        )

    def _fact(self) -> AnyFact:
        chance = self.random
        if self._said and chance.random() < 0.15:
            return chance.choice(self._said)
        kind = chance.randrange(10)
        if kind < 3:
            return self._job()
        if kind == 3:
            return self._node()
        if kind == 4 and chance.random() < 0.4:
            return config_proposed(self._configuration(), max(0, self.state.config.version - chance.choice((0, 0, 1))))
        if kind == 5 and chance.random() < 0.3:
            who = chance.choice(("lab", "other", ""))
            return CancelRequested(kind="cancel_requested", job_id=self._job().job_id, tenant=who, why="enough")
        return self._about_a_run()

    def _job(self):  # type: ignore[no-untyped-def]
        """The same key asks for the same job, but for now and then."""
        chance = self.random
        key = chance.choice(KEYS)
        shape = Random(key if chance.random() < 0.95 else key + "!")
        asked = {"replicas": shape.choice((1, 1, 2, 4)), "gpus": shape.choice((0, 1, 1, 2)), **shape.choice(LIES)}
        spec = job_spec(
            role(**asked),
            queue=shape.choice(("research", "research", "batch", "nowhere")),
            priority_class=shape.choice(("low", "normal", "high")),
            retry=Retry(on_failure=True, max_attempts=shape.choice((1, 2, 3)), backoff_seconds=shape.choice((0, 5))),
        )
        return admitted(key, spec, tenant=Random(key + "tenant").choice(("lab", "other")))

    def _node(self) -> NodeSeen:
        chance = self.random
        name, size = chance.choice(NODES), chance.choice((0, 2, 4, 8))
        if chance.random() < 0.2:
            return NodeSeen(kind="node_seen", name=name, gone=True, ready=False)
        pool = "blue" if name == "node-c" else "default"
        devices = {"gpus": size, **(chance.choice(DEVICES) if chance.random() < 0.4 else {})}
        return node_seen(
            name,
            pool=pool,
            ready=chance.random() < 0.9,
            cpu_milli=chance.choice((4000, 9000)),
            labels={"rack": name} if chance.random() < 0.8 else {},
            devices={"rdma/hca": chance.choice((1, 4))},
            others=Others(cpu_milli=3000, pods=2, gpus=chance.randrange(3)) if chance.random() < 0.3 else Others(),
            **devices,
        )

    def _configuration(self) -> ConfigBody:
        chance = self.random
        body = config_body(
            *([queue("research", gpu_milli=QUOTA_MILLI)] if chance.random() < 0.8 else []),
            queue("batch", pool=chance.choice(("default", "blue"))),
            policy=Policy(start_timeout_seconds=chance.choice((60, 2000)), key_memory_seconds=chance.choice((1, 3600))),
        )
        limits = Limits(jobs=8, gpus=chance.choice((12, None)))
        return body.model_copy(update={"tenants": tuple(Tenant(name=t.name, limits=limits) for t in body.tenants)})

    def _about_a_run(self) -> AnyFact:
        """Mostly of a run that is there; sometimes of one that ended, or never was."""
        chance = self.random
        there = sorted(run.run_id for run in self.state.runs.values())
        made_up = [run_id(admitted(chance.choice(KEYS)).job_id, chance.choice((1, 2, 9)))]
        name = chance.choice(there if there and chance.random() < 0.85 else made_up)
        run = self.state.runs.get(name)
        pods = len(run.placements) if run is not None else 1
        code = chance.choice((*(Code.POD_FAILED,) * 3 * len(RUN_ENDS), *sorted(RUN_ENDS)))
        why = Reason(code=code, numbers={"exit_code": 3}, detail="oom")
        refused = Reason(code=Code.BIND_REFUSED, numbers={"status": 403})
        late = Reason(code=Code.START_TIMEOUT, detail="no container of it was created")
        slow = () if run is None else tuple(sorted({place.node for place in run.placements}))
        own = chance.random() < 0.5
        likely: list[AnyFact] = [
            PodsMade(kind="pods_made", run_id=name, uids=tuple(f"{name}-{rank}" for rank in range(pods))),
            PodsBound(kind="pods_bound", run_id=name),
            StartDelayed(kind="start_delayed", run_id=name, works=own, reason=None if own else late, nodes=slow),
            RunStarted(kind="run_started", run_id=name),
            RunEnded(kind="run_ended", run_id=name),
        ]
        unlikely: list[AnyFact] = [
            BindFailed(kind="bind_failed", run_id=name, rank=0, reason=refused),
            *[RunEnded(kind="run_ended", run_id=name, reason=why, own=RUN_ENDS[code].spends, exit_code=3)] * 3,
            PodsMade(kind="pods_made", run_id=name, uids=("only-one",)),
        ]
        if run is not None and run.stopping:
            return run_absent(name)
        return chance.choice(likely if chance.random() < 0.55 else [*unlikely, run_absent(name)])


def next_fact(name: str, run: Run) -> AnyFact:
    """What a service tells of the run next, until it has ended and its pods are gone."""
    if run.stopping:
        return run_absent(name)
    if not run.uids:
        pods = len(run.placements)
        return PodsMade(kind="pods_made", run_id=name, uids=tuple(f"{name}-{i}" for i in range(pods)))
    if not run.started:
        return RunStarted(kind="run_started", run_id=name)
    return RunEnded(kind="run_ended", run_id=name)
