"""Traces on real services: one trace from the submit to running, in a collector that speaks OTLP over HTTP."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import orjson
import pytest
import pytest_asyncio
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.e2e.live import Live, configuration, eventually, job

pytestmark = pytest.mark.asyncio(loop_scope="module")

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
STEPS = {
    "tessera-gateway": {"submit"},
    "tessera-admission": {"admit"},
    "tessera-scheduler": {"queue", "start", "job"},
    "tessera-binder": {"make_pods", "bind_pods"},
}
"""Which service reports which spans."""


@dataclass(frozen=True)
class Seen:
    service: str
    name: str
    trace: str
    span: str
    parent: str
    start_ns: int
    end_ns: int


@dataclass
class Collector:
    """What an OpenTelemetry collector does with traces: it takes them."""

    url: str = ""
    spans: list[Seen] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        sent = ExportTraceServiceRequest.FromString(await request.read())
        for of in sent.resource_spans:
            names = {each.key: each.value.string_value for each in of.resource.attributes}
            for span in (span for scope in of.scope_spans for span in scope.spans):
                ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
                times = span.start_time_unix_nano, span.end_time_unix_nano
                self.spans.append(Seen(names["service.name"], span.name, *ids, *times))
        return web.Response()

    def of(self, trace: str) -> list[Seen]:
        return [span for span in self.spans if span.trace == trace]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def collector() -> AsyncIterator[Collector]:
    collector = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", collector.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield collector
    await runner.cleanup()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> AsyncIterator[Live]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TESSERA_OTLP_URL", collector.url)
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        async with Live.at(tmp_path_factory.mktemp("platform"), configuration()) as live:
            yield live


async def submit_over_http(live: Live, key: str, traceparent: str) -> str:
    token = (await live.command("token", "new", "lab")).out.strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "traceparent": traceparent}
    body = orjson.dumps({"key": key, "spec": job(seconds=0.5).model_dump(mode="json", exclude_defaults=True)})
    found: list[str] = []

    async def taken(http: aiohttp.ClientSession) -> bool:
        async with http.post(f"{live.platform.gateway_url}/v1/jobs", data=body, headers=headers) as answer:
            found.append((await answer.json()).get("job_id", ""))
            return answer.status in (200, 201)

    async with aiohttp.ClientSession() as http:
        await eventually(lambda: taken(http), "the gateway takes the new token and the job")
    live.acknowledged.append(("lab", key))
    return found[-1]


async def test_a_job_is_one_trace_from_its_submit_to_running(live: Live, collector: Collector) -> None:
    job_id = await submit_over_http(live, "traced", f"00-{TRACE}-{CALLER}-01")
    await live.until_ended(job_id)
    wanted = {(service, name) for service, names in STEPS.items() for name in names}
    await eventually(lambda: wanted <= {(span.service, span.name) for span in collector.of(TRACE)}, "all spans came")
    spans = collector.of(TRACE)
    assert {(span.service, span.name) for span in spans} == wanted
    assert {span.parent for span in spans} <= {CALLER, *(span.span for span in spans)}
    assert {span.name for span in spans if span.parent == CALLER} == {"submit"}
    assert all(span.start_ns <= span.end_ns for span in spans)


async def test_a_job_without_a_callers_trace_has_one_of_its_own(live: Live, collector: Collector) -> None:
    done = await live.submit(job("alone"))
    await live.until_ended(done.job_id)

    def roots() -> list[Seen]:
        return [span for span in collector.spans if span.name == "job" and not span.parent]

    await eventually(lambda: bool(roots()), "the span of the job came")
    [root] = roots()
    await eventually(lambda: len(collector.of(root.trace)) == 6, "its steps came")
    assert {span.parent for span in collector.of(root.trace)} == {"", root.span}
