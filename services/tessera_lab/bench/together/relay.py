"""
The floor of the event path: bytes through as many durable hops as ours, in as many processes, and nothing else.

Each hop follows one stream and stores what comes on the next, acknowledged; several waiting ones go together. No
parsing, no state, no decision. Hops are laid out as the path of a submit is: admission, scheduler, queueing, scheduler
again, projection.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import nats
import uvloop
from nats.js import api

from tessera.kernel.nats.bus import NatsBus
from tessera.kernel.ports import Clock, Outgoing
from tessera_local.child_process import Child, Spawn
from tessera_local.servers import NatsServer, wait_until
from tessera_schemas import subjects

PROCESSES = (("0",), ("1", "3"), ("2",), ("4",))
"""The hops of each process: fact, two ledger appends, order, event."""
HOPS = sum(len(hops) for hops in PROCESSES)


def _stream(index: int) -> str:
    return f"RELAY_{index}"


def _subject(index: int) -> str:
    return f"relay.{index}"


class Relay:
    """The first stream is written here, the last one is heard here."""

    def __init__(self, bus: NatsBus, clock: Clock) -> None:
        self._bus, self._clock = bus, clock
        self._heard, self._came = 0, asyncio.Event()

    async def listen(self) -> None:
        await self._bus.listen(subjects.live(_subject(HOPS)), self._on_message)

    def _on_message(self, _subject: str, _data: bytes) -> None:
        self._heard += 1
        self._came.set()

    async def one(self, data: bytes) -> float:
        """Seconds from the acknowledgement of a message on the first stream to its arrival."""
        wanted = self._heard + 1
        await self._bus.publish(Outgoing(_subject(0), data))
        began = self._clock.monotonic()
        await self._until(wanted)
        return self._clock.monotonic() - began

    async def burst(self, data: bytes, count: int) -> float:
        """Seconds from the first publish to the last arrival of `count` messages."""
        wanted = self._heard + count
        began = self._clock.monotonic()
        await self._bus.publish_all([Outgoing(_subject(0), data)] * count)
        await self._until(wanted)
        return self._clock.monotonic() - began

    async def _until(self, wanted: int) -> None:
        while self._heard < wanted:
            self._came.clear()
            await self._came.wait()


@asynccontextmanager
async def relay(folder: Path, clock: Clock, sync: bool) -> AsyncIterator[Relay]:
    """A server of its own, with the relaying processes on it."""
    server = NatsServer(folder, None, sync=sync)
    async with AsyncExitStack() as stack:
        await _start(stack, Child("relay-nats", server.spawn, server.ready, folder / "nats.log", clock, print, _quiet))
        admin = await nats.connect(server.url)
        for index in range(HOPS + 1):
            live = api.RePublish(src=_subject(index), dest=subjects.live(_subject(index)))
            await admin.jetstream().add_stream(
                name=_stream(index), subjects=[_subject(index)], republish=live, allow_direct=True
            )
        await admin.close()
        for number, hops in enumerate(PROCESSES):
            ready = folder / f"ready-{number}"
            command = [sys.executable, "-m", "tessera_lab.bench.together.relay", server.url, str(ready), *hops]
            log = folder / f"relay-{number}.log"
            await _start(stack, Child(f"relay-{number}", _spawning(command), _exists(ready), log, clock, print, _quiet))
        bus = await NatsBus.connect(server.url)
        stack.push_async_callback(bus.close)
        relaying = Relay(bus, clock)
        await relaying.listen()
        yield relaying


async def _start(stack: AsyncExitStack, child: Child) -> None:
    stack.push_async_callback(child.stop)
    await child.start()


def _spawning(command: list[str]) -> Callable[[], Spawn]:
    return lambda: Spawn(command, {"PYTHONPATH": ":".join(path for path in sys.path if path)})


def _exists(ready: Path) -> Callable[[Child], Awaitable[None]]:
    async def wait(child: Child) -> None:
        await wait_until(ready.exists, child)

    return wait


def _quiet() -> None:
    """Write nothing when a part was started."""


async def _pass_on(bus: NatsBus, hop: int) -> None:
    source = bus.follow(_stream(hop), _subject(hop), 0)
    while True:
        await bus.publish_all([Outgoing(_subject(hop + 1), message.data) for message in await source.next()])


async def _main(url: str, ready: str, hops: list[str]) -> None:
    bus = await NatsBus.connect(url)
    await asyncio.to_thread(Path(ready).touch)
    await asyncio.gather(*(_pass_on(bus, int(hop)) for hop in hops))


if __name__ == "__main__":
    uvloop.run(_main(sys.argv[1], sys.argv[2], sys.argv[3:]))
