"""
Input that waits for the committer: facts in stream order, and the newest order of each pool.

A fact that cannot be read, or that comes from a service that may not say it, is dead-lettered and passed over. So is,
without a letter, one that says the same as an earlier one of the same cause: a command that was delivered twice is one
fact, or the second would undo what came between. It must be the same in full and on the same subject, where its
service alone may write, so that nobody can keep a fact out by saying another one first.
An order that cannot be read, or that is not about the pool of its subject, is ignored: queueing publishes it again.
"""

import asyncio
import re
from collections import deque
from contextlib import AsyncExitStack
from hashlib import blake2b
from typing import Self

import structlog
from pydantic import ValidationError

from tessera.domain.state import State
from tessera.kernel.messaging.dead_letters import DeadLetters
from tessera.kernel.messaging.follow import follow
from tessera.kernel.ports import Message
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.task_group import cancel_all
from tessera_schemas import subjects
from tessera_schemas.facts import FACT_MESSAGE, owner
from tessera_schemas.ledger import TakenFact
from tessera_schemas.shard.orders import ORDER, Order

WAITING_MAX = 4096
REPEATS_AFTER = 8192  # facts back; so many are remembered, and read again by a new committer
FACTS_BYTES_MAX = 128 * 1024  # of one message, whose records repeat what facts say; a larger fact goes alone
ORDER_BYTES_MAX = 16 * 1024  # of one: 512 jobs and the envelope
ORDERS_BYTES_MAX = 64 * 1024  # of one message
AHEAD_MAX = 256  # orders from states that are not reached yet: more pools than a shard has

CAUSE_BYTES_MAX = 1_024
_CAUSE = re.compile(rb'"cause":"[^"]+"\}$')

log = structlog.get_logger()


