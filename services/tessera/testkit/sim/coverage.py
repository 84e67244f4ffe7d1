"""Counts of how often each fault, crash point, phase edge, fact, record and reason was reached; a zero is a hole."""

from collections import Counter
from collections.abc import Iterable, Iterator

from tessera.domain.work.phases import LEGAL
from tessera.testkit.sim.devices.parks import PARKS, rows_of
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import ENDED_PHASES, EVICT_AT_ANNOTATION
from tessera_schemas.documents.registry import kind_of
from tessera_schemas.facts import FACTS as FACT_TYPES
from tessera_schemas.facts import AnyFact
from tessera_schemas.ledger import RECORDS as RECORD_TYPES
from tessera_schemas.ledger import Allocated, AnyRecord, LedgerMessage, Released, Revoked
from tessera_schemas.reasons import Code
from tessera_schemas.shard.services import SERVICES, SPECS

FAULTS = (
    "request lost",
    "answer lost",
    "late publish",
    "zombie append",
    "delay",
    "drop",
    "repeat",
    "reorder",
    "partition",
    "clock jump",
    "stale committer",
    "api error",
    "watch expired",
    "pod deleted",
    "pod vanished",
    "node unreachable",
    "nodes unreachable together",
    "node cordoned",
    "node shrunk",
    "pods do not stop",
    "device broken",
    "device plugins away",
    "node out of service",
    "node removed",
    "foreign pod",
    "store wiped",
    "plan by chance",
    "idleness by chance",
    "use by chance",
    "prices by chance",
    "roll-over",
    "pod evicted",
    "node tainted",
    "node shut down",
    "node rebooted",
    "node under pressure",
    "node refuses pods",
    "device plugin away",
    "gpu unhealthy",
    "node prepares nothing",
    "node starts nothing",
    "image not pulled",
    "creates forbidden",
    "node stops nothing",
    "driver restarted",
    "slices in parts",
    "driver lied",
    "device lost",
    "device tainted",
    "device taken by others",
    "network moved",
    "decision undercut",
    "longest names",
    "too many devices",
    "zones gone",
    "zone shrunk",
    "zones not kept",
    "slow start",
    "end in the notice",
    "node turned off",
    "sick node turned off",
)
SIMULATED = tuple(spec.name for spec in SPECS if not (spec.serves_http or spec.calls_out))
"""The services that meet others in the streams alone, and so can be simulated."""
_NAMED: dict[str, tuple[str, ...]] = {
    "admission": ("publish fact", "ack submit"),
    "queueing": ("publish order", "follow ledger"),
    "scheduler": ("publish ledger", "follow fact", "follow order", "publish lease"),
    "binder": ("create", "bind", "delete", "patch", "publish fact", "follow ledger"),
    "preemption": ("publish fact", "follow ledger"),
    "reclamation": ("list", "publish fact", "follow ledger"),
    "projection": ("publish events", "apply", "publish snap", "follow ledger"),
}
CRASH_POINTS = _NAMED | {name: ("publish fact", "follow ledger") for name in SIMULATED if name not in _NAMED}
"""The calls at which each service must have died, before their effect and after it; chance adds others."""

NAMED_POINTS = tuple(
    f"{service} {when} {call}"
    for service, calls in CRASH_POINTS.items()
    for call in calls
    for when in ("before", "after")
)
NODES = tuple(row.name for park in PARKS for row in rows_of(park))
"""Further nodes of which each must have been given to a run."""
EDGES = tuple(f"{phase.value} -> {to.value}" for phase, nexts in LEGAL.items() for to in sorted(nexts))

