"""
Whatever is derived from a ledger and knows how far it went: events, Redis.

A ledger that ends before, or reads otherwise there, is damaged although its chain is whole.
"""

from dataclasses import dataclass

from tessera.client.connect.connecting import open_store
from tessera.client.connect.where import Where
from tessera.client.ledger.reading import StoredLedger
from tessera.kernel.errors import Transient
from tessera.kernel.ledger.end import basis_of
from tessera_schemas import subjects
from tessera_schemas.events import CURSOR_HEADER
from tessera_schemas.shard.ledger_form import Head, chain_after


@dataclass(frozen=True, slots=True)
class Known:
    """The newest message that something derived from the ledger knows; `head` is the one that Redis was made from."""

    name: str = ""
    n: int = 0
    head: Head | None = None

    async def contradiction(self, ledger: StoredLedger) -> str:
        """Damage of a stored ledger whose chain is whole, in words; "" for none."""
        tail = await ledger.ledger.tail()  # asked after the witnesses, or it would only be younger than they are
        end = 0 if tail is None else tail.seq
        if end < self.n:
            return f"torn tail: it ends at {end}, and {self.name} knows message {self.n}"
        stored = await ledger.ledger.read(self.head.n) if self.head is not None and self.head.n else None
        if self.head is None or stored is None or chain_after(stored.data) == self.head.chain:
            return ""
        return f"fork: message {self.head.n} is another one than that from which Redis was made"


async def newest_known(ledger: StoredLedger, where: Where) -> Known:
    """Asks the public events, and Redis where it answers and can be read with the identities at hand."""
    last = await ledger.bus.last(subjects.stream("EVENTS", ledger.shard), f"events.{ledger.shard}.>")
    published = "0" if last is None else last.headers[CURSOR_HEADER].partition(".")[0]
    head = await _redis_head(where)
    n, name = max((int(published), "EVENTS"), (0 if head is None else head.n, "Redis"))
    return Known(name, n, head)


async def events_ahead(ledger: StoredLedger, end: int) -> dict[int, str]:
    """Sequences of the newest public events that come from records behind message `end`, with their cursors."""
    stream, found = subjects.stream("EVENTS", ledger.shard), dict[int, str]()
    message = await ledger.bus.last(stream, f"events.{ledger.shard}.>")
    while message is not None and int((cursor := message.headers.get(CURSOR_HEADER, "0")).partition(".")[0]) > end:
        found[message.seq] = cursor
        message = await ledger.bus.get(stream, message.seq - 1)
    return found


async def orders_ahead(ledger: StoredLedger, end: int) -> list[str]:
    """Subjects of the orders that were computed from records behind message `end`."""
    orders = await ledger.bus.last_all(subjects.stream("ORDERS", ledger.shard), f"order.{ledger.shard}.*")
    return [message.subject for message in orders if basis_of(message.data) > end]


async def _redis_head(where: Where) -> Head | None:
    if not where.redis_url or not where.can_be(subjects.OPERATOR):
        return None
    credential = where.identity(subjects.OPERATOR)
    if credential.redis is None:
        return None
    try:
        async with open_store(where, credential) as store:
            return await store.head()
    except (Transient, ValueError):
        return None
