"""The protocol by the committer's own placement: what is priced, when, and that it is the same run again."""

import pytest

from tessera.client.outcomes import Failure
from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.mix import SETTLED_AT
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.pricing.pricing_problem import PricingProblem
from tessera_lab.pack.cluster import RefusedThoughItFits, takes_pod
from tessera_lab.pack.live import lines_of, live, parse_how
from tessera_lab.pack.replay import replay
from tessera_lab.traces.alibaba import Trace, TraceNode, TracePod
from tessera_schemas.facts import NodeSeen
from tessera_schemas.reasons import Code, Reason

CLUSTER = tuple([TraceNode(96_000, 1000, 8, "A")] * 10 + [TraceNode(32_000, 1000, 2, "B")] * 4)
PODS = (
    TracePod(4000, 10, 1, 1000),
    TracePod(2000, 10, 1, 470),
    TracePod(2000, 10, 1, 810, ("B",)),
    TracePod(1000, 5, 0, 0),
)
TRACE = Trace("small", CLUSTER, PODS * 20)


def in_full(problem: PricingProblem) -> tuple[int, ...]:
    return tuple(gpus * milli * 1000 for _, milli, gpus, _, _ in problem.kinds)


def test_prices_are_learnt_at_each_settlement_from_the_fiftieth_arrival_on() -> None:
    problems = list[PricingProblem]()

    def learn(problem: PricingProblem) -> tuple[int, ...]:
        problems.append(problem)
        return in_full(problem)

    run = live(TRACE, "tessera", seed=1, learn=learn)
    assert run.priced == len(problems) == sum(at <= run.arrivals for at in SETTLED_AT) == 2
    assert 50 < run.allocated_100 <= run.allocated_130 <= 100


def test_prices_that_come_too_late_for_their_mix_are_not_used() -> None:
    gap = SETTLED_AT[1] - SETTLED_AT[0]
    assert live(TRACE, "tessera", seed=1, late=gap - 1, learn=in_full).priced == 1
    assert live(TRACE, "tessera", seed=1, late=gap, learn=in_full).priced == 0


def test_nobody_learns_for_a_policy_that_goes_by_no_prices_nor_when_told_so() -> None:
    other = live(TRACE, "bestfit", seed=1, learn=in_full)
    assert (other.learnt_by, other.priced) == ("nobody", 0)
    assert live(TRACE, "tessera", seed=1, learnt_by="nobody", learn=in_full).priced == 0


def test_prices_in_full_place_as_if_there_were_none() -> None:
    priced = live(TRACE, "tessera", seed=2, learn=in_full)
    unpriced = live(TRACE, "tessera", seed=2, learnt_by="nobody")
    assert (priced.dropped, priced.allocated_130) == (unpriced.dropped, unpriced.allocated_130)


def test_a_published_policy_uses_as_much_of_the_cluster_as_in_the_lab() -> None:
    run = live(TRACE, "dotprod", seed=3)
    assert run.allocated_130 == pytest.approx(replay(TRACE, "dotprod", seed=3).allocated[130])


def test_how_prices_are_learnt_is_one_of_three() -> None:
    assert parse_how("auction") == "auction"
    with pytest.raises(Failure, match="rehearsed, auction, nobody"):
        parse_how("by heart")


def test_runs_are_a_table_or_values() -> None:
    run = live(TRACE, "bestfit", seed=1)
    head, row = lines_of([run], ",")
    assert head.startswith("trace,policy,learnt_by")
    assert row.startswith("small,bestfit,")
    assert len(lines_of([run])) == 2


def test_a_pod_that_is_dropped_although_a_node_has_room_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FreeCapacity, "place", lambda capacity, roles: Reason(code=Code.NO_FIT))
    with pytest.raises(RefusedThoughItFits, match="bestfit, seed 1, arrival 0"):
        live(TRACE, "bestfit", seed=1)


@pytest.mark.parametrize(
    ("pod", "fits"),
    [
        (TracePod(4000, 10, 8, 1000), True),
        (TracePod(4000, 10, 9, 1000), False),
        (TracePod(96_001, 10, 1, 1000), False),
        (TracePod(4000, 1001, 1, 1000), False),
        (TracePod(4000, 10, 1, 470), True),
        (TracePod(4000, 10, 1, 1000, ("B", "A")), True),
        (TracePod(4000, 10, 1, 1000, ("B",)), False),
        (TracePod(4000, 10, 0, 0), True),
    ],
)
def test_the_second_look_counts_cpu_memory_models_and_gpus(pod: TracePod, fits: bool) -> None:
    seen = NodeSeen(
        kind="node_seen", name="a", cpu_milli=96_000, memory_bytes=1000 * 2**20, pods=9, gpus=8, gpu_model="A"
    )
    assert takes_pod(empty_node(seen), pod) is fits
