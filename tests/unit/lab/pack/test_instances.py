"""A trace's shares as MIG instances: what is published, what is placed, and what the engine learns."""

import pytest

from tessera.client.outcomes import Failure
from tessera.engine.claims.drawing import free_devices
from tessera_lab.pack.instances import (
    CLAIMED,
    POLICIES,
    WHOLE_CLASS,
    EngineBook,
    SlotBook,
    fill,
    milli_of,
    offer_of,
    parse_policies,
    piece_of,
    published,
)
from tessera_lab.traces.alibaba import Trace, TraceNode, TracePod
from tessera_schemas.cluster.mig import GEOMETRIES


def pod(milli: int, gpus: int = 1) -> TracePod:
    return TracePod(1000, 1024, gpus, milli)


@pytest.mark.parametrize(
    ("milli", "gpus", "piece"),
    [
        (125, 1, ("1g.10gb", 1)),
        (126, 1, ("2g.20gb", 1)),
        (500, 1, ("3g.40gb", 1)),
        (501, 1, (WHOLE_CLASS, 1)),
        (1000, 4, (WHOLE_CLASS, 4)),
    ],
)
def test_a_share_is_the_smallest_instance_with_its_memory(milli: int, gpus: int, piece: tuple[str, int]) -> None:
    assert piece_of(pod(milli, gpus)) == piece


def test_each_gpu_is_published_whole_and_with_every_legal_instance() -> None:
    legal = sum(len(profile.starts) for profile in GEOMETRIES["80gb"].profiles.values())
    layout = published(2)
    assert len(layout.devices) == 2 * (1 + legal)
    # The counters of a GPU are its own: no instance draws on another GPU's.
    assert all(9 * each.gpu <= counter < 9 * each.gpu + 9 for each in layout.devices for counter, _ in each.uses)


@pytest.mark.parametrize("fullest", [False, True])
def test_slots_hold_as_many_instances_of_each_profile_as_there_are_positions(fullest: bool) -> None:
    for name, most in (("1g.10gb", 7), ("2g.20gb", 3), ("3g.40gb", 2), (WHOLE_CLASS, 1)):
        book = SlotBook([1], fullest)
        assert [book.place((name, 1)) for _ in range(most + 1)] == [True] * most + [False]


def test_the_engine_draws_as_many() -> None:
    for name, most in (("1g.10gb", 7), ("2g.20gb", 3), ("3g.40gb", 2), (WHOLE_CLASS, 1)):
        book = EngineBook([1], learns=False)
        assert [book.place((name, 1)) for _ in range(most + 1)] == [True] * most + [False]


def test_nodes_are_told_what_is_claimed_once_enough_pods_came_and_only_where_the_run_learns() -> None:
    for learns in (False, True):
        book = EngineBook([8, 8], learns)
        for _ in range(50):
            book.place(("2g.20gb", 1))
        known = {free_devices(node).pieces for node in book._capacity.nodes.values()}
        assert known == ({(offer_pieces("2g.20gb"),) * 2} if learns else {()})


def offer_pieces(name: str) -> tuple[str, ...]:
    named = dict(zip((*CLAIMED, WHOLE_CLASS), offer_of(1).selections, strict=True))
    return (named[name],)


def test_no_run_allocates_more_than_arrived_or_than_there_is_and_the_engine_no_less_than_half() -> None:
    pods = tuple(pod(milli) for milli in (125, 250, 500, 1000) for _ in range(20))
    trace = Trace("made", (TraceNode(64_000, 262_144, 4, "A100"),) * 6, pods)
    for policy in POLICIES:
        run = fill(trace, policy, 1)
        assert (run.gpus, run.policy) == (24, policy)
        assert 90 < run.allocated_95 <= 97.5  # a per cent is rounded, and an arrival is more than one of 24 GPUs
        assert run.allocated_95 <= run.allocated_100 <= run.allocated_130 <= 100
        assert run == fill(trace, policy, 1)


def test_shares_alone_and_a_part_of_the_nodes_may_be_asked_for() -> None:
    trace = Trace("made", (TraceNode(64_000, 262_144, 4, "A100"),) * 6, tuple(map(pod, (125, 250, 1000))))
    shares = fill(trace, "tessera", 1, shares_only=True, every=2)
    assert shares.gpus == 12
    least = milli_of("1g.10gb")
    assert shares.arrivals > 12 * 1000 // least / 2


def test_a_policy_that_is_not_known_is_refused_with_those_that_are() -> None:
    assert parse_policies("tessera,first-fit,tessera") == ["tessera", "first-fit"]
    with pytest.raises(Failure, match="first-fit, lowest-slot, bestfit, tessera"):
        parse_policies("fgd")
