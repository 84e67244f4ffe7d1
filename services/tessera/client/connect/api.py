"""
The gateway's HTTP API for the command: requests with a bearer token, and server-sent events.

Plain blocking requests of the standard library in a thread each: a command makes one to three of them, and an
asynchronous HTTP client takes longer to import than they take.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.client import HTTPException
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import HTTPRedirectHandler, Request, build_opener

from tessera.client.connect.contexts import ApiLogin, LoginSource
from tessera.client.outcomes import Exit, Failure, NotYet, Refused
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient
from tessera_schemas.base import Json
from tessera_schemas.cluster.health import PublicKnownAilment
from tessera_schemas.reasons import Code, PublicReason

if TYPE_CHECKING:
    from http.client import HTTPResponse

    from tessera_schemas.events import CloudEvent

SECONDS = 30.0
"""Time that an answer may take; above the gateway's own wait for the ledger's answer to a submit."""
STREAM_SECONDS = 60.0
"""Silence of an event stream after which its connection counts as lost; heartbeats come more often."""
LOST_SECONDS = 1.0
"""From one try to go on with a stream that was lost to the next."""
BUSY_SECONDS = 60.0
"""How long a request is sent again that came too soon after others."""
TOO_EARLY = (Code.RATE_LIMITED, Code.BACKLOG_FULL)
"""Why the gateway takes nothing of a request now, which it does later."""
PIECE_BYTES = 64 * 1024
AWAY = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)

JOBS = "/v1/jobs"
OF_NODES = "io.tessera.node."
"""Beginning of the types of events of nodes, which operators get."""

T = TypeVar("T")


class Busy(Transient):
    """The gateway takes no more of this caller for so many seconds: nothing of the request was done."""

    def __init__(self, text: str, seconds: float) -> None:
        super().__init__(text)
        self.seconds = seconds


class _NoRedirect(HTTPRedirectHandler):
    """A redirect would carry the token to wherever the answer says."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none: the redirect becomes an error."""


