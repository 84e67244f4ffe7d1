"""Pods that another ledger made, or that this one lost: told, counted wholly, and not stopped."""

from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from tessera.binder.decide.pods import spec_label
from tessera.binder.launchers.naming import service_name
from tessera.domain.storing.canonical import spec_hash
from tessera.testkit.checker import check
from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.cluster.labels import (
    GPU_RESOURCE,
    LEDGER_LABEL,
    MANAGED_BY_LABEL,
    RANK_LABEL,
    RUN_LABEL,
    SHARD_LABEL,
    SPEC_LABEL,
)
from tessera_schemas.config import Policy
from tessera_schemas.facts import ConfigProposed, JobAdmitted
from tessera_schemas.ledger import PodsTakenOver
from tests.builders import SHARD, admitted, config_body, queue
from tests.unit.binder.cluster_world import RESERVED, World, train

UNKNOWN = f"{'a' * 20}-1"
ANOTHER = "0123456789abcdef"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World(nodes=("node-a",)) as world:
        yield world


def place(
    world: World,
    ledger: str,
    run: str = UNKNOWN,
    gpus: int = 8,
    seconds: int = 100_000,
    spec: str = "0123-7",
    rank: int = 0,
    node: str = "node-a",
) -> None:
    """A pod that runs on a node, as a binder of `ledger` made it."""
    labels = (
        {RANK_LABEL: str(rank)}
        | {MANAGED_BY_LABEL: "tessera", RUN_LABEL: run, SHARD_LABEL: SHARD, SPEC_LABEL: spec}
        | ({LEDGER_LABEL: ledger} if ledger else {})
    )
    notes = {f"{RESERVED}seconds": str(seconds), "tessera.io/allocated-n": "1"}
    asked = {"cpu": "1", "memory": "1Gi", GPU_RESOURCE: str(gpus)}
    container = {"name": "main", "image": "train:1", "resources": {"requests": asked, "limits": asked}}
    spec_of_pod = {"schedulerName": "tessera", "containers": [container], "subdomain": service_name(run)}
    meta = {"name": f"{run}-{rank}", "labels": labels, "annotations": notes, "finalizers": ["tessera.io/held"]}
    made = world.core.create("pods", "lab", {"metadata": meta, "spec": spec_of_pod})
    world.core.bind("lab", f"{run}-{rank}", {"metadata": {"uid": made.uid}, "target": {"name": node}})


def phases(world: World) -> list[tuple[str, bool]]:
    return [(pod["status"]["phase"], "deletionTimestamp" in pod["metadata"]) for pod in world.pods()]


def gpus_of_others(world: World) -> int:
    return int(world.state.nodes.get("node-a").others.gpus)


async def test_a_pod_of_another_ledger_is_never_touched_and_counts_on_its_node(world: World) -> None:
    place(world, ANOTHER)
    await world.run(300)
    assert phases(world) == [("Running", False)]
    assert gpus_of_others(world) == 8


async def test_a_second_installation_deletes_no_pod_of_the_first(world: World) -> None:
    """Not configured, with a ledger that has no record yet, and the shard name left at its default."""
    await world.submit(spec=train(gpus=8))
    async with World(nodes=(), beside=world) as second:
        assert second.state.ledger_id != world.state.ledger_id
        await second.run(300)
    assert phases(world) == [("Running", False)]


async def test_a_binder_that_meets_pods_of_another_ledger_is_not_ready_until_they_are_gone(world: World) -> None:
    strangers = world.strangers
    assert strangers.problem() is None
    with capture_logs() as logs:
        place(world, ANOTHER, seconds=20)
        await world.run(5)
    assert "pods of another installation run on this shard's nodes: 1" in str(strangers.problem())
    assert [entry["ledger"] for entry in logs if entry["event"] == "pod_of_another_ledger"] == [ANOTHER]
    await world.run(30)
    assert strangers.problem() is None


async def test_a_pod_without_a_ledgers_name_of_a_job_that_nobody_knows_is_told_and_left_alone(world: World) -> None:
    with capture_logs() as logs:
        place(world, "")
        await world.run(300)
    assert phases(world) == [("Running", False)]
    assert [entry["event"] for entry in logs if entry["event"].startswith("orphan")] == ["orphan_pod"]
    assert gpus_of_others(world) == 8


@pytest.mark.parametrize("ledger", ["", "its own"])
async def test_a_pod_that_ends_a_moment_after_it_was_seen_is_no_orphan(world: World, ledger: str) -> None:
    """As of a binder that stood still: it has folded that the run is over, and not seen yet that the pod is."""
    with capture_logs() as logs:
        place(world, world.state.ledger_id if ledger else "", seconds=3)
        await world.run(300)
    assert [entry["event"] for entry in logs if entry["event"].startswith("orphan")] == []


async def test_a_pod_that_the_ledger_lost_counts_wholly_until_it_is_gone(world: World) -> None:
    place(world, world.state.ledger_id)
    await world.run(3)
    assert gpus_of_others(world) == 8
    await world.run(90)
    assert world.pods() == []
    assert gpus_of_others(world) == 0


