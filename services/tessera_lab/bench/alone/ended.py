"""
Growth with jobs that have ended: memory of a fold with its views, a snapshot's bytes, fields and bytes of a real Redis.

The jobs live their whole lives in process, by the real decision, a few hundred at a time. What is kept of them is
measured while their keys are remembered, and again when the time to remember them has passed.
"""

import gc
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tessera.kernel.clock import SystemClock
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.ledger.snapshots import chunks_of
from tessera.kernel.redis.store import RedisStore
from tessera.projection.views import Field, Views
from tessera_lab.bench.alone.ledgers import SHARD, BareCommitter, live
from tessera_lab.bench.report import ReportRow
from tessera_lab.bench.together.platform import GPUS_PER_NODE
from tessera_lab.bench.together.sizing import MIB, resident_bytes
from tessera_local.child_process import Child
from tessera_local.servers import RedisServer
from tessera_schemas.shard.keys import VIEWS

AT_ONCE = 512
REMEMBERED_MS = 7 * 86_400_000
"""How long keys are remembered and ended jobs shown, by default."""


class ShownCommitter(BareCommitter):
    """A committer that keeps no message, and whose state a Redis shows as projection does."""

    def __init__(self, nodes: int, store: RedisStore) -> None:
        self._views: Views | None = None
        super().__init__(nodes)
        self._store, self._views = store, Views(self.shard.state)
        self._touched: dict[Field, None] = {}
        self._shown = 0

    def keep(self, entry: Entry) -> None:
        """Fold it and remember which fields it moved."""
        if self._views is None:
            self.shard.fold(entry)
        else:
            self._touched |= self._views.moved_by(entry.message, lambda: self.shard.fold(entry))

    async def show(self) -> None:
        """Bring Redis to the head."""
        assert self._views is not None
        state = self.shard.state
        fields = self._touched if self._shown else dict.fromkeys(self._views.fields())
        changes = [self._views.change(field) for field in fields]
        if self._shown:
            await self._store.apply(self._shown + 1, state.n, changes)
        else:
            await self._store.replace(state.n, changes)
        self._touched, self._shown = {}, state.n

    async def measured(self) -> dict[str, float]:
        """
        What is kept now, in this process, in Redis, and in a snapshot as NATS would have it.

        The state is hashed first, as each checkpoint has every follower do: until then a table notes what was written.
        """
        state = self.shard.state
        self.shard.hasher.of(state)
        snapshot = sum(map(len, chunks_of(state)))
        fields = sum(map(len, (await self._store.rows_as_of(*VIEWS))[1]))
        gc.collect()
        return {
            "live jobs": len(state.jobs),
            "runs": len(state.runs),
            "keys remembered": len(state.ended),
            "thousand objects": sys.getallocatedblocks() / 1000,
            "process MiB": resident_bytes(os.getpid()) / MIB,
            "snapshot MiB": snapshot / MIB,
            "Redis fields": fields,
            "Redis MiB": (await self._store.stored_bytes())[0] / MIB,
        }


async def ended_jobs(jobs: int) -> list[ReportRow]:
    """A quarter of the jobs, half of them, all of them, and after the time for which they are remembered."""
    clock = SystemClock()
    with TemporaryDirectory() as folder:
        server = RedisServer(Path(folder), None)
        child = Child("redis", server.spawn, server.ready, Path(folder, "log"), clock, lambda _: None, lambda: None)
        await child.start()
        store = RedisStore(server.url, "", "", SHARD, answer_seconds=60.0)
        try:
            books = ShownCommitter(-(-AT_ONCE // GPUS_PER_NODE), store)
            await books.show()
            found, begin = {"0 jobs": await books.measured()}, 0
            for end in (jobs // 4, jobs // 2, jobs):
                for first in range(begin, end, AT_ONCE):
                    live(books, first, min(first + AT_ONCE, end), AT_ONCE)
                    await books.show()
                found[f"{end:,} jobs"], begin = await books.measured(), end
            books.commit(ms=REMEMBERED_MS)
            while len(books.shard.state.ended):
                books.commit()
                await books.show()
            live(books, jobs, jobs + AT_ONCE, AT_ONCE)
            await books.show()
            found["a week later"] = await books.measured()
        finally:
            await store.close()
            await child.stop()
    half, full = found[f"{jobs // 2:,} jobs"], found[f"{jobs:,} jobs"]  # in the first half the process also warms up
    grown, snapshot = ((full[name] - half[name]) * MIB / (jobs - jobs // 2) for name in ("process MiB", "snapshot MiB"))
    notes = {name: {key: round(value, 1) for key, value in row.items()} for name, row in found.items()}
    return [
        ReportRow(
            f"{jobs:,} ended jobs, in process",
            "bytes of memory a job whose key is remembered",
            "none: what to plan with",
            (grown,),
            "bytes of its row in a snapshot",
            (snapshot,),
            notes,
        )
    ]
