"""The HTTP listener: the table of routes behind the guard."""

import ssl
from pathlib import Path

import orjson
from aiohttp import web

from tessera.gateway.guard import Guard
from tessera.gateway.handlers import Handlers
from tessera.gateway.openapi import document
from tessera.gateway.routes import ROUTES
from tessera.gateway.settings import GatewaySettings
from tessera.kernel.errors import StartupError

SHUTDOWN_SECONDS = 5.0  # for requests in flight; streams are told at once


def application(settings: GatewaySettings, guard: Guard, handlers: Handlers) -> web.Application:
    described = orjson.dumps(document())

    async def openapi(_request: web.Request) -> web.Response:
        return web.Response(body=described, content_type="application/json")

    app = web.Application(middlewares=[guard.middleware], client_max_size=settings.body_bytes_max)
    for route in ROUTES:
        handler = openapi if route.name == "openapi" else getattr(handlers, route.name)
        app.router.add_route(route.method, route.path, handler, name=route.name)
    app.on_response_prepare.append(_in_every_answer)
    return app


async def _in_every_answer(_request: web.Request, response: web.StreamResponse) -> None:
    """No browser guesses a type, and nobody learns what we are made of."""
    response.headers.update({"Server": "tessera", "X-Content-Type-Options": "nosniff"})


async def listen(app: web.Application, settings: GatewaySettings) -> web.AppRunner:
    """Raises StartupError when the address is not ours or is taken, or the certificate is none."""
    # A compressed body is refused by name, so it is never unpacked: neither bombs nor broken ones reach a decoder.
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS, auto_decompress=False)
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.api_host, settings.api_port, ssl_context=_tls(settings))
        await site.start()
    except OSError as error:
        await runner.cleanup()
        raise StartupError(
            f"gateway: cannot listen on {settings.api_host}:{settings.api_port} ({error.strerror or error}); set "
            "api_host, api_port (0 takes a free one), or the TLS files"
        ) from error
    if settings.api_port_file is not None:
        _write(settings.api_port_file, port_of(runner))
    return runner


def port_of(runner: web.AppRunner) -> int:
    taken: int = runner.addresses[0][1]
    return taken


def _tls(settings: GatewaySettings) -> ssl.SSLContext | None:
    if settings.tls_certificate_file is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.tls_certificate_file, settings.tls_key_file)
    return context


def _write(port_file: Path, port: int) -> None:
    """In one step: whoever reads it reads all of it."""
    fresh = port_file.with_suffix(".new")
    fresh.write_text(f"{port}\n")
    fresh.replace(port_file)
