"""The loop of every service that reads the ledger: fold in order, then let the service look at what is new."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import structlog

from tessera.kernel.errors import Transient
from tessera.kernel.ledger.shard import Entry, Shard, decode_entry
from tessera.kernel.ledger.timestamps import LIVE_SECONDS, Skew
from tessera.kernel.messaging.follow import BACKOFF_SECONDS
from tessera.kernel.ports import Message
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.waiting import closed_at, wait_for

BUSY_RECORDS = 4
BEHIND_MESSAGES = 64  # in one batch: that is company enough, and there is ground to be made up
DECODED_BYTES = 1 << 20
"""Of messages, decoded in one go; in memory they take ten times as much."""

log = structlog.get_logger()
React = Callable[[list[Entry]], Awaitable[None]]


async def fold_ledger(
    ports: Ports,
    shard: Shard,
    react: React,
    stop: asyncio.Event,
    before_fold: Callable[[Entry], None] | None = None,
    linger: Callable[[], Awaitable[object]] | None = None,
) -> None:
    """
    Fold the ledger batch by batch until `stop`, calling `react` after each; Transient from `react` is its own business.

    `before_fold` sees each entry while the state is still the one it was decided from. `linger` is for services that
    nobody waits for: after a batch of `BUSY_RECORDS` records or more the next one waits for it and brings more, since
    being woken for a message costs more than folding another. What a single job causes never meets it.
    """
    failures, skew = 0, Skew(ports)
    while not stop.is_set():
        source = ports.ledger.follow(shard.state.n)
        async with closed_at(stop, source):
            try:
                asked = ports.clock.monotonic() + LIVE_SECONDS  # what comes first may have lain there
                while not stop.is_set():
                    messages = await source.next()
                    is_live, failures = ports.clock.monotonic() - asked >= LIVE_SECONDS, 0
                    for some in _pieces(messages):
                        entries = [decode_entry(message) for message in some]
                        for entry in entries:
                            if before_fold is not None:
                                before_fold(entry)
                            shard.fold(entry)
                        _measure(ports, entries)
                        if is_live and len(some) == len(messages):
                            skew.note(entries[-1].message.ts)
                        await react(entries)
                        if len(some) < len(messages):
                            await ports.clock.sleep(0)
                        elif linger is not None and is_busy(len(entries), sum(len(e.message.records) for e in entries)):
                            await linger()
                    asked = ports.clock.monotonic()
            except Transient as error:
                log.warning("ledger_follow_retries", error=str(error), n=shard.state.n)
        await wait_for(stop, ports.clock, BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])
        failures += 1


def _pieces(messages: list[Message]) -> Iterator[list[Message]]:
    """Parts of a batch that are decoded and held at once: a long tail of large messages would take all memory."""
    piece, size = list[Message](), 0
    for message in messages:
        piece.append(message)
        size += len(message.data)
        if size >= DECODED_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def is_busy(messages: int, records: int) -> bool:
    """Whether after such a batch more is likely to come at once, for whoever may wait for it."""
    return messages < BEHIND_MESSAGES and records >= BUSY_RECORDS


def _measure(ports: Ports, entries: list[Entry]) -> None:
    """Each message counts: the newest of a batch may have come while the others waited."""
    ports.metrics.ledger_n.set(entries[-1].message.n)
    now_ms = ports.clock.now_ms()
    for entry in entries:
        ports.metrics.hop((now_ms - entry.message.ts) / 1000)
