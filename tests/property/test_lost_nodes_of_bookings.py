"""
Bookings of chosen nodes while nodes are lost and come back by chance: no two windows have one node, none stays lost
that another one could replace, named ones stay, and a replay decides the same.
"""

from collections.abc import Iterator
from itertools import combinations
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.client.ledger.replay import verify
from tessera.domain.quota.bookings import Booking
from tessera.domain.state import State
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.testkit.bookings_checker import check_bookings
from tessera.testkit.checker.report import Report
from tessera_schemas.facts import AnyFact, BookingAsked, BookingEndAsked, DrainRequested
from tessera_schemas.shard.bookings import BookedWindow, BookingWish
from tests.builders import admitted, job_spec, node_seen, role
from tests.ledgers import Committed

MINUTE = 60_000
NODES = tuple(f"gpu-{at}" for at in range(6))


def asked(chance: Random, ts: int, name: str) -> BookingAsked:
    """Nodes that are chosen, or now and then named, in one or two windows of a few minutes."""
    first = ts + chance.randrange(0, 8) * MINUTE
    starts = (first, first + 5 * MINUTE)[: chance.choice((1, 1, 2))]
    windows = tuple(BookedWindow(start_ts=at, end_ts=at + chance.choice((1, 3)) * MINUTE) for at in starts)
    chosen = chance.choice(({"node_count": 1}, {"node_count": 3}, {"gpus": 9}, {"nodes": (chance.choice(NODES),)}))
    wish = {"name": name, "pool": "default", "windows": windows, "who": chance.choice(((), ("lab",))), **chosen}
    return BookingAsked(kind="booking_asked", wish=BookingWish.model_validate(wish))


def change(chance: Random) -> AnyFact:
    """One node is lost in some way, or is well again."""
    node, how = chance.choice(NODES), chance.choice(("away", "gone", "drained", "open", "back", "back"))
    if how in ("drained", "open"):
        return DrainRequested(kind="drain_requested", node=node, undo=how == "open")
    return node_seen(node, ready=how == "back", gone=how == "gone")


def happenings(chance: Random, ledger: Committed) -> Iterator[AnyFact]:
    for at in range(chance.randrange(4)):
        yield change(chance)
        if chance.random() < 0.4:
            yield asked(chance, ledger.ts, f"b{ledger.state.n}-{at}")
        if chance.random() < 0.2 and len(ledger.state.bookings):
            names = sorted(each.name for each in ledger.state.bookings.values())
            yield BookingEndAsked(kind="booking_end_asked", name=chance.choice(names))


def meet(one: Booking, other: Booking) -> bool:
    return any(a < d and c < b for a, b in one.windows for c, d in other.windows)


def open_nodes(state: State, booking: Booking) -> set[str]:
    """Nodes without any run that no other booking has in a window of this one."""
    well = {n.name for n in state.nodes.values() if n.ready and not n.gone and state.drains.get(n.name) is None}
    idle = {name for name in well if not list(state.runs_on(name))}
    others = (each for each in state.bookings.values() if each.name != booking.name and meet(each, booking))
    return idle - {name for each in others for name in each.nodes} - {*booking.nodes}


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**9))
def test_whatever_nodes_are_lost_no_window_lacks_one_that_another_could_replace(seed: int) -> None:
    chance, ledger = Random(seed), Committed().begin(*(node_seen(name) for name in NODES))
    named: dict[str, tuple[str, ...]] = {}
    for at in range(12):
        ledger.commit(*happenings(chance, ledger), ms=chance.choice((1_000, 30_000, MINUTE)))
        if chance.random() < 0.3:
            ledger.commit(admitted(f"k{at}", job_spec(role(gpus=8), time_limit_seconds=chance.choice((60, 600)))))
            ledger.commit(orders=(ledger.line(),), ms=0)
        # What runs that have ended leave free is found a minute later.
        ledger.commit(ms=MINUTE)
        state = ledger.state
        kept = list(state.bookings.values())
        assert not [(a, b) for a, b in combinations(kept, 2) if meet(a, b) and {*a.nodes} & {*b.nodes}]
        for each in kept:
            lost = [n for n in each.nodes if (node := state.nodes.get(n)) is None or not node.ready or node.gone]
            if each.is_chosen and lost and all(window[0] > state.ts for window in each.windows):
                assert not open_nodes(state, each)
            if not each.is_chosen:
                assert named.setdefault(f"{each.name} {each.booked_ts}", each.nodes) == each.nodes
    assert verify(ledger.stored).findings == []
    report = Report()
    check_bookings(report, ledger.stored)
    assert report.violations == []
    assert StateHash().of(load(iter(list(dump(ledger.state))))) == StateHash().of(ledger.state)
