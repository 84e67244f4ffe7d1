"""Nodes that fail under gangs, on real processes: the gangs restart elsewhere, and no device is given twice."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from tessera_schemas import subjects
from tessera_schemas.cluster.health import Ailment, HealthCause, HealthPolicy
from tessera_schemas.cluster.labels import CHECKPOINT_ANNOTATION
from tessera_schemas.commands import DrainNode, ReportHealth
from tessera_schemas.config import Policy
from tessera_schemas.job import CheckpointPolicy, Retry
from tessera_schemas.ledger import LEDGER_MESSAGE, Allocated, Revoked, Saved
from tessera_schemas.reasons import Code
from tests.e2e.live import SMALL, Live, configuration, job
from tests.e2e.node_faults import operate, saving
from tests.e2e.platform_checks import assert_all_is_well

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = 600.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    """As elsewhere, but silent nodes are given up soon."""
    home: Path = tmp_path_factory.mktemp("platform")
    async with Live.at(
        home,
        configuration(policy=Policy(node_lost_seconds=2, cordoned_seconds=2), health=HealthPolicy()),
        layout=SMALL,
    ) as live:
        yield live


async def order(live: Live, **fault: object) -> None:
    """Do this to the simulated cluster."""
    token = live.platform.credentials.read(subjects.OPERATOR).cluster_token
    headers, url = {"Authorization": f"Bearer {token}"}, f"{live.platform.cluster_url}/admin/faults"
    async with aiohttp.ClientSession(headers=headers) as http, http.post(url, json=fault) as answer:
        assert answer.status == 201, await answer.text()


def revoked_for(live: Live, job_id: str) -> list[Code]:
    messages = [LEDGER_MESSAGE.validate_json(stored) for stored in live.stored]
    revoked = [record for message in messages for record in message.records if isinstance(record, Revoked)]
    return [record.reason.code for record in revoked if record.run_id.startswith(f"{job_id}-")]


def nodes_of(live: Live, job_id: str) -> set[str]:
    known = live.state.jobs.get(job_id)
    run = known and live.state.runs.get(known.run_id)
    return {placement.node for placement in run.placements} if run else set()


async def until_attempt(live: Live, job_id: str, attempt: int) -> None:
    def runs(state: object) -> bool:
        known = live.state.jobs.get(job_id)
        return known is not None and known.attempt == attempt and known.phase == "running"

    await live.until(runs, f"attempt {attempt} of job {job_id} runs")


async def test_a_gang_whose_node_is_lost_restarts_elsewhere_and_avoids_it(live: Live) -> None:
    done = await live.submit(job(gpus=8, replicas=2, seconds=LONG))
    await until_attempt(live, done.job_id, 1)
    lost, _ = sorted(nodes_of(live, done.job_id))
    await order(live, fault="node_reachable", node=lost, reachable=False)
    await live.until_phase(done.job_id, "evicting")
    await order(live, fault="node_out_of_service", node=lost, out=True)
    await until_attempt(live, done.job_id, 2)
    known = live.state.jobs.get(done.job_id)
    assert known is not None
    assert known.avoid == (lost,)
    assert lost not in nodes_of(live, done.job_id)
    await order(live, fault="node_out_of_service", node=lost, out=False)
    await order(live, fault="node_reachable", node=lost, reachable=True)
    await live.clients["lab"].cancel(done.job_id)
    await assert_all_is_well(live)


async def test_a_cordon_of_all_nodes_and_plugins_that_are_away_stop_nothing_that_runs(live: Live) -> None:
    """Also where the policy moves runs off cordoned nodes, as the model's default does: there is nowhere to go."""
    done = [await live.submit(saving(job(gpus=8, seconds=LONG), every=1, notice=10)) for _ in range(2)]
    for each in done:
        await until_attempt(live, each.job_id, 1)
    nodes = sorted(name for name, _ in live.state.nodes.items())
    await asyncio.gather(*(order(live, fault="node_cordoned", node=node, cordoned=True) for node in nodes))
    await asyncio.gather(*(order(live, fault="device_plugins", node=node, there=False) for node in nodes))
    # A job that is placed before the ledger has heard of it is refused by its node, and rightly tried again.
    await live.until(lambda state: all(node.cordoned for node in state.nodes.values()), "all nodes are cordoned")
    later = await live.submit(job("later", gpus=1))
    await asyncio.sleep(8)
    assert [live.state.jobs.get(each.job_id).attempt for each in done] == [1, 1]  # type: ignore[union-attr]
    assert {node.cordoned for node in live.state.nodes.values()} == {True}
    for node in nodes:
        await order(live, fault="device_plugins", node=node, there=True)
        await order(live, fault="node_cordoned", node=node, cordoned=False)
    await live.until_ended(later.job_id)
    assert live.phase(later.job_id) == "succeeded"
    for each in done:
        await live.clients["lab"].cancel(each.job_id, now=True)
    await assert_all_is_well(live)


