"""The use of GPUs from the nodes' own exporters: the text format, and silent nodes; on the loopback."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from tessera.kernel.errors import Transient
from tessera.reclamation.idle_runs.decide import GpuUsage
from tessera.reclamation.idle_runs.exporters import SCRAPE_BYTES_MAX, Exporters
from tessera.reclamation.idle_runs.samples import read_exposition
from tessera.reclamation.settings import ReclamationSettings

METRIC, MEMORY = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"
DCGM = f"""# HELP {METRIC} GPU utilization (in %).
# TYPE {METRIC} gauge
{METRIC}{{gpu="0",UUID="GPU-1",modelName="A100",Hostname="n",container="main",namespace="lab",pod="a-1-0"}} 7
{METRIC}{{gpu="1",UUID="GPU-2",Hostname="n",container="main",namespace="lab",pod="a-1-0"}} 93 1760000000000
{METRIC}{{gpu="2",UUID="GPU-3",container="",namespace="",pod=""}} 55
{METRIC}{{gpu="3",namespace="lab",pod="b-1-0"}} 0.2
{METRIC}{{gpu="4",namespace="lab",pod="c-1-0"}} NaN
{METRIC}_OTHER{{gpu="4",namespace="lab",pod="d-1-0"}} 9
DCGM_FI_DEV_SM_CLOCK{{gpu="0",namespace="lab",pod="a-1-0"}} 1410
"""


def percents(usage: GpuUsage) -> dict[tuple[str, str], list[int]]:
    return {pod: [sample.percent for sample in samples] for pod, samples in usage.items()}


def test_each_pod_has_its_gpus_in_whole_percent_rounded_up() -> None:
    assert percents(read_exposition(DCGM, METRIC)) == {("lab", "a-1-0"): [7, 93], ("lab", "b-1-0"): [1]}


def test_memory_goes_with_the_gpu_that_has_it_and_is_unknown_where_nobody_says_it() -> None:
    text = DCGM + f'{MEMORY}{{gpu="1",UUID="GPU-2",namespace="lab",pod="a-1-0"}} 11264\n'
    read = read_exposition(text, METRIC, MEMORY)
    assert [sample.memory_mib for sample in read["lab", "a-1-0"]] == [None, 11_264]
    assert [sample.memory_mib for sample in read["lab", "b-1-0"]] == [None]


def test_labels_may_hold_braces_quotes_and_line_ends() -> None:
    text = METRIC + r'{note="a \"b\" {c} \\ \n", namespace="lab", pod="x"} 5'
    assert percents(read_exposition(text, METRIC)) == {("lab", "x"): [5]}


@pytest.mark.parametrize("line", ['{pod="a"}', '{pod="a"} many', "{pod="])
def test_a_line_that_is_no_sample_is_an_error_and_never_a_zero(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_exposition(METRIC + line, METRIC)


class Fake:
    """The exporters of all nodes on one port; answers by the node's name in the path."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {}
        self.asked: list[str] = []

    async def handle(self, request: web.Request) -> web.Response:
        node = request.match_info["node"]
        self.asked.append(node)
        status, text = self.answers.get(node, (503, ""))
        return web.Response(status=status, text=text)


@pytest.fixture
async def fake() -> Fake:
    return Fake()


@pytest.fixture
async def url(fake: Fake) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/{node}/metrics", fake.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/{{node}}/metrics"
    await runner.cleanup()


def sample(pod: str, percent: int) -> tuple[int, str]:
    return 200, f'{METRIC}{{namespace="lab",pod="{pod}"}} {percent}\n'


async def test_the_nodes_that_hold_gpus_are_asked_and_no_others(fake: Fake, url: str) -> None:
    fake.answers = {"a": sample("x", 3), "b": sample("y", 80), "c": sample("z", 1)}
    source = Exporters(url, METRIC, lambda: {"b", "a"})
    assert percents(await source.usage()) == {("lab", "x"): [3], ("lab", "y"): [80]}
    assert sorted(fake.asked) == ["a", "b"]
    await source.close()


async def test_a_silent_node_leaves_its_pods_unmeasured_and_the_others_measured(fake: Fake, url: str) -> None:
    too_long = "x" * (SCRAPE_BYTES_MAX + 1)
    fake.answers = {"a": sample("x", 3), "b": (500, ""), "c": (200, f"{METRIC}{{pod="), "d": (200, too_long)}
    source = Exporters(url, METRIC, lambda: ["a", "b", "c", "d"])
    assert percents(await source.usage()) == {("lab", "x"): [3]}
    await source.close()


async def test_the_source_is_away_when_no_node_answers_and_not_when_none_is_asked(fake: Fake, url: str) -> None:
    nodes = ["a", "b"]
    source = Exporters(url, METRIC, lambda: nodes)
    with pytest.raises(Transient, match="exporter of a answered 503"):
        await source.usage()
    nodes.clear()
    assert await source.usage() == {}
    await source.close()


def test_one_source_is_named_and_not_two() -> None:
    with pytest.raises(ValueError, match="name one of them"):
        ReclamationSettings(utilisation_url="http://p:9090", utilisation_exporter="http://{node}:9400/metrics")
    assert ReclamationSettings(utilisation_exporter="http://{node}:9400/metrics").measures
    assert not ReclamationSettings().measures
