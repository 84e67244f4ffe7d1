"""A pod of a group fails: its copy starts again where it was, the others go on, and the ledger says how often."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tessera.client.ledger.replay import verify
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.engine.explain.explanation import explain
from tessera.kernel.ports import ApiError
from tessera.testkit.checker import check
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.cluster.gang_groups import GroupRestart, RoleGroup
from tessera_schemas.cluster.labels import RANK_LABEL
from tessera_schemas.config import Policy
from tessera_schemas.facts import CancelRequested, DrainRequested
from tessera_schemas.job import JobSpec, Retry
from tessera_schemas.ledger import LEDGER_MESSAGE
from tessera_schemas.reasons import Code
from tests.unit.binder.cluster_world import World, train


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as world:
        yield world
        assert judged(world) == []
        assert StateHash().of(load(dump(world.state))) == world.books.shard.hasher.of(world.state)


def judged(world: World) -> list[str]:
    """What a replay, and checkers that share no code with the committer, have against the ledger."""
    report = check(world.books.stored)
    check_rules(report, world.books.stored)
    return [*map(str, verify(world.books.stored).findings), *(violation.text for violation in report.violations)]


def in_pairs(most: int = 2, backoff: int = 0, outer: int | None = None, **more: Any) -> JobSpec:
    """Four pods in two pairs, each of which starts again by itself; with `outer` all four do, too."""
    whole = GroupRestart(max_restarts=outer, backoff_seconds=0) if outer else None
    pair = GroupRestart(max_restarts=most, backoff_seconds=backoff)
    groups = (
        RoleGroup(name="all", restart=whole),
        RoleGroup(name="pair", within="all", pods={"worker": 2}, restart=pair),
    )
    return JobSpec.model_validate(train(replicas=4, gpus=2, **more).model_dump() | {"groups": groups})


def pod(world: World, rank: int) -> Any:
    (found,) = [pod for pod in world.pods() if pod["metadata"]["labels"][RANK_LABEL] == str(rank)]
    return found


def fail(world: World, rank: int, exit_code: int = 1) -> None:
    ended = {"exitCode": exit_code, "reason": "Error"}
    status = {"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"terminated": ended}}]}
    world.core.patch("pods", "lab", pod(world, rank)["metadata"]["name"], {"status": status}, "status")


def uids(world: World) -> dict[int, str]:
    return {int(pod["metadata"]["labels"][RANK_LABEL]): pod["metadata"]["uid"] for pod in world.pods()}


def restarts(world: World) -> list[tuple[str, int, tuple[int, ...], int]]:
    found = [record for record in world.records if record.kind == "group_restarted"]
    return [(r.group, r.copy_number, r.ranks, r.count) for r in found]


async def test_a_pair_starts_again_where_it_was_and_the_others_go_on(world: World) -> None:
    job = await world.submit(spec=in_pairs())
    before, places = uids(world), world.current(job).placements
    fail(world, 3)
    await world.run(15)
    after, run = uids(world), world.current(job)
    assert {rank for rank in before if before[rank] != after[rank]} == {2, 3}
    assert (run.placements, run.uids, run.attempt) == (places, tuple(after[rank] for rank in range(4)), 1)
    assert {pod["status"]["phase"] for pod in world.pods()} == {"Running"}
    assert [pod(world, rank)["spec"]["nodeName"] for rank in range(4)] == [place.node for place in places]
    assert restarts(world) == [("pair", 1, (2, 3), 1)]
    assert world.kinds().count("group_permitted") == world.kinds().count("group_resumed") == 1
    assert "revoked" not in world.kinds()
    sentences = explain(world.state, job, world.state.ts).sentences
    said = "Copy 1 of its group pair (2 pods) started again by itself and runs: 1 restart in a row."
    assert said in sentences, sentences
    for rank in range(4):
        end(world, rank)
    await world.run(10)
    assert world.job(job).phase == "succeeded"


def end(world: World, rank: int) -> None:
    ended = {"exitCode": 0, "reason": "Completed"}
    status = {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": ended}}]}
    world.core.patch("pods", "lab", pod(world, rank)["metadata"]["name"], {"status": status}, "status")


async def test_a_group_that_says_nothing_of_it_starts_its_job_again(world: World) -> None:
    spec = in_pairs(retry=Retry(on_failure=True))
    plain = tuple(group.model_copy(update={"restart": None}) for group in spec.groups)
    job = await world.submit(spec=spec.model_copy(update={"groups": plain}))
    fail(world, 3)
    await world.run(1)
    assert world.job(job).phase == "evicting"
    assert restarts(world) == []


async def test_what_a_pair_does_not_mend_is_the_failure_of_all_and_then_of_the_job(world: World) -> None:
    job = await world.submit(spec=in_pairs(most=1, outer=1))
    for expected in ([("pair", 0, (0, 1), 1)], [("all", 0, (0, 1, 2, 3), 1)], [("pair", 0, (0, 1), 1)]):
        fail(world, 1)
        await world.run(15)
        assert restarts(world)[-1:] == expected
    assert world.job(job).phase == "running"
    fail(world, 0)
    await world.run(15)
    assert world.job(job).phase == "failed"
    assert world.job(job).attempt == 1
    assert len(restarts(world)) == 3


async def test_copies_start_again_each_by_itself_and_a_pause_grows_with_each(world: World) -> None:
    await world.submit(spec=in_pairs(backoff=4))
    fail(world, 0)
    fail(world, 2)
    await world.run(3)
    assert sorted(restarts(world)) == [("pair", 0, (0, 1), 1), ("pair", 1, (2, 3), 1)]
    assert world.pods() == []
    await world.run(5)
    assert sorted(uids(world)) == [0, 1, 2, 3]
    fail(world, 2)
    await world.run(6)
    assert sorted(uids(world)) == [0, 1]
    await world.run(6)
    assert sorted(uids(world)) == [0, 1, 2, 3]
    pauses = [r.not_before - m for m, r in stamped(world)]
    assert pauses == [4000, 4000, 8000]


async def test_a_wall_clock_that_is_behind_the_ledger_makes_no_pause_longer(world: World) -> None:
    await world.submit(spec=in_pairs(backoff=4))
    world.clock_of["binder"].ahead_ms = -3_600_000
    fail(world, 0)
    await world.run(3)
    assert sorted(uids(world)) == [2, 3]
    await world.run(5)
    assert sorted(uids(world)) == [0, 1, 2, 3]


def stamped(world: World) -> list[tuple[int, Any]]:
    read = [LEDGER_MESSAGE.validate_json(stored) for stored in world.books.stored]
    return [(m.ts, r) for m in read for r in m.records if r.kind == "group_restarted"]


async def test_facts_that_are_told_again_or_late_start_nothing_again(world: World) -> None:
    job = await world.submit(spec=in_pairs(backoff=5))
    fail(world, 3)
    await world.run(15)
    (ended,) = world.said("run_ended")
    assert ended.uid
    assert (await world.commit(ended)).records == ()
    (made,) = world.said("group_pods_made")
    fail(world, 3)
    await world.run(3)
    assert len(restarts(world)) == 2
    assert not [r for r in (await world.commit(ended, made)).records if r.kind.startswith(("group", "revoked"))]
    assert world.current(job).restarts[0].is_out


async def test_a_binder_that_remembers_nothing_goes_on_with_it(world: World) -> None:
    job = await world.submit(spec=in_pairs(backoff=2))
    for seconds in (0.5, 1.0, 2.25):
        fail(world, 3) if seconds == 0.5 else None
        await world.run(seconds)
        await world.stop("binder")
        world.start_binder()
    await world.run(5)
    assert sorted(uids(world)) == [0, 1, 2, 3]
    assert world.kinds().count("group_resumed") == 1
    assert not world.current(job).restarts[0].deadline


async def test_a_run_that_stops_meanwhile_stops_whole(world: World) -> None:
    job = await world.submit(spec=in_pairs(backoff=60))
    fail(world, 3)
    await world.run(2)
    assert sorted(uids(world)) == [0, 1]
    await world.commit(CancelRequested(kind="cancel_requested", job_id=job))
    await world.run(10)
    assert world.job(job).phase == "cancelled"
    assert world.pods() == []


async def test_on_a_node_that_takes_nothing_the_whole_job_starts_again(world: World) -> None:
    job = await world.submit(spec=in_pairs(retry=Retry(on_failure=True, backoff_seconds=0)))
    node = world.current(job).placements[3].node
    await world.commit(DrainRequested(kind="drain_requested", node=node))
    fail(world, 3)
    await world.run(15)
    assert restarts(world) == []
    assert world.job(job).attempt == 2


async def test_a_copy_that_does_not_come_back_in_time_ends_the_run() -> None:
    async with World(policy=Policy(start_timeout_seconds=20)) as world:
        job = await world.submit(spec=in_pairs())

        async def refuse(operation: str) -> None:
            if operation == "create":
                raise ApiError(403, "Forbidden", "the namespace's quota is spent")

        world.api.before = refuse  # type: ignore[method-assign]
        fail(world, 3)
        await world.run(10)
        assert world.job(job).phase == "running"
        await world.run(30)
        revoked = next(r for r in world.records if r.kind == "revoked")
        assert revoked.reason.code is Code.START_TIMEOUT


async def test_a_time_limit_is_that_of_the_run_also_for_pods_that_start_again(world: World) -> None:
    await world.submit(spec=in_pairs(time_limit_seconds=600))
    await world.run(100)
    fail(world, 2)
    await world.run(15)
    limits = [pod(world, rank)["spec"]["activeDeadlineSeconds"] for rank in range(4)]
    assert limits[:2] == [600, 600]
    assert 490 <= limits[2] == limits[3] <= 500


async def test_a_deleted_pod_is_a_failure_of_its_group(world: World) -> None:
    await world.submit(spec=in_pairs())
    world.core.delete("pods", "lab", pod(world, 0)["metadata"]["name"])
    await world.run(15)
    assert restarts(world) == [("pair", 0, (0, 1), 1)]
    assert sorted(uids(world)) == [0, 1, 2, 3]


async def test_a_group_as_large_as_the_one_around_it_spends_that_ones_restarts_only_once_its_own_are_spent(
    world: World,
) -> None:
    spec = in_pairs(most=1, outer=2)
    same = spec.groups[1].model_copy(update={"pods": {"worker": 4}})
    job = await world.submit(spec=spec.model_copy(update={"groups": (spec.groups[0], same)}))
    for _ in range(6):
        fail(world, 3)
        await world.run(15)
    everything = (0, 1, 2, 3)
    counted = [("pair", 1), ("all", 1), ("pair", 1), ("all", 2), ("pair", 1)]
    assert restarts(world) == [(name, 0, everything, count) for name, count in counted]
    assert world.job(job).phase == "failed"


async def test_a_copy_within_one_that_is_starting_starts_again_and_both_get_there() -> None:
    async with World(start_ms=2000) as world:
        job = await world.submit(spec=in_pairs(most=1, outer=1))
        fail(world, 1)
        await world.run(15)
        fail(world, 1)
        for _ in range(60):
            if world.kinds().count("group_permitted") == 2:
                break
            await world.run(0.25)
        assert world.kinds().count("group_resumed") == 1
        fail(world, 3)
        await world.run(20)
        assert [name for name, *_ in restarts(world)] == ["pair", "all", "pair"]
        assert world.kinds().count("group_resumed") == 3
        assert not any(copy.deadline for copy in world.current(job).restarts)
        assert judged(world) == []
