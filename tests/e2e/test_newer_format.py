"""
Two versions beside each other: a committer of a later one raised the ledger's format, as docs/upgrade.md has it.

Whoever does not know the format stays up, is not ready and says so; nothing is guessed, and what is submitted is kept.
"""

import pytest

from tessera_schemas.ledger import EpochOpened, FormatRaised, LedgerMessage
from tests.e2e.live import Live, append, job, until_halted

pytestmark = pytest.mark.asyncio(loop_scope="module")

FOLLOWERS = ("queueing", "preemption", "reclamation", "binder", "projection", "gateway")


def next_message(live: Live, *records: FormatRaised) -> bytes:
    """What a committer of another version writes first: its epoch, and the format that it needs."""
    state = live.state
    opened = EpochOpened(kind="epoch_opened", epoch=state.epoch + 1, holder="scheduler-newer")
    return LedgerMessage(
        v=1,
        n=state.n + 1,
        prev=state.chain,
        epoch=state.epoch + 1,
        tx="the-first-of-a-newer-version",
        ts=state.ts + 1,
        engine="tessera-99",
        policy=state.config.version,
        holder="scheduler-newer",
        facts_upto=state.facts_upto,
        records=(opened, *records),
    ).to_bytes()


async def test_who_does_not_know_the_ledgers_format_is_not_ready_and_names_it(live: Live) -> None:
    done = await live.submit(job("before"))
    await live.until_ended(done.job_id)
    await live.until_idle()
    await live.platform.stop("scheduler")
    await live.until(lambda state: state.n == len(live.stored), "we have read all of the ledger")
    await live.stop_looking()
    await append(live, [next_message(live, FormatRaised(kind="format_raised", format=99))])

    reasons = [await until_halted(live, service) for service in FOLLOWERS]
    assert all("the ledger uses format 99" in reason for reason in reasons), reasons
    async with live.another("scheduler") as older:  # a rollback of the committer
        assert "the ledger uses format 99" in await older.until_halted()
    end = await live.ledger_end()
    assert (await live.submit(job("after"))).job_id, "it is acknowledged, and kept for whoever knows the format"
    assert await live.ledger_end() == end
