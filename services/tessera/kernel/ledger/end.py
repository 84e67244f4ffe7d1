"""
Whether the ledger still has its end, and is still the one that was written.

Whatever is derived from the ledger says up to which record it knows it: the newest public event, the orders, the views
in Redis. One that knows a record which the ledger lacks proves that the ledger was cut, or restored from an older copy;
who then went on would give numbers that were used already to other records. So every service that may read the ledger
looks before it begins and all the while, and halts its shard; notifier may not, and waits for events that nobody
publishes any more. A snapshot is no witness: the ledger alone vouches for it, and cannot for one that is ahead of it.

Redis also keeps the chain's hash beside its cursor, and each process in its memory the end that it saw at its last
look, whatever Redis has followed since. A ledger whose record of that number hashes otherwise was written again from
there on, or Redis belongs to another one: either halts the shard just so.

FACTS is held against the ledger, too: one that ends before the fact up to which the ledger took them in gives numbers
that were used already to new facts, and those would be passed over as taken in.

What cannot be asked is passed over: losing Redis, or a credential made before this was asked, stops nobody.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import orjson
import structlog
from pydantic import ValidationError

from tessera.kernel.errors import InvariantViolation, KernelError
from tessera.kernel.ledger.shard import lost_end, written_again
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.task_group import gather_all
from tessera_schemas import subjects
from tessera_schemas.events import CURSOR_HEADER
from tessera_schemas.ledger import GENESIS
from tessera_schemas.shard.ledger_form import Head, chain_after
from tessera_schemas.shard.orders import ORDER
from tessera_schemas.shard.streams import streams, used_by

MADE_ANEW = (
    "it was made anew, or restored from an older copy, and new facts would be passed over; stop all services of the "
    "shard, have FACTS go on behind that by `tessera init --mend`, and start them"
)
CONNECTED_AGAIN_SECONDS = 0.5  # until a look over a new connection: its server may have come back with older streams
LOOKS_APART = 20  # of these; else 10 s between looks
DOUBTS_MAX = 4  # looks before it is believed: a deposed leader of the stream answers with what it had
DOUBT_SECONDS = 0.5
ORDER_WITNESS = "an order"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Witness:
    """Something that knows the ledger up to record `n`."""

    name: str
    n: int


class LedgerEnd:
    """`check` once before anything is done, then `watch`."""

    def __init__(self, ports: Ports, shard: str, role: str) -> None:
        self._ports, self._shard = ports, shard
        may = {spec.name.removesuffix(f"_{shard}") for spec in streams(shard) if spec.fetched_by(role)}
        witnesses: dict[tuple[str, str], Callable[[], Awaitable[int]]] = {
            ("the public events", "EVENTS"): self._events,
            (ORDER_WITNESS, "ORDERS"): self._orders,
            ("Redis", "LEDGER"): ports.store.cursor,
        }
        self._witnesses = {name: ask for (name, kind), ask in witnesses.items() if {kind, "LEDGER"} <= may}
        self._looks_at_facts = "FACTS" in may | used_by(role, shard).keys()
        self._mute: set[str] = set()
        self._seen = Head(0, GENESIS)

    async def watch(self) -> None:
        """
        Raises InvariantViolation when the ledger has lost its end.

        Orders are no witnesses here: one from the future must stop nobody who can see that the ledger goes on.
        """
        while True:
            links = self._ports.bus.links
            for _ in range(LOOKS_APART):
                await self._ports.clock.sleep(CONNECTED_AGAIN_SECONDS)
                if self._ports.bus.links != links:
                    break
            await self._check([name for name in self._witnesses if name != ORDER_WITNESS])

    async def check(self) -> None:
        """Raises InvariantViolation when the ledger has lost its end."""
        await self._check(list(self._witnesses))

    async def _check(self, names: list[str]) -> None:
        doubts = 0
        if not self._witnesses:
            return  # who may not read the ledger
        while (wrong := await self._look(names)) and (doubts := doubts + 1) < DOUBTS_MAX:
            await self._ports.clock.sleep(DOUBT_SECONDS)
        if wrong:
            raise InvariantViolation(wrong)

    async def _look(self, names: list[str]) -> str:
        """Fault of the ledger by what its replicas and this process know of it; "" for none."""
        seen = await gather_all(*(self._ask(name) for name in names))
        try:
            tail = await self._ports.ledger.tail()  # after the witnesses, or it would only be younger than they are
            end = 0 if tail is None else tail.seq
            found = [*(one for one in seen if one is not None), Witness("this process", self._seen.n)]
            newest = max(found, key=lambda witness: witness.n)
            wrong = lost_end(end, newest.name, newest.n) if newest.n > end else await self._written_again()
            if not wrong and tail is not None and self._looks_at_facts:
                wrong = await self._facts_anew(int(orjson.loads(tail.data).get("facts_upto", 0)))
            if not wrong and tail is not None:
                self._seen = Head(end, chain_after(tail.data))
        except (KernelError, ValueError) as error:
            log.debug("ledger_end_not_seen", error=str(error))
            return ""
        return wrong

    async def _written_again(self) -> str:
        """A replica that lags, or a ledger that ends before, has no such record: no verdict here."""
        wrong = await self._compared(self._seen, "this process saw one")
        try:
            known = await self._ports.store.head()
        except (KernelError, ValueError) as error:
            log.debug("ledger_head_not_compared", error=str(error))
            known = None
        return wrong or await self._compared(known, "Redis of this shard was made from one")

    async def _facts_anew(self, taken_in: int) -> str:
        stream = subjects.stream("FACTS", self._shard)
        end = (await self._ports.bus.usage(stream)).last_seq  # after the tail, or it might only be older
        if end >= taken_in:
            return ""
        return f"{stream} ends at {end}, but the ledger has taken facts in up to {taken_in}: {MADE_ANEW}"

    async def _compared(self, known: Head | None, whose: str) -> str:
        stored = await self._ports.ledger.read(known.n) if known is not None and known.n else None
        if known is None or stored is None or (chain := chain_after(stored.data)) == known.chain:
            return ""
        return written_again(known, chain, whose)

    async def _ask(self, name: str) -> Witness | None:
        try:
            n = await self._witnesses[name]()
        except (KernelError, ValueError, KeyError) as error:
            if name not in self._mute:
                log.info("ledger_witness_silent", witness=name, error=str(error))
            self._mute.add(name)
            return None
        self._mute.discard(name)
        return Witness(name, n)

    async def _events(self) -> int:
        last = await self._ports.bus.last(subjects.stream("EVENTS", self._shard), f"events.{self._shard}.>")
        return 0 if last is None else int(last.headers[CURSOR_HEADER].partition(".")[0])

    async def _orders(self) -> int:
        found = await self._ports.bus.last_all(subjects.stream("ORDERS", self._shard), f"order.{self._shard}.*")
        return max((basis_of(message.data) for message in found), default=0)


def basis_of(data: bytes) -> int:
    """
    Ledger number that an order was computed from; 0 for any other message, which proves nothing about the ledger's
    length.
    """
    try:
        return ORDER.validate_json(data).basis_n
    except ValidationError:
        return 0