async def test_a_drained_gang_saves_its_work_in_its_notice_and_goes_on_with_it_elsewhere(live: Live) -> None:
    done = await live.submit(saving(job(gpus=1, replicas=2, seconds=20), every=600, notice=60))
    await until_attempt(live, done.job_id, 1)
    (node,) = nodes_of(live, done.job_id)
    await operate(live, DrainNode(kind="drain_node", v=1, node=node, evict=True, why="maintenance"))
    await until_attempt(live, done.job_id, 2)  # long before the notice is over: its work is saved
    known = live.state.jobs.get(done.job_id)
    assert known is not None
    assert known.saved_path.startswith("/checkpoints/")
    assert node not in nodes_of(live, done.job_id)
    await operate(live, DrainNode(kind="drain_node", v=1, node=node, undo=True))
    await live.until_ended(done.job_id)
    assert live.phase(done.job_id) == "succeeded"
    await assert_all_is_well(live)


async def test_a_gang_leaves_a_node_of_which_a_gpu_is_lost_and_the_node_opens_once_it_is_well(live: Live) -> None:
    done = await live.submit(job("sick", gpus=1, replicas=2, seconds=LONG))
    await until_attempt(live, done.job_id, 1)
    (node,) = nodes_of(live, done.job_id)
    lost = (Ailment(cause=HealthCause.GPU_LOST, device="GPU-1", evidence="XID 79"),)
    await operate(live, ReportHealth(kind="report_health", v=1, node=node, source="agent", ailments=lost))
    await until_attempt(live, done.job_id, 2)
    assert Code.NODE_SICK in revoked_for(live, done.job_id)
    assert node not in nodes_of(live, done.job_id)
    assert live.state.drains.get(node) is not None
    await operate(live, ReportHealth(kind="report_health", v=1, node=node, source="agent"))
    await live.until(lambda _: live.state.drains.get(node) is None, f"{node} is open again")
    await live.clients["lab"].cancel(done.job_id, now=True)
    await assert_all_is_well(live)


async def test_a_checkpoint_that_another_pod_reports_late_ends_no_notice(live: Live) -> None:
    """The pods of a gang come to the same checkpoints one after the other; the newest is known by then."""
    checkpoint = CheckpointPolicy(interval_seconds=60, notice_seconds=600)
    done = await live.submit(job("late", gpus=1, replicas=2, seconds=LONG, checkpoint=checkpoint))
    await until_attempt(live, done.job_id, 1)
    (node,) = nodes_of(live, done.job_id)

    def saved() -> list[str]:
        records = (record for stored in live.stored for record in LEDGER_MESSAGE.validate_json(stored).records)
        return [
            record.path for record in records if isinstance(record, Saved) and record.run_id.startswith(done.job_id)
        ]

    for path in ("/100", "/200"):
        await report(live, f"{done.job_id}-1-0", path)
        await live.until(lambda _, path=path: path in saved(), f"{path} is known")  # type: ignore[misc]
    await operate(live, DrainNode(kind="drain_node", v=1, node=node, evict=True))
    await live.until_phase(done.job_id, "evicting")
    await report(live, f"{done.job_id}-1-1", "/100")
    await report(live, f"{done.job_id}-1-0", "/300")
    await until_attempt(live, done.job_id, 2)
    assert saved() == ["/100", "/200", "/300"]
    await operate(live, DrainNode(kind="drain_node", v=1, node=node, undo=True))
    await live.clients["lab"].cancel(done.job_id, now=True)
    await assert_all_is_well(live)


async def report(live: Live, pod: str, path: str) -> None:
    """As the program in the pod does."""
    cluster = live.cluster()
    try:
        await cluster.patch_object(
            "v1", "Pod", "lab", pod, {"metadata": {"annotations": {CHECKPOINT_ANNOTATION: path}}}
        )
    finally:
        await cluster.close()


async def test_a_node_that_is_gone_for_good_gives_its_gangs_up(live: Live) -> None:
    done = await live.submit(job(gpus=4, replicas=2, seconds=LONG))
    await until_attempt(live, done.job_id, 1)
    gone = sorted(nodes_of(live, done.job_id))[0]
    await order(live, fault="node_gone", node=gone)
    await until_attempt(live, done.job_id, 2)
    assert gone not in nodes_of(live, done.job_id)
    await live.clients["lab"].cancel(done.job_id)
    await assert_all_is_well(live)
    assert revoked_for(live, done.job_id) == [Code.NODE_LOST, Code.CANCELLED]


async def test_a_program_that_fails_is_tried_on_another_node_each_time(live: Live) -> None:
    retry = Retry(max_attempts=3, backoff_seconds=0, on_failure=True)
    done = await live.submit(job(exit_code=1, retry=retry))
    await live.until_ended(done.job_id)
    messages = [LEDGER_MESSAGE.validate_json(stored) for stored in live.stored]
    allocated = [record for message in messages for record in message.records if isinstance(record, Allocated)]
    nodes = [record.placements[0].node for record in allocated if record.job_id == done.job_id]
    assert (live.phase(done.job_id), len(nodes), len(set(nodes))) == ("failed", 3, 3)
    await assert_all_is_well(live)
