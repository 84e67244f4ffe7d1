"""The two worlds in which the contract of the Bus port must hold, behind one small interface."""

from typing import Any, Protocol

import orjson
from nats.aio.client import Client

from tessera.kernel.clock import SystemClock
from tessera.kernel.memory.broker import MemoryBroker, StreamConfig
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.nats.bus import NatsBus
from tessera.kernel.ports import Bus, Follow, Message, Outgoing
from tests.servers import NatsServer


class World(Protocol):
    """Streams made from the memory broker's description, and as many connections as a test wants."""

    async def connect(self) -> Any: ...

    async def add_stream(self, name: str, *subjects: str, **limits: Any) -> None: ...

    async def add_durable(
        self, stream: str, name: str, ack_wait_seconds: float = 30.0, pending_max: int = 1000
    ) -> None: ...


class MemoryWorld:
    def __init__(self) -> None:
        self.broker = MemoryBroker(SystemClock())

    async def connect(self) -> Bus:
        return MemoryBus(self.broker)

    async def add_stream(self, name: str, *subjects: str, **limits: Any) -> None:
        self.broker.add_stream(StreamConfig(name, subjects, **limits))

    async def add_durable(
        self, stream: str, name: str, ack_wait_seconds: float = 30.0, pending_max: int = 1000
    ) -> None:
        self.broker.add_durable(stream, name, ack_wait_seconds=ack_wait_seconds, pending_max=pending_max)


class NatsWorld:
    """`user` is a name and its own password; it may do everything in its account."""

    def __init__(self, server: NatsServer, user: str, admin: Client) -> None:
        self._server, self._user, self._admin = server, user, admin
        self._buses: list[NatsBus] = []

    @classmethod
    async def at(cls, server: NatsServer, user: str = "admin") -> "NatsWorld":
        admin = Client()
        await admin.connect(server.url, user=user, password=user, reconnect_time_wait=0.02)  # type: ignore[arg-type]
        return cls(server, user, admin)

    async def connect(self, **options: Any) -> NatsBus:
        options = {"user": self._user, "password": self._user, "inbox_prefix": "_INBOX.test"} | options
        bus = await NatsBus.connect(self._server.url, reconnect_seconds=0.02, **options)
        self._buses.append(bus)
        return bus

    async def add_stream(self, name: str, *subjects: str, **limits: Any) -> None:
        await self.request(f"STREAM.CREATE.{name}", stream_json(StreamConfig(name, subjects, **limits)))

    async def add_durable(
        self, stream: str, name: str, ack_wait_seconds: float = 30.0, pending_max: int = 1000
    ) -> None:
        config = {"durable_name": name, "ack_policy": "explicit", "ack_wait": int(ack_wait_seconds * 1e9)}
        body = {"stream_name": stream, "config": config | {"max_deliver": -1, "max_ack_pending": pending_max}}
        await self.request(f"CONSUMER.DURABLE.CREATE.{stream}.{name}", body)

    async def request(self, call: str, body: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = orjson.loads(
            (await self._admin.request(f"$JS.API.{call}", orjson.dumps(body), PATIENT)).data
        )
        assert "error" not in answer, answer
        return answer

    async def close(self) -> None:
        for bus in self._buses:
            await bus.close()
        await self._admin.close()


def stream_json(config: StreamConfig) -> dict[str, Any]:
    """The server's words for the memory broker's description, with what following needs."""
    return {
        "name": config.name,
        "subjects": list(config.subjects),
        "storage": "file",
        "retention": "workqueue" if config.work_queue else "limits",
        "discard": "old" if config.last_per_subject else "new",
        "discard_new_per_subject": bool(config.messages_per_subject_max),
        "max_msgs_per_subject": config.last_per_subject or config.messages_per_subject_max or -1,
        "max_msgs": config.messages_max or -1,
        "max_bytes": config.bytes_max or -1,
        "max_msg_size": config.message_bytes_max or -1,
        "duplicate_window": int(config.duplicate_window_seconds * 1e9),
        "allow_direct": True,
        "republish": {"src": ">", "dest": "live.>"},
    }


PATIENT = 120.0  # seconds, for what certainly comes


def out(subject: str, data: bytes = b"x", **fields: object) -> Outgoing:
    return Outgoing(subject, data, **fields)  # type: ignore[arg-type]


async def drain(source: Follow, count: int) -> list[Message]:
    got: list[Message] = []
    while len(got) < count:
        batch = await source.next(timeout=PATIENT)
        assert batch, f"only {len(got)} of {count} came"
        got += batch
    return got


def seqs(messages: list[Message]) -> list[int]:
    return [message.seq for message in messages]
