"""CPU that a process spends on restoring very many waiting jobs of one kind from a snapshot, with their hash."""

import time
from collections.abc import Callable

from tessera.domain.storing.snapshot import load
from tessera.domain.storing.statehash import StateHash
from tessera.kernel.ledger.snapshots import chunks_of, lines_of
from tessera.kernel.process.limits import collect_rarely
from tessera_lab.bench.alone.ledgers import BareCommitter, admitted
from tessera_lab.bench.report import ReportRow
from tessera_lab.bench.together.platform import job

AT_ONCE = 500


async def restore(jobs: int, rounds: int, nodes: int) -> list[ReportRow]:
    """Restore the state again and again, as each service does once at its start; the floor is its plain lines."""
    books, spec = BareCommitter(nodes), job(36_000.0)
    for first in range(0, jobs, AT_ONCE):
        books.commit([admitted(f"m{i}", spec) for i in range(first, min(first + AT_ONCE, jobs))], line=True)
        books.stored.clear()
    state_hash = books.shard.hasher.of(books.shard.state)
    chunks = list(chunks_of(books.shard.state))
    del books
    collect_rarely()

    def read_lines() -> None:
        for _ in lines_of(chunks):
            pass

    def restore_all() -> None:
        hasher = StateHash()
        if hasher.of(load(lines_of(chunks), hasher)) != state_hash:
            raise RuntimeError("the restored state has another hash")

    pairs = [(_cpu_seconds(read_lines), _cpu_seconds(restore_all)) for _ in range(rounds)]
    floors, seconds = zip(*pairs, strict=True)
    stored = sum(map(len, chunks)) / 1e6
    target = "none: what each service pays at its start"
    name, floor = f"restoring {jobs:,} jobs", "reading the lines, CPU s"
    return [ReportRow(name, "CPU s", target, seconds, floor, floors, {"stored MB": stored})]


def _cpu_seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
