"""From when on, and where, a job that finds no room now could start."""

from hypothesis import given
from hypothesis import strategies as st

from tessera.domain.devices.resources import NOTHING, Amount, RoleNeed
from tessera.domain.entities import Job, Run
from tessera.domain.runtimes import kind_of, learn
from tessera.domain.state import State
from tessera.domain.work.gang import gang_of
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.gangs import place_gang
from tessera.engine.queueing.reservations import (
    Forecast,
    Opening,
    Reservation,
    find_opening,
    hide_reserved,
    make_reservation,
)
from tessera_schemas.job import Retry
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import Placement
from tests.unit.engine.engine_builders import cluster, need, node, roles

NOW = 1_000_000
HOUR = 3_600_000


def job(name: str = "j", limit: int = 0, gang: tuple[RoleNeed, ...] = (), gpus: int = 1) -> Job:
    return Job(
        name, "lab", "research", "train", "k", "h", "normal", True, gang, Amount(0, 0, gpus * 1000), Retry(), 1, 0, 0,
        time_limit_seconds=limit,
    )  # fmt: skip


def run(name: str = "j", started: int = NOW, devices: tuple[int, ...] = (0,), on: str = "a", **more: object) -> Run:
    gang = roles((1, need(gpus=len(devices))))
    places = (Placement(0, "role-0", on, devices, 1000),)
    return Run(f"{name}-1", name, 1, "lab", "research", gang, NOTHING, places, NOW, 0, started_ts=started, **more)  # type: ignore[arg-type]


def state(*jobs: Job, ts: int = NOW) -> State:
    made = State()
    made.ts = ts
    for one in jobs:
        made.jobs.put(one.job_id, one)
    return made


# -- when a run ends --------------------------------------------------------------------------------------------------


def test_a_run_ends_by_its_time_limit_or_else_as_nine_in_ten_of_its_kind_did() -> None:
    known = state(job("limited", limit=60), job("learnt"))
    for _ in range(10):
        learn(known.runtimes, kind_of(job("learnt")), HOUR, NOW)
    forecast = Forecast(known)
    assert forecast.end(run("limited")) == NOW + 60_000
    end = forecast.end(run("learnt"))
    assert end is not None
    assert NOW + HOUR < end <= NOW + HOUR * 3 // 2 + 1


def test_a_run_that_did_not_start_yet_counts_from_its_allocation() -> None:
    assert Forecast(state(job(limit=60))).end(run(started=0)) == NOW + 60_000


def test_a_run_beyond_its_limit_ends_at_once_and_one_without_gets_as_long_again() -> None:
    late = NOW + 10 * HOUR
    known = state(job("limited", limit=60), job("learnt"), ts=late)
    learn(known.runtimes, kind_of(job("learnt")), HOUR, NOW)
    forecast = Forecast(known)
    assert forecast.end(run("limited")) == late + 1
    end = forecast.end(run("learnt"))
    assert end is not None
    assert late < end <= NOW + 20 * HOUR, "as long again as was expected, step by step"


def test_what_is_being_stopped_comes_back_soon_but_nobody_waits_for_what_never_goes() -> None:
    revoked = Reason(code=Code.CANCELLED)
    forecast = Forecast(state(job(limit=7200), ts=NOW + 600_000))
    assert forecast.end(run(revoked=revoked, stopped_ts=NOW + 1)) == NOW + 600_001
    assert forecast.end(run(revoked=revoked, stopped_ts=NOW)) is None


