"""A loop that stood still does not take an answer that lies in its socket for none; on asyncio's loop and on uvloop."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tests.contract.bus_worlds import NatsWorld
from tests.contract.test_bus_port import out
from tests.servers import NatsServer

ACK_SECONDS = 0.2
LARGE = bytes(200_000)
Run = Callable[[Coroutine[Any, Any, None]], None]

RUNNERS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


async def stand_still() -> None:
    """Long enough for every deadline to be over, after what was written has gone out."""
    for _ in range(3):
        await asyncio.sleep(0)
    time.sleep(3 * ACK_SECONDS)


@RUNNERS
def test_a_publish_that_was_acknowledged_meanwhile_is_no_unknown_outcome(own_nats_server: NatsServer, run: Run) -> None:
    async def main() -> None:
        world = await NatsWorld.at(own_nats_server)
        await world.add_stream("S", "s")
        bus = await world.connect(ack_seconds=ACK_SECONDS)
        publishing = asyncio.ensure_future(bus.publish_all([out("s", b"x")] * 100))
        await stand_still()
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
        await stand_still()
        assert await publishing == 2
        assert len(heard) == 40
        await world.close()

    run(main())


@RUNNERS
def test_a_batch_that_was_read_meanwhile_is_no_silence(
    own_nats_server: NatsServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tessera.kernel.nats_reads.READ_SECONDS", ACK_SECONDS)

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
