"""Ledger records folded per second, decoding included: the cost of a start, a replay and every follower."""

from collections.abc import Callable

from tessera.kernel.clock import SystemClock
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera_lab.bench.alone.ledgers import lives
from tessera_lab.bench.report import ReportRow

AT_ONCE = 64  # jobs side by side: as many facts share a message


async def fold(jobs: int, rounds: int) -> list[ReportRow]:
    clock = SystemClock()
    books = lives(jobs, AT_ONCE)
    messages = [Message("ledger.main", n, stored) for n, stored in enumerate(books.stored, 1)]
    records = sum(len(decode_entry(message).message.records) for message in messages)

    def rate(work: Callable[[], None]) -> float:
        began = clock.monotonic()
        work()
        return records / (clock.monotonic() - began)

    def decode() -> None:
        for message in messages:
            decode_entry(message)

    def decode_and_fold() -> None:
        shard = Shard()
        for message in messages:
            shard.fold(decode_entry(message))

    pairs = [(rate(decode), rate(decode_and_fold)) for _ in range(rounds)]
    floors, rates = zip(*pairs, strict=True)
    stored = sum(len(message.data) for message in messages)
    return [
        ReportRow(
            "fold, decoding included",
            "records/s",
            ">= 50,000 records/s",
            rates,
            "decoding alone, records/s",
            floors,
            {"records": records, "messages": len(messages), "bytes a record": stored / records},
        )
    ]
