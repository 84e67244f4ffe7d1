"""
Jobs of the trace that read data sets: bytes that their nodes have to read, with and without a regard for where data is.

Each job reads one of some data sets, drawn by a popularity as of Zipf's law: the r-th has a weight of 1/r^0.8, within
what Breslau et al. found of requests (Web Caching and Zipf-like Distributions, INFOCOM 1999: exponents of 0.64 to
0.83). Sizes are drawn evenly by their logarithms. Both ways the same caches are played beside the engine, and jobs run
as long as the trace says, so that nearness gains nothing for waits.

    python -m tessera_lab.queue.data_near --gpus 576 --first-day 27 --last-day 34 --seed 1

With `--rack 8`, eight nodes each read from each other's caches.
"""

import argparse
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tessera_lab.queue.configured import config_of
from tessera_lab.queue.live import LiveEngine, node_seen
from tessera_lab.queue.replay import replay
from tessera_lab.traces.philly import DAY_S, TraceJob, read_jobs
from tessera_schemas.cluster.pools import DataCaches
from tessera_schemas.config import Level
from tessera_schemas.facts import AnyFact, ConfigProposed, JobAdmitted
from tessera_schemas.job import DatasetHint
from tessera_schemas.ledger import Allocated, AnyRecord
from tessera_schemas.shard.orders import Order

EXPONENT = 0.8
SMALLEST, LARGEST = 20 * 10**9, 10**12
GB = 10**9
RACK = Level(name="rack", label="example.com/rack")


@dataclass
class PlayedCaches:
    """
    Least recently used data sets of each rack of so many nodes, beside the engine and without it.

    `read` and `asked` are bytes.
    """

    node_bytes: int
    rack: int = 1
    read: int = 0
    asked: int = 0
    kept: dict[str, OrderedDict[str, int]] = field(default_factory=dict)

    def use(self, node: str, data: DatasetHint) -> None:
        """A run on the node reads the data."""
        there = self.kept.setdefault(rack_of(node, self.rack), OrderedDict())
        self.asked += data.size_bytes
        if there.pop(data.name, None) is None:
            self.read += data.size_bytes
        there[data.name] = data.size_bytes
        while sum(there.values()) > self.node_bytes * self.rack:
            there.popitem(last=False)


def rack_of(node: str, rack: int) -> str:
    """Rack of a node, by its number; itself in racks of one."""
    return node if rack == 1 else f"rack-{int(node.rpartition('-')[2]) // rack}"


class ReadingEngine(LiveEngine):
    """The engine, each job of which reads a data set, by these rules."""

    def __init__(
        self, policy: str, sizes: Sequence[int], data: dict[int, DatasetHint], rules: DataCaches, rack: int = 1
    ) -> None:
        self._data, self.caches = data, PlayedCaches(rules.node_bytes, rack)
        super().__init__(policy, sizes, ())
        body = config_of(policy)
        shared = rules.model_copy(update={"level": RACK.name if rack > 1 else None})
        changed = {"data_caches": shared, "placement": "tessera"}
        body = body.model_copy(update={"policy": body.policy.model_copy(update=changed), "topology": (RACK,)})
        self._commit(0, [ConfigProposed(kind="config_proposed", expected_version=1, body=body)])
        nodes = [node_seen(at, gpus) for at, gpus in enumerate(sizes)] if rack > 1 else []
        labels = [{"labels": {RACK.label: rack_of(node.name, rack)}} for node in nodes]
        self._commit(0, [node.model_copy(update=more) for node, more in zip(nodes, labels, strict=True)])

    def arrived(self, job: TraceJob) -> None:
        """As for any job, which reads its data set besides."""
        super().arrived(job)
        fact = self._facts[-1]
        assert isinstance(fact, JobAdmitted)
        spec = fact.spec.model_copy(update={"datasets": (self._data[job.line],)})
        self._facts[-1] = fact.model_copy(update={"spec": spec})

    def _commit(
        self, ts: int, facts: Iterable[AnyFact], fresh: Sequence[Order] = (), holder: str = ""
    ) -> tuple[AnyRecord, ...]:
        records = super()._commit(ts, facts, fresh, holder)
        for record in records:
            if isinstance(record, Allocated):
                for node in dict.fromkeys(place.node for place in record.placements):
                    self.caches.use(node, self._data[self._lines[record.job_id]])
        return records


def drawn_datasets(jobs: Sequence[TraceJob], count: int, seed: int) -> dict[int, DatasetHint]:
    """The data set of each job, by its line."""
    draw = Random(seed)
    sizes = [round(SMALLEST * (LARGEST / SMALLEST) ** draw.random()) for _ in range(count)]
    weights = [1 / (rank + 1) ** EXPONENT for rank in range(count)]
    chosen = draw.choices(range(count), weights, k=len(jobs))
    return {
        job.line: DatasetHint(name=f"data-{at}", size_bytes=sizes[at]) for job, at in zip(jobs, chosen, strict=True)
    }


def first_reads(data: Mapping[int, DatasetHint]) -> int:
    """Bytes that no choice of nodes can save: each data set is read once at least."""
    return sum({each.name: each.size_bytes for each in data.values()}.values())


def main() -> None:
    """Replays the days in each way and prints what was read, and the least that could be."""
    said = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = DataCaches()
    numbers = {"gpus": 576, "first-day": 27, "last-day": 34, "datasets": 200, "seed": 1, "rack": 1}
    numbers |= {"rate": usual.read_bytes_per_second, "node-bytes": usual.node_bytes, "percent": usual.wait_percent}
    for name, value in numbers.items():
        said.add_argument(f"--{name}", type=int, default=value)
    wanted = said.parse_args()
    jobs = read_jobs(os.environ, Path.cwd())
    jobs = tuple(job for job in jobs if wanted.first_day * DAY_S <= job.submit_s < wanted.last_day * DAY_S)
    data = drawn_datasets(jobs, wanted.datasets, wanted.seed)
    for name, rate, percent in (
        ("anywhere", 0, 0),
        ("near", wanted.rate, 0),
        ("near or wait", wanted.rate, wanted.percent),
    ):
        rules = DataCaches(node_bytes=wanted.node_bytes, read_bytes_per_second=rate, wait_percent=percent)
        engine = ReadingEngine("expected", [8] * (wanted.gpus // 8), data, rules, wanted.rack)
        waits, caches = replay(jobs, engine, wakes=engine.next_wait_s), engine.caches
        print(
            f"{name:>12}: {len(jobs)} jobs, {caches.read // GB:,} GB read of {caches.asked // GB:,} GB asked for "
            f"({caches.read / caches.asked:.1%}; first reads {first_reads(data) / caches.asked:.1%}), "
            f"mean wait {sum(waits) / len(waits):,.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
