"""Several services in one process: what one of them fails of is its own, whatever the others do."""

import asyncio
import json
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tessera.kernel.errors import Conflict, InvariantViolation, KernelError, RolledOver, StartupError, Transient
from tessera.kernel.memory.store import MemoryStore, MemoryViews
from tessera.kernel.process import lifecycle
from tessera.kernel.process.lifecycle import Hosted, ServiceProcess
from tessera.kernel.process.settings import ServiceSettings, load_settings
from tessera.kernel.service import loop_watch
from tessera.kernel.service.context import Ports
from tessera.kernel.service.health import Health
from tessera.kernel.service.metrics import Metrics
from tessera.preemption.settings import PreemptionSettings
from tessera.queueing.settings import QueueingSettings
from tests.unit.kernel.no_end import NoEnd
from tests.unit.scheduler.committers import World

Start = Callable[[Ports], Awaitable[None]]


@pytest.fixture(autouse=True)
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services of one shard in memory, which start again at once."""
    world = World()

    async def connect(
        _settings: ServiceSettings, instance: str, clock: Any, metrics: Metrics, health: Health, _stack: object
    ) -> Ports:
        store = MemoryStore(MemoryViews(clock))
        return replace(world.ports(), clock=clock, health=health, metrics=metrics, instance=instance, store=store)

    monkeypatch.setattr(lifecycle, "_connect", connect)
    monkeypatch.setattr(lifecycle, "BoundedEnd", NoEnd)
    monkeypatch.setattr(lifecycle, "RESTART_SECONDS", (0.0,))


def hosted(queueing: Start, preemption: Start, port_file: Path | None = None) -> list[Hosted]:
    """Two services that do what is given and then serve until they are told to stop."""

    def serves(start: Start) -> Any:
        async def serve(ports: Ports, _settings: ServiceSettings, stop: asyncio.Event) -> None:
            ports.health.started()
            await start(ports)
            await stop.wait()

        return serve

    models = ((QueueingSettings, queueing), (PreemptionSettings, preemption))
    return [Hosted(serves(start), load_settings(model, port_file=port_file)) for model, start in models]


@asynccontextmanager
async def running(process: ServiceProcess) -> AsyncIterator["asyncio.Task[None]"]:
    """The process while the body runs; it is stopped by a signal."""
    task = asyncio.ensure_future(process.run())
    await asyncio.sleep(0)
    try:
        yield task
    finally:
        if not task.done():
            signal.raise_signal(signal.SIGTERM)
            async with asyncio.timeout(60):
                await task


async def until(said: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not said():
            await asyncio.sleep(0.005)


async def nothing(_ports: Ports) -> None:
    return


async def test_one_that_fails_is_started_again_and_the_others_go_on(tmp_path: Path) -> None:
    lives: dict[str, list[Ports]] = {"queueing": [], "preemption": []}

    async def fails_twice(ports: Ports) -> None:
        lives["queueing"].append(ports)
        if len(lives["queueing"]) < 3:
            raise ZeroDivisionError("a bug")

    async def lives_on(ports: Ports) -> None:
        lives["preemption"].append(ports)

    port = tmp_path / "queueing.port"
    async with running(ServiceProcess(hosted(fails_twice, lives_on, tmp_path / "{service}.port"))):
        await until(lambda: len(lives["queueing"]) == 3)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port.read_text().strip()}") as http:
            for path in ("/livez", "/readyz"):  # one listener for all its lives
                async with http.get(path) as answer:
                    assert answer.status == 200
    assert len(lives["preemption"]) == 1
    assert len({ports.instance for ports in lives["queueing"]}) == 3
    assert len({id(ports.shared) for of in lives.values() for ports in of}) == 1


@pytest.mark.parametrize(
    ("failure", "anew"),
    [
        (Conflict("the stream began anew"), True),
        (RolledOver("the ledger begins with record 9 now"), True),
        (KernelError("4096 ledger messages were left unread"), False),
        (Transient("NATS is away"), False),
    ],
)
async def test_books_are_restored_anew_only_where_the_ledger_is_another(failure: Exception, anew: bool) -> None:
    lives = list[Ports]()

    async def fails_once(ports: Ports) -> None:
        lives.append(ports)
        if len(lives) == 1:
            raise failure

    async with running(ServiceProcess(hosted(fails_once, nothing))):
        await until(lambda: len(lives) == 2)
    assert (lives[0].shared is not lives[1].shared) is anew


async def test_a_contradiction_halts_the_service_that_met_it_and_the_process_is_not_ready(tmp_path: Path) -> None:
    async def contradicts(_ports: Ports) -> None:
        raise InvariantViolation("an order of the future")

    files = {name: tmp_path / f"{name}.port" for name in ("queueing", "preemption")}
    process = ServiceProcess(hosted(contradicts, nothing, tmp_path / "{service}.port"))

    async def asked(http: aiohttp.ClientSession, service: str, path: str) -> tuple[int, dict[str, str]]:
        async with http.get(f"http://127.0.0.1:{files[service].read_text().strip()}{path}") as answer:
            return answer.status, json.loads(await answer.text())

    async with running(process), aiohttp.ClientSession() as http:
        await until(lambda: all(file.exists() for file in files.values()))
        async with asyncio.timeout(60):
            while (await asked(http, "queueing", "/readyz"))[1]["halted"] == "ok":
                await asyncio.sleep(0.005)
        assert (await asked(http, "preemption", "/readyz"))[0] == 200
        status, texts = await asked(http, "preemption", "/readyz/process")
        assert (status, texts["queueing: halted"]) == (503, "an order of the future")
        assert texts["preemption: halted"] == "ok"


async def test_what_is_missing_at_the_first_start_ends_the_process() -> None:
    async def is_missing(_ports: Ports) -> None:
        raise StartupError("setting nats_url: nobody answers")

    with pytest.raises(StartupError, match="nobody answers"):
        await asyncio.wait_for(ServiceProcess(hosted(nothing, is_missing)).run(), 60)


async def test_who_stood_still_at_its_first_start_misses_nothing_and_starts_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a process that is stopped and goes on later than its waits last: each of them is over at once."""
    monkeypatch.setattr(loop_watch, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(loop_watch, "BLOCKED_SECONDS", 0.2)
    lives = list[Ports]()

    async def waits(ports: Ports) -> None:
        lives.append(ports)
        if len(lives) == 1:
            asyncio.get_running_loop().call_soon(time.sleep, 0.6)
            try:
                async with asyncio.timeout(0.3):
                    await asyncio.Event().wait()
            except TimeoutError as error:
                raise StartupError("no NATS server: start one") from error

    async with running(ServiceProcess(hosted(waits, nothing))):
        await until(lambda: len(lives) == 2)


async def test_one_alone_ends_its_process_when_it_fails() -> None:
    async def fails(_ports: Ports) -> None:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(ServiceProcess(hosted(fails, nothing)[:1]).run(), 60)


@pytest.mark.parametrize(
    ("module", "said_by"),
    [("tessera.preemption.handlers", ["preemption"]), ("library", ["preemption", "queueing"])],
    ids=["code of a service", "code of nobody"],
)
async def test_who_holds_the_event_loop_is_named_and_counted(
    module: str, said_by: list[str], monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(loop_watch, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(loop_watch, "BLOCKED_SECONDS", 1.0)  # no wait for a processor lasts as long
    over, metrics = list[bool](), dict[str, Metrics]()
    handler: dict[str, Any] = {"__name__": module, "over": over, "sleep": time.sleep}
    exec("def plan_for_ever():\n    while not over: sleep(0.01)", handler)  # code of the service, as the stack shows it

    async def lives(ports: Ports) -> None:
        metrics["queueing"] = ports.metrics

    async def blocks(ports: Ports) -> None:
        metrics["preemption"] = ports.metrics
        # Called by the loop itself: on the stack of a task the test's own code would stand around it.
        threading.Timer(2.5, over.append, [True]).start()
        asyncio.get_running_loop().call_soon(handler["plan_for_ever"])

    async with running(ServiceProcess(hosted(lives, blocks))):
        await until(lambda: bool(over) and len(metrics) == 2)
    lines = [json.loads(line) for line in capfdbinary.readouterr().err.splitlines() if b"loop_blocked" in line]
    assert sorted(line["service"] for line in lines) == said_by
    if module != "library":
        assert lines[0]["where"] == f"{module}.plan_for_ever, line 2"
    counted = "tessera_log_events_total", {"event": "loop_blocked"}
    assert [name for name in sorted(metrics) if metrics[name].registry.get_sample_value(*counted)] == said_by


def test_files_of_their_own_and_one_port_are_asked_of_services_that_share_a_process(tmp_path: Path) -> None:
    both = hosted(nothing, nothing, tmp_path / "port")
    with pytest.raises(StartupError, match=r"setting port_file: .*write \{service\} in place of the name"):
        ServiceProcess(both)
    ports = [replace(one, settings=one.settings.model_copy(update={"port_file": None, "http_port": 8080 + n}))
             for n, one in enumerate(both)]  # fmt: skip
    with pytest.raises(StartupError, match="setting http_port: 8080 for queueing, 8081 for preemption"):
        ServiceProcess(ports)
