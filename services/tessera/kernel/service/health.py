"""
Health and metrics of one service, on a port of its own.

| path | 200 when |
|---|---|
| `/livez` | the event loop ticks; never depends on NATS or Redis, whose loss a restart would not mend |
| `/startupz` | start-up is over |
| `/readyz` | start-up is over, nothing halted us, and every named check is well; the body has each check's text |
| `/readyz/process` | `/readyz` of each service of the process is 200; the body has each check's text by service |
| `/metrics` | always; Prometheus' text, or OpenMetrics where `Accept` asks for it |

Of many connections only the newest are kept, so that whoever opens them takes neither the probes nor the descriptors of
the process. The listener is on loopback unless told. There it refuses a Host that is no loopback name, so that a web
page cannot reach it by rebinding its own name.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from errno import EMFILE
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from aiohttp import web
from prometheus_client.exposition import choose_encoder

from tessera.kernel.errors import StartupError
from tessera.kernel.ports import Clock
from tessera.kernel.service.metrics import Metrics

TICK_SECONDS = 1.0
STALLED_SECONDS = 15.0
IDLE_SECONDS = 75.0  # a connection without a request, new or kept open, is closed; longer than between two probes
CONNECTIONS_MAX = 64  # of probes and Prometheus, which are answered at once; the oldest makes way for the next
Check = Callable[[], str | None]
"""Says in words why not, or None when well. Reads state that is there; it never waits and never asks a server."""


class Health:
    """Collects the checks of one service and serves them; `of_process` has those of all in its process, by name."""

    def __init__(self, clock: Clock, metrics: Metrics, of_process: "Mapping[str, Health] | None" = None) -> None:
        self._clock, self._metrics, self._of_process = clock, metrics, of_process or {}
        self._checks: dict[str, Check] = {}
        self._started = False
        self._halted: str | None = None
        self._ticked_at = clock.monotonic()
        self._ticker: asyncio.Task[None] | None = None
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None

    def check(self, name: str, check: Check) -> None:
        """Add a condition of being ready."""
        self._checks[name] = check

    @property
    def listens(self) -> bool:
        """Whether `serve` has been called."""
        return self._listener is not None

    def begins_again(self, metrics: Metrics) -> None:
        """Another life of the service begins: its listener stays, or probes would find nobody meanwhile."""
        self._metrics, self._checks, self._started = metrics, {}, False

    def started(self) -> None:
        """Start-up is over; from here `/readyz` may be green."""
        self._started = True

    def halt(self, reason: str) -> None:
        """The books contradict themselves: stay up, red, until somebody looks. The first reason stays."""
        self._halted = self._halted or reason

    @property
    def halted(self) -> str | None:
        """First reason for which the process was halted; None while nothing halted the process."""
        return self._halted

    def readiness(self) -> dict[str, str]:
        """Every check with its text, `ok` when well."""
        texts = {name: check() or "ok" for name, check in self._checks.items()}
        texts["startup"] = "ok" if self._started else "still starting"
        texts["halted"] = self._halted or "ok"
        return texts

    async def serve(self, host: str, port: int, port_file: Path | None = None) -> int:
        """
        Listen; returns the port that was taken, and writes it to `port_file` in one step.

        Raises StartupError when the address is not ours or is taken.
        """
        middlewares = [_loopback_names_only] if is_loopback(host) else []
        app = web.Application(middlewares=middlewares)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/startupz", self._startupz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/readyz/process", self._process_readyz)
        app.router.add_get("/metrics", self._serve_metrics)
        self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=IDLE_SECONDS)
        await self._runner.setup()
        server, loop = self._runner.server, asyncio.get_running_loop()
        assert server is not None, "the runner is set up"
        try:
            self._listener = await loop.create_server(partial(_accept_newest, server), host, port)
            if not self._listener.sockets:  # asyncio passes over an address for which no descriptor is left
                raise OSError(EMFILE, os.strerror(EMFILE))
        except OSError as error:
            raise StartupError(
                f"health and metrics: cannot listen on {host}:{port} ({error.strerror}); set TESSERA_HTTP_HOST and "
                "TESSERA_HTTP_PORT (0 takes a free port)"
            ) from error
        self._ticker = asyncio.create_task(self._tick(), name="health-tick")
        taken: int = self._listener.sockets[0].getsockname()[1]
        if port_file is not None:
            fresh = port_file.with_suffix(".new")
            fresh.write_text(f"{taken}\n")
            fresh.replace(port_file)
        return taken

    async def close(self) -> None:
        """Stop listening and ticking; nothing happens when `serve` was never called."""
        if self._ticker is not None:
            self._ticker.cancel()
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _tick(self) -> None:
        while True:
            self._ticked_at = self._clock.monotonic()
            await self._clock.sleep(TICK_SECONDS)

    async def _livez(self, _request: web.Request) -> web.Response:
        silent = self._clock.monotonic() - self._ticked_at
        return _answer({"loop": "ok" if silent < STALLED_SECONDS else f"no tick for {silent:.0f} s"})

    async def _startupz(self, _request: web.Request) -> web.Response:
        return _answer({"startup": "ok" if self._started else "still starting"})

    async def _readyz(self, _request: web.Request) -> web.Response:
        return _answer(self.readiness())

    async def _process_readyz(self, _request: web.Request) -> web.Response:
        texts = {service: health.readiness() for service, health in self._of_process.items()}
        return _answer({f"{service}: {name}": text for service, own in texts.items() for name, text in own.items()})

    async def _serve_metrics(self, request: web.Request) -> web.Response:
        self._metrics.readiness(self.readiness())
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._metrics.registry), headers={"Content-Type": content_type})


def _accept_newest(server: web.Server) -> web.RequestHandler:
    """The handler of a new connection; where there are too many, the oldest are closed."""
    for oldest in server.connections[: 1 - CONNECTIONS_MAX]:
        oldest.force_close()
    return server()


def _answer(texts: dict[str, str]) -> web.Response:
    well = all(text == "ok" for text in texts.values())
    return web.json_response(texts, status=200 if well else 503)


def is_loopback(host: str) -> bool:
    """Whether an address or name is this machine's own and nobody else's."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


@web.middleware
async def _loopback_names_only(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    if not is_loopback(request.url.host or ""):
        raise web.HTTPForbidden(text="this listener answers to loopback names only\n")
    return await handler(request)
