"""
Cost of an order of 512 of 5,000 waiting jobs as tenants, kinds, queues and levels grow, and of a start before kinds.

CPU time in this process, without servers. Between two orders one job comes and one run goes.
"""

from collections.abc import Iterator
from time import process_time

from tessera.queueing.decide import OrderCache, order
from tessera.scheduler.decide import decide
from tessera_lab.bench.alone.ledgers import POOL, BareCommitter, absent, admitted, ended, started
from tessera_lab.bench.report import ReportRow
from tessera_lab.bench.together.platform import GIB
from tessera_schemas.base import job_id
from tessera_schemas.config import ConfigBody, Limits, Queue, Tenant
from tessera_schemas.facts import ConfigProposed, JobAdmitted
from tessera_schemas.job import JobSpec, Resources, Role, Template

NODES, WAITING, CHANGES = 40, 5_000, 10
GPUS = 8 * NODES
SIZES = {"tenants": (100, 1_000), "kinds": (100, 1_000), "queues": (100, 1_000), "levels": (3, 30)}


async def growing_orders(rounds: int) -> list[ReportRow]:
    return [row for what, sizes in SIZES.items() for size in sizes for row in _rows(what, size, rounds)]


def _rows(what: str, size: int, rounds: int) -> Iterator[ReportRow]:
    pairs = [(WaitingLine().costs(), WaitingLine(**{what: size}).costs()) for _ in range(rounds)]
    for at, (name, unit, most) in enumerate((("an order of 512", "ms", "8"), ("a started job", "ms", "1.5"))):
        if at == 0 or what == "kinds":
            found, floors = tuple(pair[1][at] for pair in pairs), tuple(pair[0][at] for pair in pairs)
            waiting = f"{name}, {WAITING:,} jobs of {size:,} {what} wait"
            yield ReportRow(waiting, unit, f"at most {most}", found, "one of each", floors)


class WaitingLine:
    def __init__(self, tenants: int = 1, kinds: int = 1, queues: int = 1, levels: int = 1) -> None:
        self._books, self._many, self._next = BareCommitter(NODES), (tenants, kinds, queues), 0
        above = [Queue(name=f"a{level}", parent=f"a{level - 1}" if level else None) for level in range(levels - 1)]
        leaves = [Queue(name=f"q{i}", parent=above[-1].name if above else None) for i in range(queues)]
        names = [Tenant(name=f"t{i}", limits=Limits(jobs=None)) for i in range(tenants)]
        body = ConfigBody(tenants=tuple(names), queues=(*above, *leaves))
        self._books.commit([ConfigProposed(kind="config_proposed", expected_version=1, body=body)])
        self._known, self._runs = OrderCache(), list[str]()
        self._submit(GPUS + WAITING)
        while len(self._runs) < GPUS:
            self._runs += started(self._books, self._books.commit(line=True))
        self._books.commit(line=True)

    def costs(self) -> tuple[float, float]:
        orders, starts, state = list[float](), list[float](), self._books.shard.state
        for _ in range(CHANGES):
            self._submit(1)
            self._books.commit(ended(leaving := [self._runs.pop(0)]))
            facts, began = absent(leaving), process_time()
            order(state, POOL, state.ts + 1, self._known)
            orders.append(process_time() - began)
            inputs, began = self._books.inputs(facts, line=True), process_time()
            decide(state, inputs, self._books.capacity)
            starts.append(process_time() - began)
            self._runs += started(self._books, self._books.commit(facts, line=True))
        return sorted(orders)[CHANGES // 2] * 1000, sorted(starts)[CHANGES // 2] * 1000

    def _submit(self, jobs: int) -> None:
        for first in range(0, jobs, 256):
            self._books.commit([self._job() for _ in range(min(256, jobs - first))])

    def _job(self) -> JobAdmitted:
        number, (tenants, kinds, queues) = self._next, self._many
        self._next += 1
        asked = Resources(cpu_milli=1000 + number % kinds, memory_bytes=GIB, gpus=1)
        role = Role(name="worker", replicas=1, resources=asked, template=Template(image="train:1"))
        spec = JobSpec(name="load", queue=f"q{number % queues}", roles=(role,))
        tenant, key = f"t{number % tenants}", f"o{number}"
        fact = admitted(key, spec)
        return fact.model_copy(update={"tenant": tenant, "job_id": job_id("main", tenant, key)})
