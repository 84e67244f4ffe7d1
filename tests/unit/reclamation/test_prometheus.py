"""Prometheus' answers as percent per pod, and its bad days; against a small server on the loopback."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from tessera.kernel.errors import Transient
from tessera.reclamation.idle_runs.decide import GpuUsage
from tessera.reclamation.idle_runs.exporters import Prometheus, read_usage
from tessera.reclamation.settings import ReclamationSettings


def sample(value: str, **labels: str) -> dict[str, Any]:
    return {"metric": labels, "value": [1_760_000_000.0, value]}


def answer(*samples: dict[str, Any], kind: str = "vector", status: str = "success") -> bytes:
    return json.dumps({"status": status, "data": {"resultType": kind, "result": list(samples)}}).encode()


class Fake:
    """Answers every query with what it was told to; remembers the queries."""

    def __init__(self) -> None:
        self.status, self.body, self.queries = 200, answer(), list[str]()
        self.of_query: dict[str, bytes] = {}

    async def handle(self, request: web.Request) -> web.Response:
        self.queries.append(str((await request.post())["query"]))
        return web.Response(status=self.status, body=self.of_query.get(self.queries[-1], self.body))


@pytest.fixture
async def fake() -> Fake:
    return Fake()


@pytest.fixture
async def url(fake: Fake) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/api/v1/query", fake.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    await runner.cleanup()


@pytest.fixture
async def prometheus(url: str) -> AsyncIterator[Prometheus]:
    reader = Prometheus(url, ReclamationSettings().utilisation_query)
    yield reader
    await reader.close()


async def test_it_asks_its_query_and_reads_the_answer(fake: Fake, prometheus: Prometheus) -> None:
    fake.body = answer(sample("97", namespace="lab", pod="a-1-0"), sample("0", namespace="lab", pod="a-1-1"))
    assert percents(await prometheus.usage()) == {("lab", "a-1-0"): [97], ("lab", "a-1-1"): [0]}
    assert "DCGM_FI_DEV_GPU_UTIL" in fake.queries[0]


def percents(usage: GpuUsage) -> dict[tuple[str, str], list[int]]:
    return {pod: [sample.percent for sample in samples] for pod, samples in usage.items()}


async def test_memory_is_asked_for_beside_it_and_its_absence_takes_nothing_from_it(fake: Fake, url: str) -> None:
    fake.body = answer(sample("97", namespace="lab", pod="p", UUID="GPU-1"))
    fake.of_query = {"memory": answer(sample("11264", namespace="lab", pod="p", UUID="GPU-1"))}
    reader = Prometheus(url, "use", "memory")
    assert [one.memory_mib for one in (await reader.usage())["lab", "p"]] == [11_264]
    fake.of_query = {"memory": b"<html>"}
    assert [(one.percent, one.memory_mib) for one in (await reader.usage())["lab", "p"]] == [(97, None)]
    await reader.close()


SHARED = [
    ("one GPU, two pods", "p", "q", {"UUID": "GPU-1"}, True),
    ("two GPUs, two pods", "p", "q", {"UUID": "GPU-2"}, False),
    ("one GPU, one pod, said twice", "p", "p", {"UUID": "GPU-1", "instance": "b"}, False),
    ("numbers, which each node counts from 0", "p", "q", {"gpu": "0"}, False),
]


@pytest.mark.parametrize(("one", "other", "labels", "shared"), [c[1:] for c in SHARED], ids=[c[0] for c in SHARED])
def test_a_gpu_that_two_pods_have_is_told_as_shared(one: str, other: str, labels: dict[str, str], shared: bool) -> None:
    first = labels if "gpu" in labels else {"UUID": "GPU-1"}
    read = read_usage(answer(sample("5", pod=one, **first), sample("9", pod=other, **labels)))
    assert [each.shared for each in read["", one]] == [shared]
    assert [each.percent for each in read["", other]] == [9]


@pytest.mark.parametrize("status", [400, 401, 429, 500, 503, 302])
async def test_an_answer_that_is_no_success_is_for_now(fake: Fake, prometheus: Prometheus, status: int) -> None:
    fake.status = status
    with pytest.raises(Transient, match=str(status)):
        await prometheus.usage()


async def test_a_server_that_is_away_is_for_now() -> None:
    reader = Prometheus("http://127.0.0.1:9", "up")
    with pytest.raises(Transient):
        await reader.usage()
    await reader.close()


BAD = [
    ("no JSON", b"<html>"),
    ("no object", b"[]"),
    ("an error", b'{"status":"error","errorType":"bad_data","error":"x"}'),
    ("a matrix", answer(kind="matrix")),
    ("no value", answer({"metric": {"pod": "p"}})),
    ("a value that is no number", answer(sample("many", pod="p"))),
    ("labels that are none", answer({"metric": [], "value": [0, "1"]})),
    ("not UTF-8", b"\xff"),
]


@pytest.mark.parametrize("body", [case[1] for case in BAD], ids=[case[0] for case in BAD])
def test_an_answer_that_cannot_be_read_says_nothing_of_anybody(body: bytes) -> None:
    with pytest.raises(Transient):
        read_usage(body)


READ = [
    ("the exporter's own labels come second", sample("5", pod="dcgm-x", exported_pod="p", exported_namespace="lab"), 5),
    ("the least use is not none", sample("0.01", namespace="lab", pod="p"), 1),
    ("none is none", sample("0", namespace="lab", pod="p"), 0),
]


@pytest.mark.parametrize(("one", "percent"), [c[1:] for c in READ], ids=[c[0] for c in READ])
def test_a_sample_is_read(one: dict[str, Any], percent: int) -> None:
    assert percents(read_usage(answer(one))) == {("lab", "p"): [percent]}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1"])
def test_a_sample_that_is_no_percentage_says_nothing(value: str) -> None:
    assert read_usage(answer(sample(value, namespace="lab", pod="p"))) == {}


def test_a_sample_that_names_no_pod_says_nothing() -> None:
    assert read_usage(answer(sample("5", gpu="0"))) == {}


def test_several_gpus_of_a_pod_are_apart() -> None:
    read = read_usage(answer(sample("1", pod="p", gpu="0"), sample("7", pod="p", gpu="1")))
    assert percents(read) == {("", "p"): [1, 7]}
