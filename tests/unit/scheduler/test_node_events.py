"""Events of nodes: what operators are told of health, drains and fencing, once each, and nobody else."""

from typing import Any

import orjson
import pytest

from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera.kernel.provisioning.credential_files import Identity
from tessera.kernel.provisioning.permissions import allowed
from tessera.projection.events import StoredEvent, cursors_of, events_of
from tessera.scheduler import decide
from tessera.testkit.checker.report import Report
from tessera.testkit.events_checker import check_events
from tessera_schemas.cluster.health import Ailment, HealthCause, HealthPolicy
from tessera_schemas.events import CURSOR_HEADER, EVENT_TYPES, CloudEvent, NodeEvent
from tessera_schemas.facts import DrainRequested, HealthSeen
from tessera_schemas.shard.services import RESERVED_NAMES
from tests.builders import SHARD, config_body, node_seen
from tests.ledgers import Committed
from tests.unit.scheduler.committer_world import World
from tests.unit.scheduler.fenced_park import lost_park

LOST = Ailment(cause=HealthCause.GPU_LOST, device="GPU-1", evidence="XID 79")
TYPES = {event.type: event for event in EVENT_TYPES}


def world() -> World:
    return World(*(node_seen(f"node-{at}") for at in range(4)), body=config_body(health=HealthPolicy()))


def seen(*ailments: Ailment) -> HealthSeen:
    return HealthSeen(kind="health_seen", node="node-1", source="dcgm", ailments=ailments)


def drain(undo: bool = False) -> DrainRequested:
    return DrainRequested(kind="drain_requested", node="node-1", undo=undo, why="new fans")


def events_in(ledger: Committed) -> list[StoredEvent]:
    """All events of the ledger, made as projection makes them."""
    shard, found = Shard(), list[StoredEvent]()
    for n, data in enumerate(ledger.stored, start=1):
        entry = decode_entry(Message("", n, data))
        made = events_of(SHARD, entry.message, shard.state)
        assert [event.cursor for event in made] == list(cursors_of(entry.message))
        found += made
        shard.fold(entry)
    return found


def told(ledger: Committed) -> list[tuple[str, dict[str, Any]]]:
    """Type and data of each event of a node; all of them are the operator's, and valid."""
    found = []
    for event in events_in(ledger):
        envelope = CloudEvent.from_bytes(event.data)
        if issubclass(TYPES[envelope.type], NodeEvent):
            kind = envelope.type.removeprefix("io.tessera.node.")
            assert event.subject == f"events.{SHARD}.operator.default.node.{kind}"
            assert (envelope.tenant, envelope.id) == ("operator", str(event.cursor))
            assert TYPES[envelope.type].model_validate(envelope.data).to_data() == envelope.data
            found.append((kind, envelope.data))
    return found


def check(ledger: Committed, events: list[StoredEvent]) -> Report:
    report = Report()
    stored = [(each.subject, {CURSOR_HEADER: str(each.cursor)}, each.data) for each in events]
    check_events(report, ledger.stored, stored, drained=True)
    return report


def test_a_node_that_falls_sick_and_gets_well_is_told_with_its_drain() -> None:
    here = world()
    here.commit(seen(LOST))
    here.commit(seen(LOST))
    here.commit(seen())
    kinds = ["health-changed.v1", "drained.v1", "health-changed.v1", "undrained.v1"]
    assert [kind for kind, _ in told(here)] == kinds
    (_, sick), (_, out), (_, well), (_, back) = told(here)
    assert sick["ailments"][0]["ailment"] == {"cause": "gpu_lost", "device": "GPU-1", "evidence": "XID 79"}
    assert well == {"node": "node-1", "pool": "default"}
    assert (out["by"], back["by"]) == ("health", "health")
    assert "XID 79" in out["why"]


def test_an_operators_drain_and_its_end_are_told() -> None:
    here = world()
    here.commit(drain())
    here.commit(drain(undo=True))
    data = {"node": "node-1", "pool": "default", "why": "new fans"}
    assert told(here) == [("drained.v1", data), ("undrained.v1", data)]


def test_a_fencing_is_told_from_its_request_to_its_end() -> None:
    park = lost_park()
    park.fence("node-3")
    park.answer("node-3")
    (asked, first), (ended, second) = told(park)
    assert (asked, ended) == ("fence-asked.v1", "fence-ended.v1")
    assert (first["node"], second["outcome"], second["detail"]) == ("node-3", "off", "power: Off")
    assert first["request"] == second["request"]
    assert not check(park, events_in(park)).violations


def test_drains_of_before_there_were_such_events_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledgers of before published none: an event that is due for them would be missed in each stream that is there."""
    monkeypatch.setattr(decide, "FORMAT", 5)
    here = World(node_seen("node-1"))
    assert "node_drained" in here.say(drain())
    assert told(here) == []
    assert not check(here, events_in(here)).violations


def test_the_events_checker_misses_each_of_them_and_finds_one_where_a_tenant_reads() -> None:
    here = world()
    here.commit(seen(LOST))
    events = events_in(here)
    assert not check(here, events).violations
    mine = [each for each in events if ".node." in each.subject]
    assert len(mine) == 2
    for event in mine:
        assert check(here, [each for each in events if each is not event]).violations
        moved = StoredEvent(event.subject.replace("operator", "lab"), event.cursor, event.data)
        assert check(here, [moved if each is event else each for each in events]).violations
        false = StoredEvent(event.subject, event.cursor, event.data.replace(b"node-1", b"node-2"))
        assert orjson.loads(false.data)["data"]["node"] == "node-2"
        assert check(here, [false if each is event else each for each in events]).violations


def test_no_tenant_may_listen_where_they_are_and_operators_may() -> None:
    subject = f"live.events.{SHARD}.operator.default.node.drained.v1"
    heard = allowed(Identity("lab", "tenant", ("all",)), SHARD).subscribe
    assert [each for each in heard if each.startswith("live.")] == [f"live.events.{SHARD}.lab.>"]
    assert "operator" in RESERVED_NAMES
    operators = allowed(Identity("operator", "operator"), SHARD).subscribe
    assert any(subject.startswith(each.removesuffix(">")) for each in operators if each.startswith("live.events."))
