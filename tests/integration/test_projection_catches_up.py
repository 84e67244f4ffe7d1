"""A projection far behind reaches the end of a ledger that goes on meanwhile: a real process, NATS and Redis."""

import asyncio
from pathlib import Path

from tessera.kernel.clock import SystemClock
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.nats.bus import NatsBus
from tessera_local.platform import Platform
from tessera_schemas import subjects
from tessera_schemas.events import CURSOR_HEADER
from tests.builders import SHARD, admitted
from tests.integration.connections import bus_of, store_of
from tests.ledgers import Committed

BEHIND, PER_SECOND, JOBS_PER_MESSAGE = 300, 50, 2
BYTES_MAX = 400 << 20
SECONDS = 120.0
CLOSE = 10  # records: what is appended and under way at any moment
HOUR_MS = 3_600_000


async def test_it_reaches_the_head_while_the_ledger_grows(tmp_path: Path) -> None:
    ledger = Committed(SystemClock().now_ms() - HOUR_MS).begin()  # events older than the stream keeps are not made
    while len(ledger.stored) < 3 * BEHIND:
        ledger.commit(*(admitted(f"k{len(ledger.stored)}-{i}") for i in range(JOBS_PER_MESSAGE)))
    async with (
        Platform(tmp_path / "up", services=["projection"], cluster=False, tenants=["lab"]) as platform,
        bus_of(platform, "scheduler") as bus,
        bus_of(platform, "operator") as reader,
    ):
        await platform.stop("projection")
        stream, store = StreamLedger(bus, SHARD), store_of(platform)
        for n, data in enumerate(ledger.stored[:BEHIND]):
            await stream.append(data, n)
        await platform.start("projection")
        appended, views, events = BEHIND, 0, 0
        async with asyncio.timeout(SECONDS):
            while min(views, events) < appended - CLOSE:
                await stream.append(ledger.stored[appended], appended)
                appended += 1
                await asyncio.sleep(1 / PER_SECOND)
                views, events = await store.cursor(), await published(reader)
        status = Path(f"/proc/{platform.pid('projection')}/status").read_text()
        await store.close()
        (peak,) = [int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:")]
        assert peak < BYTES_MAX


async def published(bus: NatsBus) -> int:
    """Up to which record of the ledger the public events go."""
    last = await bus.last(subjects.stream("EVENTS", SHARD), f"events.{SHARD}.>")
    return 0 if last is None else int(last.headers[CURSOR_HEADER].partition(".")[0])
