"""
Generations of a ledger, and the roll-over from one to the next.

A generation begins with a message that has a checkpoint. Its *opening* is the state before that message, stored beside
the ledger with the older messages that its live jobs came in by; the checkpoint's hash, which covers the chain, the
keys still remembered and all that is live, vouches for it. Once it is stored, and the messages before it are kept
elsewhere, they may leave the stream: sequence numbers stay, so that nobody who follows the ledger notices.

Every step may be done again, and a roll-over that was broken off leaves a ledger that is whole, however far it got.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tessera.domain.state import State
from tessera.kernel.errors import InvariantViolation
from tessera.kernel.ledger.snapshots import (
    OPENING,
    Snapshot,
    chunks_of,
    newest_snapshot_n,
    snapshots_of,
    store_snapshot,
)
from tessera.kernel.ports import Bus, Ledger, Outgoing
from tessera_schemas import subjects
from tessera_schemas.shard.ledger_form import stored_form

KEPT_AT_ONCE = 200
PURGED_AT_ONCE = 5_000  # messages: appends wait for the whole of a purge, a second or more for 1 GB at once


class StreamAdmin(Protocol):
    """The administrator's rights over the streams of a shard, which no service has."""

    async def purge_before(self, stream: str, seq: int) -> None:
        """Take every message below sequence `seq` out of the stream."""

    async def purge_subject(self, stream: str, subject: str) -> None:
        """Take every message on `subject` out of the stream."""

    async def subjects(self, stream: str, pattern: str) -> list[str]:
        """Subjects of the stream that fit `pattern` and have messages."""


@dataclass(frozen=True, slots=True)
class StoredShard:
    """A shard's streams, as a roll-over needs them."""

    bus: Bus
    ledger: Ledger
    shard: str
    admin: StreamAdmin

    async def open_generation(self, opening: Snapshot) -> None:
        """Store the opening of a generation; one that is stored already is left as it is."""
        if await newest_snapshot_n(self.bus, self.shard, OPENING) == opening.state.n:
            return
        await store_kept(self.bus, self.shard, kept_messages(self.ledger, opening.state), opening.state.format)
        await store_snapshot(
            self.bus,
            self.shard,
            list(chunks_of(opening.state)),
            opening.state.n,
            opening.manifest.state_hash,
            opening.manifest.last_event,
            OPENING,
        )

    async def openings(self) -> list[Snapshot]:
        """Openings of the generations that the stream holds, newest first: the last is where the ledger begins."""
        first = await self.ledger.first()
        found = snapshots_of(self.bus, self.ledger, self.shard, lambda manifest: manifest.n + 1 >= first, OPENING)
        return [opening async for opening in found]

    async def drop_before(self, openings: Sequence[Snapshot]) -> None:
        """
        Take the messages before the oldest opening out of the ledger, then those kept for jobs that ended by then.

        `openings` are all that stay, newest first.
        """
        end = openings[-1].state.n + 1
        for seq in (*range(await self.ledger.first() + PURGED_AT_ONCE, end, PURGED_AT_ONCE), end):
            await self.admin.purge_before(subjects.stream("LEDGER", self.shard), seq)
        stays = {subjects.generation_kept(self.shard, n) for opening in openings for n in needed_by(opening.state)}
        snapshots, every = subjects.stream("SNAP", self.shard), subjects.generation_kept_all(self.shard)
        for subject in await self.admin.subjects(snapshots, every):
            if subject not in stays:
                await self.admin.purge_subject(snapshots, subject)


def needed_by(state: State) -> set[int]:
    """Messages that hold the specs of live jobs, of services also the programs that they may go back to."""
    rollouts = (job.array.rollout for job in state.jobs.values() if job.array is not None)
    revisions = (job.spec_at for job in state.jobs.values() if job.spec_at)
    before = (rollout.before for rollout in rollouts if rollout is not None and rollout.before)
    return {job.taken_n for job in state.jobs.values()} | {n for n, _ in (*revisions, *before)}


async def kept_messages(ledger: Ledger, state: State) -> AsyncIterator[tuple[int, bytes]]:
    """Number and bytes of the messages that hold the specs of the state's live jobs."""
    for n in sorted(needed_by(state)):
        message = await ledger.read(n)
        if message is None:
            raise InvariantViolation(f"ledger message {n} is missing, by which jobs came that still live")
        yield n, message.data


async def store_kept(bus: Bus, shard: str, messages: AsyncIterator[tuple[int, bytes]], known: int) -> None:
    """Store messages of a ledger of format `known` beside the ledger, each by its number."""
    batch: list[Outgoing] = []
    async for n, data in messages:
        batch.append(Outgoing(subjects.generation_kept(shard, n), stored_form(data, known)))
        if len(batch) == KEPT_AT_ONCE:
            await bus.publish_all(batch)
            batch = []
    await bus.publish_all(batch)
