"""How often each fault, crash point and phase edge was reached; a zero is a hole in the simulation."""

from collections import Counter
from collections.abc import Iterable

from tessera.domain.phases import LEGAL
from tessera_schemas.ledger import AnyRecord
from tessera_schemas.subjects import SERVICES

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
    "store wiped",
)
CRASH_POINTS: dict[str, tuple[str, ...]] = {
    "admission": ("publish fact", "ack submit"),
    "queueing": ("publish order", "follow ledger"),
    "scheduler": ("publish ledger", "follow fact", "follow order", "publish lease"),
    "binder": ("create", "bind", "delete", "patch", "publish fact", "follow ledger"),
    "reclamation": ("list", "publish fact", "follow ledger"),
    "projection": ("publish events", "apply", "publish snap", "follow ledger"),
}
"""The calls at which each service must have died, before their effect and after it; chance adds others."""

NAMED_POINTS = tuple(
    f"{service} {when} {call}"
    for service, calls in CRASH_POINTS.items()
    for call in calls
    for when in ("before", "after")
)
EDGES = tuple(f"{phase.value} -> {to.value}" for phase, nexts in LEGAL.items() for to in sorted(nexts))


class Coverage:
    """Counts of one run, or summed over many."""

    def __init__(self) -> None:
        self.faults: Counter[str] = Counter(dict.fromkeys(FAULTS, 0))
        self.crashes: Counter[str] = Counter(dict.fromkeys(SERVICES, 0))
        self.crash_points: Counter[str] = Counter(dict.fromkeys(NAMED_POINTS, 0))
        self.edges: Counter[str] = Counter(dict.fromkeys(EDGES, 0))
        self.records: Counter[str] = Counter()

    def fault(self, name: str) -> None:
        self.faults[name] += 1

    def crash(self, point: str) -> None:
        self.crashes[point.split(" ")[0]] += 1
        self.crash_points[point] += 1

    def edge(self, now: str, to: str) -> None:
        self.edges[f"{now} -> {to}"] += 1

    def record(self, record: AnyRecord) -> None:
        self.records[record.kind] += 1

    def add(self, other: "Coverage") -> None:
        for name in ("faults", "crashes", "crash_points", "edges", "records"):
            getattr(self, name).update(getattr(other, name))

    def holes(self) -> list[str]:
        """What was never reached."""
        return [
            f"{kind}: {name}"
            for kind, counter in (
                ("fault", self.faults),
                ("crash point", self.crash_points),
                ("phase edge", self.edges),
            )
            for name, count in counter.items()
            if count == 0
        ]

    def lines(self) -> Iterable[str]:
        """The table that a run prints."""
        for title, counter in (
            ("faults", self.faults),
            ("crashes", self.crashes),
            ("phase edges", self.edges),
            ("records", self.records),
            ("crash points", self.crash_points),
        ):
            yield f"{title}:"
            for name, count in sorted(counter.items(), key=lambda item: (-item[1], item[0])):
                yield f"  {count:>9,}  {name}"
