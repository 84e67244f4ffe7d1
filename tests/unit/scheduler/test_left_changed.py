"""What is left of a pool is said when it has changed noticeably, once a period at most."""

from typing import Any

import orjson
import pytest

from tessera.client.ledger.replay import verify
from tessera.projection.events import events_of
from tessera.scheduler.decide.pools import differs
from tessera.testkit.checker.report import Report
from tessera.testkit.events_checker import check_events
from tessera_schemas.events import CURSOR_HEADER
from tessera_schemas.facts import DrainRequested
from tessera_schemas.ledger import LeftChanged
from tests.builders import SHARD
from tests.ledgers import Committed
from tests.rounds import Rounds

MINUTE = 60_000


def rounds(**policy: Any) -> Rounds:
    return Rounds(nodes={"node-a": 8, "node-b": 8}, **{"fragmentation_event_seconds": 60, **policy})


def said(ledger: Committed, **commit: Any) -> list[LeftChanged]:
    return [record for record in ledger.commit(**commit).records if isinstance(record, LeftChanged)]


def test_it_says_slots_by_size_and_idle_gpus_by_what_strands_them() -> None:
    world = rounds()
    world.commit(ms=MINUTE)
    world.submit("half", gpus=4)
    world.settle()
    world.commit(DrainRequested(kind="drain_requested", node="node-b"))
    (told,) = said(world, ms=MINUTE)
    assert (told.pool, told.gpus, told.idle_gpu_milli) == ("default", 16, 12_000)
    assert {size.gpus: (size.slots, size.largest["node"]) for size in told.sizes} == {
        1: (4, 4),
        2: (2, 2),
        4: (1, 1),
        8: (0, 0),
    }
    assert told.stranded == {"fault": 8000, "none": 4000}


def test_within_a_period_nothing_is_said_again() -> None:
    world = rounds()
    world.commit(ms=MINUTE - world.ts % MINUTE)
    world.submit("first", gpus=8)
    world.settle()
    assert said(world, ms=1000) == []
    (told,) = said(world, ms=MINUTE)
    assert told.free == (8, 4, 2, 1)


def test_what_did_not_change_noticeably_is_not_said() -> None:
    world = rounds()
    world.commit(ms=MINUTE)
    assert said(world, ms=MINUTE) == []


def test_it_is_never_said_when_the_policy_says_so() -> None:
    world = rounds(fragmentation_event_seconds=0)
    world.submit("first", gpus=8)
    world.settle()
    assert said(world, ms=10 * MINUTE) == []


@pytest.mark.parametrize(
    ("before", "now", "noticed"),
    [
        ((100, 50), (91, 50), False),
        ((100, 50), (90, 50), True),
        ((100, 50), (100, 56), True),
        ((), (0,), False),
        ((), (1,), True),
        ((1, 1), (1,), True),
    ],
)
def test_a_tenth_of_any_size_is_noticeable(before: tuple[int, ...], now: tuple[int, ...], noticed: bool) -> None:
    assert differs(before, now) is noticed


def test_it_is_a_public_event_for_operators_and_a_replay_says_the_same() -> None:
    world = rounds()
    world.submit("first", gpus=8)
    world.settle()
    state = world.state
    message = world.commit(ms=MINUTE)
    (event,) = events_of(SHARD, message, state)
    assert event.subject == f"events.{SHARD}.operator.default.cluster.fragmentation.v1"
    found = orjson.loads(event.data)
    assert found["type"] == "io.tessera.cluster.fragmentation.v1"
    assert found["data"]["stranded"] == {"none": 8000}
    report = verify(world.stored)
    assert report.ok, report.findings
    assert report.not_recomputed == 0


def test_the_events_checker_wants_it_where_operators_read() -> None:
    world = rounds()
    message = world.commit(ms=MINUTE)
    (event,) = events_of(SHARD, message, world.state)
    right, wrong = Report(), Report()
    headers = {CURSOR_HEADER: str(event.cursor)}
    check_events(right, world.stored, [(event.subject, headers, event.data)], drained=True)
    check_events(wrong, world.stored, [(event.subject.replace("operator", "lab"), headers, event.data)], drained=True)
    assert not right.violations
    assert wrong.violations
