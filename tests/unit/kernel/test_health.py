"""Health: alive is not ready, ready has a reason, and a halted process stays up and red."""

import logging
import os
import resource
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from io import BytesIO

import aiohttp
import pytest
import structlog

from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import StartupError
from tessera.kernel.service.health import STALLED_SECONDS, Health
from tessera.kernel.service.logs import configure_logs, speak_as
from tessera.kernel.service.metrics import Metrics
from tessera.kernel.service.trace import TRACEPARENT, bind, pass_trace, take_trace


class Reason(StrEnum):
    NO_FIT = "NoFit"


class JumpingClock(SystemClock):
    """The real clock, which a test may put ahead."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


@dataclass
class Served:
    health: Health
    metrics: Metrics
    clock: JumpingClock
    url: str

    async def get(self, path: str, host: str | None = None) -> tuple[int, str]:
        headers = {"Host": host} if host else {}
        async with aiohttp.ClientSession() as http, http.get(self.url + path, headers=headers) as answer:
            return answer.status, await answer.text()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    clock, metrics = JumpingClock(), Metrics("binder")
    health = Health(clock, metrics)
    port = await health.serve("127.0.0.1", 0)
    yield Served(health, metrics, clock, f"http://127.0.0.1:{port}")
    await health.close()


async def test_a_process_that_still_starts_is_alive_but_not_ready(served: Served) -> None:
    assert (await served.get("/livez"))[0] == 200
    assert (await served.get("/startupz"))[0] == 503
    assert (await served.get("/readyz"))[0] == 503


async def test_it_is_ready_when_every_check_is_well_and_else_says_why(served: Served) -> None:
    why: list[str] = ["NATS is away"]
    served.health.check("bus", lambda: why[0] if why else None)
    served.health.started()
    status, body = await served.get("/readyz")
    assert status == 503
    assert "NATS is away" in body
    why.clear()
    assert (await served.get("/readyz"))[0] == 200


async def test_a_halted_process_stays_up_and_red_with_its_first_reason(served: Served) -> None:
    served.health.started()
    served.health.halt("gap after n 7")
    served.health.halt("something later")
    status, body = await served.get("/readyz")
    assert status == 503
    assert "gap after n 7" in body
    assert (await served.get("/livez"))[0] == 200


async def test_a_loop_that_does_not_tick_is_not_alive(served: Served) -> None:
    served.clock.ahead = STALLED_SECONDS + 1
    assert (await served.get("/livez"))[0] == 503


async def test_a_listener_on_the_loopback_refuses_other_names(served: Served) -> None:
    assert (await served.get("/metrics", host="evil.example"))[0] == 403
    assert (await served.get("/metrics", host="localhost"))[0] == 200


async def test_metrics_carry_labels_from_enums(served: Served) -> None:
    served.metrics.reason(Reason.NO_FIT, 3)
    served.metrics.hop(0.01)
    _, body = await served.get("/metrics")
    assert 'tessera_reasons_total{reason="NoFit"} 3.0' in body
    assert 'tessera_event_hop_seconds_count{service="binder"} 1.0' in body


@pytest.mark.parametrize(
    ("accept", "content_type", "is_open"),
    [
        ("", "text/plain", False),
        ("text/plain;version=0.0.4", "text/plain", False),
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", "application/openmetrics-text", True),
    ],
)
async def test_metrics_come_in_the_format_that_is_asked_for(
    served: Served, accept: str, content_type: str, is_open: bool
) -> None:
    served.metrics.reason(Reason.NO_FIT)
    headers = {"Accept": accept} if accept else {}
    async with aiohttp.ClientSession() as http, http.get(f"{served.url}/metrics", headers=headers) as answer:
        body = await answer.text()
        assert answer.content_type == content_type
    assert body.endswith("# EOF\n") is is_open
    assert "# HELP tessera_reasons" in body


async def test_metrics_say_which_check_is_not_well(served: Served) -> None:
    served.health.check("pods", lambda: "the informer is away")
    served.health.started()
    _, body = await served.get("/metrics")
    assert 'tessera_ready{check="pods"} 0.0' in body
    assert 'tessera_ready{check="halted"} 1.0' in body
    served.health.halt("gap after n 7")
    assert 'tessera_ready{check="halted"} 0.0' in (await served.get("/metrics"))[1]


@pytest.mark.parametrize("level", ["info", "error"])
async def test_log_lines_of_alarms_are_counted_whatever_level_is_said(
    served: Served, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)  # it is the whole process's
    said = BytesIO()
    configure_logs("binder", "binder-1", level, served.clock, said)
    speak_as("binder", "binder-1", served.metrics)
    log = structlog.get_logger()
    log.warning("run_lost")
    log.error("orphan_pod")
    log.warning("something_else")
    log.error("failed", exc_info=ValueError("x"))
    _, body = await served.get("/metrics")
    assert 'tessera_log_events_total{event="run_lost"} 1.0' in body
    assert 'tessera_log_events_total{event="orphan_pod"} 1.0' in body
    assert 'tessera_log_events_total{event="outage"} 0.0' in body
    assert "something_else" not in body
    assert (b"run_lost" in said.getvalue()) is (level == "info")
    assert b"orphan_pod" in said.getvalue()


def test_only_services_have_metrics() -> None:
    with pytest.raises(ValueError, match="no service"):
        Metrics("job-4711")


def test_a_trace_goes_on_with_a_span_that_a_repeat_derives_again() -> None:
    headers = {TRACEPARENT: "00-4bf92f3577b34da6a3ce929d0e0e4736-4bf92f3577b34da6-01"}
    with bind(headers, job="a"):
        passed = pass_trace("publish")
        assert passed == pass_trace("publish")
        assert passed != pass_trace("another step")
    assert take_trace(passed).split("-")[1] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert passed != headers
    assert pass_trace("outside") == {}


@pytest.mark.parametrize("value", ["", "00-0-0-00", "00-" + "0" * 32 + "-" + "1" * 16 + "-01", "x" * 55])
def test_a_malformed_trace_header_is_dropped(value: str) -> None:
    assert take_trace({"traceparent": value}) == ""


async def test_who_has_no_descriptor_left_to_listen_says_so() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    health = Health(SystemClock(), Metrics("queueing"))
    in_use = max(map(int, os.listdir("/dev/fd")))
    held = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 1, before[1]))
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
        with pytest.raises(StartupError, match="Too many open files"):
            await health.serve("127.0.0.1", 0)
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        await health.close()
