"""
A shard's state as one process sees it: restored from a snapshot, then moved along the ledger record by record.

Everything that contradicts the books (a gap, a fork, an unknown record, a checkpoint that does not hash) raises
InvariantViolation, and its service halts: up, not ready, deciding nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import ValidationError

from tessera.domain.errors import Contradiction
from tessera.domain.folding.fold import fold_message
from tessera.domain.state import State
from tessera.domain.storing.statehash import StateHash
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import InvariantViolation
from tessera.kernel.ledger.snapshots import read_snapshot
from tessera.kernel.ports import Bus, Ledger, Message
from tessera_schemas.ledger import LEDGER_MESSAGE, Checkpoint, LedgerMessage
from tessera_schemas.shard.ledger_form import Head, chain_after


@dataclass(frozen=True, slots=True)
class Entry:
    """One ledger message, decoded, with its stored bytes."""

    message: LedgerMessage
    stored: bytes


def decode_entry(message: Message) -> Entry:
    """Decode a stored ledger message; unknown fields and kinds are never skipped."""
    try:
        decoded = LEDGER_MESSAGE.validate_json(message.data)
    except ValidationError as error:
        raise InvariantViolation(f"ledger message {message.seq} cannot be read by this build: {error}") from error
    if decoded.n != message.seq:
        raise InvariantViolation(f"ledger message {message.seq} calls itself {decoded.n}")
    return Entry(decoded, message.data)


class Shard:
    """The fold of one shard, up to `state.n`."""

    def __init__(self, state: State | None = None, hasher: StateHash | None = None) -> None:
        self.state = state or State()
        self.hasher = hasher or StateHash()

    def fold(self, entry: Entry) -> None:
        """Move on by one message; checks every checkpoint on the way."""
        for record in entry.message.records:
            if type(record) is Checkpoint:
                own = self.hasher.of(self.state)
                if own != record.state_hash:
                    raise InvariantViolation(
                        f"state after {self.state.n} hashes to {own}, the ledger says {record.state_hash}"
                    )
        try:
            fold_message(self.state, entry.message, entry.stored)
        except (Contradiction, KeyError, IndexError, ValueError) as error:
            raise InvariantViolation(f"record {entry.message.n}: {error}") from error

    async def head(self, ledger: Ledger) -> int:
        """Newest record as the leader has it. Raises InvariantViolation where the ledger is not the one folded here."""
        tail = await ledger.tail(to_append=True)
        head = 0 if tail is None else tail.seq
        if head < self.state.n:
            raise InvariantViolation(lost_end(head, "this process", self.state.n))
        if tail is not None and head == self.state.n and (chain := chain_after(tail.data)) != self.state.chain:
            raise InvariantViolation(written_again(Head(head, self.state.chain), chain, "this process folded one"))
        return head

    async def catch_up(self, ledger: Ledger, notice: Callable[[Entry], object] = lambda entry: None) -> None:
        """Fold up to the tail as the leader has it, calling `notice` with what was new; others run meanwhile."""
        # No message is kept, since a long tail does not fit into memory.
        head = await self.head(ledger)
        if head == self.state.n:
            return
        source = ledger.follow(self.state.n)
        try:
            while self.state.n < head:
                for message in await source.next():
                    entry = decode_entry(message)
                    self.fold(entry)
                    notice(entry)
                    await SystemClock().sleep(0)
        finally:
            await source.close()


def lost_end(end: int, who: str, known: int) -> str:
    """Fault and remedy of a ledger that ends at `end`, of which `who` knows record `known`."""
    return (
        f"the ledger ends at {end}, but {who} of this shard knows record {known}: it lost its end, or was "
        "restored from an older copy; stop all services of the shard and restore the newest copy of its stream"
    )


def written_again(known: Head, chain: str, whose: str) -> str:
    """Fault and remedy of a ledger that hashes to `chain` up to record `known.n`, where `whose` knew another one."""
    return (
        f"the ledger up to record {known.n} hashes to {chain}, but {whose} hashing to {known.chain}: the ledger was "
        "written again, or is another shard's; stop all services of the shard, see which was changed, and restore it"
    )


async def restore(bus: Bus, ledger: Ledger, shard: str) -> Shard:
    """The shard's state from its newest trusted snapshot, or from the first record."""
    return Shard(*(await read_snapshot(bus, ledger, shard) or ()))
