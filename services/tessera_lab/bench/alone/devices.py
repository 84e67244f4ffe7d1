"""
Cost of a decision, and memory of a state, where a driver publishes every GPU with all instances that may be cut of it.

1,000 nodes of 8 GPUs offer 152,000 devices. Jobs claim one instance each, and all of it is by the real decision on a
real fold, without servers: the park empty, half full, and nine tenths full. By itself the module folds a file of ledger
messages, one a line, and prints how much memory its process has then.
"""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ledger.snapshots import chunks_of
from tessera.kernel.ports import Message
from tessera.kernel.process.limits import collect_rarely
from tessera.scheduler.decide import decide
from tessera_lab.bench.alone.instances import GPUS, WHOLE, claim_on, park_facts
from tessera_lab.bench.alone.ledgers import BareCommitter, absent, admitted, ended, started
from tessera_lab.bench.report import ReportRow, percentile
from tessera_lab.bench.together.platform import GIB, QUEUE
from tessera_lab.bench.together.sizing import MIB, resident_bytes
from tessera_schemas.cluster.device_claims import DeviceClaim
from tessera_schemas.job import JobSpec, Resources, Role, Template

FILLED = (0, 50, 90)
"""Per cent of the park's GPUs that are had when decisions are measured."""
DECISIONS = 40
AT_ONCE = 256
PROFILES = (
    *("1g.10gb", "2g.20gb", "1g.10gb", "3g.40gb", "1g.20gb", "1g.10gb", "4g.40gb", "2g.20gb", "7g.80gb", "1g.10gb"),
)
"""What the jobs that fill the park ask for, one after the other."""
MEASURED = ("1g.10gb", "1g.20gb")


