"""Admission's handlers on the in-memory bus and views, with a clock that stands still unless a test moves it."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from tessera.admission.handlers import CommandHandlers
from tessera.admission.limits import TenantLimits
from tessera.admission.policy_view import PolicyView
from tessera.admission.refusals import Refusals
from tessera.kernel.errors import Transient
from tessera.kernel.ledger.room import LedgerRoom
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.memory.store import MemoryStore, MemoryViews
from tessera.kernel.ports import Change, Delivery, Message
from tessera.kernel.service.context import Ports
from tessera.kernel.service.health import Health
from tessera.kernel.service.metrics import Metrics
from tessera_schemas.commands import Answer
from tessera_schemas.config import Config, ConfigBody
from tessera_schemas.facts import FACT_MESSAGE, AnyFact
from tessera_schemas.views import JobView, NodeView
from tests.builders import SHARD, config_body

SPEC: dict[str, Any] = {
    "name": "train",
    "queue": "research",
    "roles": [
        {
            "name": "worker",
            "replicas": 2,
            "resources": {"cpu_milli": 8000, "memory_bytes": 2**34, "gpus": 2},
            "template": {"image": "train:1", "command": ["python", "-m", "train"], "env": {"LR": "1"}},
        }
    ],
}


def submit(key: str = "k1", spec: Any = None, **more: Any) -> dict[str, Any]:
    return {"kind": "submit_job", "v": 1, "key": key, "spec": SPEC if spec is None else spec, **more}


def changed(path: str, value: Any) -> dict[str, Any]:
    """A submit that differs from a good one at `path`, such as `spec.roles.0.name`."""
    command: dict[str, Any] = json.loads(json.dumps(submit()))
    *way, last = path.split(".")
    at: Any = command
    for step in way:
        at = at[int(step)] if isinstance(at, list) else at[step]
    at[int(last) if isinstance(at, list) else last] = value
    return command


def node(name: str = "node-a", gpus: int = 8, **more: Any) -> NodeView:
    size = {"pool": "default", "cpu_milli": 64_000, "memory_bytes": 2**39, "pods": 110, "gpu_model": "h100", **more}
    return NodeView(name=name, ready=True, gpus=gpus, **size)


class StandingClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def now_ms(self) -> int:
        return round(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class StoreFaults:
    """`wipes_at`: the operation right before which everything is lost."""

    away = False
    wipes_at = ""
    wipe: Callable[[], None]

    async def before(self, op: str) -> None:
        if op == self.wipes_at:
            self.wipe()
        if self.away:
            raise Transient("Redis is away")

    async def after(self, op: str) -> None: ...


class Tail:
    """A ledger of which only its end is of interest; away as long as `n` is None."""

    n: int | None = 0

    async def tail(self) -> Message | None:
        if self.n is None:
            raise Transient("the ledger is away")
        return Message(f"ledger.{SHARD}", self.n, b"") if self.n else None


class World:
    def __init__(self, refusals_per_second: int = 20) -> None:
        self.clock, self.faults, self.n = StandingClock(), StoreFaults(), 0
        self.broker = MemoryBroker(self.clock)
        self.broker.add_shard(SHARD)
        self.store = MemoryStore(MemoryViews(self.clock), self.faults)
        self.faults.wipe = self.store.shared.wipe
        self.metrics = Metrics("admission")
        self.ledger = Tail()
        self.answers: list[tuple[str, Answer]] = []
        self.broker.listen("_INBOX.>", lambda to, data: self.answers.append((to, Answer.from_bytes(data))))
        self.ports = Ports(
            self.clock,
            MemoryBus(self.broker, "admission"),
            cast(Any, self.ledger),
            self.store,
            cast(Any, None),
            Health(self.clock, self.metrics),
            self.metrics,
            "admission-1",
            lambda: "tx",
        )
        self.policy = PolicyView(self.store, self.clock, 0.5)
        self.room = LedgerRoom(self.ports.bus, self.clock, self.metrics, SHARD)
        self.replicas = 1
        limits = TenantLimits(self.policy, self.room, self.clock, lambda: self.replicas)
        self.handlers = CommandHandlers(
            self.ports, SHARD, self.policy, limits, Refusals(self.clock, refusals_per_second)
        )

    @classmethod
    async def with_policy(cls, body: ConfigBody | None = None, nodes: Sequence[NodeView] = (), **more: Any) -> "World":
        world = cls(**more)
        await world.views(body or config_body(), nodes)
        await world.policy.look_again()
        return world

    async def views(
        self, body: ConfigBody | None, nodes: Sequence[NodeView] = (), remembered: Sequence[NodeView] = ()
    ) -> None:
        """What projection writes."""
        self.n += 1
        changes = [Change("nodes", view.name, view.to_bytes()) for view in nodes]
        changes += [Change("remembered_nodes", view.name, view.to_bytes()) for view in remembered]
        if body is not None:
            changes.append(Change("config", "config", Config(version=self.n, body=body).to_bytes()))
        await self.store.apply(self.n, self.n, changes)

    async def job_seen(self, job_id: str, tenant: str = "lab", phase: str = "queued", **more: Any) -> None:
        """Projection shows a job."""
        self.n += 1
        numbers = dict.fromkeys(("priority", "attempt", "pods", "gpu_milli", "submitted_ts"), 1)
        more |= numbers
        view = JobView(job_id=job_id, tenant=tenant, queue="research", name="train", key="k", phase=phase, **more)
        await self.store.apply(self.n, self.n, [Change("jobs", job_id, view.to_bytes())])

    async def submits(
        self, *bodies: object, tenant: str = "lab", headers: Mapping[str, str] | None = None
    ) -> list[object]:
        """Handle one batch of a tenant's commands; dicts are sent as JSON."""
        return await self.batch(*((tenant, body) for body in bodies), headers=headers)

    async def batch(
        self, *sent: tuple[str, object], headers: Mapping[str, str] | None = None, first: int = 1, times: int = 1
    ) -> list[object]:
        """`first` is the sequence of the first one, `times` how often each has been delivered."""
        deliveries = [
            Delivery(Message(f"submit.{SHARD}.{tenant}", seq, encoded(body), headers or {}), times, None)
            for seq, (tenant, body) in enumerate(sent, start=first)
        ]
        return await self.handlers.on_submits(deliveries)

    async def controls(
        self, *bodies: object, headers: Mapping[str, str] | None = None, subject: str = f"control.{SHARD}"
    ) -> list[object]:
        deliveries = [
            Delivery(Message(subject, seq, encoded(body), headers or {}), 1, None)
            for seq, body in enumerate(bodies, start=1)
        ]
        return await self.handlers.on_controls(deliveries)

    @property
    def stored(self) -> list[Message]:
        return list(self.broker.stream(f"FACTS_{SHARD}").messages.values())

    @property
    def facts(self) -> list[AnyFact]:
        return [FACT_MESSAGE.validate_json(message.data).fact for message in self.stored]


def encoded(body: object) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()
