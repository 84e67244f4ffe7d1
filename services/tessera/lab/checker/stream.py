"""The events stream from its beginning, against what the ledger says that it must be."""

from collections.abc import Iterable, Mapping

from tessera.lab.checker.story import Story
from tessera_schemas.events import CURSOR_HEADER, EVENT_TYPES, CloudEvent, short_type

MODELS = {model.type: model for model in EVENT_TYPES}


def check_events(
    story: Story, shard: str, stored: Iterable[tuple[str, Mapping[str, str], bytes]], drained: bool
) -> None:
    """Every event is the one that is due: none lost, none doubled, none invented, each where its tenant reads."""
    events = Events(story, shard)
    for subject, headers, data in stored:
        story.report.examined["events"] += 1
        events.take(subject, headers, data)
    told = events.seen == len(events.cursors) or not drained
    story.demand(told, "I8", f"the events end after {events.seen} of {len(events.cursors)}")


class Events:
    """Takes stored events in order; `seen` is how many of the ledger's are behind us."""

    def __init__(self, story: Story, shard: str) -> None:
        self.story, self.shard = story, shard
        self.cursors = list(story.expected)
        self.place = {cursor: index for index, cursor in enumerate(self.cursors)}
        self.seen = 0

    def demand(self, holds: bool, invariant: str, cursor: str, text: str) -> bool:
        n = int(cursor.partition(".")[0]) if cursor in self.place else 0
        return self.story.report.demand(holds, invariant, n, f"event {cursor} {text}")

    def take(self, subject: str, headers: Mapping[str, str], data: bytes) -> None:
        try:
            event = CloudEvent.from_bytes(data)
            body = MODELS[event.type].model_validate(event.data, extra="ignore")
        except (ValueError, KeyError) as error:
            self.demand(False, "I8", f"on {subject}", f"cannot be read: {error}")
            return
        if not self.demand(event.id in self.place, "I8", event.id, "comes from no record"):
            return
        due = self.cursors[self.seen] if self.seen < len(self.cursors) else "nothing"
        self.demand(event.id == due, "I8", event.id, f"comes where {due} must")
        self.seen = self.place[event.id] + 1
        type_, tenant, job, attempt, record = self.story.expected[event.id]
        said = body.model_dump(mode="json")
        told = record.model_dump(mode="json")
        must = {name: told[name] for name in said if name in told}
        must |= {"job_id": job.job_id, "name": job.spec.name, "queue": job.spec.queue} if job else {}
        must |= {"attempt": attempt} if "attempt" in said else {}
        same = event.type == type_ and all(said.get(name) == value for name, value in must.items())
        self.demand(same, "I8", event.id, "does not say what its record says")
        self.demand(headers.get(CURSOR_HEADER) == event.id, "I8", event.id, "has another cursor in its header")
        own = event.tenant == tenant and subject.startswith(f"events.{self.shard}.{tenant}.")
        self.demand(own, "I13", event.id, f"of tenant {tenant} is on {subject}")
        tail = f".{job.spec.queue}.{short_type(type_)}" if job else f".{short_type(type_)}"
        self.demand(subject.endswith(tail), "I8", event.id, f"is on {subject}, not on one that ends in {tail}")