class Api:
    """One gateway, spoken to with one token. Raises Failure for what is no token."""

    def __init__(self, login: ApiLogin | LoginSource) -> None:
        self._login, self.url, self._token = login, "", ""
        self._opener = build_opener(_NoRedirect)
        if isinstance(login, ApiLogin):
            self._take(login)

    def _take(self, login: ApiLogin) -> None:
        if not re.fullmatch(r"[\x21-\x7e]+", login.token):
            raise Failure(
                Exit.USAGE, f"HTTP API at {login.url}: not a token; give the word that `tessera token new` prints"
            )
        self.url, self._token = login.url, login.token

    async def ready(self) -> None:
        """Have an address and a token; a login that has none yet gets them. Raises Failure."""
        if not isinstance(self._login, ApiLogin):
            self._take(await self._login.obtain())

    async def get(self, path: str, **query: Any) -> Json:
        """JSON of an answer. Raises Failure, Refused, or Transient while the gateway is away."""
        return (await self.ask("GET", path, query))[1]

    async def post(self, path: str, body: Json, key: str = "") -> tuple[int, Json]:
        """Status and JSON of an accepted request. Raises as `get` does."""
        return await self.ask("POST", path, {}, body, key)

    async def ask(
        self, method: str, path: str, query: Mapping[str, Any], body: Json | None = None, key: str = ""
    ) -> tuple[int, Json]:
        """
        Send one request; raises as `get` does.

        Where the gateway says that it comes too early, it is sent again when it says so, for a minute at most.
        """
        await self.ready()

        def answered() -> tuple[int, Json]:
            headers = {"Idempotency-Key": key} if key else {}
            with self._open(method, path, query, SECONDS, body, headers) as answer:
                return answer.status, _object_of(answer.read())

        return await _patiently(answered)

    async def events(
        self, after: int | None, lost: Callable[[str], None] | None = None, **query: Any
    ) -> AsyncIterator[Json]:
        """
        Public events as they come, those after number `after` first; with `follow` false to the newest that is stored.

        With `lost` a stream that ends, as at each restart of the gateway, is asked for again from where it was, without
        end, and `lost` is called once for each time. Else raises Transient; before it begins, as `get` does.
        """
        place, clock, told = after, SystemClock(), False
        while True:
            try:
                async for seq, event in self._events_after(place, query):
                    place, told = place if seq is None else seq, False
                    if event is not None:
                        yield event
                return  # the gateway says that it is complete
            except Transient as error:
                if lost is None:
                    raise
                if not told:
                    lost(f"{error}; it goes on from there as soon as the gateway answers")
                told = True
                await clock.sleep(LOST_SECONDS)

    async def _events_after(
        self, after: int | None, query: Mapping[str, Any]
    ) -> AsyncIterator[tuple[int | None, Json | None]]:
        """
        The place in the stream as the gateway says it, and events, as they come; one of both each time.

        Ends where the gateway says that all has come; raises Transient where the stream ends without that word.
        """
        await self.ready()
        answer = await _patiently(lambda: self._open("GET", "/v1/events", {**query, "after": after}, STREAM_SECONDS))
        name, seq = "", None
        async for line in self._fed_by(answer.readline):
            field, _, value = line.decode().rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "id":
                seq = int(value)
            elif field == "data" and not name:
                yield None, json.loads(value)
            elif field == "data" and name == "end":
                raise Transient(f"HTTP API at {self.url}: {json.loads(value).get('sentence', 'the stream was ended')}")
            elif field == "data" and name == "complete":
                return
            elif not field:
                name = ""
                yield seq, None  # all of what has this number was handed out
        raise self._lost()

    async def pieces(self, path: str, **query: Any) -> AsyncGenerator[bytes, None]:
        """
        A text that may go on for hours, in pieces as they come, to its end.

        Raises Transient when the connection is lost before that; before it begins, as `get` does.
        """
        await self.ready()
        answer = await _patiently(lambda: self._open("GET", path, query, None))
        async for piece in self._fed_by(partial(answer.read1, PIECE_BYTES)):
            yield piece

    async def _fed_by(self, read: Callable[[], bytes]) -> AsyncIterator[bytes]:
        """
        Feed from a blocking `read` until it returns nothing; whoever stops asking leaves it to end with the command.

        Raises Transient for silence, a reset, and an answer that is cut off.
        """
        loop, came = asyncio.get_running_loop(), asyncio.Queue[bytes | Exception]()

        def work() -> None:
            with suppress(RuntimeError):  # the command has ended, and its loop is closed
                try:
                    while data := read():
                        loop.call_soon_threadsafe(came.put_nowait, data)
                    loop.call_soon_threadsafe(came.put_nowait, b"")
                except (OSError, HTTPException) as error:
                    loop.call_soon_threadsafe(came.put_nowait, error)

        Thread(target=work, daemon=True).start()
        while data := await came.get():
            if isinstance(data, Exception):
                raise self._lost() from data
            yield data

    def _lost(self) -> Transient:
        return Transient(f"HTTP API at {self.url}: the connection was lost")

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        seconds: float | None,
        body: Json | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> "HTTPResponse":
        asked = urlencode({name: value for name, value in query.items() if value is not None}, doseq=True)
        data = None if body is None else _body_of(body)
        request = Request(f"{self.url}{path}" + (f"?{asked}" if asked else ""), data, method=method)  # noqa: S310
        request.add_header("Authorization", f"Bearer {self._token}")
        for name, value in {**(headers or {}), **({"Content-Type": "application/json"} if data else {})}.items():
            request.add_header(name, value)
        try:
            answer: HTTPResponse = self._opener.open(request, timeout=seconds)
        except HTTPError as error:
            with error:
                raise self._refusal(error.code, path, _object_of(error.read())) from error
        except (URLError, OSError, TimeoutError) as error:
            raise Transient(f"HTTP API at {self.url}: {getattr(error, 'reason', error)}") from error
        return answer

    def _refusal(self, status: int, path: str, problem: Json) -> Exception:
        """Translate a status that is no success into an error for the caller."""
        sentence = str(problem.get("sentence") or HTTPStatus(status).phrase)
        if status == HTTPStatus.UNAUTHORIZED:
            return Failure(
                Exit.USAGE, f"HTTP API at {self.url}: the token is not accepted; run `tessera login {self.url}`"
            )
        if problem.get("code") in TOO_EARLY:
            return Busy(f"HTTP API at {self.url}: {sentence}", float(problem.get("retry_after") or 1))
        if status in AWAY:
            return Transient(f"HTTP API at {self.url}: {sentence}")
        if problem.get("code") == Code.NO_SUCH_NODE:
            return Failure(Exit.NOT_FOUND, f"{sentence}; see `tessera nodes`")
        if status == HTTPStatus.NOT_FOUND:
            what = f"job {path.split('/')[3]}: there is none" if path.startswith(f"{JOBS}/") else f"{path}: not found"
            return Failure(Exit.NOT_FOUND, f"{what}; see `tessera ls`")
        if status == HTTPStatus.CONFLICT and path != JOBS:
            kind = NotYet if problem.get("code") == Code.NOT_RUNNING else Failure
            return kind(Exit.CONFLICT, sentence)
        reasons = tuple(PublicReason.model_validate(reason) for reason in problem.get("reasons", ()))
        return Refused(reasons) if reasons else Failure(Exit.FAILED, f"HTTP API at {self.url}: {sentence} ({status})")


