"""
What runs goes on, and who failed pays: an ordinary Tuesday on real processes, under the file that `config init` writes.

Only the times are shorter than people's: a node is given up after three seconds.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from tessera_schemas import subjects
from tessera_schemas.cluster.labels import RUN_LABEL
from tessera_schemas.job import JobSpec, Retry
from tessera_schemas.ledger import LEDGER_MESSAGE, AnyRecord, NodeBackedOff, Requeued, Revoked
from tessera_schemas.reasons import Code
from tessera_schemas.work.arrays import JobArray
from tests.e2e.live import SMALL, TENANTS, Live, job
from tests.e2e.platform_checks import assert_all_is_well

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = 600.0
NODES = ("gpu-0", "gpu-1", "gpu-2", "gpu-3")
LOST_SECONDS = 3
ONCE = Retry(max_attempts=1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    """A platform under what `config init` writes for it."""
    home: Path = tmp_path_factory.mktemp("platform")
    async with Live.at(home, layout=SMALL) as live:
        await live.until_nodes_are_known()
        file = home / "config.yaml"
        tenants = [word for name in TENANTS for word in ("--tenant", name)]
        said = await live.command("config", "init", "-f", str(file), *tenants)
        assert said.code == 0, said.err
        text = file.read_text()
        assert "\npolicy:\n" in text
        quick = f"\npolicy:\n  node_lost_seconds: {LOST_SECONDS}\n  start_timeout_seconds: 30\n"
        file.write_text(text.replace("\npolicy:\n", quick))
        said = await live.command("apply", "--yes", "-f", str(file))
        assert said.code == 0, said.err
        yield live


async def order(live: Live, fault: str, **more: object) -> None:
    """Do this to the simulated cluster."""
    token = live.platform.credentials.read(subjects.OPERATOR).cluster_token
    headers, url = {"Authorization": f"Bearer {token}"}, f"{live.platform.cluster_url}/admin/faults"
    async with aiohttp.ClientSession(headers=headers) as http, http.post(url, json={"fault": fault} | more) as answer:
        assert answer.status == 201, await answer.text()


def records(live: Live, job_id: str = "") -> list[AnyRecord]:
    """The ledger's records, or those about one job and its runs."""
    found = (record for stored in live.stored for record in LEDGER_MESSAGE.validate_json(stored).records)
    about = ("job_id", "owner", "run_id")
    return [r for r in found if any(str(getattr(r, name, "")).startswith(job_id) for name in about) or not job_id]


def revoked(live: Live, *jobs: str) -> list[Code]:
    return [record.reason.code for each in jobs for record in records(live, each) if isinstance(record, Revoked)]


def strikes(live: Live, job_id: str) -> int:
    return sum(record.strike for record in records(live, job_id) if isinstance(record, Requeued))


async def run(live: Live, count: int = 1, **spec: object) -> list[str]:
    """Jobs of whole nodes, one attempt each, which run; returns their ids."""
    asked: dict[str, object] = {"gpus": 8, "seconds": LONG, "retry": ONCE} | spec
    done = [await live.submit(job(**asked)) for _ in range(count)]  # type: ignore[arg-type]
    for each in done:
        await live.until_phase(each.job_id, "running")
    return [each.job_id for each in done]


def node_of(live: Live, job_id: str) -> str:
    known = live.state.jobs.get(job_id)
    run = known and live.state.runs.get(known.run_id)
    assert run
    return run.placements[0].node


async def until_attempt(live: Live, job_id: str, attempt: int) -> None:
    def runs(state: object) -> bool:
        known = live.state.jobs.get(job_id)
        return known is not None and known.attempt >= attempt and known.phase == "running"

    await live.until(runs, f"attempt {attempt} of job {job_id} runs")


async def pod_of(live: Live, job_id: str) -> str:
    known = live.state.jobs.get(job_id)
    assert known is not None
    cluster = live.cluster()
    try:
        (pod,), _ = await cluster.list("pods", f"{RUN_LABEL}={known.run_id}")
    finally:
        await cluster.close()
    return str(pod["metadata"]["name"])


async def cancel(live: Live, jobs: Sequence[str]) -> None:
    for each in jobs:
        await live.clients["lab"].cancel(each, now=True)
    await live.until_ended(*jobs)


async def test_a_cordon_of_all_nodes_stops_nobody(live: Live) -> None:
    jobs = await run(live, 2)
    for node in NODES:
        await order(live, "node_cordoned", node=node, cordoned=True)
    await asyncio.sleep(3 * LOST_SECONDS)
    said = await live.command("nodes")
    assert said.out.count("cordoned") == len(NODES), said.out
    for node in NODES:
        await order(live, "node_cordoned", node=node, cordoned=False)
    assert revoked(live, *jobs) == []
    await cancel(live, jobs)
    await assert_all_is_well(live)


