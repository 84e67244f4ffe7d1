"""Pods come and go: who starts when, what is counted, and what can never be."""

from dataclasses import replace as replace_field

import numpy as np
import pytest

from tessera_lab.churn.arrivals import HOUR_MS, RAN, WAITERS, ChurnArrivals
from tessera_lab.churn.campaign import Campaign, Variant, run_all
from tessera_lab.churn.figures import allocated_percent, as_json, figures
from tessera_lab.churn.moving import REDONE_S, Mover
from tessera_lab.churn.pooled import fluid_percent
from tessera_lab.churn.replay import Ready, Span, Unbalanced, audit, bound, replay
from tessera_lab.churn.running import NodeCluster, run_until
from tessera_lab.pack.baselines import PublishedBestFit
from tessera_lab.pack.cluster import gang_for, nodes_of
from tessera_lab.traces.alibaba import Trace, TraceNode, TracePod
from tests.unit.lab.churn.made import mixed, timed

SHORT = Span(warmup_days=1, days=1)
MINUTE_MS = 60_000


def a_cluster(nodes: int, gpus: int) -> NodeCluster:
    trace = Trace("made", (TraceNode(64_000, 1000, gpus, "A"),) * nodes, ())
    return NodeCluster(nodes_of(trace, 1), PublishedBestFit())


class Story:
    """(kind, minute of arrival, minutes of life) on equal nodes, hour by hour."""

    def __init__(self, cluster: NodeCluster, asks: tuple[TracePod, ...], *pods: tuple[int, int, int]) -> None:
        kinds, at, life = zip(*pods, strict=True)
        gangs = [gang_for(asks[kind]) for kind in kinds]
        self.cluster = cluster
        self.arrivals = ChurnArrivals(
            gangs, [minute * MINUTE_MS for minute in at], [minute * MINUTE_MS for minute in life], 24
        )

    def until(self, minute: int) -> "Story":
        run_until(self.cluster, self.arrivals, minute * MINUTE_MS)
        return self

    @property
    def running(self) -> list[int]:
        return sorted(self.arrivals.places)

    def node(self, job: int) -> str:
        return self.arrivals.places[job][0].node


ONE, TWO, FOUR = (TracePod(1000, 1, gpus, 1000) for gpus in (1, 2, 4))


def test_who_does_not_fit_waits_and_is_passed_over_by_who_does() -> None:
    story = Story(a_cluster(1, 4), (ONE, TWO, FOUR), (1, 0, 60), (2, 1, 10), (0, 2, 10))
    assert story.until(5).running == [0, 2]
    assert story.until(61).running == [1]


def test_those_that_wait_start_in_the_order_they_came() -> None:
    story = Story(a_cluster(1, 4), (ONE, TWO, FOUR), (2, 0, 60), (1, 1, 30), (0, 2, 30), (1, 3, 30), (0, 4, 30))
    assert story.until(61).running == [1, 2, 4]


def test_what_ends_at_a_moment_makes_room_for_what_arrives_then() -> None:
    story = Story(a_cluster(1, 4), (FOUR,), (0, 0, 10), (0, 10, 10))
    assert story.until(11).running == [1]
    assert story.arrivals.hours[0, WAITERS] == 0


