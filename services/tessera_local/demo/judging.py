"""The end of the demo: wait until everything has come to rest, read back all that was stored, and judge it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tessera.client.ledger.reading import ledger_of
from tessera.client.ledger.replay import Replay, ReplayReport
from tessera.client.outcomes import Exit, Failure
from tessera.domain.state import State
from tessera.kernel.errors import InvariantViolation
from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.nats.bus import NatsBus
from tessera.kernel.ports import Clock, Follow, Message, ProjectionStore
from tessera.kernel.redis.views_digest import views_digest
from tessera.projection.views import all_views
from tessera.testkit.checker import PodChange, Report, check
from tessera.testkit.events_checker import check_events
from tessera.testkit.pays_checker import check_pays
from tessera.testkit.relations_checker import check_relations
from tessera.testkit.rules_checker import check_rules
from tessera_local.demo.measures import RunMeasures
from tessera_schemas.shard.keys import VIEWS
from tessera_schemas.subjects import stream

SETTLE_SECONDS = 15.0
STILL_SECONDS = 0.5
READ_SECONDS = 5.0
POD_EVENTS = ("ADDED", "MODIFIED", "DELETED")


class PodRecorder:
    """Every change of every pod, as the cluster told it to an onlooker of its own."""

    def __init__(self, cluster: HttpCluster) -> None:
        self._cluster = cluster
        self.changes: list[PodChange] = []

    async def run(self) -> None:
        """Record changes from now on, until cancelled or the server ends the watch."""
        _, version = await self._cluster.list("pods")
        async for change in self._cluster.watch("pods", version):
            if change.type in POD_EVENTS:
                self.changes.append(PodChange(change.type, change.object))

    @property
    def left(self) -> int:
        """Number of pods that still exist."""
        last = {change.object["metadata"]["uid"]: change.type for change in self.changes}
        return sum(type_ != "DELETED" for type_ in last.values())


@dataclass(frozen=True, slots=True)
class Judgement:
    """Measures of the demo, and the findings of checker and replay."""

    measures: RunMeasures
    report: Report
    replay: ReplayReport

    @property
    def ok(self) -> bool:
        """True when the checker found no violation and the replay came out the same."""
        return not self.report.violations and self.replay.ok


class ShardRecords:
    """The stored side of a shard, read as the operator."""

    def __init__(self, bus: NatsBus, store: ProjectionStore, shard: str, clock: Clock) -> None:
        self._bus, self._store, self._name, self._clock = bus, store, shard, clock
        self._ledger = ledger_of(bus, shard).ledger
        self._shard = Shard()
        self._stored: list[bytes] = []
        self._broken = False
        self.measures = RunMeasures()

    async def tail_n(self) -> int:
        """Number of the newest record; 0 while the ledger is empty."""
        tail = await self._ledger.tail()
        return 0 if tail is None else tail.seq

    async def decided_after(self, n: int) -> int | None:
        """Time of the first message after `n` that decided anything about work; None if none has yet."""
        await self._read_on()
        return self.measures.decision_after(n)

    async def settle(self, pods: PodRecorder) -> None:
        """
        Waits until nothing is left to do and nothing moves any more, at most SETTLE_SECONDS; the checker judges it.
        """
        until, before = self._clock.monotonic() + SETTLE_SECONDS, None
        while self._clock.monotonic() < until:
            now = await self._positions()
            state = self._shard.state
            idle = not len(state.jobs) and not len(state.runs) and not pods.left
            if idle and now == before and now[2] == state.n:
                return
            before = now
            await self._clock.sleep(STILL_SECONDS)

    async def judge(self, acknowledged: Sequence[tuple[str, str]], pods: PodRecorder) -> Judgement:
        """Reads events and views, then runs the checker and the replay over everything."""
        events = await self._events()
        digests = await self._store.digest(), rebuilt_digest(self._shard.state)
        report = check(
            self._stored,
            shard=self._name,
            pods=pods.changes,
            acknowledged=acknowledged,
            digests=digests,
            drained=True,
        )
        check_events(report, self._stored, events, shard=self._name, drained=True)
        check_rules(report, self._stored)
        check_pays(report, self._stored)
        check_relations(report, self._stored)
        return Judgement(self.measures, report, await self._replayed())

    async def _positions(self) -> tuple[int, int, int, int]:
        """Ends of ledger, facts, views and events."""
        await self._read_on()
        facts = await self._bus.last_all(stream("FACTS", self._name), f"fact.{self._name}.>")
        events = await self._bus.last_all(stream("EVENTS", self._name), f"events.{self._name}.>")
        return self._shard.state.n, _end(facts), await self._store.cursor(), _end(events)

    async def _read_on(self) -> None:
        """The bytes are kept even where the fold refuses them: checker and replay say what is wrong."""
        for message in await _read(self._ledger.follow(len(self._stored)), len(self._stored), await self.tail_n()):
            self._stored.append(message.data)
            if not self._broken:
                self._fold(message)

    def _fold(self, message: Message) -> None:
        try:
            entry = decode_entry(message)
            self.measures.take(self._shard.state, entry.message)
            self._shard.fold(entry)
        except InvariantViolation:
            self._broken = True

    async def _events(self) -> list[tuple[str, Mapping[str, str], bytes]]:
        name, subject = stream("EVENTS", self._name), f"events.{self._name}.>"
        end = _end(await self._bus.last_all(name, subject))
        messages = await _read(self._bus.follow(name, subject, 0), 0, end)
        return [(message.subject, message.headers, message.data) for message in messages]

    async def _replayed(self) -> ReplayReport:
        """Others run in between, such as the one who waits for Ctrl-C."""
        replay = Replay()
        for data in self._stored:
            replay.note_orders(data)
        for data in self._stored:
            if not replay.check(data):
                break
            await self._clock.sleep(0)
        return replay.finish()


def rebuilt_digest(state: State) -> str:
    """The hash of the views as they would be built from nothing but the ledger."""
    views: dict[str, dict[str, bytes]] = {name: {} for name in VIEWS}
    for change in all_views(state):
        if change.value is not None:
            views[change.view][change.key] = change.value
    return views_digest(views)


def _end(last: Sequence[Message]) -> int:
    return max((message.seq for message in last), default=0)


async def _read(source: Follow, after: int, end: int) -> list[Message]:
    """Read all messages after `after` up to `end`. Raises Failure when they stop coming."""
    found: list[Message] = []
    try:
        while (found[-1].seq if found else after) < end:
            batch = await source.next(timeout=READ_SECONDS)
            if not batch:
                raise Failure(Exit.UNAVAILABLE, f"demo: message {end} did not come for {READ_SECONDS:g} s")
            found += batch
    finally:
        await source.close()
    return found
