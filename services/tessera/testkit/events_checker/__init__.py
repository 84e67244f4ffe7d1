"""
The events checker: the public events, as they are stored, against what the ledger says that they must be (I8, I13).

Like the invariant checker it imports the contract and nothing else that decides, and derives the events for itself.
"""

import re
from collections.abc import Iterable, Mapping

from tessera.testkit.checker.report import Report
from tessera.testkit.events_checker.due import Due, due_events
from tessera_schemas.events import CURSOR_HEADER, EVENT_TYPES, CloudEvent, short_type

__all__ = ["Stored", "check_events"]

Stored = tuple[str, Mapping[str, str], bytes]
"""Subject, headers and data of one event."""
ADMITTED = "io.tessera.job.admitted.v1"
JOB_ID = re.compile("(?<![a-z2-7])[a-z2-7]{20}(?![a-z2-7])")
MODELS = {model.type: model for model in EVENT_TYPES}


def check_events(
    report: Report, ledger: Iterable[bytes], stored: Iterable[Stored], *, shard: str = "main", drained: bool = False
) -> None:
    """
    Every event is the one that is due: none lost, none doubled, none invented, each where its tenant reads.

    Args:
        report: what is found goes here, beside what the invariant checker found.
        ledger: the stored bytes of every message, in order, from n = 1.
        stored: the events stream from its beginning.
        drained: everything was given time to end, so that no event may be missing at the end.
    """
    events = _Events(report, shard, due_events(ledger))
    for subject, headers, data in stored:
        report.examined["events"] += 1
        events.take(subject, headers, data)
    event_data = events.seen == len(events.due) or not drained
    report.demand(event_data, "I8", 0, f"the events end after {events.seen} of {len(events.due)}")


class _Events:
    """Takes stored events in order; `seen` is how many of the ledger's are behind us."""

    def __init__(self, report: Report, shard: str, due: dict[str, Due]) -> None:
        self.report, self.shard, self.due = report, shard, due
        self.cursors = list(due)
        self.place = {cursor: index for index, cursor in enumerate(self.cursors)}
        self.tenants = {entry.event_data["job_id"]: entry.tenant for entry in due.values() if entry.type == ADMITTED}
        self.seen = 0

    def demand(self, holds: bool, invariant: str, cursor: str, text: str) -> bool:
        n = int(cursor.partition(".")[0]) if cursor in self.due else 0
        return self.report.demand(holds, invariant, n, f"event {cursor} {text}")

    def take(self, subject: str, headers: Mapping[str, str], data: bytes) -> None:
        try:
            event = CloudEvent.from_bytes(data)
            said = MODELS[event.type].model_validate(event.data, extra="ignore").model_dump(mode="json")
        except (ValueError, KeyError) as error:
            self.demand(False, "I8", f"on {subject}", f"cannot be read: {error}")
            return
        if not self.demand(event.id in self.due, "I8", event.id, "comes from no record"):
            return
        next_due = self.cursors[self.seen] if self.seen < len(self.cursors) else "nothing"
        self.demand(event.id == next_due, "I8", event.id, f"comes where {next_due} must")
        self.seen = self.place[event.id] + 1
        due = self.due[event.id]
        same = event.type == due.type and all(
            said[name] == due.event_data[name] for name in said.keys() & due.event_data.keys()
        )
        self.demand(same, "I8", event.id, "does not say what its record says")
        self.demand(headers.get(CURSOR_HEADER) == event.id, "I8", event.id, "has another cursor in its header")
        others = {id_ for id_ in JOB_ID.findall(str(event.data)) if self.tenants.get(id_, due.tenant) != due.tenant}
        self.demand(not others, "I13", event.id, f"of tenant {due.tenant} names jobs {sorted(others)} of others")
        own = event.tenant == due.tenant and subject.startswith(f"events.{self.shard}.{due.tenant}.")
        self.demand(own, "I13", event.id, f"of tenant {due.tenant} is on {subject}")
        tail = f".{due.queue}.{short_type(due.type)}"
        self.demand(subject.endswith(tail), "I8", event.id, f"is on {subject}, not on one that ends in {tail}")