def test_each_hour_adds_up_what_ran_and_who_waited_in_it() -> None:
    story = Story(a_cluster(1, 4), (FOUR,), (0, 30, 60), (0, 60, 30)).until(180)
    assert (story.arrivals.hours[:3, RAN] // MINUTE_MS).tolist() == [30 * 4000, 60 * 4000, 0]
    assert (story.arrivals.hours[:3, WAITERS] // MINUTE_MS).tolist() == [0, 30, 0]


def test_the_mover_opens_room_once_the_wait_outweighs_the_work_to_be_done_again() -> None:
    cluster = a_cluster(2, 2)
    story = Story(cluster, (ONE, TWO), (0, 0, 9000), (0, 0, 1), (0, 0, 9000), (1, 2, 60))
    mover = Mover(cluster, story.arrivals)
    story.until(5)
    assert story.running == [0, 2]
    assert story.node(0) != story.node(2)
    mover.take_turn()
    assert (mover.moved, story.running) == (0, [0, 2])
    end = story.arrivals.end[0] + story.arrivals.end[2]
    story.until(15)
    mover.take_turn()
    assert (mover.moved, mover.opened, story.running) == (1, 1, [0, 2, 3])
    assert story.node(0) == story.node(2) != story.node(3)
    assert story.arrivals.end[0] + story.arrivals.end[2] - end == REDONE_S * 1000
    assert mover.lost_milli_seconds == REDONE_S * 1000


def test_a_pod_that_was_moved_ends_as_much_later_as_it_has_to_do_again() -> None:
    cluster = a_cluster(2, 2)
    story = Story(cluster, (ONE, TWO), (0, 0, 100), (0, 0, 1), (0, 0, 100), (1, 2, 600))
    mover = Mover(cluster, story.arrivals)
    story.until(20)
    mover.take_turn()
    assert len(story.until(101).running) == 2
    assert story.until(101 + REDONE_S // 60).running == [3]


def test_the_mover_moves_nothing_where_a_victim_would_find_no_other_place() -> None:
    cluster = a_cluster(1, 2)
    story = Story(cluster, (ONE, TWO), (0, 0, 9000), (1, 1, 60)).until(600)
    mover = Mover(cluster, story.arrivals)
    before = dict(cluster.capacity.nodes)
    mover.take_turn()
    assert (mover.moved, cluster.capacity.nodes) == (0, before)
    assert cluster.place(gang_for(ONE)) is not None


@pytest.mark.parametrize("policy", ["random", "bestfit", "gpu-clustering", "fgd", "tessera"])
@pytest.mark.parametrize("defragment", [False, True], ids=["still", "moving"])
def test_every_arrival_runs_waits_was_refused_or_has_ended_and_no_device_holds_too_much(
    policy: str, defragment: bool
) -> None:
    outcome = replay(Ready(mixed(), 110, 1, SHORT), policy, defragment)  # `replay` audits nodes and devices
    assert outcome.waiting > 0
    assert outcome.ended > 0
    assert outcome.refused == 0
    assert outcome.arrived == outcome.running + outcome.waiting + outcome.ended
    assert (outcome.hours[:, RAN] <= 32_000 * HOUR_MS).all()
    assert (outcome.moves[0] > 0) == defragment


def test_what_could_never_run_is_refused_and_does_not_wait() -> None:
    pods = [
        (TracePod(1000, 10, 1, 1000), 600),
        (TracePod(1000, 10, 8, 1000), 600),
        (TracePod(1000, 10, 1, 1000, ("Z",)), 60),
    ]
    outcome = replay(Ready(timed(pods), 90, 1, SHORT), "bestfit", False)
    assert outcome.refused > 0
    assert outcome.waiting == 0
    assert bound(Ready(timed(pods), 90, 1, SHORT)).refused == outcome.refused


def test_the_audit_notices_a_pod_on_a_node_that_does_not_know_of_it() -> None:
    story = Story(a_cluster(2, 2), (ONE,), (0, 0, 60), (0, 0, 60)).until(1)
    (place,) = story.arrivals.places[0]
    other = next(name for name in story.cluster.empty if name != place.node)
    story.arrivals.places[0] = (replace_field(place, node=other),)
    with pytest.raises(Unbalanced, match="holds something that no pod took"):
        audit(story.cluster.capacity.nodes, story.arrivals, story.cluster.empty)


def test_the_same_seed_gives_the_same_bytes() -> None:
    def told() -> tuple[str, bytes]:
        campaign = campaign_of(mixed(), 105)
        hours = b"".join(run.hours.tobytes() for runs in campaign.runs.values() for run in runs)
        return str(as_json(campaign, figures(campaign))), hours

    assert told() == told()


def campaign_of(made, load: int, policies: tuple[str, ...] = ("bestfit", "tessera")) -> Campaign:  # type: ignore[no-untyped-def]
    return run_all(made, policies, [load], [1, 2], SHORT, lambda what: None)


def test_each_line_of_the_table_is_beside_a_bound_that_no_policy_passes() -> None:
    campaign = campaign_of(mixed(), 100)
    rows = figures(campaign)
    assert [(row.policy, row.defragment) for row in rows] == [
        (policy, moving) for policy in ("bestfit", "tessera") for moving in (False, True)
    ]
    for row in rows:
        assert row.short_of_bound == pytest.approx(row.bound_pct - row.useful_pct, abs=1e-3)
        assert 0 < row.short_of_bound < 20
    moved = campaign.runs[Variant(100, "bestfit", True)]
    assert sum(run.moves[0] for run in moved) > 0


def test_where_everything_fits_what_is_allocated_is_what_is_offered() -> None:
    ones = timed([(TracePod(1000, 10, 1, 1000), 600 + 10 * number) for number in range(50)])
    ready = Ready(ones, 50, 1, SHORT)
    assert allocated_percent(replay(ready, "bestfit", False), SHORT, 32_000) == pytest.approx(50, abs=0.5)
    assert np.array_equal(replay(ready, "bestfit", False).hours[:, RAN], bound(ready).hours[:, RAN])


def test_the_fluid_bound_is_the_smaller_of_load_and_cluster_where_any_model_will_do() -> None:
    assert (fluid_percent(mixed(), 80), fluid_percent(mixed(), 120)) == (80, 100)


def test_the_fluid_bound_counts_what_is_confined_to_a_model_only_as_far_as_there_is_of_it() -> None:
    """One GPU in four is A; half of the work wants A and nothing else."""
    nodes = (TraceNode(8000, 100, 1, "A"), TraceNode(8000, 100, 3, "B"))
    pods = [(TracePod(1, 1, 1, 1000, ("A",)), 100), (TracePod(1, 1, 1, 1000, ("B", "C")), 100)]
    assert fluid_percent(timed(pods, nodes), 40) == 40
    assert fluid_percent(timed(pods, nodes), 100) == 75
    assert fluid_percent(timed([(TracePod(1, 1, 1, 1000, ("C",)), 100)], nodes), 100) == 0


def test_a_run_without_waiting_pods_reaches_the_bound_in_every_hour() -> None:
    ones = timed([(TracePod(1000, 10, 1, 1000), 600 + 10 * number) for number in range(50)])
    for row in figures(campaign_of(ones, 50, ("bestfit",))):
        assert (row.waiting_pods, row.short_of_bound) == (0, 0)
