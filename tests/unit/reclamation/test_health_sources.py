"""What DCGM counts, from a fake exporter of each node that serves recorded pages, and from Prometheus' answers."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from tessera.kernel.errors import Transient
from tessera.reclamation.health.counters import GpuCounters
from tessera.reclamation.health.sources import QueriedCounters, ScrapedCounters
from tessera.reclamation.main import choose_counters
from tessera.reclamation.settings import ReclamationSettings
from tessera_schemas.cluster.health import HealthCause
from tests.ledgers import Committed

XID, DBE = "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
LABELS = 'device="nvidia{gpu}",gpu="{gpu}",UUID="GPU-{gpu}",modelName="NVIDIA H100",Hostname="a"'
RECORDED = [
    # Four looks at one node: GPU 1 has a double-bit error, then falls off the bus and is no more in the list.
    {0: (0, 0), 1: (0, 3)},
    {0: (0, 0), 1: (48, 4)},
    {0: (0, 0), 1: (79, 4)},
    {0: (0, 0)},
]


def recorded(look: dict[int, tuple[int, int]]) -> str:
    lines = [f"# HELP {XID} Value of the last XID error encountered.", f"# TYPE {XID} gauge"]
    lines += [f"{XID}{{{LABELS.format(gpu=gpu)}}} {xid}" for gpu, (xid, _) in look.items()]
    lines += [f"# HELP {DBE} Total number of double-bit volatile ECC errors.", f"# TYPE {DBE} counter"]
    lines += [f"{DBE}{{{LABELS.format(gpu=gpu)}}} {errors}" for gpu, (_, errors) in look.items()]
    lines += [f"DCGM_FI_DEV_GPU_TEMP{{{LABELS.format(gpu=gpu)}}} 41" for gpu in look]
    return "\n".join(lines) + "\n"


class Fake:
    """Exporters of nodes, and Prometheus, on one port; what they answer is the test's."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, str]] = {}
        self.vector: list[dict[str, Any]] = []
        self.queries: list[str] = []

    async def scrape(self, request: web.Request) -> web.Response:
        status, text = self.pages.get(request.match_info["node"], (503, ""))
        return web.Response(status=status, text=text)

    async def query(self, request: web.Request) -> web.Response:
        self.queries.append(str((await request.post())["query"]))
        answer = {"status": "success", "data": {"resultType": "vector", "result": self.vector}}
        return web.Response(body=json.dumps(answer).encode())


@pytest.fixture
async def fake() -> Fake:
    return Fake()


@pytest.fixture
async def url(fake: Fake) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/{node}/metrics", fake.scrape)
    app.router.add_post("/api/v1/query", fake.query)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_a_recorded_series_is_read_look_by_look(fake: Fake, url: str) -> None:
    source, counters, found = ScrapedCounters(f"{url}/{{node}}/metrics", lambda: ["a"]), GpuCounters(), []
    for at, look in enumerate(RECORDED):
        fake.pages["a"] = 200, recorded(look)
        samples = (await source.look())["a"]
        found.append([(s.ailment.cause, s.ailment.device) for s in counters.look("a", samples, 30 * at)])
    memory, lost = (HealthCause.GPU_MEMORY, "GPU-1"), (HealthCause.GPU_LOST, "GPU-1")
    assert found == [[], [memory, memory], [memory, lost], []]
    await source.close()


async def test_a_node_that_does_not_answer_or_speaks_nonsense_is_not_among_the_answers(fake: Fake, url: str) -> None:
    fake.pages = {"a": (200, recorded(RECORDED[0])), "b": (500, ""), "c": (200, f'{XID}{{gpu="0"}} \n')}
    source = ScrapedCounters(f"{url}/{{node}}/metrics", lambda: ["a", "b", "c"])
    assert list(await source.look()) == ["a"]
    del fake.pages["a"]
    with pytest.raises(Transient, match="exporter of a answered 503"):
        await source.look()
    await source.close()


async def test_an_exporter_speaks_of_the_node_that_was_asked_whatever_its_labels_say(fake: Fake, url: str) -> None:
    fake.pages["b"] = 200, recorded(RECORDED[2])  # its labels say a
    source = ScrapedCounters(f"{url}/{{node}}/metrics", lambda: ["b"])
    assert list(await source.look()) == ["b"]
    await source.close()


def sample(metric: str, value: str, **labels: str) -> dict[str, Any]:
    return {"metric": {"__name__": metric, **labels}, "value": [1_760_000_000.0, value]}


async def test_prometheus_is_asked_once_and_a_label_names_the_node(fake: Fake, url: str) -> None:
    fake.vector = [
        sample(XID, "79", UUID="GPU-1", Hostname="a", instance="10.0.0.1:9400"),
        sample(XID, "0", UUID="GPU-2", instance="b:9400"),
        sample(XID, "79", UUID="GPU-3", Hostname="a stranger"),
    ]
    source = QueriedCounters(url, ReclamationSettings().health_query, lambda: ["a", "b"])
    read = await source.look()
    assert {node: [(name, value) for name, _, value in samples] for node, samples in read.items()} == {
        "a": [(XID, "79")],
        "b": [(XID, "0")],
    }
    (query,) = fake.queries
    assert query.startswith('{__name__=~"DCGM_FI_DEV_XID_ERRORS|')
    await source.close()


async def test_a_prometheus_that_knows_no_node_is_away(fake: Fake, url: str) -> None:
    fake.vector = [sample(XID, "79", UUID="GPU-3", Hostname="a stranger")]
    source = QueriedCounters(url, ReclamationSettings().health_query, lambda: ["a"])
    with pytest.raises(Transient, match="no sample of any node"):
        await source.look()
    await source.close()


def test_the_source_is_that_of_the_use_of_gpus() -> None:
    state = Committed().state
    scraped = ReclamationSettings(utilisation_exporter="http://{node}:9400/metrics")
    assert isinstance(choose_counters(scraped, state), ScrapedCounters)
    assert isinstance(choose_counters(ReclamationSettings(utilisation_url="http://p:9090"), state), QueriedCounters)
