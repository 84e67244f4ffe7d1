"""
Checks that every request passes, whatever its method and path (Host, Origin, token, rate), and the form of answers.

Host and Origin stand before the token, so that a web page that rebinds its own name to us learns nothing. A handler
refuses by raising; here this becomes a typed body, and a fault of ours a logged 500.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import urlsplit

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from tessera.gateway.entrance.addresses import Addresses
from tessera.gateway.entrance.loop_shares import SHARE, LoopShare
from tessera.gateway.entrance.problems import Refusal, refused
from tessera.gateway.entrance.tokens import Caller, Only, TokenFile
from tessera.gateway.measures import Measures
from tessera.gateway.page import PAGE
from tessera.gateway.settings import GatewaySettings
from tessera.kernel.errors import Transient
from tessera.kernel.messaging.rates import Buckets
from tessera.kernel.ports import Clock
from tessera.kernel.service.health import is_loopback
from tessera.kernel.service.spans import NO_SPANS, Spans, request_span
from tessera.kernel.service.trace import TRACEPARENT, bind, take_trace
from tessera_schemas.reasons import CODES, Code

CALLER: web.RequestKey[Caller] = web.RequestKey("caller", Caller)
ROUTES: Mapping[Only, frozenset[str]] = {
    "places": frozenset({"tell_places"}),
    "health": frozenset({"report_health"}),
}
"""Names of the routes that narrowed tokens may ask."""
STRANGERS = "strangers"
STRANGERS_PER_SECOND = 20
# Requests without a valid token, of everybody together, that are answered and logged one by one.

BROKEN_BODY = "it ended early or its chunks are broken; send it with its Content-Length, or as whole chunks"

HTTP_CODES = {404: Code.NO_SUCH_PATH, 405: Code.METHOD_NOT_ALLOWED, 413: Code.TOO_LARGE}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = structlog.get_logger()


class Guard:
    def __init__(
        self, settings: GatewaySettings, tokens: TokenFile, clock: Clock, measures: Measures, spans: Spans = NO_SPANS
    ) -> None:
        self._spans = spans
        self._settings, self._tokens, self._clock, self._measures = settings, tokens, clock, measures
        self._hosts = frozenset(name.lower() for name in settings.allowed_hosts)
        self._loopback = is_loopback(settings.api_host)
        self._callers = Buckets(settings.requests_per_second, settings.requests_burst)
        self._addresses = Addresses(settings, measures)
        self._shares: dict[str, LoopShare] = {}
        self._strangers = Buckets(STRANGERS_PER_SECOND, STRANGERS_PER_SECOND)

    @property
    def middleware(self) -> Middleware:
        """Middleware that binds the trace, lets the guard answer each request and counts it by route and status."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            trace = take_trace({TRACEPARENT: request.headers.get(TRACEPARENT, "")})
            began_ms = self._clock.now_ms()
            with bind({TRACEPARENT: trace}):
                response = await self._answer(request, handler)
            route = request.match_info.route.name or "none"
            if trace and self._spans.on:
                self._spans.report(request_span(route, trace, response.status, began_ms, self._clock.now_ms()))
            self._measures.requests.labels(route, str(response.status)).inc()
            return response

        return guarded

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            with self._addresses.counting(request):
                share = self._admit(request)
                if share is None:
                    return await handler(request)
                return await share.serve(self._serve(request, handler, share))
        except Refusal as refusal:
            return self._respond(refusal)
        except web.HTTPException as error:
            said = self._respond(refused(HTTP_CODES.get(error.status, Code.INVALID_FIELD)))
            said.headers.update({name: value for name, value in error.headers.items() if name == "Allow"})
            return said
        except Transient as error:
            log.warning("request_not_served", path=request.path, error=str(error))
            return self._respond(refused(Code.UNAVAILABLE))
        except Exception:
            log.exception("request_failed", method=request.method, route=request.match_info.route.name)
            return self._respond(refused(Code.INTERNAL))

    async def _serve(self, request: web.Request, handler: Handler, share: LoopShare) -> web.StreamResponse:
        await self._read_body(request)
        await share.turn()
        return await handler(request)

    async def _read_body(self, request: web.Request) -> None:
        # Read the body here, for every method, so that no handler meets one that is too large or never ends.
        try:
            async with asyncio.timeout(self._settings.body_seconds):
                await request.read()
        except TimeoutError:
            raise refused(Code.INVALID_FIELD, "body", f"not there in time: {BROKEN_BODY}") from None
        except web.HTTPRequestEntityTooLarge:
            raise refused(Code.TOO_LARGE, "body", "", {"bytes_max": self._settings.body_bytes_max}) from None
        except (web.RequestPayloadError, ConnectionError):
            raise refused(Code.INVALID_FIELD, "body", BROKEN_BODY) from None

    def _respond(self, refusal: Refusal) -> web.Response:
        for reason in refusal.reasons:
            if reason.code in CODES:
                self._measures.reason(Code(reason.code))
        return refusal.response()

    def _admit(self, request: web.Request) -> LoopShare | None:
        # The share of the loop that the request is charged to; None for the page's files. Raises Refusal.
        self._check_host(request)
        self._check_origin(request)
        if request.match_info.route.name in PAGE:
            return None
        caller = self._caller(request)
        if caller is None:
            wait = self._strangers.wait_seconds(STRANGERS, self._clock.monotonic())
            if wait:
                raise refused(Code.RATE_LIMITED, retry_after=wait)
            log.info("token_refused", remote=self._addresses.client(request), given="Authorization" in request.headers)
            raise refused(Code.UNAUTHORIZED)
        wait = self._callers.wait_seconds(caller.token_id, self._clock.monotonic())
        if wait:
            numbers = {"per_second": self._settings.requests_per_second, "burst": self._settings.requests_burst}
            raise refused(Code.RATE_LIMITED, numbers=numbers, retry_after=wait)
        name = f"token {caller.token_id}" if caller.tenant is None else caller.tenant
        share = self._shares.setdefault(name, LoopShare(self._settings, self._clock))
        share.check()
        if caller.only is not None and request.match_info.route.name not in ROUTES[caller.only]:
            raise refused(Code.FORBIDDEN, "Authorization", f"this token is for {caller.only} only")
        request[CALLER], request[SHARE] = caller, share
        return share

    def _caller(self, request: web.Request) -> Caller | None:
        given = request.headers.getall("Authorization", [])
        if len(given) != 1:
            return None
        scheme, _, token = given[0].partition(" ")
        return self._tokens.caller(token.strip()) if scheme.lower() == "bearer" else None

    def _check_host(self, request: web.Request) -> None:
        given = request.headers.getall("Host", [])
        name = host_name(given[0]) if len(given) == 1 else None
        if name is None or not (name in self._hosts or (self._loopback and is_loopback(name))):
            raise refused(Code.FORBIDDEN, "Host", "not a name of this server; an operator adds it to allowed_hosts")

    def _check_origin(self, request: web.Request) -> None:
        # Refuses a request with another origin: only browsers send one, and pages of other sites may not call, whatever
        # their token.
        for origin in request.headers.getall("Origin", []):
            same = urlsplit(origin).netloc.lower() == request.headers["Host"].lower() and origin != "null"
            if not same and origin not in self._settings.allowed_origins:
                raise refused(Code.FORBIDDEN, "Origin", "not allowed here; an operator adds it to allowed_origins")


def host_name(host: str) -> str | None:
    """The name in a Host header, without port and final dot; None for what is none."""
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return None
    if not name or "@" in host or "/" in host:
        return None
    return name.rstrip(".")