async def devices(rounds: int, nodes: int) -> list[ReportRow]:
    """Rows of decisions by how full the park is, beside a tenth of the park as the floor; then one of memory."""
    small, large = Park(nodes // 10), Park(nodes)
    rows = []
    for percent in FILLED:
        for park in (small, large):
            park.fill(percent)
            park.decisions_ms()  # every profile was asked for by then
        rows.append(_row(f"{percent} % full", large, small, rounds, Park.decisions_ms))
    for park in (small, large):
        park.fill_up()
    rows.append(_row("no GPU whole: a whole one is refused", large, small, rounds, Park.refusals_ms))
    return [*rows, _memory(large, small)]


def _row(what: str, large: "Park", small: "Park", rounds: int, measure: Callable[["Park"], list[float]]) -> ReportRow:
    pairs = [(measure(small), measure(large)) for _ in range(rounds)]
    floors, found = ([percentile(each, 50) for each in side] for side in zip(*pairs, strict=True))
    tails, first = [percentile(each, 99) for _, each in pairs], [park.first_ms() for park in (small, large)]
    notes = {
        "p99, ms": {"least": min(tails), "most": max(tails)},
        "first job of a new kind, ms": {"floor": first[0], "all nodes": first[1]},
        "runs": len(large.runs),
    }
    name = f"decision for an instance of a known kind, {large.devices:,} devices, {what}, p50"
    return ReportRow(name, "ms", "at most 5", tuple(found), f"{small.devices:,} devices", tuple(floors), notes)


class Park:
    """Nodes whose driver publishes instances, and the jobs that have some of them."""

    def __init__(self, nodes: int) -> None:
        self.books = BareCommitter(0)
        self.runs: list[str] = []
        self._gpu_milli, self._number, self._kinds = nodes * GPUS * 1000, 0, 0
        self._jobs = (_spec(profile) for profile in cycle(PROFILES))
        for facts in park_facts(nodes):
            self.books.commit(facts)

    @property
    def devices(self) -> int:
        """Number of devices that the nodes publish."""
        nodes = self.books.shard.state.nodes.values()
        return sum(len(node.offer.devices) for node in nodes if node.offer is not None)

    def fill(self, percent: int) -> None:
        """Let jobs come until this part of the GPUs is had."""
        while (lacking := percent * self._gpu_milli // 100 - self._had) > 0:
            # No more at once than it takes, or large ones would wait before all that comes later.
            self._submit(list(islice(self._jobs, min(AT_ONCE, max(1, lacking // 500)))))
            if not self._start():
                raise RuntimeError(f"nothing more fits at {self._had} of {self._gpu_milli} thousandths")

    def fill_up(self) -> None:
        """Let jobs of whole GPUs come until one waits."""
        while True:
            self._submit([_spec(WHOLE)] * AT_ONCE)
            if self._start() < AT_ONCE:
                return

    def decisions_ms(self) -> list[float]:
        """`decide` alone, for messages of which each places a job, whatever waits beside it; one leaves after each."""
        found = list[float]()
        for at in range(2 * DECISIONS):
            took = self._decide_ms(_spec(MEASURED[at % len(MEASURED)]))
            if self._start():
                found.append(took)
            self._end(self.runs.pop(0))
        if len(found) < DECISIONS:
            raise RuntimeError(f"only {len(found)} of {2 * DECISIONS} jobs found a place")
        return found

    def refusals_ms(self) -> list[float]:
        """`decide` alone, for messages of which each tells one job more why it waits, while one leaves after each."""
        found = []
        for _ in range(DECISIONS):
            found.append(self._decide_ms(_spec(WHOLE)))
            self._start()
            self._end(self.runs.pop(0))
            self._start()
        return found

    def first_ms(self) -> float:
        """`decide` alone, for the first job that claims what none before it did."""
        self._kinds += 1
        took = self._decide_ms(_spec("1g.10gb", claim_on("1g.10gb", f"second-{self._kinds}")))
        self._start()
        return took

    def _decide_ms(self, spec: JobSpec) -> float:
        self._submit([spec])
        inputs = self.books.inputs(line=True)
        began = process_time()
        decide(self.books.shard.state, inputs, self.books.capacity)
        return (process_time() - began) * 1000

    def _start(self) -> int:
        """Number of runs that begin by the next message; they have started then."""
        new = started(self.books, self.books.commit(line=True))
        self.runs += new
        return len(new)

    def _end(self, run: str) -> None:
        self.books.commit(ended([run]))
        self.books.commit(absent([run]))

    def resident_mib(self) -> float:
        """Memory of a process that has decoded and folded the ledger, all that it imports included."""
        with TemporaryDirectory() as folder:
            path = Path(folder, "ledger")
            path.write_bytes(b"\n".join(self.books.stored))
            asked = [sys.executable, "-m", "tessera_lab.bench.alone.devices", str(path)]
            done = subprocess.run(asked, check=True, capture_output=True, text=True, env=dict(os.environ))
        return int(done.stdout) / MIB

    def snapshot_mib(self) -> float:
        return sum(map(len, chunks_of(self.books.shard.state))) / MIB

    def _submit(self, specs: Sequence[JobSpec]) -> None:
        self.books.commit([admitted(f"d{self._number + at}", spec) for at, spec in enumerate(specs)])
        self._number += len(specs)

    @property
    def _had(self) -> int:
        """Thousandths of GPUs that jobs have."""
        return sum(len(node.gpu_free) * 1000 - sum(node.gpu_free) for node in self.books.shard.state.nodes.values())


def _memory(large: Park, small: Park) -> ReportRow:
    what = f"memory of a process that folded {large.devices:,} devices and {len(large.runs):,} runs on them"
    ledger = sum(map(len, large.books.stored)) / MIB
    notes = {"snapshot MiB": large.snapshot_mib(), "ledger MiB": ledger}
    floor = (small.resident_mib(),)
    return ReportRow(what, "MiB", "at most 300", (large.resident_mib(),), f"{small.devices:,} devices", floor, notes)


def _spec(profile: str, *more: DeviceClaim) -> JobSpec:
    asked = Resources(cpu_milli=1_000, memory_bytes=GIB, claims=(claim_on(profile), *more))
    role = Role(name="worker", replicas=1, resources=asked, template=Template(image="serve:1"))
    return JobSpec(name="load", queue=QUEUE, roles=(role,))


def main() -> None:
    """Prints the resident bytes of this process after the last message of a file."""
    collect_rarely()
    shard = Shard()
    with Path(sys.argv[1]).open("rb") as lines:
        for n, line in enumerate(lines, 1):
            shard.fold(decode_entry(Message("ledger.main", n, line.rstrip(b"\n"))))
    # As each checkpoint has every follower do: until then a table notes what was written.
    shard.hasher.of(shard.state)
    gc.collect()
    print(resident_bytes(os.getpid()))


if __name__ == "__main__":
    main()
