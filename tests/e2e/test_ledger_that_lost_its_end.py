"""
A ledger that lost its end, or was written again, while NATS was down: whoever may read it and starts on it halts, up
and red, whoever runs halts too, and nothing is written anywhere.
"""

import asyncio
import shutil
from pathlib import Path

import pytest

from tessera_schemas.shard.services import SERVICES, fetchers, readers
from tests.e2e.live import Live, append, configuration, eventually, job, until_halted
from tests.ledgers import rechain

pytestmark = pytest.mark.asyncio(loop_scope="module")


RUN_ON = ("admission", "scheduler", "reclamation")
SEE_IT = tuple(service for service in SERVICES if service in (*readers("LEDGER"), *fetchers("LEDGER")))
BLIND = tuple(service for service in SERVICES if service not in SEE_IT)


def stored_ledger(live: Live) -> Path:
    (folder,) = Path(live.home).glob("**/streams/LEDGER_main")
    return folder


async def test_an_older_copy_of_the_ledger_halts_every_service_but_the_one_that_may_not_read_it(tmp_path: Path) -> None:
    async with Live.at(tmp_path / "up", configuration()) as live:
        first = await live.submit(job("before"))
        await live.until_ended(first.job_id)
        await live.until_idle()  # or the copy may be older than what is read next
        older = shutil.copytree(stored_ledger(live), tmp_path / "older")
        then = await live.ledger_end()
        second = await live.submit(job("after"))
        await live.until_ended(second.job_id)
        end = await live.ledger_end()
        await eventually(lambda: redis_is_at(live, end), "the views are as new as the ledger")
        stopped = [service for service in SERVICES if not {*RUN_ON} & {*live.platform.hosted_with(service)}]
        await asyncio.gather(*(live.platform.stop(service) for service in stopped))
        await live.stop_looking()

        async with live.down("nats"):
            folder = stored_ledger(live)
            shutil.rmtree(folder)
            shutil.copytree(older, folder)
        await eventually(lambda: live.bus.connected, "we are connected again")
        assert then <= await live.ledger_end() < end
        halted = await asyncio.gather(*(until_halted(live, service) for service in RUN_ON))
        halted += await asyncio.gather(*(reason_of(live, service) for service in SEE_IT))
        assert all("it lost its end" in reason for reason in halted), halted
        assert BLIND == ("notifier",)  # whoever else is blind needs a reason of its own
        async with live.another("notifier") as notifier:
            await notifier.until_ready()
        assert await live.ledger_end() < end


async def test_a_byte_of_the_newest_message_that_turned_halts_whoever_starts(tmp_path: Path) -> None:
    """NATS drops what its checksum refuses, and everything behind it: the ledger is whole, only shorter."""
    async with Live.at(tmp_path / "up", configuration()) as live:
        first = await live.submit(job("before"))
        await live.until_ended(first.job_id)
        end = await live.ledger_end()
        await eventually(lambda: redis_is_at(live, end), "the views are as new as the ledger")
        await live.stop_looking()
        await asyncio.gather(*(live.platform.stop(service) for service in SERVICES))
        end = await live.ledger_end()

        async with live.down("nats"):
            turn_a_byte(max(stored_ledger(live).glob("msgs/*.blk"), key=lambda block: int(block.stem)))
        await eventually(lambda: live.bus.connected, "we are connected again")
        assert await live.ledger_end() < end
        halted = await asyncio.gather(*(reason_of(live, service) for service in ("scheduler", "projection")))
        assert all("it lost its end" in reason for reason in halted), halted


async def test_a_ledger_written_again_with_every_hash_redone_halts_who_starts_and_who_runs(tmp_path: Path) -> None:
    """
    By itself it is whole, and as long as ours: another transaction id, and every hash that follows from it.

    Nothing is written to it, although a submit gives the scheduler something to write at once.
    """
    async with Live.at(tmp_path / "up", configuration()) as live:
        first = await live.submit(job("before"))
        await live.until_ended(first.job_id)
        end = await live.ledger_end()
        await eventually(lambda: redis_is_at(live, end), "the views are as new as the ledger")
        await live.until(lambda state: not state.runs, "nothing is left to be written")
        stopped = [service for service in SERVICES if not {*RUN_ON} & {*live.platform.hosted_with(service)}]
        await asyncio.gather(*(live.platform.stop(service) for service in stopped))
        live.platform.pause("scheduler")  # the committer: what it writes behind our look would be a tail that is lost
        await eventually(lambda: has_seen_all(live), "we have seen all that is written")
        await live.stop_looking()
        stored = list(live.stored)
        forged = rechain(stored, 1, lambda message: message.update(tx="another-transaction"))
        async with Live.at(tmp_path / "forger", services=()) as forger:
            await append(forger, forged)
            await forger.platform.stop("nats")
            async with live.down("nats"):
                folder = stored_ledger(live)
                shutil.rmtree(folder)
                shutil.copytree(stored_ledger(forger), folder)
        live.platform.resume("scheduler")
        await eventually(lambda: live.bus.connected, "we are connected again")
        submitting = asyncio.ensure_future(live.submit(job("between")))
        run_on = await asyncio.gather(*(until_halted(live, service) for service in RUN_ON))
        submitting.cancel()
        halted = [
            *run_on,
            *await asyncio.gather(*(reason_of(live, service) for service in stopped if service in SEE_IT)),
        ]
        assert all("the ledger was written again" in reason for reason in halted), halted
        assert await live.ledger_end() == len(stored)


def turn_a_byte(block: Path) -> None:
    """In the body of the last message of a block, a little before its end."""
    data = bytearray(block.read_bytes())
    data[-40] ^= 0xFF
    block.write_bytes(data)


async def reason_of(live: Live, service: str) -> str:
    async with live.another(service) as instance:
        return await instance.until_halted()


async def redis_is_at(live: Live, n: int) -> bool:
    async with live.store() as store:
        return await store.cursor() >= n


async def has_seen_all(live: Live) -> bool:
    return len(live.stored) == await live.ledger_end()
