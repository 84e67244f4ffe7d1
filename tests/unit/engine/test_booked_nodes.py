"""Many bookings beside many runs: answers are those of a look at each, and what has not changed is the same object."""

import pytest

from tessera.domain.quota.bookings import Booking
from tessera.engine.ahead import booked_nodes
from tessera.engine.ahead.booked_nodes import BookedNodes
from tessera.engine.placement.capacity import ClosedNodes, nodes_for
from tests.builders import admitted, job_spec, node_seen, role
from tests.ledgers import Committed

HOUR = 3_600_000
NODES = tuple(f"node-{at}" for at in range(6))


def busy() -> Committed:
    """Six nodes with a run on each, and seven bookings ahead: of single nodes, of two, and of the whole pool."""
    ledger = Committed().begin(*(node_seen(name) for name in NODES))
    ledger.commit(*(admitted(f"k{at}", job_spec(role(gpus=8))) for at in range(6)))
    ledger.commit(orders=(ledger.line(),), ms=0)
    kept = [(2 + at, (NODES[at],)) for at in range(4)] + [(1, NODES[3:5]), (12, NODES[:2]), (9, ())]
    for at, (hours, nodes) in enumerate(kept):
        window = ledger.ts + hours * HOUR, ledger.ts + (hours + 1) * HOUR
        booking = Booking(f"b{at}", "default", nodes, (window,), (), "", "", ledger.ts)
        ledger.state.bookings.put(booking.name, booking)
    return ledger


@pytest.mark.parametrize("asked_max", [0, 3, 200])
def test_who_leaves_by_when_is_equal_however_many_nodes_are_asked_about(
    monkeypatch: pytest.MonkeyPatch, asked_max: int
) -> None:
    monkeypatch.setattr(booked_nodes, "NODES_ASKED_MAX", asked_max)
    state = busy().state
    booked, hours = BookedNodes(state, "default"), dict[str, int]()
    for run in state.runs.values():
        (node,) = run.nodes
        at, _ = booked.leaves_by(run, run.nodes) or (0, None)
        hours[node] = (at - state.ts) // HOUR
    assert [hours[name] for name in NODES] == [2, 3, 4, 1, 1, 9]


def test_runs_among_nodes_are_those_on_each_of_them() -> None:
    state = busy().state
    for names in ({NODES[0], NODES[4]}, {*NODES}, {"gone"}, set[str]()):
        each = {run.run_id for name in names for run in state.runs_on(name)}
        assert {run.run_id for run in state.runs_among(names)} == each
        overlay = state.overlay()
        assert {run.run_id for run in overlay.runs_among(names)} == each


def test_a_node_that_is_shut_is_the_same_object_until_it_changes() -> None:
    ledger, closed = busy(), ClosedNodes()
    shut = frozenset(NODES[:3])

    def asked() -> dict[str, object]:
        return {node.name: node for node in nodes_for(ledger.state, "default", "", shut=shut, closed=closed)}

    before = asked()
    assert [name for name, node in asked().items() if node is not before[name]] == []
    assert all(not before[name].ready for name in shut)  # type: ignore[attr-defined]
    ledger.commit(node_seen(NODES[1], cpu_milli=7))
    assert [name for name, node in asked().items() if node is not before[name]] == [NODES[1]]
