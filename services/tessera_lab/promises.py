"""
`python -m tessera_lab.promises`: how many promised starts are kept, in months that are made, with nodes that fail.

The committer's own decisions on a shard of nothing else: jobs arrive by chance, of which some may be stopped and some
may not, gangs ask for a promised start, and nodes fail and come back. What was told to stop takes its grace. A promise
that could not be made is refused and asks nothing more; of those that were made it is said how they ended.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Any

from tessera.domain.folding.fold import apply_record, take_in
from tessera.domain.state import State
from tessera.queueing.decide import OrderCache, orders
from tessera.scheduler.decide import CapacityCache, Inputs, decide
from tessera.testkit.end_to_end.services import MIB, job
from tessera_lab.queue.live import node_seen, started_at_once
from tessera_schemas.base import job_id
from tessera_schemas.config import ConfigBody, Limits, Policy, Queue, Tenant
from tessera_schemas.facts import AnyFact, ConfigProposed, JobAdmitted, RunAbsent, RunEnded, RunLost, owner
from tessera_schemas.job import Resources
from tessera_schemas.ledger import Allocated, AnyRecord, Booked, BookingEnded, JobTurnedAway, Revoked, TakenFact
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.orders import Order
from tessera_schemas.shard.recommended import POLICY as RECOMMENDED

SHARD, TENANT, QUEUE, GPUS = "main", "lab", "default", 8
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
TICK_MS = 5_000
"""Between two messages while a promised time is near; the committer has one each second."""
NEAR_MS = 5 * MINUTE_MS
GRACE_MS = 30_000
SIZES = (1, 1, 1, 2, 4, 8, 8)
"""GPUs of a job that asks for no promise, each as likely as it stands here."""
GANGS = (1, 2, 2, 4, 8)
"""Whole nodes of a promised gang."""
RULES = {found.field: found.value for found in RECOMMENDED}


@dataclass(frozen=True, slots=True)
class PromisedMonth:
    """Sizes and rates: GPUs asked for in percent of all, mean days until a node fails, and hours until it is back."""

    nodes: int = 48
    days: int = 28
    load_percent: float = 95.0
    promises_a_day: float = 6.0
    mean_days: float = 30.0
    back_hours: float = 8.0
    preemptible_percent: float = 50.0
    limited_percent: float = 70.0


class SimulatedMonth:
    """One month of a shard; `ends` counts promises by what became of them, `reasons` the broken ones."""

    def __init__(self, month: PromisedMonth, seed: int) -> None:
        self._month, self._random, self._seed = month, Random(seed), seed
        self._state, self._capacity, self._lines = State(), CapacityCache(), OrderCache()
        self._published: dict[str, tuple[str, ...]] = {}
        self._events: list[tuple[int, int, str, Any]] = []
        self._number = 0
        self._ticks: set[int] = set()
        self._lengths: dict[str, int] = {}
        self.ends, self.reasons = Counter[str](), Counter[str]()

    def run(self) -> "SimulatedMonth":
        """Play the month from its first submit to its end."""
        month, random, now = self._month, self._random, DAY_MS
        limits = Limits(jobs=None, submits_per_second=None, bytes_per_second=None)
        config = ConfigBody(
            tenants=(Tenant(name=TENANT, limits=limits, promises=True),),
            queues=(Queue(name=QUEUE),),
            policy=Policy.model_validate({**Policy().model_dump(), **RULES, "fragmentation_event_seconds": 0}),
        )
        self._commit(now, [ConfigProposed(kind="config_proposed", expected_version=0, body=config)], holder="lab")
        self._commit(now, [node_seen(at, GPUS) for at in range(month.nodes)])
        mean_hours, mean_gpus = 2.0, sum(SIZES) / len(SIZES)
        every_ms = mean_hours * mean_gpus * HOUR_MS / (month.nodes * GPUS * month.load_percent / 100)
        self._push(now + 1, "submit", every_ms)
        self._push(now + 6 * HOUR_MS, "promise", DAY_MS / max(0.001, month.promises_a_day))
        for at in range(month.nodes):
            self._push(now + int(random.expovariate(1 / (month.mean_days * DAY_MS))), "fails", at)
        happens: dict[str, Callable[[int, Any], list[AnyFact]]] = {
            "submit": self._on_submit,
            "promise": self._on_promise,
            "ends": self._on_ends,
            "gone": self._on_gone,
            "fails": self._on_fails,
            "back": self._on_back,
            # The committer looks again, and nothing has happened.
            "tick": lambda _now, _what: [],
        }
        while self._events and (now := self._events[0][0]) < (1 + month.days) * DAY_MS:
            facts = list[AnyFact]()
            while self._events and self._events[0][0] == now:
                _, _, kind, what = heappop(self._events)
                facts += happens[kind](now, what)
            self._settle(now, facts)
        return self

    def _push(self, ts: int, kind: str, what: Any = None) -> None:
        self._number += 1
        heappush(self._events, (ts, self._number, kind, what))

    # -- what happens

    def _on_submit(self, now: int, every_ms: float) -> list[AnyFact]:
        random, month = self._random, self._month
        self._push(now + 1 + int(random.expovariate(1 / every_ms)), "submit", every_ms)
        length = int(random.lognormvariate(0, 1.2) * HOUR_MS) + MINUTE_MS
        limit = int(length / 1000 * random.uniform(1.1, 4)) if random.random() * 100 < month.limited_percent else 0
        return [self._job(1, random.choice(SIZES), length, limit, random.random() * 100 < month.preemptible_percent)]

    def _on_promise(self, now: int, every_ms: float) -> list[AnyFact]:
        random = self._random
        self._push(now + 1 + int(random.expovariate(1 / every_ms)), "promise", every_ms)
        start_by = now + int(random.uniform(0.5, 24) * HOUR_MS)
        length = int(random.uniform(0.2, 3) * HOUR_MS)
        fact = self._job(random.choice(GANGS), GPUS, length, 2 * length // 1000, False)
        self.ends["asked"] += 1
        return [fact.model_copy(update={"spec": fact.spec.model_copy(update={"start_by_ts": start_by})})]

    def _on_ends(self, now: int, run: str) -> list[AnyFact]:
        there = self._state.runs.get(run)
        if there is None or there.stopping:
            return []
        return [RunEnded(kind="run_ended", run_id=run), RunAbsent(kind="run_absent", run_id=run)]

    def _on_gone(self, now: int, run: str) -> list[AnyFact]:
        return [RunAbsent(kind="run_absent", run_id=run)] if self._state.runs.get(run) is not None else []

    def _on_fails(self, now: int, at: int) -> list[AnyFact]:
        seen = node_seen(at, GPUS).model_copy(update={"ready": False})
        self._push(now + int(self._random.uniform(0.2, 2) * self._month.back_hours * HOUR_MS), "back", at)
        lost = Reason(code=Code.NODE_LOST, detail=seen.name)
        runs = sorted(run.run_id for run in self._state.runs_on(seen.name) if not run.stopping)
        for run in runs:
            self._push(now + 1, "gone", run)
        return [seen, *(RunLost(kind="run_lost", run_id=run, reason=lost) for run in runs)]

    def _on_back(self, now: int, at: int) -> list[AnyFact]:
        self._push(now + int(self._random.expovariate(1 / (self._month.mean_days * DAY_MS))), "fails", at)
        return [node_seen(at, GPUS)]

    def _job(self, pods: int, gpus: int, length_ms: int, limit: int, preemptible: bool) -> JobAdmitted:
        self._number += 1
        key = f"{self._seed}-{self._number}"
        name = job_id(SHARD, TENANT, key)
        self._lengths[name] = length_ms
        each = Resources(gpus=gpus, cpu_milli=1000 * gpus, memory_bytes=MIB * gpus)
        spec = job(f"kind-{gpus}-{pods}", QUEUE, [(pods, each, ())], length_ms // 1000).model_copy(
            update={"time_limit_seconds": limit or None, "preemptible": preemptible, "termination_grace_seconds": 30}
        )
        return JobAdmitted(kind="job_admitted", job_id=name, tenant=TENANT, key=key, spec=spec)

    # -- what is decided

    def _settle(self, now: int, facts: Sequence[AnyFact]) -> None:
        """Decide until no new order follows from what was decided."""
        fresh: Sequence[Order] = ()
        while True:
            more = list[AnyFact]()
            for record in self._commit(now, facts, fresh):
                more += self._follow(now, record)
            fresh = orders(self._state, self._published, now, self._lines)
            self._published |= {order.pool: order.jobs for order in fresh}
            facts = more
            if not more and not fresh:
                return

    def _follow(self, now: int, record: AnyRecord) -> Iterable[AnyFact]:
        if isinstance(record, Allocated):
            run = f"{record.job_id}-{record.attempt}"
            self._push(now + self._lengths[record.job_id], "ends", run)
            return started_at_once(record)
        if isinstance(record, Revoked):
            self._push(now + GRACE_MS, "gone", record.run_id)
        elif isinstance(record, JobTurnedAway):
            self.ends["refused"] += 1
        elif isinstance(record, Booked):
            self.ends["made"] += 1
            start = record.windows[0].start_ts
            # Far from promised times the events of the month are messages enough.
            self._ticks |= {at for at in range(max(now, start - NEAR_MS), start + 30_000, TICK_MS) if at > now}
            for at in sorted(self._ticks):
                self._push(at, "tick")
            self._ticks.clear()
        elif isinstance(record, BookingEnded):
            self.ends[record.why] += 1
            if record.why == "broken" and record.reason is not None:
                self.reasons[record.reason.code.value] += 1
        return ()

    def _commit(
        self, ts: int, facts: Sequence[AnyFact], fresh: Sequence[Order] = (), holder: str = ""
    ) -> tuple[AnyRecord, ...]:
        state = self._state
        seq = state.facts_upto
        taken = tuple(TakenFact(seq=seq + i, service=owner(fact), fact=fact) for i, fact in enumerate(facts, start=1))
        upto = seq + len(taken)
        inputs = Inputs(state.n + 1, ts, 1, upto, holder, facts=taken, orders=tuple(fresh))
        records = tuple(decide(state, inputs, self._capacity).records)
        take_in(state, inputs.n, ts, upto, inputs.orders)
        for record in records:
            apply_record(state, record, taken)
        return records


def _line(found: Sequence[SimulatedMonth]) -> str:
    ends, reasons = Counter[str](), Counter[str]()
    for each in found:
        ends.update(each.ends)
        reasons.update(each.reasons)
    over = ends["kept"] + ends["broken"]
    why = ", ".join(f"{many} {code}" for code, many in sorted(reasons.items()))
    return (
        f"{ends['asked']} asked, {ends['refused']} refused, {ends['made']} made; {ends['kept']} kept, "
        f"{ends['broken']} broken{f' ({why})' if why else ''}, {ends['dropped']} dropped: "
        f"{100 * ends['kept'] / max(1, over):.1f} % kept"
    )


def main() -> None:
    """Read the month from the command line, and print what became of its promises."""
    parser = argparse.ArgumentParser(prog="python -m tessera_lab.promises", description=__doc__)
    usual = PromisedMonth()
    for name in PromisedMonth.__slots__:
        value = getattr(usual, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--seeds", type=int, default=5, help="number of them")
    parser.add_argument("--first", type=int, default=1, help="first seed")
    asked = vars(parser.parse_args())
    seeds, first = asked.pop("seeds"), asked.pop("first")
    found = list[SimulatedMonth]()
    for seed in range(first, first + seeds):
        found.append(SimulatedMonth(PromisedMonth(**asked), seed).run())
        print(f"seed {seed:>3}: {_line(found[-1:])}", flush=True)
    print(f"all     : {_line(found)}")


if __name__ == "__main__":
    main()