class Inbox:
    """Filled by two followers; emptied by the cycle. `wake` is set whenever something came."""

    def __init__(self, ports: Ports, shard: str, state: State) -> None:
        self._ports, self._shard, self._state, self._seen_upto = ports, shard, state, state.facts_upto
        self._facts: deque[tuple[int, int, TakenFact | None]] = deque()
        self._orders: dict[str, tuple[Order, int]] = {}  # each with the number of bytes that it came in
        self._ahead: dict[str, tuple[Order, int]] = {}
        self._tried: dict[str, int] = {}  # pool: the turn at which its order came to nothing at `_tried_n`
        self._tried_n = self._turn = self._untried = 0
        self._taken = asyncio.Event()
        self._known: dict[bytes, int] = {}
        self._dead_letters = DeadLetters(ports.bus, shard, "scheduler", subjects.stream("FACTS", shard))
        self._stack = AsyncExitStack()
        self.wake = asyncio.Event()
        self.failed: BaseException | None = None

    async def __aenter__(self) -> Self:
        stop = asyncio.Event()
        bus, clock = self._ports.bus, self._ports.clock
        facts = bus.follow(
            subjects.stream("FACTS", self._shard), f"fact.{self._shard}.>", max(0, self._seen_upto - REPEATS_AFTER)
        )
        orders = bus.follow(subjects.stream("ORDERS", self._shard), f"order.{self._shard}.*", 0)
        for source, handle in ((facts, self._on_facts), (orders, self._on_orders)):
            task = asyncio.create_task(follow(source, handle, stop=stop, clock=clock))
            task.add_done_callback(self._ended)
            self._stack.push_async_callback(cancel_all, task)
        self._stack.callback(stop.set)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.failed = task.exception()
            self.wake.set()

    async def _on_facts(self, batch: list[Message]) -> None:
        for message in batch:
            if message.seq <= self._seen_upto:
                # Taken into the ledger long ago, or this batch was begun before: a dead letter could not be stored.
                self._repeated(message)
                continue
            fact = None if self._repeated(message) else self._decode(message)
            if isinstance(fact, str):
                log.warning("fact_dead_lettered", seq=message.seq, subject=message.subject, reason=fact)
                self._ports.metrics.dead_letters.inc()
                await self._dead_letters.put(message, fact)
            self._facts.append((message.seq, len(message.data), fact if isinstance(fact, TakenFact) else None))
            self._seen_upto = message.seq
        self.wake.set()
        while len(self._facts) > WAITING_MAX:
            self._taken.clear()
            await self._taken.wait()

    def _repeated(self, message: Message) -> bool:
        """Whether this fact has a cause and was stored before."""
        if not _CAUSE.search(message.data, max(0, len(message.data) - CAUSE_BYTES_MAX)):
            return False
        key = blake2b(message.subject.encode() + b"\0" + message.data, digest_size=16).digest()
        first = self._known.setdefault(key, message.seq)
        if len(self._known) > REPEATS_AFTER:
            del self._known[next(iter(self._known))]
        if first != message.seq:
            log.info("fact_repeated", seq=message.seq, subject=message.subject, first=first)
        return first != message.seq

    def _decode(self, message: Message) -> TakenFact | str:
        service = message.subject.split(".")[2]
        if len(message.data) > subjects.FACT_BYTES_MAX:
            return f"larger than {subjects.FACT_BYTES_MAX} bytes"
        try:
            fact = FACT_MESSAGE.validate_json(message.data).fact
        except ValidationError as error:
            return f"cannot be read: {error.errors(include_url=False, include_input=False)[:3]}"
        if owner(fact) != service:
            return f"{fact.kind} is not {service}'s to say"
        return TakenFact(seq=message.seq, service=service, fact=fact)

    async def _on_orders(self, batch: list[Message]) -> None:
        for message in batch:
            order = _readable(message)
            if isinstance(order, str):
                log.warning("order_ignored", seq=message.seq, subject=message.subject, reason=order)
            else:
                self._keep(order, len(message.data))
        self.wake.set()

    def facts(self, limit: int) -> tuple[int, tuple[TakenFact, ...]]:
        """The next facts not yet in the ledger, and the sequence up to which they reach; they stay here."""
        state = self._state
        while self._facts and self._facts[0][0] <= state.facts_upto:
            self._facts.popleft()
            self._taken.set()
        found: list[TakenFact] = []
        upto, size = state.facts_upto, 0
        for seq, length, fact in self._facts:
            if len(found) >= limit or (found and size + length > FACTS_BYTES_MAX):
                break
            upto, size = seq, size + length
            if fact is not None:
                found.append(fact)
        return upto, tuple(found)

    def orders(self) -> tuple[Order, ...]:
        """
        Orders newer than the lines in the state, as many as a message has room for.

        First those that were not tried at this state, then those tried longest ago; among these the ones whose pools
        have waited longest. So none is hidden for long by others that come to nothing.
        """
        state, pools = self._state, self._state.tree.queues_of
        self._look_ahead()
        fresh: list[tuple[int, int, str]] = []
        for pool in [pool for pool in self._orders if pool not in pools]:
            del self._orders[pool]
        for pool, (order, _) in self._orders.items():
            line = state.lines.get(pool)
            if line is None or (order.basis_n, order.ts) > (line.basis_n, line.ts):
                fresh.append((self._tried.get(pool, 0), line.basis_n if line else -1, pool))
        self._untried = sum(1 for tried, _, _ in fresh if not tried)
        found: list[Order] = []
        size = 0
        for _, _, pool in sorted(fresh):
            order, length = self._orders[pool]
            size += length
            if found and size > ORDERS_BYTES_MAX:
                break
            found.append(order)
        return tuple(found)

    def came_to_nothing(self, orders: tuple[Order, ...]) -> bool:
        """
        Notes that these orders change nothing at this state; tells whether there are others that were not tried yet.
        """
        self._turn += 1
        self._untried -= sum(1 for order in orders if not self._tried.get(order.pool))
        self._tried |= {order.pool: self._turn for order in orders}
        return self._untried > 0

    def _look_ahead(self) -> None:
        """Look again: a failed order may work now, and one made from a later state may fit the present one."""
        if self._state.n != self._tried_n:
            self._tried_n, self._tried = self._state.n, {}
        for order, length in [came for came in self._ahead.values() if came[0].basis_n <= self._state.n]:
            del self._ahead[order.pool]
            self._keep(order, length)

    def _keep(self, order: Order, length: int) -> None:
        """
        Remember the newest order of the pool.

        One that hung somewhere comes after a newer one. One from a state that is not reached yet waits beside it, and
        never in place of it: it may be wrong. Of a pool that nobody configured none is kept.
        """
        pool = order.pool
        if order.basis_n > self._state.n:
            self._ahead[pool] = order, length
            if len(self._ahead) > AHEAD_MAX:
                del self._ahead[next(iter(self._ahead))]
            return
        known = self._orders.get(pool)
        if pool in self._state.tree.queues_of and (known is None or order.basis_n >= known[0].basis_n):
            self._orders[pool] = order, length
            self._tried.pop(pool, None)

    @property
    def waiting(self) -> int:
        """Number of facts that the committer has not taken in yet."""
        return len(self._facts)


def _readable(message: Message) -> Order | str:
    """The order that a message carries, or why it is none."""
    if len(message.data) > ORDER_BYTES_MAX:
        return f"larger than {ORDER_BYTES_MAX} bytes"
    try:
        order = ORDER.validate_json(message.data)
    except ValidationError as error:
        return f"cannot be read: {error.errors(include_url=False, include_input=False)[:3]}"
    return order if message.subject.endswith(f".{order.pool}") else f"is about pool {order.pool}"
