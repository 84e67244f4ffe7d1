"""GPUs that fail by what DCGM's exporters serve, on real processes: their nodes are left, closed, and opened again."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web

from tessera_schemas.cluster.health import HealthPolicy
from tests.e2e.live import SMALL, Live, configuration, job
from tests.e2e.platform_checks import assert_all_is_well

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

LONG = 600.0
PAGE = """# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error encountered.
# TYPE DCGM_FI_DEV_XID_ERRORS gauge
DCGM_FI_DEV_XID_ERRORS{{gpu="3",UUID="GPU-3-of-{node}",device="nvidia3",Hostname="{node}"}} {xid}
"""


class Exporters:
    """The DCGM exporters of all nodes on one port, by the node's name in the path."""

    def __init__(self) -> None:
        self.xids: dict[str, int] = {}

    async def serve(self, request: web.Request) -> web.Response:
        node = request.match_info["node"]
        return web.Response(text=PAGE.format(node=node, xid=self.xids.get(node, 0)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def exporters() -> Exporters:
    return Exporters()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory, exporters: Exporters) -> AsyncIterator[Live]:
    app = web.Application()
    app.router.add_get("/{node}/metrics", exporters.serve)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESSERA_UTILISATION_EXPORTER", f"http://127.0.0.1:{runner.addresses[0][1]}/{{node}}/metrics")
        patch.setenv("TESSERA_UTILISATION_SECONDS", "1")
        patch.setenv("TESSERA_HEALTH_GONE_SECONDS", "2")
        body = configuration(health=HealthPolicy(out_percent=50))
        async with Live.at(tmp_path_factory.mktemp("platform"), body, layout=SMALL) as live:
            yield live
    await runner.cleanup()


def nodes_of(live: Live, job_id: str) -> set[str]:
    known = live.state.jobs.get(job_id)
    run = known and live.state.runs.get(known.run_id)
    return {placement.node for placement in run.placements} if run else set()


async def until_attempt(live: Live, job_id: str, attempt: int) -> None:
    def runs(state: object) -> bool:
        known = live.state.jobs.get(job_id)
        return known is not None and known.attempt == attempt and known.phase == "running"

    await live.until(runs, f"attempt {attempt} of job {job_id} runs")


async def test_a_gang_leaves_the_node_whose_gpu_fell_off_the_bus(live: Live, exporters: Exporters) -> None:
    done = await live.submit(job(gpus=8, replicas=2, seconds=LONG))
    await until_attempt(live, done.job_id, 1)
    sick, _ = sorted(nodes_of(live, done.job_id))
    exporters.xids[sick] = 79
    await until_attempt(live, done.job_id, 2)
    assert sick not in nodes_of(live, done.job_id)
    health = live.state.health.get(sick)
    assert health is not None
    (known,) = health.ailments
    assert (known.source, known.ailment.device) == ("dcgm", f"GPU-3-of-{sick}")
    assert known.ailment.evidence == "XID 79: GPU has fallen off the bus"
    exporters.xids[sick] = 0  # the machine was started anew, and its exporter with it
    await live.until(lambda state: live.state.health.get(sick) is None, "the node is well again")
    await live.until(lambda state: live.state.drains.get(sick) is None, "the node is open again")
    await live.clients["lab"].cancel(done.job_id)
    await live.until_ended(done.job_id)


async def test_exporters_that_all_lie_close_no_more_than_the_policy_says_and_stop_no_other_run(
    live: Live, exporters: Exporters
) -> None:
    jobs = [await live.submit(job(f"small-{number}", gpus=8, seconds=LONG)) for number in range(2)]
    for each in jobs:
        await until_attempt(live, each.job_id, 1)
    names = [node.name for node in live.state.nodes.values()]
    exporters.xids.update(dict.fromkeys(names, 79))
    await live.until(lambda state: len(list(live.state.health.values())) == len(names), "every node is called sick")
    closed = {name for name, _ in live.state.drains.items()}
    assert len(closed) == len(names) // 2
    assert sum(known.held_back for known in live.state.health.values()) == len(names) - len(closed)
    exporters.xids.clear()
    await live.until(lambda state: not list(live.state.health.values()), "every node is well again")
    for each in jobs:
        await live.clients["lab"].cancel(each.job_id)
    await live.until_ended(*(each.job_id for each in jobs))
    await asyncio.wait_for(assert_all_is_well(live), 120)