# -- the soonest room -------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 12)), max_size=12),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_doubling_and_halving_finds_what_trying_one_end_after_the_other_finds(
    running: list[tuple[int, int, int]], pods: int, gpus: int
) -> None:
    nodes = cluster(*(node(name, gpus=4) for name in "abcd"))
    known, runs = state(), []
    for number, (at, wanted, limit) in enumerate(running):
        name = "abcd"[at]
        free = [slot for slot, left in enumerate(nodes[name].gpu_free) if left][:wanted]
        if len(free) == wanted:
            known.jobs.put(f"j{number}", job(f"j{number}", limit))
            runs.append(run(f"j{number}", devices=tuple(free), on=name))
            known.runs.put(runs[-1].run_id, runs[-1])
            gang_of(runs[-1].roles).take(nodes, runs[-1].placements)
    gang = roles((pods, need(gpus=gpus)))
    ends, places = Forecast(known).ends_on(nodes), FeasibleNodes(nodes)
    if not isinstance(place_gang(gang, nodes, places), Reason):
        return
    later, expected = dict(nodes), None
    for at, gone in ends:
        for one in gone:
            gang_of(one.roles).take(later, one.placements, -1)
        if not isinstance(place_gang(gang, later), Reason):
            expected = at
            break
    opening = find_opening(gang, nodes, ends, places)
    assert (None if opening is None else opening.at) == expected
    if opening is not None:
        assert opening.placements == place_gang(gang, later)
        assert opening.nodes == later


# -- what is left beside it -------------------------------------------------------------------------------------------

WHOLE = roles((1, need(gpus=4)))
HALF = roles((1, need(gpus=2)))


def halves() -> State:
    """On node a of four GPUs two are busy for a minute and two for two; on node b all four, for three minutes."""
    known = state(job("one", 60), job("two", 120), job("three", 180))
    for one in (run("one", devices=(0, 1)), run("two", devices=(2, 3)), run("three", devices=(0, 1, 2, 3), on="b")):
        known.runs.put(one.run_id, one)
    return known


def opened(gang: tuple[RoleNeed, ...], *others: Reservation) -> Reservation:
    nodes = cluster(node("a", gpus=4, free=(0,) * 4), node("b", gpus=4, free=(0,) * 4))
    for other in others:
        gang_of(other.job.roles).take(nodes, other.placements)
    opening = find_opening(gang, nodes, Forecast(halves()).ends_on(nodes), FeasibleNodes(nodes))
    assert opening is not None
    return make_reservation(job(gang=gang), "", opening, others)


def where(kept: Reservation) -> tuple[int, str, tuple[int, ...]]:
    return kept.at, kept.placements[0].node, kept.placements[0].devices


def test_a_second_reservation_lies_beside_the_first_and_may_begin_before_it() -> None:
    first = opened(WHOLE)
    assert where(first) == (NOW + 120_000, "a", (0, 1, 2, 3))
    second = opened(HALF, first)
    assert where(second) == (NOW + 180_000, "b", (0, 1))
    small = opened(HALF)
    assert where(small) == (NOW + 60_000, "a", (0, 1))
    assert where(opened(HALF, small)) == (NOW + 120_000, "a", (2, 3))


def test_what_is_left_is_what_is_free_both_now_and_then() -> None:
    kept = opened(HALF)
    assert hide_reserved(node("a", gpus=4, free=(1000,) * 4), [kept]).gpu_free == (0, 0, 0, 0)
    assert hide_reserved(node("a", gpus=4, cpu_free=70_000), [kept]).cpu_free == kept.nodes_then["a"].cpu_free
    assert hide_reserved(node("c", gpus=4), [kept]) == node("c", gpus=4)


def test_reservations_on_one_node_know_of_each_other_from_when_the_later_one_begins() -> None:
    gang = roles((1, need(cpu_milli=10_000)))
    nodes_then = cluster(node("a"))
    place = (Placement(0, "role-0", "a", (), 0),)
    later = make_reservation(job("later", gang=gang), "", Opening(NOW + 200, place, nodes_then), ())
    gang_of(gang).take(nodes_then, place)  # where the earlier one is sought, the later one stands
    earlier = make_reservation(job("earlier", gang=gang), "", Opening(NOW + 100, place, nodes_then), [later])
    assert earlier.nodes_then["a"].cpu_free == 54_000
    assert later.nodes_then["a"].cpu_free == 44_000