async def test_device_plugins_that_are_away_stop_nobody_and_what_comes_meanwhile_waits(live: Live) -> None:
    jobs = await run(live, 2)
    for node in NODES:
        await order(live, "device_plugins", node=node, there=False)
    await live.until(
        lambda state: all(node.gpus == 0 or not node.ready for node in state.nodes.values()), "the nodes have no GPUs"
    )
    later = await live.submit(job(gpus=8, seconds=0.1, retry=ONCE))
    await asyncio.sleep(3 * LOST_SECONDS)
    assert live.phase(later.job_id) == "queued"
    for node in NODES:
        await order(live, "device_plugins", node=node, there=True)
    await live.until_ended(later.job_id)
    assert live.phase(later.job_id) == "succeeded"
    assert revoked(live, *jobs) == []
    await cancel(live, jobs)
    await assert_all_is_well(live)


async def test_one_gpu_fewer_beside_spare_ones_stops_nobody(live: Live) -> None:
    jobs = await run(live, 1, gpus=2)
    node = node_of(live, jobs[0])
    await order(live, "unhealthy_gpus", node=node, gpus=1)
    await asyncio.sleep(3 * LOST_SECONDS)
    await order(live, "unhealthy_gpus", node=node, gpus=0)
    assert revoked(live, *jobs) == []
    await cancel(live, jobs)
    await assert_all_is_well(live)


async def test_three_evictions_cost_time_and_no_attempt(live: Live) -> None:
    (evicted,) = await run(live)
    for attempt in (1, 2, 3):
        await order(live, "evict_pod", namespace="lab", name=await pod_of(live, evicted))
        await until_attempt(live, evicted, attempt + 1)
    assert set(revoked(live, evicted)) == {Code.POD_EVICTED}
    assert strikes(live, evicted) == 0
    await cancel(live, [evicted])
    await assert_all_is_well(live)


async def test_a_machine_that_restarts_faster_than_it_is_lost_costs_no_attempt(live: Live) -> None:
    (lost,) = await run(live)
    node = node_of(live, lost)
    await order(live, "node_reboot", node=node, left="unknown")
    await asyncio.sleep(1)
    await order(live, "node_reachable", node=node, reachable=True)
    await until_attempt(live, lost, 2)
    assert strikes(live, lost) == 0
    assert Code.POD_FAILED not in revoked(live, lost)
    await cancel(live, [lost])
    await assert_all_is_well(live)


async def test_refusals_of_the_api_server_hold_no_gpus_and_end_no_job(live: Live) -> None:
    await order(live, "forbid_creates", namespace="lab", on=True)
    refused = [(await live.submit(job(gpus=8, seconds=0.1, retry=ONCE))).job_id for _ in range(3)]
    await asyncio.sleep(5)
    assert {live.phase(each) for each in refused} <= {"queued", "allocated", "evicting", "binding"}
    await order(live, "forbid_creates", namespace="lab", on=False)
    await live.until_ended(*refused)
    assert [live.phase(each) for each in refused] == ["succeeded"] * 3
    await assert_all_is_well(live)


async def test_a_node_that_starts_nothing_is_avoided(live: Live) -> None:
    await order(live, "node_starting_nothing", node="gpu-0", on=True)
    tried = [(await live.submit(job(gpus=8, seconds=1.0, retry=ONCE))).job_id for _ in range(4)]
    await live.until_ended(*tried)
    assert [live.phase(each) for each in tried] == ["succeeded"] * 4
    assert Code.START_TIMEOUT in revoked(live, *tried)
    await order(live, "node_healed", node="gpu-0")
    await assert_all_is_well(live)


async def test_a_node_that_refuses_pods_swallows_no_array(live: Live) -> None:
    await order(live, "node_refusing", node="gpu-0")
    spec: JobSpec = job(gpus=1, seconds=1.0, retry=ONCE)
    array = await live.submit(
        JobSpec.model_validate(spec.model_dump() | {"array": JobArray(tasks="0-59").model_dump()})
    )
    await live.until_ended(array.job_id)
    assert live.phase(array.job_id) == "succeeded"
    assert [record.node for record in records(live) if isinstance(record, NodeBackedOff)][:1] == ["gpu-0"]
    said = await live.command("nodes")
    assert "NodeBackedOff" in said.out
    await order(live, "node_healed", node="gpu-0")
    await assert_all_is_well(live)


async def test_the_taint_that_gpu_nodes_carry_shuts_nobody_out(live: Live) -> None:
    for node in NODES:
        await order(live, "node_taint", node=node, key="nvidia.com/gpu", value="present", effect="NoSchedule")
    tainted = "the taints are known"
    await live.until(lambda state: all(node.taints for node in state.nodes.values() if node.gpus), tainted)
    done = await live.submit(job(gpus=1, retry=ONCE))
    said = await live.command("submit", "--as", "lab", "--gpus", "1", "--dry-run", "--", "true")
    await live.until_ended(done.job_id)
    assert live.phase(done.job_id) == "succeeded"
    for node in NODES:
        await order(live, "node_taint", node=node, key="nvidia.com/gpu", value="present", effect="NoSchedule", on=False)
    assert said.code == 0, said.err
    await assert_all_is_well(live)