UNREACHABLE = (
    "pods_found",
    "pods_taken_over",
    "health_seen",
)
"""Kinds that follow from a ledger restored to an older end, or from counters of GPUs: no simulation has these."""
FACTS = tuple(kind for model in FACT_TYPES if (kind := kind_of(model)) not in UNREACHABLE)
PARTS = {"gang": "released: pods of a gang before their run", "beyond": "released: pods beyond a gang"}
RULED = {"requeue": "revoked: again by a rule of the job", "failed": "revoked: for good by a rule of the job"}
RECORDS = (
    *(kind for model in RECORD_TYPES if (kind := kind_of(model)) not in UNREACHABLE),
    *(*PARTS.values(), *RULED.values()),
)
REASONS = (
    Code.NOT_JSON,
    Code.MISSING_FIELD,
    Code.UNKNOWN_VERSION,
    Code.EXCEEDS_MAX_QUOTA,
    Code.INADMISSIBLE,
    Code.IDEMPOTENCY_CONFLICT,
    Code.CONFIG_CONFLICT,
    Code.NO_SUCH_JOB,
    Code.WAITING_FOR_TURN,
    Code.WAITING_FOR_QUOTA,
    Code.NO_NODES,
    Code.NO_FIT,
    Code.ON_HOLD,
    Code.BEGIN_TIME,
    Code.DEPENDENCY_NOT_MET,
    Code.DEPENDENCY_NEVER_SATISFIED,
    Code.DEADLINE_MISSED,
    Code.RESERVATION_BEGINS,
    Code.RESERVATION_OVER,
    Code.NODES_BOOKED,
    Code.WAITING_FOR_WINDOW,
    Code.TARGET_NOT_RUNNING,
    Code.TARGET_ENDED,
    Code.ARRAY_TASKS,
    Code.TASKS_FAILED,
    Code.QUEUE_STOPPED,
    Code.BUDGET_SPENT,
    Code.BEHIND_QUEUE_HEAD,
    Code.WAITING_FOR_PREEMPTED,
    Code.RESERVED,
    Code.BEHIND_RESERVATION,
    Code.DOES_NOT_STOP,
    Code.VICTIM_GONE,
    Code.PLAN_DOES_NOT_FIT,
    Code.EVICTION_BUDGET_SPENT,
    Code.NOT_WAITING,
    Code.NOT_ALLOWED_BY_PRESET,
    Code.PRICES_OUTDATED,
    Code.PRICES_DO_NOT_FIT,
    Code.CANCELLED,
    Code.REQUEUE_ASKED,
    Code.START_TIMEOUT,
    Code.POD_FAILED,
    Code.POD_DELETED,
    Code.POD_EVICTED,
    Code.IMAGE_NOT_PULLED,
    Code.NODE_RESTARTED,
    Code.NODE_SHUT_DOWN,
    Code.NODE_PRESSURE,
    Code.POD_REFUSED_BY_NODE,
    Code.BIND_REFUSED,
    Code.CLAIM_CONFLICT,
    Code.HELD_AFTER_REQUEUES,
    Code.TIME_LIMIT,
    Code.ATTEMPTS_EXHAUSTED,
    Code.RETRY_TIME_EXHAUSTED,
    Code.PREEMPTED,
    Code.RECLAIMED,
    Code.NODE_LOST,
    Code.NODE_DRAINED,
    Code.NODE_SICK,
    Code.NODE_SHRUNK,
    Code.STOPS_HELD_BACK,
    Code.SHRUNK,
    Code.QUEUE_DRAINED,
    Code.IDLE,
    Code.HUNG,
    Code.PAUSED_AS_IDLE,
    Code.ENDED_AS_IDLE,
    Code.LIMIT_EXCEEDED,
)
"""The reasons that a run of many seeds must have given in its ledgers."""

KINDS = {
    "fault": "faults",
    "node of a park": "nodes",
    "phase edge": "edges",
    "fact": "facts",
    "record": "records",
    "reason": "reasons",
    "crash point": "crash_points",
}
"""Parts that a run may fail to reach, and the counter of each."""


def seen_on(pod: Json) -> Iterator[str]:
    """Acts of programs that no fault makes them do, by its name in `FAULTS`."""
    status, meta = pod["status"], pod["metadata"]
    states = [one["state"] for one in status.get("containerStatuses") or ()]
    if any(state.get("waiting", {}).get("reason") in ("ContainerCreating", "PodInitializing") for state in states):
        yield "slow start"
    told = EVICT_AT_ANNOTATION in (meta.get("annotations") or {}) and "deletionTimestamp" not in meta
    if told and status.get("phase") in ENDED_PHASES and not status.get("reason"):
        yield "end in the notice"


