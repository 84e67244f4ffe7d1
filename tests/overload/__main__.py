"""
`python -m tests.overload`: one tenant of twenty submits so much that all together are five times what is sustained.

First the peak: jobs of all tenants at once, released per second. Then what is sustained: released per second while
the tenants submit that peak evenly. Then the nineteen others alone, at half of what is sustained unless told, then
everybody, then the others alone again: all in one run, so that ratios count whatever else the machine does. 1 when a
line is out of its bound, or the checkers or the replay find something.
"""

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import uvloop
import yaml

from tessera.client.connect.connecting import open_bus
from tessera.client.ledger.reading import ledger_of
from tessera.client.ledger.replay import verify
from tessera.kernel.clock import SystemClock
from tessera.kernel.nats.bus import NatsBus
from tessera.kernel.ports import Message
from tessera.projection.events import Cursor
from tessera.testkit.checker import check
from tessera.testkit.events_checker import Stored, check_events
from tessera.testkit.events_checker.due import due_events
from tessera.testkit.pays_checker import check_pays
from tessera.testkit.relations_checker import check_relations
from tessera.testkit.rules_checker import check_rules
from tessera_lab.bench.report import percentile
from tessera_lab.bench.together.platform import GPUS_PER_NODE, BenchPlatform, job, start_platform
from tessera_lab.bench.together.sizing import MIB, ranked
from tessera_schemas import subjects
from tessera_schemas.config import Limits
from tessera_schemas.events import CURSOR_HEADER
from tessera_schemas.shard.ledger_form import plain_json
from tessera_schemas.text.quantities import quantity
from tests.overload.hops import Lives
from tests.overload.load import Sender, totals
from tests.overload.samples import Samples, looking

TENANTS = tuple(f"t{number:02}" for number in range(20))
FLOODER, OTHERS = TENANTS[0], TENANTS[1:]
TIMES = 5
EVENLY_SECONDS, RISE_SECONDS = 20.0, 5.0
ASKED_MAX = 800  # jobs of a group whose facts are asked for, one by one
SETTLE_SECONDS, LOOK_SECONDS = 600.0, 0.5
GOODPUT, BEHIND_SECONDS = 0.9, 10.0
P99 = {"released": 1.2, "allocated": 2.0}
CHART = Path(__file__).parents[2] / "deploy/helm/tessera/values.yaml"


@dataclass(frozen=True, slots=True)
class Line:
    """A figure beside its floor, and whether it is within its bound."""

    what: str
    measured: str
    floor: str
    reach: str
    good: bool

    def __str__(self) -> str:
        mark = "" if self.good else "   OUT OF BOUNDS"
        return f"{self.what:44} {self.measured:>16}   {self.floor:40} {self.reach}{mark}"


@dataclass
class Moments:
    """When jobs were queued, allocated and released by the ledger, in ms, and which it turned away for what."""

    queued: dict[str, int] = field(default_factory=dict)
    allocated: dict[str, int] = field(default_factory=dict)
    released: dict[str, int] = field(default_factory=dict)
    turned_away: dict[str, str] = field(default_factory=dict)

    async def follow(self, bus: NatsBus, shard: str) -> None:
        """Take in the ledger as it grows, until cancelled; its messages are the checkers' to read in full."""
        source = bus.follow(subjects.stream("LEDGER", shard), subjects.ledger(shard), 0)
        while True:
            for stored in await source.next():
                self.take(orjson.loads(plain_json(stored.data)))

    def take(self, message: dict[str, Any]) -> None:
        """Note what one message allocates and releases."""
        for record in message.get("records", ()):
            if record["kind"] == "job_queued":
                self.queued[record["job_id"]] = message["ts"]
            elif record["kind"] == "allocated":
                self.allocated[record["job_id"]] = message["ts"]
            elif record["kind"] == "released" and not record.get("ranks"):
                self.released[record["run_id"].rpartition("-")[0]] = message["ts"]
            elif record["kind"] == "job_turned_away":
                fact = message["facts"][record["fact"]]["fact"]
                self.turned_away[fact["job_id"]] = (record.get("reasons") or fact["reasons"])[0]["code"]

    def per_second(self, begin_ms: int, end_ms: int) -> float:
        """Jobs released between two moments."""
        count = sum(1 for ts in self.released.values() if begin_ms <= ts < end_ms)
        return count * 1000 / (end_ms - begin_ms)

    def took_ms(self, sent: dict[str, int], what: str) -> list[float]:
        """From each submit to its allocation, or its release."""
        found = getattr(self, what)
        return [float(found[id_] - ts) for id_, ts in sent.items() if id_ not in self.turned_away]


