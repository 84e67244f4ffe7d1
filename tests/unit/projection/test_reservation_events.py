"""Events of reservations: tenants hear of their own, operators of maintenance and refusals, and nobody of others'."""

from typing import Any

import pytest

from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera.projection.events import StoredEvent, cursors_of, events_of
from tessera.testkit.checker.report import Report
from tessera.testkit.events_checker import check_events
from tessera_schemas.events import CURSOR_HEADER, CloudEvent
from tessera_schemas.facts import BookingAsked, BookingEndAsked
from tessera_schemas.shard.bookings import BookedWindow, BookingWish
from tests.builders import SHARD, node_seen
from tests.ledgers import Committed

HOUR = 3_600_000
A, B = "node-a", "node-b"


def asked(ts: int, **more: Any) -> BookingAsked:
    window = BookedWindow(start_ts=ts + HOUR, end_ts=ts + 2 * HOUR)
    wish = {"name": "demo", "pool": "default", "windows": (window,), "node_count": 1, **more}
    return BookingAsked(kind="booking_asked", wish=BookingWish.model_validate(wish), why="a demo", by="olga")


def events_in(ledger: Committed) -> list[StoredEvent]:
    """All events of the ledger, made as projection makes them, and in order."""
    shard, found = Shard(), list[StoredEvent]()
    for n, data in enumerate(ledger.stored, start=1):
        entry = decode_entry(Message("", n, data))
        made = events_of(SHARD, entry.message, shard.state)
        assert [event.cursor for event in made] == list(cursors_of(entry.message))
        found += made
        shard.fold(entry)
    assert sorted(event.cursor for event in found) == [event.cursor for event in found]
    return found


def told(ledger: Committed) -> list[tuple[str, dict[str, Any]]]:
    """Subject behind the shard, and data, of each event of a reservation; the checker finds them due."""
    events = events_in(ledger)
    report = Report()
    stored = [(event.subject, {CURSOR_HEADER: str(event.cursor)}, event.data) for event in events]
    check_events(report, ledger.stored, stored, shard=SHARD, drained=True)
    assert report.violations == []
    subjects = (event.subject.removeprefix(f"events.{SHARD}.") for event in events)
    both = zip(subjects, (CloudEvent.from_bytes(event.data).data for event in events), strict=True)
    return [(subject, data) for subject, data in both if ".reservation." in subject]


def two_nodes() -> Committed:
    return Committed().begin(node_seen(A), node_seen(B))


@pytest.mark.parametrize(
    ("who", "begin"), [(("lab/ana",), "lab.none"), ((), "operator.default")], ids=["a tenant's", "maintenance"]
)
def test_a_reservation_is_told_to_whom_it_is_for_from_its_making_to_its_end(who: tuple[str, ...], begin: str) -> None:
    ledger = two_nodes()
    ledger.commit(asked(ledger.ts, who=who))
    ledger.commit(node_seen(A, ready=False))
    ledger.commit(node_seen(B, ready=False))
    ledger.commit(BookingEndAsked(kind="booking_end_asked", name="demo"))
    events = told(ledger)
    kinds = ["made", "changed", *(["unserved"] if who else []), "ended"]
    assert [subject for subject, _ in events] == [f"{begin}.reservation.{kind}.v1" for kind in kinds]
    assert all(data["name"] == "demo" and data.get("who", []) == [*who] for _, data in events)
    made, changed, *_, ended = (data for _, data in events)
    assert (made["nodes"], made["why"], made["windows"][0]["end_ts"] - made["windows"][0]["start_ts"]) == (
        [A],
        "a demo",
        HOUR,
    )
    assert (changed["lost"], changed["found"], ended["why"]) == ([A], [B], "asked")


def test_each_of_several_tenants_hears_of_itself_alone() -> None:
    ledger = two_nodes()
    ledger.commit(asked(ledger.ts, who=("other", "lab/ana", "lab/ben")), asked(ledger.ts, name="next", who=("other",)))
    made = told(ledger)
    assert [(subject.split(".")[0], data["name"], data["who"]) for subject, data in made] == [
        ("lab", "demo", ["lab/ana", "lab/ben"]),
        ("other", "next", ["other"]),
        ("other", "demo", ["other"]),
    ]


def test_a_refusal_is_told_to_operators_with_its_reason() -> None:
    ledger = two_nodes()
    ledger.commit(asked(ledger.ts, node_count=3, who=("lab",)))
    ((subject, data),) = told(ledger)
    assert subject == "operator.default.reservation.refused.v1"
    assert data["reason"]["code"] == "NotFreeThen"


def test_an_end_by_itself_is_told_as_over() -> None:
    ledger = two_nodes()
    ledger.commit(asked(ledger.ts, who=("lab",)))
    ledger.commit(ms=2 * HOUR)
    assert told(ledger)[-1][1]["why"] == "over"