class Coverage:
    """Counts of one run, or summed over many."""

    def __init__(self) -> None:
        self.faults: Counter[str] = Counter(dict.fromkeys(FAULTS, 0))
        self.crashes: Counter[str] = Counter(dict.fromkeys(SERVICES, 0))
        self.crash_points: Counter[str] = Counter(dict.fromkeys(NAMED_POINTS, 0))
        self.nodes: Counter[str] = Counter(dict.fromkeys(NODES, 0))
        self.edges: Counter[str] = Counter(dict.fromkeys(EDGES, 0))
        self.facts: Counter[str] = Counter(dict.fromkeys(FACTS, 0))
        self.records: Counter[str] = Counter(dict.fromkeys(RECORDS, 0))
        self.reasons: Counter[str] = Counter(dict.fromkeys([code.value for code in REASONS], 0))
        self._gangs: dict[str, int] = {}

    def fault(self, name: str) -> None:
        """Counts one fault by its name."""
        self.faults[name] += 1

    def crash(self, point: str) -> None:
        """Counts one crash by its point, and by the service that the point names first."""
        self.crashes[point.split(" ")[0]] += 1
        self.crash_points[point] += 1

    def edge(self, now: str, to: str) -> None:
        """Counts one move of a job from a phase to another."""
        self.edges[f"{now} -> {to}"] += 1

    def record(self, record: AnyRecord) -> None:
        """Also counts what it gives as its reason: a fact's are its records'."""
        self.records[record.kind] += 1
        if isinstance(record, Allocated):
            self._gangs[f"{record.job_id}-{record.attempt}"] = len(record.placements)
            self.nodes.update(place.node for place in record.placements if place.node in self.nodes)
        if isinstance(record, Released) and record.ranks:
            self.records[PARTS["gang" if record.ranks[0] < self._gangs.get(record.run_id, 0) else "beyond"]] += 1
        if isinstance(record, Revoked) and record.rule:
            self.records[RULED[record.then]] += 1
        reason = getattr(record, "reason", None)
        for given in (*getattr(record, "reasons", ()), *([reason] if reason is not None else [])):
            self.reasons[given.code] += 1

    def fact(self, fact: AnyFact) -> None:
        """Counts one fact by its kind, and the reasons that it gives."""
        self.facts[fact.kind] += 1
        for given in getattr(fact, "reasons", ()):
            self.reasons[given.code] += 1

    def message(self, message: LedgerMessage) -> None:
        """Counts the facts and the records of one ledger message."""
        for taken in message.facts:
            self.fact(taken.fact)
        for record in message.records:
            self.record(record)

    def add(self, other: "Coverage") -> None:
        """Adds the counts of another run."""
        for name in (*KINDS.values(), "crashes"):
            getattr(self, name).update(getattr(other, name))

    def holes(self) -> list[str]:
        """Kinds that were never reached."""
        named = ((kind, getattr(self, counter).items()) for kind, counter in KINDS.items())
        return [f"{kind}: {name}" for kind, counts in named for name, count in counts if count == 0]

    def lines(self) -> Iterable[str]:
        """The table that a run prints."""
        for title, counter in (*((f"{kind}s", name) for kind, name in KINDS.items()), ("crashes", "crashes")):
            yield f"{title}:"
            for name, count in sorted(getattr(self, counter).items(), key=lambda item: (-item[1], item[0])):
                yield f"  {count:>9,}  {name}"


class Hundreds:
    """Coverage of many seeds, and of each whole hundred of them: what one hundred misses is a hole, too."""

    def __init__(self, first: int) -> None:
        """`first` is the first seed; the others come in their order."""
        self.seeds, self._first = 0, first
        self._total, self._hundred, self._missed = Coverage(), Coverage(), list[str]()
        self._reached: Counter[str] = Counter()

    def add(self, one: Coverage) -> None:
        """Adds the next seed."""
        self.seeds += 1
        self._total.add(one)
        self._hundred.add(one)
        missed = set(one.holes())
        self._reached.update(kind for kind in _ALL if kind not in missed)
        if self.seeds % 100 == 0:
            begin = self._first + self.seeds - 100
            self._missed += [f"{hole} (seeds {begin} to {begin + 99})" for hole in self._hundred.holes()]
            self._hundred = Coverage()

    def holes(self) -> list[str]:
        """Names that some whole hundred never reached; of fewer seeds, what all of them never reached."""
        return self._missed if self.seeds >= 100 else self._total.holes()

    def lines(self) -> Iterable[str]:
        """The table that a run prints: how often each kind was reached, and by how few seeds the rarest."""
        yield from self._total.lines()
        yield f"rarest, by seeds that reached them of {self.seeds:,}:"
        for kind in sorted(_ALL, key=lambda kind: (self._reached[kind], kind))[:RAREST]:
            yield f"  {self._reached[kind]:>9,}  {kind}"


RAREST = 20
_ALL = tuple(Coverage().holes())
