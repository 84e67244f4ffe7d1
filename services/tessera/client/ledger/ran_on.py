"""Nodes of an ended job that is older than numbers, read from the ledger on demand: of these the views keep none."""

from tessera.client.ledger.reading import StoredLedger
from tessera.kernel.ledger.shard import decode_entry
from tessera.kernel.ledger.specs import find_first_since
from tessera.kernel.ports import Message
from tessera_schemas.ledger import Allocated
from tessera_schemas.views import JobView

FIRST_LOOK, MESSAGES_MAX = 256, 65_536
"""Messages before the start of the run that are looked at first, and in all: most runs start soon once allocated."""


async def ran_on(ledger: StoredLedger, job: JobView) -> tuple[str, ...]:
    """The nodes of the gang of the job's last run; none when it never started, or was allocated long before it did."""
    if not job.started_ts:
        return ()
    upto, looked = await _first_after(ledger, job.started_ts), FIRST_LOOK
    while upto > 0 and looked <= MESSAGES_MAX:
        since = max(0, upto - looked)
        found = await _allocated(ledger, job, since, upto)
        if found:
            return found
        upto, looked = since, 2 * looked
    return ()


async def _first_after(ledger: StoredLedger, ts: int) -> int:
    """The first message later than `ts`, or the last there is."""
    last = await ledger.count()
    return min(last, await find_first_since(ledger.ledger, (await ledger.begin()).n + 1, last, ts + 1))


async def _allocated(ledger: StoredLedger, job: JobView, since: int, upto: int) -> tuple[str, ...]:
    """The nodes of the allocation of this attempt, if it is after `since`; only messages that name the job are read."""
    wanted, nodes = job.job_id.encode(), set[str]()
    async for seq, data in ledger.messages(since):
        if wanted in data:
            for record in decode_entry(Message("", seq, data)).message.records:
                if isinstance(record, Allocated) and (record.job_id, record.attempt) == (job.job_id, job.attempt):
                    nodes |= {placement.node for placement in record.placements}
        if seq >= upto or nodes:
            break
    return tuple(sorted(nodes))
