"""What becomes of a service whose loops fail, whatever the other loops do with their cancellation. Time is virtual."""

import asyncio
import subprocess
import sys
from dataclasses import replace
from typing import ClassVar

from tessera.kernel.errors import InvariantViolation
from tessera.kernel.memory.store import MemoryStore, MemoryViews
from tessera.kernel.process.lifecycle import serve_until_stopped
from tessera.kernel.process.reach import LOOK_SECONDS
from tessera.kernel.process.settings import ServiceSettings
from tessera.kernel.service.context import Ports
from tessera.kernel.service.health import Health
from tessera.kernel.service.metrics import Metrics
from tessera.kernel.tasks.task_group import END_SECONDS, run_loops
from tessera.testkit.sim.loop import VirtualClock, VirtualLoop
from tessera_schemas import subjects
from tests.builders import SHARD
from tests.unit.kernel.no_end import NoEnd
from tests.unit.kernel.swallowing import Swallowing
from tests.unit.scheduler.committers import World


def in_memory(clock: VirtualClock) -> Ports:
    """Of a shard in memory, whose ledger is empty."""
    metrics = Metrics("projection")
    store = MemoryStore(MemoryViews(clock))
    return replace(World().ports(), clock=clock, health=Health(clock, metrics), metrics=metrics, store=store)


async def violates_after_a_second() -> None:
    await asyncio.sleep(1)
    raise InvariantViolation("EVENTS diverge")


def test_a_service_halts_although_its_other_loops_swallow_their_cancellation() -> None:
    loop = VirtualLoop()
    ports = in_memory(VirtualClock(loop))
    health = ports.health

    async def serve(_ports: Ports, _settings: ServiceSettings, stop: asyncio.Event) -> None:
        await run_loops(stop, violates_after_a_second(), Swallowing(lost=1).run(), Swallowing(lost=None).run())

    async def main() -> None:
        stop, end = asyncio.Event(), NoEnd()
        serving = asyncio.ensure_future(serve_until_stopped(serve, ports, ServiceSettings(), stop, end))
        await asyncio.sleep(1 + 2 * END_SECONDS)
        assert health.readiness()["halted"] == "EVENTS diverge"
        assert not end.begun, "a halted service stays up"
        stop.set()
        await serving
        assert end.begun

    loop.run_until_complete(main())
    loop.close()


def test_a_service_that_was_told_to_stop_ends_although_a_loop_never_does() -> None:
    loop = VirtualLoop()
    ports = in_memory(VirtualClock(loop))

    async def serve(_ports: Ports, _settings: ServiceSettings, _stop: asyncio.Event) -> None:
        await Swallowing(lost=None).run()

    async def main() -> None:
        stop, end, settings = asyncio.Event(), NoEnd(), ServiceSettings()
        loop.call_later(1, stop.set)
        await serve_until_stopped(serve, ports, settings, stop, end)
        assert end.begun
        assert loop.time() <= 1 + settings.drain_seconds + 2 * END_SECONDS

    loop.run_until_complete(main())
    loop.close()


FOUND_AT_THE_END = """
from tessera.kernel.process.limits import collect_rarely, end_uncollected

class Circle:
    def __init__(self):
        self.itself = self

    def __del__(self):
        print("searched for")

collect_rarely()
Circle()
end_uncollected()
"""


def test_a_process_that_ends_is_not_searched_for_cycles() -> None:
    done = subprocess.run([sys.executable, "-c", FOUND_AT_THE_END], capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_a_service_is_not_ready_while_a_stream_of_its_own_is_away() -> None:
    loop, world = VirtualLoop(), World()
    clock, metrics = VirtualClock(loop), Metrics("queueing")
    ports = replace(world.ports(), clock=clock, health=Health(clock, metrics), metrics=metrics)
    ports = replace(ports, store=MemoryStore(MemoryViews(clock)))

    class Queueing(ServiceSettings):
        service: ClassVar[str] = "queueing"

    async def serve(ports: Ports, _settings: ServiceSettings, stop: asyncio.Event) -> None:
        ports.health.started()
        await stop.wait()

    async def main() -> None:
        stop, settings = asyncio.Event(), Queueing(shard=SHARD)
        serving = asyncio.ensure_future(serve_until_stopped(serve, ports, settings, stop, NoEnd()))
        await asyncio.sleep(1)
        assert set(ports.health.readiness().values()) == {"ok"}
        del world.broker.streams[subjects.stream("ORDERS", SHARD)]
        await asyncio.sleep(LOOK_SECONDS)
        assert [name for name, text in ports.health.readiness().items() if text != "ok"] == ["stream ORDERS"]
        stop.set()
        await serving

    loop.run_until_complete(main())
    loop.close()