async def test_a_pod_of_another_spec_of_a_job_that_was_sent_again_goes_on_and_the_job_waits_for_it() -> None:
    async with World() as world:
        fact = admitted("k1", train(gpus=8))
        place(world, world.state.ledger_id, run=f"{fact.job_id}-1", seconds=200)
        await world.run(2)
        await world.commit(fact)
        await world.run(150)
        assert ("Running", False) in phases(world)
        assert len(world.pods()) == 1
        said = world.said("bind_failed")
        assert said
        assert all("as after a restore" in each.reason.detail for each in said)
        assert world.job(fact.job_id).strikes == 0
        await world.run(150)
        assert world.job(fact.job_id).phase == "running"


def gang_at_work(world: World, fact: JobAdmitted, attempt: int = 1, seconds: int = 200) -> None:
    """The pods of an earlier submit of the same job, of a run that the ledger lost."""
    content = spec_hash(fact)[:16]
    for rank in range(2):
        run, node = f"{fact.job_id}-{attempt}", f"node-{'ab'[rank]}"
        place(world, world.state.ledger_id, run, 8, seconds, f"{content}-3", rank, node)


@pytest.mark.parametrize("attempt", [1, 4])
async def test_pods_of_a_job_that_was_sent_again_after_a_restore_go_on_as_its_next_run(attempt: int) -> None:
    async with World() as world:
        fact = admitted("k1", train(gpus=8, replicas=2))
        gang_at_work(world, fact, attempt)
        before = [pod["metadata"]["uid"] for pod in world.pods()]
        await world.run(10)
        assert gpus_of_others(world) == 8
        await world.commit(fact)
        await world.run(60)
        job = world.job(fact.job_id)
        assert (job.phase, job.strikes) == ("running", 0)
        assert [pod["metadata"]["uid"] for pod in world.pods()] == before
        assert gpus_of_others(world) == 0
        assert min(world.state.nodes.get("node-a").gpu_free) == 0
        await world.run(180)
        assert world.state.ended.get(fact.job_id).phase == "succeeded"
        assert world.pods() == []
        assert taken_over(world) == [fact.job_id]
        report = Report()
        check_rules(report, world.books.stored)
        assert not report.violations + check(world.books.stored).violations


def taken_over(world: World) -> list[str]:
    return [record.job_id for record in world.records if isinstance(record, PodsTakenOver)]


@pytest.mark.parametrize("lacks", ["a pod", "its spec", "a free quota"])
async def test_what_is_not_the_whole_job_or_has_no_quota_is_not_taken_over(lacks: str) -> None:
    """It goes on all the same, and the job waits for it."""
    async with World() as world:
        fact = admitted("k1", train(gpus=8, replicas=2))
        if lacks == "a free quota":
            body = config_body(queue("research", gpu_milli=8000))
            await world.commit(ConfigProposed(kind="config_proposed", expected_version=1, body=body))
        gang_at_work(world, fact)
        if lacks == "a pod":
            world.core.vanish("lab", f"{fact.job_id}-1-1")
        if lacks == "its spec":
            world.core.patch("pods", "lab", f"{fact.job_id}-1-1", {"metadata": {"labels": {SPEC_LABEL: "0123-7"}}})
        await world.run(10)
        await world.commit(fact)
        await world.run(60)
        assert taken_over(world) == []
        assert all(phase == ("Running", False) for phase in phases(world))
        assert world.job(fact.job_id).phase != "running"


async def test_pods_go_on_though_their_job_has_started_elsewhere_was_refused_and_waits_for_its_next_try() -> None:
    """The committer is faster than who finds the pods: they need not wait for the job's back-off."""
    async with World(nodes=("node-a", "node-b", "node-c", "node-d")) as world:
        fact = admitted("k1", train(gpus=8, replicas=2))
        await world.commit(fact)
        gang_at_work(world, fact, attempt=2)
        await world.run(60)
        assert taken_over(world) == [fact.job_id]
        assert (world.job(fact.job_id).phase, world.nodes_of(fact.job_id)) == ("running", {"node-a", "node-b"})
        assert len(world.pods()) == 2


async def test_the_names_of_a_gang_that_goes_on_stay() -> None:
    """Its pods find each other by a Service of the run that the ledger lost."""
    async with World() as world:
        fact = admitted("k1", train(gpus=8, replicas=2))
        gang_at_work(world, fact, seconds=300)
        run, named = f"{fact.job_id}-1", service_name(f"{fact.job_id}-1")
        labels = {RUN_LABEL: run, SHARD_LABEL: SHARD, LEDGER_LABEL: world.state.ledger_id}
        world.core.create("services", "lab", {"metadata": {"name": named, "labels": labels}, "spec": {}})
        await world.run(20)
        assert len(world.core.list("services")[0]) == 1
        await world.commit(fact)
        await world.run(200)
        assert taken_over(world) == [fact.job_id]
        assert len(world.core.list("services")[0]) == 1
        await world.run(200)
        assert not world.core.list("services")[0]


async def test_such_a_pod_goes_on_also_where_the_job_was_taken_in_by_a_message_of_the_same_number() -> None:
    """Then nothing on the pod tells one life of the job from the other, but that it is bound and has no permit."""
    async with World(policy=Policy(start_timeout_seconds=30)) as world:
        fact = admitted("k1", train(gpus=8))
        await world.commit(fact)
        own = spec_label(world.job(fact.job_id))
        place(world, world.state.ledger_id, run=f"{fact.job_id}-1", spec=own)
        await world.run(150)
        assert phases(world) == [("Running", False)]
        assert world.job(fact.job_id).strikes == 0
