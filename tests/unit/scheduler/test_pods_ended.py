"""Pods of a gang that end before the others give back what they held; the gang itself is one thing until its end."""

from typing import Any

import pytest

from tessera.domain.errors import Contradiction
from tessera.domain.folding.fold import apply_record
from tessera_schemas.base import job_id
from tessera_schemas.config import Policy, Queue, Quota
from tessera_schemas.facts import DrainRequested, PodsMade, RunAbsent
from tessera_schemas.ledger import Released, Revoked
from tests.builders import SHARD, admitted, config_body, job_spec, node_seen, role, run_absent
from tests.unit.scheduler.committer_world import DELETED, RUN, World, cancel, ended, kinds, made, started

K2 = job_id(SHARD, "lab", "k2")


def gang(*roles: Any, pods: int = 4, **config: Any) -> World:
    """Four pods of two GPUs each on a node of eight, all of them running."""
    world = World(**config)
    world.queued(*(roles or (role(replicas=4, gpus=2),))).place()
    world.commit(made(pods=pods))
    world.commit(started())
    return world


def absent(*ranks: int) -> RunAbsent:
    return RunAbsent(kind="run_absent", run_id=RUN, ranks=ranks)


def free(world: World, node: str = "node-a") -> int:
    found = world.state.nodes.get(node)
    assert found is not None
    return int(sum(found.gpu_free)) // 1000


def test_what_ended_pods_held_is_free_while_the_others_go_on() -> None:
    world = gang()
    assert world.say(absent(0, 2)) == ["released"]
    assert (free(world), world.job.phase) == (4, "running")
    assert [place.rank for place in world.run.places] == [1, 3]
    assert world.run.amount.gpu_milli == world.state.held_by_queue("research").gpu_milli == 4000


def test_one_record_stands_for_all_that_ended_together_and_a_repeat_is_nothing() -> None:
    world = gang()
    (record,) = world.commit(absent(3, 0, 1)).records
    assert isinstance(record, Released)
    assert record.ranks == (0, 1, 3)
    assert world.say(absent(0, 1)) == []


def test_another_job_starts_where_they_were() -> None:
    world = gang()
    world.commit(admitted("k2", job_spec(role(replicas=2, gpus=2))))
    assert kinds(world.place()) == ["waiting"]
    assert world.say(absent(1, 2)) == ["released", "allocated"]
    assert free(world) == 0


def test_the_end_of_the_run_gives_back_only_what_is_left() -> None:
    world = gang()
    world.commit(absent(0, 1, 2))
    assert world.say(ended(reason=None)) == ["finished"]
    assert world.say(run_absent(RUN)) == ["released"]
    use = world.state.queue_use.get("research")
    assert use is not None
    assert (free(world), use.jobs, use.amount.gpu_milli, use.amount.cpu_milli) == (8, 0, 0, 0)


def test_a_stopping_run_is_released_pod_by_pod_and_starts_again_when_all_are_gone() -> None:
    world = gang()
    world.commit(absent(0))
    world.commit(ended(reason=DELETED))
    assert world.say(absent(1, 2)) == ["released"]
    assert (free(world), world.job.phase) == (6, "evicting")
    again = ["earmark_set", "earmark_ended", "allocated"]  # in its own place
    assert world.say(run_absent(RUN)) == ["released", "requeued", *again]
    assert len(world.run.places) == 4, "the whole gang starts again"
    assert free(world) == 0


def test_a_gang_that_has_not_started_is_released_as_a_whole() -> None:
    world = World()
    world.queued(role(replicas=2, gpus=2)).place()
    assert world.say(absent(0)) == []
    world.commit(made(pods=2))
    assert world.say(absent(0)) == []


def test_a_role_may_ask_to_be_released_together() -> None:
    world = gang(role("head", gpus=1, release="together"), role(replicas=3, gpus=1))
    assert world.say(absent(0)) == []
    (record,) = world.commit(absent(0, 2)).records
    assert isinstance(record, Released)
    assert record.ranks == (2,)
    world.commit(cancel())
    assert world.say(absent(0)) == []
    assert world.say(run_absent(RUN)) == ["released", "finished"]
    assert free(world) == 8


def test_a_forged_release_of_pods_that_go_together_is_a_contradiction() -> None:
    world = gang(role(replicas=4, gpus=2, release="together"))
    with pytest.raises(Contradiction, match="ranks"):
        apply_record(world.state, Released(kind="released", run_id=RUN, ranks=(1,)), ())


def test_a_drained_node_stops_nobody_whose_pods_there_have_ended() -> None:
    world = two_nodes()
    there = next(place for place in world.run.placements if place.node == "node-b")
    world.commit(absent(there.rank))
    drain = DrainRequested(kind="drain_requested", node="node-b", evict=True)
    assert world.say(drain) == ["node_drained"]
    assert world.say(drain.model_copy(update={"node": "node-a"})) == ["node_drained", "revoked"]


def two_nodes() -> World:
    world = World(node_seen("node-a", 2), node_seen("node-b", 2))
    world.queued(role(replicas=2, gpus=2)).place()
    world.commit(made(pods=2))
    world.commit(started())
    assert {place.node for place in world.run.placements} == {"node-a", "node-b"}
    return world


def test_a_node_that_leaves_is_forgotten_when_nothing_of_the_run_is_on_it_any_more() -> None:
    world = two_nodes()
    there = next(place for place in world.run.placements if place.node == "node-b")
    world.commit(node_seen("node-b", 2, gone=True))
    assert world.state.nodes.get("node-b") is not None
    world.commit(absent(there.rank))
    assert world.state.nodes.get("node-b") is None
    world.commit(node_seen("node-b", 2))
    assert free(world, "node-b") == 2


def test_quota_comes_back_with_the_pods() -> None:
    quotas = (Quota(resource="gpu_milli", nominal=8000),)
    world = gang(body=config_body(Queue(name="research", quotas=quotas)))
    world.commit(node_seen("node-b", 8), admitted("k2", job_spec(role(gpus=4))))
    assert kinds(world.place()) == ["waiting"]
    assert world.say(absent(0, 1)) == ["released", "allocated"]


# -- elastic runs


def elastic() -> World:
    """A gang of two that grew to four."""
    world = gang(
        role(replicas=2, max_replicas=4, gpus=2), pods=2, body=config_body(policy=Policy(grow_after_seconds=0))
    )
    world.commit(PodsMade(kind="pods_made", run_id=RUN, uids=("more-2", "more-3"), ranks=(2, 3)))
    assert len(world.run.places) == 4
    return world


def test_of_an_elastic_run_pods_of_the_gang_and_beyond_it_are_released_as_they_end() -> None:
    world = elastic()
    assert world.say(absent(1, 3)) == ["released"]
    assert [place.rank for place in world.run.places] == [0, 2]
    assert free(world) == 4


def test_pods_that_have_done_their_part_are_not_replaced() -> None:
    world = elastic()
    world.commit(absent(1, 3))
    assert world.say(ms=600_000) == []
    assert len(world.run.places) == 2


def test_an_ended_pod_is_not_removed_again() -> None:
    world = elastic()
    world.commit(absent(3))
    drain = DrainRequested(kind="drain_requested", node="node-a", evict=True)
    (revoked,) = [record for record in world.commit(drain).records if isinstance(record, Revoked)]
    assert revoked.run_id == RUN
    assert world.say(run_absent(RUN))[:2] == ["released", "requeued"]
    assert free(world) == 8
