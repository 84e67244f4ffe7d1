"""
The rules of data sets: where the fold says that they are follows from runs and words alone, and who waits for one reads
one.

The checker keeps its own book of what each node has, by docs/placement.md, and imports the contract alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from tessera.testkit.checker.report import Report
from tessera_schemas import facts as f
from tessera_schemas import ledger as m
from tessera_schemas.cluster.pools import DataCaches
from tessera_schemas.config import ConfigBody
from tessera_schemas.reasons import Code
from tessera_schemas.shard.records import DatasetNoted, DatasetTold

HOUR_MS = 3_600_000
"""Old words are looked for once in each hour, and a word that is told again within one is no news."""
OnNode = dict[str, tuple[int, int]]
"""Data sets of a node as tenant/name, each with its bytes and the time of its last use."""
SaidPlaces = Mapping[str, Iterable[tuple[str, int, int]]]
"""The same as the fold says it, by node."""


@dataclass(slots=True, eq=False)
class ReadingRun:
    """A run, the bytes of the data sets that it reads, and the nodes of its pods by rank."""

    reads: dict[str, int]
    places: dict[int, str]
    started: bool = False


def check_datasets(report: Report, ledger: Iterable[bytes], said: SaidPlaces) -> None:
    """
    Judge a ledger's data sets; each violation names the rule `data`. Caches that nodes share are not judged.

    Args:
        report: what is found goes here, beside what the invariant checker found.
        ledger: the stored bytes of every message, in order, from n = 1. The first that cannot be read ends the check.
        said: what the fold of all of it says that nodes have.
    """
    rules = DataRules(report)
    for stored in ledger:
        try:
            rules.take(m.LEDGER_MESSAGE.validate_json(stored))
        except ValidationError:
            return
    rules.end(said)


@dataclass
class DataRules:
    """Takes messages in order; `until` is when a job waits for data no more, from its first wait to its next start."""

    report: Report
    body: ConfigBody | None = None
    n: int = 0
    ts: int = 0
    nodes: dict[str, f.NodeSeen] = field(default_factory=dict)
    kept: dict[str, OnNode] = field(default_factory=dict)
    reads: dict[str, dict[str, int]] = field(default_factory=dict)
    runs: dict[str, ReadingRun] = field(default_factory=dict)
    until: dict[str, int] = field(default_factory=dict)

    def demand(self, holds: bool, text: str) -> None:
        """Counts one check at the message that is being read, and a violation where it does not hold."""
        self.report.demand(holds, "data", self.n, text)

    @property
    def caches(self) -> DataCaches:
        """The policy's word on caches."""
        return DataCaches() if self.body is None else self.body.policy.data_caches

    def take(self, message: m.LedgerMessage) -> None:
        """Follows each record of a message, after the time before it."""
        looked, self.n, self.ts = self.ts // HOUR_MS, message.n, message.ts
        if self.ts // HOUR_MS > looked:
            oldest = self.ts // HOUR_MS * HOUR_MS - self.caches.kept_seconds * 1000
            for name, has in self.kept.items():
                self.kept[name] = {key: each for key, each in has.items() if each[1] > oldest}
        for record in message.records:
            cited = message.facts[at].fact if 0 <= (at := getattr(record, "fact", -1)) < len(message.facts) else None
            getattr(self, f"_{record.kind}", lambda *_: None)(record, cited)

    def end(self, said: SaidPlaces) -> None:
        """Compares the book with what the fold says at the same message."""
        if self.caches.level is not None:
            return
        theirs = {name: sorted(has) for name, has in said.items() if has}
        own = {name: sorted((key, *each) for key, each in has.items()) for name, has in self.kept.items() if has}
        for name in sorted(theirs.keys() | own):
            has, due = theirs.get(name, []), own.get(name, [])
            self.demand(has == due, f"{name} is said to have {has}, and runs and words give {due}")

    # -- jobs, and how long they wait

    def _config_set(self, r: m.ConfigSet, fact: Any) -> None:
        self.body = fact.body if isinstance(fact, f.ConfigProposed) else self.body

    def _job_queued(self, r: m.JobQueued, fact: Any) -> None:
        if isinstance(fact, f.JobAdmitted):
            hints = fact.spec.datasets if self.caches.read_bytes_per_second else ()
            self.reads[r.job_id] = {f"{fact.tenant}/{each.name}": each.size_bytes for each in hints}

    def _task_queued(self, r: m.TaskQueued, fact: Any) -> None:
        self.reads[r.job_id] = self.reads.get(r.array, {})

    def _waiting(self, r: m.Waiting, fact: Any) -> None:
        if r.reason.code is Code.WAITING_FOR_DATA:
            reads, until, caches = self.reads.get(r.job_id), r.reason.numbers.get("until_ts", 0), self.caches
            self.demand(bool(reads), f"{r.job_id} waits for data, and names none")
            self.demand(self.ts < until, f"{r.job_id} waits for data until {until}, which is over")
            most_ms = sum((reads or {}).values()) * 1000 // max(1, caches.read_bytes_per_second)
            first = self.until.setdefault(r.job_id, until)
            within = until == first and until <= self.ts + most_ms * caches.wait_percent // 100
            self.demand(within, f"{r.job_id} waits for data until {until}, after {first}, and reads for {most_ms} ms")

    # -- runs that read, and words of tenants

    def _allocated(self, r: m.Allocated, fact: Any) -> None:
        self.until.pop(r.job_id, None)
        places = {place.rank: place.node for place in r.placements}
        self.runs[f"{r.job_id}-{r.attempt}"] = ReadingRun(self.reads.get(r.job_id, {}), places)

    def _grown(self, r: m.Grown, fact: Any) -> None:
        if (run := self.runs.get(r.run_id)) is not None:
            run.places |= {place.rank: place.node for place in r.placements}

    def _started(self, r: m.Started, fact: Any) -> None:
        if (run := self.runs.get(r.run_id)) is not None:
            run.started = True
            self._use(run)

    def _released(self, r: m.Released, fact: Any) -> None:
        run = self.runs.get(r.run_id)
        if run is not None and r.ranks:
            run.places = {rank: node for rank, node in run.places.items() if rank not in r.ranks}
        elif run is not None:
            if run.started:
                self._use(run)
            del self.runs[r.run_id]

    def _use(self, run: ReadingRun) -> None:
        """The run's data sets were used on its nodes just now; of more than a node keeps, the least recent go."""
        for name in {*run.places.values()} if run.reads else ():
            if self._is_there(name):
                has = self.kept.get(name, {}) | {key: (size, self.ts) for key, size in run.reads.items()}
                self.kept[name] = _keep_within(
                    has, sorted(has, key=lambda key: (-has[key][1], key)), self.caches.node_bytes
                )

    def _node_changed(self, r: m.NodeChanged, fact: Any) -> None:
        if isinstance(fact, f.NodeSeen):
            self.nodes[fact.name] = fact
            if fact.gone:
                self.kept.pop(fact.name, None)

    def _dataset_noted(self, r: DatasetNoted, fact: Any) -> None:
        if not isinstance(fact, DatasetTold):
            return
        queues = () if self.body is None else self.body.queues
        pools = {queue.pool for queue in queues if not queue.tenants or fact.tenant in queue.tenants}
        named = [name for name in (*fact.places.nodes, *fact.places.gone) if self._is_there(name)]
        news = {name: self._take_word(name, fact) for name in named if self.nodes[name].pool in pools}
        news = {name: has for name, has in news.items() if has is not None}
        self.demand(bool(news), f"{fact.dataset} of {fact.tenant}: what is told is no news")
        self.kept |= {name: has for name, has in news.items() if has is not None}

    def _take_word(self, name: str, fact: DatasetTold) -> OnNode | None:
        """Data sets of the node after a tenant's word, which takes no room from others; None where that is no news."""
        key, has = f"{fact.tenant}/{fact.dataset}", self.kept.get(name, {})
        then = {each: kept for each, kept in has.items() if each != key}
        if name in fact.places.nodes:
            own = {each: kept for each, kept in then.items() if each.partition("/")[0] == fact.tenant}
            others = {each: kept for each, kept in then.items() if each not in own}
            left = self.caches.node_bytes - sum(size for size, _ in others.values())
            own[key] = fact.places.size_bytes, self.ts
            then = others | _keep_within(own, sorted(own, key=lambda each: (-own[each][1], each != key, each)), left)
        size, used = has.get(key, (0, 0))
        is_same = then.keys() == has.keys() and then.get(key, (0, 0))[0] == size
        return None if is_same and then.get(key, (0, 0))[1] - used < HOUR_MS else then

    def _is_there(self, name: str) -> bool:
        return name in self.nodes and not self.nodes[name].gone


def _keep_within(has: OnNode, order: Iterable[str], most: int) -> OnNode:
    """Data sets that fit into so many bytes, in that order."""
    found: OnNode = {}
    for key in order:
        if has[key][0] <= most:
            most -= has[key][0]
            found[key] = has[key]
    return found