@dataclass
class Phase:
    """One part of the run: its senders, and when it began and ended."""

    senders: Sequence[Sender]
    begin_ms: int
    end_ms: int

    @property
    def others(self) -> dict[str, int]:
        """When each job of the others was sent."""
        return {id_: ts for sender in self.senders if sender.tenant != FLOODER for id_, ts in sender.jobs().items()}


class Overload:
    """The phases on one platform."""

    def __init__(self, on: BenchPlatform, buses: dict[str, Any], job_seconds: float) -> None:
        self._on, self._buses, self._spec, self._clock = on, buses, job(job_seconds), SystemClock()
        self.senders: list[Sender] = []
        self.moments = Moments()
        self._following: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Note the moments of the ledger meanwhile."""
        async with open_bus(self._on.place, self._operator) as bus:
            self._following = asyncio.create_task(self.moments.follow(bus, self._on.shard))
            try:
                yield
            finally:
                self._following.cancel()

    async def burst(self, name: str, jobs: int) -> Phase:
        """All tenants' jobs at once, until all have ended."""
        senders, begin = await self._fresh(name, TENANTS), self._clock.now_ms()
        keys = [f"{name}-{number}" for number in range(jobs // len(TENANTS))]
        await asyncio.gather(*(sender.send(keys) for sender in senders))
        await self.settle(senders)
        return Phase(senders, begin, self._clock.now_ms())

    async def paced(self, name: str, rates: dict[str, float], seconds: float) -> Phase:
        """Each tenant at its rate."""
        senders, begin = await self._fresh(name, tuple(rates)), self._clock.now_ms()
        await asyncio.gather(*(sender.pace(name, rates[sender.tenant], seconds) for sender in senders))
        return Phase(senders, begin, self._clock.now_ms())

    async def settle(self, senders: Sequence[Sender]) -> None:
        """Wait until every submit is answered and every accepted job released. Raises TimeoutError."""
        async with asyncio.timeout(SETTLE_SECONDS):
            while any(sender.unanswered for sender in senders):
                await self._clock.sleep(LOOK_SECONDS)
            over = self.moments.released.keys() | self.moments.turned_away.keys()
            while any(sender.jobs().keys() - over for sender in senders):
                over = self.moments.released.keys() | self.moments.turned_away.keys()
                if self._following is not None and self._following.done():
                    self._following.result()  # what ended it, in place of a wait for nothing
                await self._clock.sleep(LOOK_SECONDS)

    async def stored(self) -> list[bytes]:
        """Every message of the ledger."""
        async with open_bus(self._on.place, self._operator) as bus:
            return [data async for _, data in ledger_of(bus, self._on.shard).messages()]

    async def lives(self, groups: Iterable[dict[str, int]]) -> Lives:
        """All that is known of the jobs; when it was admitted of some of each group alone, since each is a request."""
        lives, stream = Lives(await self.stored()), subjects.stream("FACTS", self._on.shard)
        async with open_bus(self._on.place, self._operator) as bus:
            for group in groups:
                for job_id in [*group][:: max(1, len(group) // ASKED_MAX)]:
                    fact = await bus.get(stream, lives.fact_of[job_id]) if job_id in lives.fact_of else None
                    if fact is not None:
                        lives.note(job_id, "admitted", fact.stored_ms)
        return lives

    async def events_until(self, cursor: str) -> list[Stored]:
        """The stream of events from its beginning to this one at least. Raises TimeoutError when it does not come."""
        stream, subject = subjects.stream("EVENTS", self._on.shard), f"events.{self._on.shard}.>"
        wanted, found = Cursor.parse(cursor), list[Message]()
        async with open_bus(self._on.place, self._operator) as bus, asyncio.timeout(SETTLE_SECONDS):
            source = bus.follow(stream, subject, 0)
            try:
                while not found or Cursor.parse(found[-1].headers[CURSOR_HEADER]) < wanted:
                    found += await source.next(timeout=30)
            finally:
                await source.close()
        return [(message.subject, message.headers, message.data) for message in found]

    def now_ms(self) -> int:
        """The clock of this run."""
        return self._clock.now_ms()

    @property
    def _operator(self) -> Any:
        return self._on.place.identity(subjects.OPERATOR)

    async def _fresh(self, name: str, tenants: Sequence[str]) -> list[Sender]:
        made = [Sender(self._buses[tenant], self._on.shard, tenant, self._clock, self._spec) for tenant in tenants]
        await asyncio.gather(*(sender.open(name) for sender in made))
        self.senders += made
        return made


def lines_of(
    sustained: float, alone: Sequence[Phase], flood: Phase, samples: Samples, moments: Moments
) -> Iterator[Line]:
    """The table, of what the ledger and the samples say."""
    goodput = moments.per_second(flood.begin_ms, flood.end_ms)
    yield Line(
        "jobs released a second", f"{goodput:.0f}", f"{sustained:.0f} sustained", f"{GOODPUT:g} of it",
        goodput >= GOODPUT * sustained,
    )  # fmt: skip
    said = totals(flood.senders)
    untyped = [sentence for sender in flood.senders for sentence in sender.untyped]
    refused = sum(count for code, count in said.items() if code != "accepted")
    yield Line(
        "refused, and how many without a time",
        f"{refused}, {len(untyped)}",
        f"{said['accepted']} accepted",
        "0",
        not untyped,
    )
    for what in ("events", "views"):
        behind = samples.behind(what)
        yield Line(
            f"{what} behind the ledger, most", f"{max(behind):.1f} s", f"{percentile(behind, 50):.1f} s at the median",
            f"{BEHIND_SECONDS:g} s", max(behind) <= BEHIND_SECONDS,
        )  # fmt: skip
    for what in ("released", "allocated", "queued"):
        floor = [ms for phase in alone for ms in moments.took_ms(phase.others, what)]
        took = moments.took_ms(flood.others, what)
        before, now = percentile(floor, 99), percentile(took, 99)
        times = P99.get(what)
        reach, good = (f"{times:g} of it", now <= times * before) if times else ("the wait in it", True)
        yield Line(f"others, submit to {what}, p99", f"{now / 1000:.2f} s", f"{before / 1000:.2f} s alone", reach, good)
    limits = memory_limits()
    third = len(samples.taken) // 3
    for name in samples.names:
        most, middle = samples.most(name), samples.most(name, slice(third, 2 * third))
        limit = limits.get(name.partition("@")[0], 0.0)
        yield Line(
            f"memory of {name}, most", f"{most:.0f} MiB", f"{middle:.0f} MiB in the second third",
            f"{limit:.0f} MiB" if limit else "none", not limit or most <= limit,
        )  # fmt: skip


def last_release(phase: Phase, moments: Moments) -> int:
    """When the last job of a phase was released."""
    return max(moments.released.get(id_, 0) for sender in phase.senders for id_ in sender.jobs())


def memory_limits() -> dict[str, float]:
    """MiB that the chart lets each part have."""
    values = yaml.safe_load(CHART.read_text())
    parts = {**values["services"], "nats": values["nats"], "redis": values["redis"]}
    return {name: float(quantity(part["resources"]["limits"]["memory"])) / MIB for name, part in parts.items()}


async def judged(run: Overload) -> list[str]:
    """What the checkers and the replay find wrong in all that is stored."""
    stored, senders = (
        await run.stored(),
        run.senders,
    )  # nodes are seen and prices learnt meanwhile: what comes is left out
    end = len(stored)
    events = await run.events_until(next(reversed(due_events(stored))))
    events = [event for event in events if Cursor.parse(event[1][CURSOR_HEADER]).n <= end]
    acknowledged = [(sender.tenant, key) for sender in senders for key in sender.accepted]
    report = check(stored, acknowledged=acknowledged, drained=True)
    check_events(report, stored, events, drained=True)
    check_rules(report, stored)
    check_pays(report, stored)
    check_relations(report, stored)
    replay = verify(stored)
    print(
        f"checkers: {sum(report.examined.values())} looks, {len(report.violations)} violations; replay: "
        f"{replay.recomputed} of {replay.messages} messages recomputed, {replay.wrong} wrong",
        flush=True,
    )
    unanswered = [f"{sender.tenant}: {sender.unanswered} unanswered" for sender in senders if sender.unanswered]
    return [*map(str, report.violations[:10]), *replay.findings[:10], *unanswered]


async def sustain(run: Overload, rate: float) -> float:
    """Jobs released a second while all tenants submit evenly at `rate` together."""
    even = await run.paced("even", dict.fromkeys(TENANTS, rate / len(TENANTS)), EVENLY_SECONDS)
    await run.settle(even.senders)
    return run.moments.per_second(even.begin_ms + int(RISE_SECONDS * 1000), even.end_ms)


async def overload(seconds: float, nodes: int, job_seconds: float, burst: int, part: float) -> list[str]:
    """The whole run; returns what is out of its bound or wrong, in sentences."""
    async with AsyncExitStack() as stack:
        on = await stack.enter_async_context(start_platform(nodes, False, TENANTS, limits=Limits()))
        buses = {name: await stack.enter_async_context(open_bus(on.place, on.place.tenant(name))) for name in TENANTS}
        run = Overload(on, buses, job_seconds)
        await stack.enter_async_context(run.following())
        await run.burst("warm", burst // 4)
        peak = await run.burst("peak", burst)
        best = run.moments.per_second(peak.begin_ms, last_release(peak, run.moments))
        sustained = await sustain(run, best)
        own, flooders = part * sustained / len(OTHERS), (TIMES - part) * sustained
        others = dict.fromkeys(OTHERS, own)
        print(
            f"peak {best:.0f} jobs/s on {nodes * GPUS_PER_NODE} GPUs, {sustained:.0f} sustained; {len(OTHERS)} tenants "
            f"at {own:.1f} a second each, {FLOODER} at {flooders:.0f}: {TIMES * sustained:.0f} together",
            flush=True,
        )
        alone = [await run.paced("before", others, seconds / 2)]
        await run.settle(alone[0].senders)
        before = on.cpu_seconds()
        async with looking(on) as samples:
            flood = await run.paced("flood", {**others, FLOODER: flooders}, seconds)
        spent = {name: 100 * (value - before[name]) / seconds for name, value in on.cpu_seconds().items()}
        await run.settle(flood.senders)
        print(f"all had ended {(run.now_ms() - flood.end_ms) / 1000:.0f} s after the last submit", flush=True)
        alone.append(await run.paced("after", others, seconds / 2))
        await run.settle(alone[1].senders)
        lines = list(lines_of(sustained, alone, flood, samples, run.moments))
        print("\n".join(map(str, lines)), flush=True)
        quiet = {id_: ts for phase in alone for id_, ts in phase.others.items()}
        groups = {"others alone": quiet, "others beside": flood.others}
        print("\n".join((await run.lives(groups.values())).table(groups)), flush=True)
        busy = ", ".join(f"{name} {value:.0f}" for name, value in ranked(spent).items())
        print(f"% of a core while it lasted, all {sum(spent.values()):.0f}: {busy}", flush=True)
        away = Counter(run.moments.turned_away.values())
        print(
            f"what became of the submits: {dict(totals(flood.senders))}, turned away of these {dict(away)}", flush=True
        )
        print("\n".join([sentence for sender in flood.senders for sentence in sender.untyped][:5]), flush=True)
        return [line.what for line in lines if not line.good] + await judged(run)


def main() -> int:
    """Exit code 0 when every line is within its bound and nothing stored is wrong."""
    parser = argparse.ArgumentParser(prog="tests.overload", description="Overload of a platform of real processes.")
    parser.add_argument("--minutes", type=float, default=5.0, help="of overload; the others alone as long again")
    parser.add_argument("--nodes", type=int, default=40, help="of eight GPUs each")
    parser.add_argument("--job-seconds", type=float, default=0.05)
    parser.add_argument("--burst", type=int, default=4000, help="jobs by which the peak is measured")
    parser.add_argument("--others", type=float, default=0.5, help="part of what is sustained that the others submit")
    chosen = parser.parse_args()
    wrong = uvloop.run(overload(chosen.minutes * 60, chosen.nodes, chosen.job_seconds, chosen.burst, chosen.others))
    for sentence in wrong:
        print(f"WRONG: {sentence[:1000]}", file=sys.stderr)
    print("all is well" if not wrong else f"{len(wrong)} out of bounds or wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
