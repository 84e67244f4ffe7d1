"""
Cost of a decision, of an order and of a verdict of admission where hundreds of different jobs wait before many nodes.

Nodes are partly taken by others, so that they are in several hundred states, and stand in racks of 16. Everything runs
in this process: the real decision on a real state, without servers.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import process_time

from tessera.admission.decide.policy import Pools
from tessera.domain.devices.resources import role_need
from tessera.domain.work.gang import gang_of
from tessera.scheduler.decide import decide
from tessera_lab.bench.alone.ledgers import BareCommitter, admitted, started
from tessera_lab.bench.report import ReportRow
from tessera_lab.bench.together.platform import GIB, GPUS_PER_NODE, QUEUE
from tessera_schemas.facts import NodeSeen, Others
from tessera_schemas.job import JobSpec, Resources, Role, Template, Topology

KINDS = 512
FITTING_KINDS = 200
PER_RACK = 16
HOUR_MS = 3_600_000
RACK = "topology.kubernetes.io/rack"
VAIN_NODES, VAIN_PODS = 400, 900
CHANGES = 20
"""Messages of which each changes one node."""


async def kinds(rounds: int, sizes: Sequence[int] = (1_000, 10_000)) -> list[ReportRow]:
    """The rows of each cluster size; the floor is one kind in place of hundreds, in the same round."""
    return [row for nodes in sizes for row in _rows(nodes, rounds)]


def _rows(nodes: int, rounds: int) -> Iterator[ReportRow]:
    few = nodes <= 1_000
    waiting = f"{KINDS} kinds of 5x8 GPUs wait, none fits, {nodes:,} nodes: "
    fitting = f"{KINDS} one-GPU jobs of {FITTING_KINDS} kinds that fit, {nodes:,} nodes: per pod"
    for where, level in (("", ""), (" within a rack", RACK)):
        first = partial(first_ms, nodes, level=level)
        yield _row(waiting + "first decision" + where, "ms", 100 if few else 300, first, KINDS, rounds)
        later = partial(later_ms, nodes, level=level)
        yield _row(waiting + "after a node changed" + where, "ms", 5 if few else 10, later, KINDS, rounds)
    yield _row(
        f"admission's look at the nodes, {nodes:,}: per new kind", "ms", 1, partial(admitting_ms, nodes), KINDS, rounds
    )
    vain = f"{KINDS} kinds of gangs in their own way, {VAIN_NODES} nodes: a decision, after a node changed"
    if few:
        yield _row(vain, "ms", 500, in_vain_ms, KINDS, rounds)
    growing = f"{KINDS} elastic runs that grow at once, {nodes:,} nodes: per run"
    yield _row(growing, "us", 2_000, partial(growing_us, nodes), KINDS, rounds)
    yield _row(fitting, "us", 100 if few else 150, partial(placing_us, nodes), FITTING_KINDS, rounds)


def _row(what: str, unit: str, most: int, measure: Callable[[int], float], many: int, rounds: int) -> ReportRow:
    pairs = [(measure(1), measure(many)) for _ in range(rounds)]
    floors, found = zip(*pairs, strict=True)
    floor = "one job alone" if "elastic" in what else "as many jobs of one kind"
    return ReportRow(what, unit, f"at most {most}", found, floor, floors)


def seen(number: int, cpu: int = 0) -> NodeSeen:
    """A node of which others have some GPUs and CPU: only the first two of a rack are empty, and of four racks."""
    taken = 0 if number % PER_RACK < 2 and number // PER_RACK < 2 else 1 + number % 7
    return NodeSeen(
        kind="node_seen",
        name=f"gpu-{number:05}",
        device_profile="plugin",
        cpu_milli=96_000,
        memory_bytes=768 * GIB,
        pods=110,
        gpus=GPUS_PER_NODE,
        labels={RACK: f"rack-{number // PER_RACK:04}"},
        others=Others(cpu_milli=(number % 53) * 1_000 + cpu, gpus=taken),
    )


def spec(kind: int, replicas: int, gpus: int, level: str = "") -> JobSpec:
    asked = Resources(cpu_milli=1000 + kind, memory_bytes=GIB, gpus=gpus)
    topology = Topology(level=level) if level else None
    role = Role(
        name="worker", replicas=replicas, resources=asked, template=Template(image="train:1"), topology=topology
    )
    return JobSpec(name="load", queue=QUEUE, roles=(role,))


def cluster(nodes: int) -> BareCommitter:
    books = BareCommitter(0)
    for first in range(0, nodes, 256):
        books.commit([seen(number) for number in range(first, min(first + 256, nodes))])
    return books


def waiting(nodes: int, many: int, level: str) -> BareCommitter:
    """A cluster before which gangs of that many kinds wait, none of which fits."""
    books = cluster(nodes)
    for first in range(0, KINDS, 256):
        books.commit([admitted(f"k{i}", spec(i % many, 5, 8, level)) for i in range(first, first + 256)])
    return books


def first_ms(nodes: int, many: int, level: str = "") -> float:
    """`decide` alone, for the message that tells each of them why it waits."""
    return decide_ms(waiting(nodes, many, level), line=True)


def later_ms(nodes: int, many: int, level: str = "") -> float:
    """`decide` alone, on average of messages of which each changes one node."""
    books = waiting(nodes, many, level)
    books.commit(line=True)
    return sum(decide_ms(books, seen(7 * i, 100 + i)) for i in range(CHANGES)) / CHANGES


def decide_ms(books: BareCommitter, *facts: NodeSeen, line: bool = False) -> float:
    inputs = books.inputs(facts, line=line)
    began = process_time()
    decide(books.shard.state, inputs, books.capacity)
    took = process_time() - began
    books.commit(facts, line=line)
    return took * 1000


def in_vain_ms(many: int) -> float:
    """
    `decide` alone, where each of two roles of 900 pods has room, and both have not: only a search refuses such a gang.
    """
    books = BareCommitter(0)
    for first in range(0, VAIN_NODES, 256):
        free = [seen(number) for number in range(first, min(first + 256, VAIN_NODES))]
        books.commit([node.model_copy(update={"others": Others(cpu_milli=node.others.cpu_milli)}) for node in free])
    for first in range(0, KINDS, 256):
        books.commit([admitted(f"k{i}", _in_its_own_way(i % many)) for i in range(first, first + 256)])
    books.commit(line=True)
    return sum(decide_ms(books, seen(7 * i, 100 + i)) for i in range(3)) / 3


def _in_its_own_way(kind: int) -> JobSpec:
    def half(name: str, gpus: int) -> Role:
        asked = Resources(cpu_milli=20_000 + kind, memory_bytes=GIB, gpus=gpus)
        return Role(name=name, replicas=VAIN_PODS, resources=asked, template=Template(image="train:1"))

    return JobSpec(name="load", queue=QUEUE, roles=(half("a", 1), half("b", 0)))


def growing_us(nodes: int, many: int) -> float:
    """`decide` alone, for a message in which each of so many runs becomes larger by a pod."""
    books = cluster(nodes)
    role = spec(0, 1, 1).roles[0].model_copy(update={"max_replicas": 2})
    elastic = JobSpec(name="load", queue=QUEUE, roles=(role,))
    for first in range(0, many, 256):
        books.commit([admitted(f"k{i}", elastic) for i in range(first, min(first + 256, many))])
    started(books, books.commit(line=True))
    inputs = books.inputs(ms=HOUR_MS)
    began = process_time()
    records = decide(books.shard.state, inputs, books.capacity).records
    took = process_time() - began
    return took * 1e6 / sum(record.kind == "grown" for record in records)


def admitting_ms(nodes: int, many: int) -> float:
    """The question whether any node could ever hold a job, per kind that is new, once the nodes were asked about."""
    state = cluster(nodes).shard.state
    pools = Pools(state.nodes.values())
    gangs = [gang_of(tuple(map(role_need, spec(kind, 5, 8).roles))) for kind in range(many + 1)]
    pools.inadmissible(state.tree, QUEUE, ("",), gangs[0])
    began = process_time()
    for gang in gangs[1:]:
        pools.inadmissible(state.tree, QUEUE, ("",), gang)
    return (process_time() - began) * 1000 / many


def placing_us(nodes: int, many: int) -> float:
    """`decide` alone, per pod of 512 jobs that all start in one message."""
    books = cluster(nodes)
    for first in range(0, KINDS, 256):
        books.commit([admitted(f"k{i}", spec(i % many, 1, 1)) for i in range(first, first + 256)])
    inputs = books.inputs(line=True)
    began = process_time()
    records = decide(books.shard.state, inputs, books.capacity).records
    took = process_time() - began
    return took * 1e6 / sum(record.kind == "allocated" for record in records)
