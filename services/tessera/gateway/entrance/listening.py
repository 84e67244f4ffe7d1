"""The HTTP listener: the table of routes behind the guard, behind the door."""

import asyncio
import logging
import socket
import ssl
from importlib.resources import files
from pathlib import Path

import orjson
import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from tessera import gateway
from tessera.gateway.entrance.bodies import read_body, read_query
from tessera.gateway.entrance.compressing import compress_answers
from tessera.gateway.entrance.door import BACKLOG, Door
from tessera.gateway.entrance.guard import Guard, Handler
from tessera.gateway.operations.handlers import Handlers
from tessera.gateway.operations.models import NoBody
from tessera.gateway.operations.queries import NoQuery
from tessera.gateway.operations.routes import ROUTES, Route
from tessera.gateway.page import PageFiles
from tessera.gateway.settings import GatewaySettings
from tessera.kernel.errors import StartupError

SHUTDOWN_SECONDS = 5.0  # for requests in flight; streams are told at once

log = structlog.get_logger()


def application(settings: GatewaySettings, guard: Guard, handlers: Handlers) -> web.Application:
    """Builds the web application: each route of the table with its handler, behind the guard."""
    described = orjson.dumps(orjson.loads(files(gateway).joinpath("generated/openapi.json").read_bytes()))

    async def openapi(_request: web.Request) -> web.Response:
        return web.Response(body=described, content_type="application/json")

    app = web.Application(middlewares=[guard.middleware, compress_answers], client_max_size=settings.body_bytes_max)
    for route in ROUTES:
        handler = openapi if route.name == "openapi" else _operation(route, handlers)
        app.router.add_route(route.method, route.path, handler, name=route.name)
    PageFiles().add_to(app)
    app.on_response_prepare.append(_in_every_answer)
    return app


def _operation(route: Route, handlers: Handlers) -> Handler:
    # Handler of an operation, behind what the table says of it: a job to be known, no query, no body.
    handler: Handler = getattr(handlers, route.name)

    async def handle(request: web.Request) -> web.StreamResponse:
        if "job_id" in route.parameters:
            await handlers.until_known(request)
        if route.method == "GET" and route.query is NoQuery:
            read_query(request, NoQuery)
        if route.body is NoBody:
            await read_body(request, NoBody)
        return await handler(request)

    return handle


async def _in_every_answer(_request: web.Request, response: web.StreamResponse) -> None:
    # No browser guesses a type, and nobody learns what we are made of.
    response.headers.update({"Server": "tessera", "X-Content-Type-Options": "nosniff"})


class NoHttp(logging.Filter):
    """Filter for input that is not HTTP: answered with 400, logged for debugging, without a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keeps records of malformed HTTP from the log, leaving one line at debug level; lets all others pass."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            log.debug("request_malformed", error=type(error).__name__)
            return False
        return True


NO_HTTP = NoHttp()


class Listener:
    """The application behind its door."""

    def __init__(self, runner: web.AppRunner, door: Door) -> None:
        self._runner, self._door = runner, door

    @property
    def port(self) -> int:
        """Port that the listener took."""
        return self._door.port

    async def close(self) -> None:
        """Accept nothing more, and finish requests in flight; more than once does no harm."""
        await self._door.close()
        await self._runner.cleanup()


async def listen(app: web.Application, settings: GatewaySettings, door: Door) -> Listener:
    """Raises StartupError when the address is not ours or is taken, or the certificate is none."""
    # A compressed body is refused by name, so it is never unpacked: neither bombs nor broken ones reach a decoder.
    logger = logging.getLogger(__name__)
    logger.addFilter(NO_HTTP)
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=logger,
        shutdown_timeout=SHUTDOWN_SECONDS,
        keepalive_timeout=settings.head_seconds,  # counts from the start of a connection, too, whatever came of a head
        auto_decompress=False,
    )
    try:
        tls = _tls(settings)
        sockets = await _bind(settings.api_host, settings.api_port)
    except OSError as error:
        raise StartupError(
            f"gateway: cannot listen on {settings.api_host}:{settings.api_port} ({error.strerror or error}); set "
            "api_host, api_port (0 takes a free one), or the TLS files"
        ) from error
    await runner.setup()
    assert runner.server is not None
    door.open(sockets, runner.server, tls)
    if settings.api_port_file is not None:
        _write(settings.api_port_file, door.port)
    return Listener(runner, door)


async def _bind(host: str, port: int) -> list[socket.socket]:
    # A listener for each address of a name; "" means all of this machine. Raises OSError.
    flags, kind = socket.AI_PASSIVE, socket.SOCK_STREAM
    found = await asyncio.get_running_loop().getaddrinfo(host or None, port, type=kind, flags=flags)
    listeners: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            listeners.append(socket.socket(family, kind))
            listeners[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listeners[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listeners[-1].bind(address)
            listeners[-1].listen(BACKLOG)
            listeners[-1].setblocking(False)
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _tls(settings: GatewaySettings) -> ssl.SSLContext | None:
    if settings.tls_certificate_file is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.tls_certificate_file, settings.tls_key_file)
    return context


def _write(port_file: Path, port: int) -> None:
    # Writes the port file in one step, so that a reader never sees half of it.
    fresh = port_file.with_suffix(".new")
    fresh.write_text(f"{port}\n")
    fresh.replace(port_file)
