"""An answer that is on its way, or lies in the socket, is not taken for none; on asyncio's loop and on uvloop."""

import asyncio
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
import uvloop

from tessera.kernel.nats.bus import NatsBus
from tests.contract.bus_worlds import NatsWorld, out
from tests.servers import NatsServer

ACK_SECONDS = 0.6  # and as long again for a server that gets no CPU
DRIPS_PER_ACK = 8
LARGE = bytes(200_000)
Run = Callable[[Coroutine[Any, Any, None]], None]

RUNNERS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


async def stand_still(until: Callable[[], bool] = lambda: True) -> None:
    """Long enough for every deadline to be over, after what was written has gone out, and `until` it had its effect."""
    for _ in range(3):
        await asyncio.sleep(0)
    give_up_at = time.monotonic() + 60
    while not until():
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    time.sleep(1.25 * ACK_SECONDS)


def stored(server: NatsServer, stream: str = "S") -> int:
    """How many messages the stream holds, by the server's monitoring page: this loop stands still."""
    with urllib.request.urlopen(f"{server.monitor_url}/jsz?streams=1", timeout=60) as answer:
        accounts = orjson.loads(answer.read())["account_details"]
    streams = [found for account in accounts for found in account.get("stream_detail", ())]
    return sum(found["state"]["messages"] for found in streams if found["name"] == stream)


@RUNNERS
def test_a_publish_that_was_acknowledged_meanwhile_is_no_unknown_outcome(own_nats_server: NatsServer, run: Run) -> None:
    async def main() -> None:
        world = await NatsWorld.at(own_nats_server)
        await world.add_stream("S", "s")
        bus = await world.connect(ack_seconds=ACK_SECONDS)
        publishing = asyncio.ensure_future(bus.publish_all([out("s", b"x")] * 100))
        await stand_still(lambda: stored(own_nats_server) == 100)
        assert await publishing == list(range(1, 101))
        await world.close()

    run(main())


@RUNNERS
def test_an_answer_behind_much_that_was_sent_before_it_counts(own_nats_server: NatsServer, run: Run) -> None:
    async def flood() -> None:
        world = await NatsWorld.at(own_nats_server)
        other = await world.connect()
        for _ in range(40):
            await other.send("flood", LARGE)
        await world.close()

    async def main() -> None:
        world = await NatsWorld.at(own_nats_server)
        await world.add_stream("S", "s")
        bus = await world.connect(ack_seconds=ACK_SECONDS)
        heard: list[int] = []
        await bus.listen("flood", lambda _, data: heard.append(len(data)))
        await bus.publish(out("s", b"the subscription stands"))
        flooding = threading.Thread(target=asyncio.run, args=(flood(),))
        flooding.start()
        flooding.join()
        publishing = asyncio.ensure_future(bus.publish(out("s", b"x")))
        await stand_still(lambda: stored(own_nats_server) == 2)
        assert await publishing == 2
        assert len(heard) == 40
        await world.close()

    run(main())


@RUNNERS
def test_an_answer_behind_what_still_comes_when_its_time_is_over_counts(run: Run) -> None:
    async def main() -> None:
        async with drip_feeder() as url:
            bus = await NatsBus.connect(url, ack_seconds=ACK_SECONDS)
            assert await bus.publish(out("s", b"x")) == 7
            await bus.close()

    run(main())


@asynccontextmanager
async def drip_feeder() -> AsyncIterator[str]:
    """
    A server that says much, in drips over several times `ACK_SECONDS`, before it answers a publish; all in order.

    It reads nothing meanwhile, as a server whose reader is slow.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"max_payload":1048576,"headers":true}\r\n')
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
            elif line.startswith((b"PUB", b"HPUB")):
                _, _, reply, *_, size = line.split()
                await reader.readexactly(int(size) + 2)
                for _ in range(2 * DRIPS_PER_ACK):
                    await asyncio.sleep(ACK_SECONDS / DRIPS_PER_ACK)
                    writer.write(b"MSG flood 99 1\r\nx\r\n")
                answer = b'{"stream":"S","seq":7}'
                writer.write(b"MSG %s 1 %d\r\n%s\r\n" % (reply, len(answer), answer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@RUNNERS
def test_a_batch_that_was_read_meanwhile_is_no_silence(
    own_nats_server: NatsServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tessera.kernel.nats.reads.READ_SECONDS", ACK_SECONDS)

    async def main() -> None:
        world = await NatsWorld.at(own_nats_server)
        await world.add_stream("S", "s")
        bus = await world.connect()
        await bus.publish_all([out("s", b"x")] * 10)
        reading = asyncio.ensure_future(bus.follow("S", "s", 0).next())
        await asyncio.sleep(0)
        await stand_still()
        assert len(await reading) == 10
        await world.close()

    run(main())