def path_of(job_id: str, action: str = "") -> str:
    """Path of one job, or of an action on it."""
    return f"{JOBS}/{quote(job_id, safe='')}" + (f"/{action}" if action else "")


def _body_of(value: Json) -> bytes:
    from tessera.client.input.files import as_json  # with YAML and all that a job may say, which who reads does without

    return as_json(value)


def _object_of(data: bytes) -> Json:
    """A JSON object, or an empty one where a proxy answered with something else."""
    try:
        value = json.loads(data or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


async def _patiently(work: Callable[[], T]) -> T:
    """The result of a blocking request, sent again when the gateway says so. Raises Busy after a minute of that."""
    clock = SystemClock()
    until = clock.monotonic() + BUSY_SECONDS
    while True:
        try:
            return await _in_thread(work)
        except Busy as busy:
            if clock.monotonic() + busy.seconds > until:
                raise
            await clock.sleep(busy.seconds)


async def _in_thread(work: Callable[[], T]) -> T:
    """The result of blocking work. Its thread is a daemon, so that Ctrl-C need not wait for the network."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        settle: Callable[[], None]
        try:
            settle = partial(done.set_result, work())
        except BaseException as error:
            settle = partial(done.set_exception, error)
        with suppress(RuntimeError):  # the command was interrupted, and its loop is closed
            loop.call_soon_threadsafe(lambda: None if done.cancelled() else settle())

    Thread(target=run, daemon=True).start()
    return await done


async def events_by_api(
    api: Api,
    job: str | None = None,
    *,
    tenant: str | None = None,
    types: Sequence[str] = (),
    after: int | None = 0,
    follow: bool = False,
    lost: Callable[[str], None] | None = None,
) -> "AsyncGenerator[CloudEvent]":
    """
    Events of some `types`, or of all, after the one with this number, 0: all that are kept, None: those to come.

    Without `follow` it ends with the newest event that is stored as it begins, None then means all that are kept, and a
    connection that is lost before raises Transient. With `lost` it outlives the gateway, as `Api.events` does.
    """
    from tessera_schemas.events import CloudEvent  # who only lists does without

    more = {} if follow else {"follow": "false"}
    async for event in api.events(after, lost, tenant=tenant, job=job, type=types, **more):
        yield CloudEvent.model_validate(event, extra="ignore")


def reason_of(event: "CloudEvent") -> str:
    """The first reason that an event gives, as a sentence, or what was noted of a submit or node; "" for neither."""
    if event.type.startswith(OF_NODES):
        return _said_of_node(event.data)
    notes = event.data.get("notes")
    if isinstance(notes, list) and notes:
        return "; ".join(map(str, notes))
    reason = event.data.get("reason")
    if reason is None:
        reasons = event.data.get("reasons")
        reason = reasons[0] if isinstance(reasons, list) and reasons else None
    return PublicReason.model_validate(reason).sentence() if isinstance(reason, dict) else ""


def _said_of_node(event_data: dict[str, object]) -> str:
    ailments = event_data.get("ailments")
    if isinstance(ailments, list) and ailments:
        known = [PublicKnownAilment.model_validate(each) for each in ailments]
        return "; ".join(
            f"{each.ailment.cause} ({each.source}): {each.ailment.evidence}".rstrip(": ") for each in known
        )
    said = (event_data.get(name) for name in ("outcome", "why", "detail"))
    return ": ".join(str(each) for each in said if each)
