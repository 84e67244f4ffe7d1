"""
The protocol through what the committer itself decides by: the state's mix, `FreeCapacity`, `place_gang`, learnt prices.

`pack` replays on compiled arrays, `--services` through whole services; this is between the two: the committer's own
placement and the learner of the service that looks after capacity, without messages. Prices are asked for when the mix
has settled and are taken `late` arrivals after that, if they still belong to it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tessera.client.outcomes import Exit, Failure
from tessera.domain.fold import apply_record
from tessera.domain.gang import Gang, gang_of
from tessera.domain.mix import see
from tessera.domain.resources import Need, Node, RoleNeed, empty_node
from tessera.domain.state import State
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.pricing.learner import learnt
from tessera.engine.pricing.policies import DEFAULT
from tessera.engine.pricing.pricing_problem import Lesson, lesson_of
from tessera.engine.scoring.policies import taste_of
from tessera.lab.pack.protocol import LOAD_PERCENT, MOST_PODS_PER_NODE, arrivals, curve, load_percent, node_order
from tessera.lab.pack.replay import RefusedThoughItFits
from tessera.lab.traces.alibaba import WHOLE, Trace, TracePod
from tessera.reclamation.prices.decide import FROM_ARRIVALS, fact_of
from tessera.scheduler.decide.prices import why_not
from tessera_schemas.config import Config, ConfigBody, Policy, Queue, Tenant
from tessera_schemas.facts import NodeSeen, PricesLearnt
from tessera_schemas.ledger import MixPriced, TakenFact
from tessera_schemas.reasons import Reason

POOL = "default"
MIB = 2**20
HOW = ("rehearsed", "auction", "nobody")
Learn = Callable[[Lesson], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class LiveRun:
    """
    One run; `allocated_…` are per cent of the cluster's GPUs when so many per cent of them have been asked for.
    `priced` says how often prices came into force.
    """

    trace: str
    policy: str
    learnt_by: str
    late: int
    seed: int
    arrivals: int
    dropped: int
    allocated_100: float
    allocated_130: float
    priced: int


def live(
    trace: Trace, policy: str, seed: int, learnt_by: str = HOW[0], late: int = 0, learn: Learn = learnt
) -> LiveRun:
    """Fill the cluster once, as the committer would. `learnt_by` is one of `HOW`. Raises RefusedThoughItFits."""
    learnt_by = learnt_by if policy == DEFAULT else HOW[-1]
    state, teacher = _cluster(trace, policy, seed), _Teacher(learnt_by, late, learn)
    asked = np.array([pod.total_gpu_milli for pod in trace.pods], np.int64)
    order = arrivals(asked.tolist(), seed, trace.gpu_milli)
    asked, placed = asked[order], np.zeros(len(order), bool)
    room = FreeCapacity(list(state.nodes.values()), taste=taste_of(state, POOL))
    for number, at in enumerate(order.tolist()):
        gang = gang_for(trace.pods[at])
        see(state.seen, state.mixes, state.nodes, POOL, gang)
        teacher.look(state)
        taste = taste_of(state, POOL)
        if taste is not room.places.taste:
            room = FreeCapacity(list(room.nodes.values()), taste=taste)
        placed[number] = not isinstance(room.place(gang), Reason)
        if not placed[number] and any(has_room(node, trace.pods[at]) for node in room.nodes.values()):
            raise RefusedThoughItFits(f"{policy}, seed {seed}, arrival {number}: dropped, but a node has room for it")
    used = curve(load_percent(asked, trace.gpu_milli), np.cumsum(np.where(placed, asked, 0)) / trace.gpu_milli)
    return LiveRun(
        trace=trace.name,
        policy=policy,
        learnt_by=learnt_by,
        late=late,
        seed=seed,
        arrivals=len(order),
        dropped=int((~placed).sum()),
        allocated_100=round(float(100 * used[100]), 4),
        allocated_130=round(float(100 * used[LOAD_PERCENT]), 4),
        priced=teacher.priced,
    )


class _Teacher:
    """Learns at each settlement, and says what it learnt `late` arrivals after it."""

    def __init__(self, learnt_by: str, late: int, learn: Learn) -> None:
        self._rehearsed, self._late, self._learn = learnt_by == HOW[0], late, learn
        self._asked, self._said = (0, 0) if learnt_by != HOW[-1] else (1 << 30, 0)
        self._waiting: PricesLearnt | None = None
        self.priced = 0

    def look(self, state: State) -> None:
        """Called once for each arrival, after it was counted."""
        mix = state.mixes.get(POOL)
        if mix is not None and mix.settled > self._asked and mix.arrivals >= FROM_ARRIVALS:
            self._asked, self._said = mix.settled, mix.arrivals + self._late
            self._waiting = self._fact(state)
        fact = self._waiting
        if mix is None or fact is None or mix.arrivals < self._said:
            return
        self._waiting = None
        if why_not(mix, fact) is None:
            self.priced += 1
            taken = TakenFact(seq=1, service="reclamation", fact=fact)
            apply_record(state, MixPriced(kind="mix_priced", fact=0, pool=POOL), (taken,))

    def _fact(self, state: State) -> PricesLearnt | None:
        mix = state.mixes.get(POOL)
        lesson = lesson_of(mix, state.nodes.values(), self._rehearsed) if mix is not None else None
        if mix is None or lesson is None:
            return None
        return fact_of(POOL, mix.settled, state.n, lesson, self._learn(lesson))


def _cluster(trace: Trace, policy: str, seed: int) -> State:
    state = State()
    state.set_config(
        Config(
            version=1,
            body=ConfigBody(
                tenants=(Tenant(name="trace"),),
                queues=(Queue(name="trace"),),
                policy=Policy.model_validate({"placement": policy}),
            ),
        )
    )
    for node in nodes_of(trace, seed):
        state.put_node(node)
    return state


def nodes_of(trace: Trace, seed: int) -> list[Node]:
    """The trace's nodes with nothing on them; their names carry the run's order, which decides between equals."""
    places, found = node_order(len(trace.nodes), seed).tolist(), []
    for node, place in sorted(zip(trace.nodes, places, strict=True), key=lambda pair: pair[1]):
        seen = NodeSeen(
            kind="node_seen",
            name=f"node-{place:05d}",
            pool=POOL,
            cpu_milli=node.cpu_milli,
            memory_bytes=node.memory_mib * MIB,
            pods=MOST_PODS_PER_NODE,
            gpus=node.gpus,
            gpu_model=node.model,
            device_profile="plugin",
        )
        found.append(empty_node(seen))
    return found


def has_room(node: Node, pod: TracePod) -> bool:
    """Whether the node could take the pod: a second look, written apart from the engine's, as the protocol asks."""
    if pod.models and node.gpu_model not in pod.models:
        return False
    if pod.cpu_milli > node.cpu_free or pod.memory_mib * MIB > node.memory_free or node.pods_free < 1:
        return False
    return sum(left >= (pod.gpu_milli or WHOLE) for left in node.gpu_free) >= pod.gpus


def gang_for(pod: TracePod) -> Gang:
    """A gang of one pod that asks for what the trace's pod does."""
    share = pod.gpus == 1 and pod.gpu_milli < WHOLE
    gpus, milli = (0, pod.gpu_milli) if share else (pod.gpus, 0)
    return gang_of((RoleNeed("pod", 1, Need(pod.cpu_milli, pod.memory_mib * MIB, gpus, milli, pod.models)),))


def parse_how(text: str) -> str:
    if text not in HOW:
        raise Failure(Exit.USAGE, f"lab: prices are learnt by {', '.join(HOW)}, not by {text!r}")
    return text


def lines_of(runs: Sequence[LiveRun], separator: str = "") -> list[str]:
    """A table, or with a separator a file of such values."""
    head = tuple(LiveRun.__slots__)
    rows = [tuple(str(getattr(run, name)) for name in head) for run in runs]
    if separator:
        return [separator.join(row) for row in (head, *rows)]
    return ["".join(f"{value:>14}" for value in row) for row in (head, *rows)]
