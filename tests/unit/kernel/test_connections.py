"""The connections to an API server against a server of bare sockets that does to them what is written down for it."""

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any

import pytest
import trustme
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes import connections
from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.kubernetes.connections import LARGEST_HEAD, Connections, HttpAnswer
from tessera.kernel.ports import ApiError

END = object()  # the server closes the connection
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy")
Script = list[Any]  # of bytes to send, events to wait for, and END


@pytest.fixture(params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Services run on uvloop, where there is one."""
    policy: asyncio.AbstractEventLoopPolicy = request.param()
    return policy


class Server:
    """Answers each request with the next script; the last one stands. Notes requests by connection, and who left."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = list(scripts)
        self.asked: list[tuple[int, str, bytes]] = []
        self.left = asyncio.Event()
        self._connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self._connections
        self._connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                size = re.search(r"Content-Length: (\d+)", head)
                self.asked.append((number, head, await reader.readexactly(int(size[1]) if size else 0)))
                for step in self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]:
                    if step is END:
                        writer.close()
                        return
                    if isinstance(step, bytes):
                        writer.write(step)
                        await writer.drain()
                    else:
                        await step.wait()
        writer.close()
        self.left.set()

    def used(self) -> list[int]:
        """The connection of each request."""
        return [number for number, _, _ in self.asked]


@asynccontextmanager
async def serving(
    server: Server, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None, name: str = "", path: str = ""
) -> AsyncIterator[Connections]:
    """`tls` is the server's; whoever calls trusts in what the tests below set."""
    listening = await asyncio.start_server(server.serve, host, 0, ssl=tls)
    port = listening.sockets[0].getsockname()[1]
    said = name or (f"[{host}]" if ":" in host else host)
    pool = Connections(f"{'https' if tls else 'http'}://{said}:{port}{path}", ssl.create_default_context)
    try:
        yield pool
    finally:
        await pool.close()
        listening.close()


async def get(pool: Connections, target: str = "/a") -> HttpAnswer:
    return await pool.call("GET", target, "", None, 10)


async def post(pool: Connections) -> HttpAnswer:
    return await pool.call("POST", "/a", "", b"{}", 10)


async def test_a_connection_serves_one_request_after_another_and_two_at_once_take_two():
    server = Server([OK])
    async with serving(server) as pool:
        assert await get(pool) == HttpAnswer(200, "OK", "", b"ok")
        await post(pool)
        await asyncio.gather(get(pool), get(pool))
    assert server.used() == [0, 0, 0, 1]
    assert server.asked[0][1].startswith("GET /a HTTP/1.1\r\nHost: 127.0.0.1:")
    assert server.asked[1][2] == b"{}"


async def test_a_path_and_credentials_in_the_address():
    server = Server([OK])
    async with serving(server, name="who:secret@127.0.0.1", path="/k8s/clusters/c") as pool:
        await get(pool)
    head = server.asked[0][1]
    assert head.startswith("GET /k8s/clusters/c/a HTTP/1.1\r\nHost: 127.0.0.1:")
    assert "secret" not in head


async def test_ipv6():
    server = Server([OK])
    async with serving(server, "::1") as pool:
        assert (await get(pool)).body == b"ok"
    assert "\r\nHost: [::1]:" in server.asked[0][1]


@pytest.mark.parametrize("url", ["", "127.0.0.1:1", "ftp://h", "http://", "http://[::1", "http://h:x"])
async def test_what_is_no_address_is_refused_by_name(url: str):
    with pytest.raises(ConnectionError, match="is no address of an API server"):
        await get(Connections(url, ssl.create_default_context))


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", HttpAnswer(204, "No Content", "", b"")),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", HttpAnswer(304, "Not Modified", "", b"")),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, HttpAnswer(200, "OK", "", b"ok")),
        (b"HTTP/1.1 103 Early Hints\r\nRetry-After: 9\r\n\r\n" + OK, HttpAnswer(200, "OK", "", b"ok")),
        (CHUNKED + b"2\r\nok\r\n1;x=y\r\n!\r\n0\r\nTrailer: t\r\n\r\n", HttpAnswer(200, "OK", "", b"ok!")),
        (
            b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\nContent-Length: 1\r\n\r\n-",
            HttpAnswer(429, "Too Many Requests", "7", b"-"),
        ),
    ],
)
async def test_forms_of_answers_after_which_the_connection_serves_again(sent: bytes, answer: HttpAnswer):
    server = Server([sent])
    async with serving(server) as pool:
        assert [await get(pool), await get(pool)] == [answer, answer]
    assert server.used() == [0, 0]


@pytest.mark.parametrize(
    "script",
    [
        [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"],
        [b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"],
        [b"HTTP/1.0 200 OK\r\n\r\no", b"k", END],  # as some proxies refuse: the body ends with the connection
        [OK + OK],  # a second answer, which nobody asked for
    ],
)
async def test_forms_of_answers_after_which_another_connection_is_opened(script: Script):
    server = Server(script)
    async with serving(server) as pool:
        for _ in range(2):
            answer = await get(pool)
            assert (answer.status, answer.body) == (200, b"ok")
    assert server.used() == [0, 1]


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", CHUNKED])
async def test_an_answer_to_head_has_no_body_whatever_its_headers_say(head: bytes):
    server = Server([head], [OK])
    async with serving(server) as pool:
        assert await pool.call("HEAD", "/a", "", None, 10) == HttpAnswer(200, "OK", "", b"")
        assert (await get(pool)).body == b"ok"


@pytest.mark.parametrize("ask", [get, post])
async def test_a_connection_closed_at_rest_is_noticed_before_it_is_used(ask: Callable[[Connections], Any]):
    """The server closes and we ask in the same turn of the loop, so that no callback can have told."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as bare:
        bare.setblocking(False)
        pool = Connections(f"http://127.0.0.1:{bare.getsockname()[1]}", ssl.create_default_context)

        async def one() -> Any:
            accepted, _ = await loop.sock_accept(bare)
            await loop.sock_recv(accepted, 65536)
            await loop.sock_sendall(accepted, OK)
            return accepted

        first, _ = await asyncio.gather(one(), ask(pool))
        first.close()
        answer, second = await asyncio.gather(ask(pool), one())  # `ask` goes first, before the loop looks at a socket
        assert answer.body == b"ok"
        second.close()
        await pool.close()


async def test_a_request_without_a_byte_of_answer_is_sent_again_only_where_that_is_safe():
    for method, again in (("GET", True), ("DELETE", True), ("POST", False), ("PATCH", False)):
        server = Server([OK], [END], [OK])
        async with serving(server) as pool:
            await get(pool)
            if again:
                await pool.call(method, "/a", "", b"{}", 10)
            else:
                with pytest.raises(ConnectionError, match="before it answered"):
                    await pool.call(method, "/a", "", b"{}", 10)
        assert server.used() == ([0, 0, 1] if again else [0, 0])


async def test_a_new_connection_without_an_answer_is_not_tried_again():
    server = Server([END])
    async with serving(server) as pool:
        with pytest.raises(ConnectionError, match="before it answered"):
            await get(pool)
    assert server.used() == [0]


@pytest.mark.parametrize("begun", [b"H", OK[:-1], CHUNKED + b"2\r\nok\r\n"])
async def test_an_answer_that_breaks_off_is_an_error_and_never_asked_for_again(begun: bytes):
    server = Server([OK], [begun, END])
    async with serving(server) as pool:
        await get(pool)
        with pytest.raises(ConnectionError, match="within its answer"):
            await get(pool)
    assert server.used() == [0, 0]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"\x16\x03\x01\x00 garbage\r\n\r\n", "no HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", "no HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n", "no HTTP/1.1"),
        (CHUNKED + b"zz\r\n", "no HTTP/1.1"),
        (b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", "changes to a protocol"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * LARGEST_HEAD, "headers have more than"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: x\r\n" * LARGEST_HEAD + b"\r\n", "headers have more than"),
        (CHUNKED + b"0\r\n" + (b"X: " + b"x" * 999 + b"\r\n") * 99 + b"\r\n", "headers have more than"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * LARGEST_HEAD, "headers have more than"),
    ],
)
async def test_what_is_no_answer_is_refused_and_the_connection_closed(sent: bytes, why: str):
    server = Server([sent, asyncio.Event()], [OK])
    async with serving(server) as pool:
        with pytest.raises(ConnectionError, match=why):
            await get(pool)
        await get(pool)
    assert server.used() == [0, 1]


async def test_a_body_beyond_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connections, "LARGEST_BODY", 1000)
    server = Server([CHUNKED, *[b"64\r\n" + b"x" * 100 + b"\r\n"] * 50, asyncio.Event()])
    async with serving(server) as pool:
        with pytest.raises(ConnectionError, match="more than 1000 bytes"):
            await get(pool)


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\n", OK[:-1]])
async def test_a_server_that_dawdles_is_left_in_time(sent: bytes):
    server = Server([sent, asyncio.Event()], [OK])
    async with serving(server) as pool:
        with pytest.raises(TimeoutError):
            await pool.call("GET", "/a", "", None, 0.2)
        await get(pool)
    assert server.used() == [0, 1]


async def test_who_is_cancelled_closes_the_connection():
    asked = asyncio.Event()
    server = Server([OK[:-1], asyncio.Event()])
    server.asked = Noting(asked)
    async with serving(server) as pool:
        asking = asyncio.create_task(get(pool))
        await asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        server._scripts = [[OK]]
        await get(pool)
    assert server.used() == [0, 1]


class Noting(list[tuple[int, str, bytes]]):
    """Tells of the first request."""

    def __init__(self, event: asyncio.Event) -> None:
        super().__init__()
        self._event = event

    def append(self, request: tuple[int, str, bytes]) -> None:
        super().append(request)
        self._event.set()


async def test_an_answer_before_the_request_was_read_is_told_and_the_connection_not_used_again():
    """As of a body that is too large: what the server never reads must not stand before the next request."""
    refused = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"
    open_for_ever, seen = asyncio.Event(), []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(refused)
        await open_for_ever.wait()

    server = Server([OK])
    server.serve = serve  # type: ignore[method-assign]
    async with serving(server) as pool:
        for _ in range(2):
            assert (await pool.call("POST", "/a", "", b"x" * 20_000_000, 10)).status == 413
        open_for_ever.set()
    assert len(seen) == 2


async def test_a_stream_gives_what_comes_holds_the_server_back_and_ends():
    go = asyncio.Event()
    big = b"x" * 65536
    chunk = b"%x\r\n%s\r\n" % (len(big), big)
    server = Server([CHUNKED + b"1\r\na\r\n", go, *[chunk] * 200, b"0\r\n\r\n"], [OK])
    async with serving(server) as pool:
        async with pool.stream("/w", "", 10) as stream:
            assert (stream.status, await stream.piece()) == (200, b"a")
            go.set()
            size = 0
            while piece := await stream.piece():
                size += len(piece)
                assert len(piece) < 3_000_000  # of 13 MB: what was not taken did not pile up
            assert size == 200 * 65536
        await get(pool)
    assert server.used() == [0, 0]


async def test_a_stream_that_falls_silent_or_is_left_closes_its_connection():
    server = Server([CHUNKED, asyncio.Event()])
    async with serving(server) as pool:
        with pytest.raises(TimeoutError):
            async with pool.stream("/w", "", 0.2) as stream:
                await stream.piece()
        async with pool.stream("/w", "", 10) as stream:
            assert stream.status == 200
        server._scripts = [[OK]]
        await get(pool)
    assert server.used() == [0, 1, 2]


async def test_closing_ends_streams_with_an_error_and_a_later_call_opens_anew():
    server = Server([CHUNKED, asyncio.Event()], [OK])
    async with serving(server) as pool:
        async with pool.stream("/w", "", None) as stream:
            reading = asyncio.ensure_future(stream.piece())
            await asyncio.sleep(0)
            await pool.close()
            with pytest.raises(ConnectionError, match="on our side"):
                await reading
        assert (await get(pool)).body == b"ok"


@pytest.mark.parametrize("target", ["/a b", "/a\r\nX: y", "/ä", ""])
async def test_a_path_that_would_break_out_of_its_line_is_never_sent(target: str):
    server = Server([OK])
    async with serving(server) as pool:
        with pytest.raises(ConnectionError, match="cannot be asked for"):
            await get(pool, target)
    assert not server.asked


async def test_what_rested_long_or_stands_beyond_the_bound_is_not_kept(monkeypatch: pytest.MonkeyPatch):
    server = Server([OK])
    async with serving(server) as pool:
        monkeypatch.setattr(connections, "MOST_IDLE", 1)
        await asyncio.gather(get(pool), get(pool))
        await asyncio.gather(get(pool), get(pool))
        assert len(set(server.used())) == 3  # one of the first two was kept
        monkeypatch.setattr(connections, "IDLE_SECONDS", -1.0)
        await get(pool)
    assert server.used()[-1] == 3


def authority(name: str = "127.0.0.1") -> tuple[trustme.CA, ssl.SSLContext]:
    ca, tls = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ca.issue_cert(name).configure_cert(tls)
    return ca, tls


async def test_tls_by_the_cluster_s_own_authority_and_our_certificate():
    ca, tls = authority()
    tls.verify_mode = ssl.CERT_REQUIRED
    ca.configure_trust(tls)
    ours = ssl.create_default_context()
    ca.configure_trust(ours)
    server = Server([OK])
    async with serving(server, tls=tls) as pool:
        pool._tls = lambda: ours
        with pytest.raises(OSError, match=r"(?i)certificate|closed|reset"):  # the server wants one, after our handshake
            await get(pool)
        ca.issue_cert("binder").configure_cert(ours)
        assert [(await get(pool)).body for _ in range(2)] == [b"ok", b"ok"]
    assert server.used() == [0, 0]


@pytest.mark.parametrize("wrong", ["authority", "name"])
async def test_tls_with_another_authority_or_name_is_refused_before_anything_is_sent(wrong: str):
    ca, tls = authority("127.0.0.1" if wrong == "authority" else "elsewhere")
    ours = ssl.create_default_context()
    (trustme.CA() if wrong == "authority" else ca).configure_trust(ours)
    server = Server([OK])
    async with serving(server, tls=tls) as pool:
        pool._tls = lambda: ours
        with pytest.raises(ssl.SSLCertVerificationError):
            await get(pool)
    assert not server.asked


@pytest.mark.parametrize("ask", [get, post])
async def test_a_tls_connection_that_the_server_ends_at_rest_is_not_asked_again(ask: Callable[[Connections], Any]):
    """A server that drains says goodbye within TLS; a POST must not be lost on what it has left."""
    ca, tls = authority()
    ours = ssl.create_default_context()
    ca.configure_trust(ours)
    server = Server([OK, END], [OK])
    async with serving(server, tls=tls) as pool:
        pool._tls = lambda: ours
        assert (await get(pool)).body == b"ok"
        await asyncio.wait([connection._ended for connection in pool._open])
        assert (await ask(pool)).body == b"ok"
    assert server.used() == [0, 1]


EVENTS = [b'{"type":"%s","object":{"n":%d}}\n' % (kind, n) for n, kind in enumerate((b"ADDED", b"MODIFIED"))]


@pytest.mark.parametrize(
    ("last", "why"),
    [
        ([b"40\r\n" + EVENTS[1][:10], END], "within its answer"),  # in the middle of a chunk
        ([b"a\r\n" + EVENTS[1][:10] + b"\r\n", END], "within its answer"),  # between two, in the middle of a line
        ([b"zz\r\n"], "no HTTP/1.1"),
        ([b"a\r\n" + EVENTS[1][:10] + b"\r\n0\r\n\r\n"], ""),  # as the server ends one that lasted long enough
        ([b"0\r\n\r\n"], ""),
    ],
)
async def test_a_watch_gives_what_came_whole_and_tells_an_end_from_a_break(last: Script, why: str):
    """What follows a half line is asked for again from the version of the last whole one."""
    came = []
    # A line in two chunks, and two in one.
    first = CHUNKED + b"9\r\n" + EVENTS[0][:9] + b"\r\n"
    rest = EVENTS[0][9:] + EVENTS[1]
    server = Server([first + b"%x\r\n%s\r\n" % (len(rest), rest), *last], [OK])
    async with serving(server) as pool:
        cluster = HttpCluster(pool._base_url)
        with pytest.raises(Transient, match=why) if why else nullcontext():
            async for event in cluster.watch("pods", "7"):
                came.append((event.type, event.object["n"]))
        await cluster.close()
    assert came == [("ADDED", 0), ("MODIFIED", 1)]


FORMS = [
    (OK, HttpAnswer(200, "OK", "", b"ok")),
    (CHUNKED + b"2\r\nok\r\nA\r\n0123456789\r\n0\r\n\r\n", HttpAnswer(200, "OK", "", b"ok0123456789")),
    (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 409 Already There\r\nRetry-After: 3\r\nContent-Length: 3\r\n\r\nyes",
        HttpAnswer(409, "Already There", "3", b"yes"),
    ),
]


class Wire(asyncio.Transport):
    """A transport that takes requests and closes."""

    def __init__(self) -> None:
        self.pair = socket.socketpair()
        super().__init__({"socket": self.pair[0]})

    def write(self, data: Any) -> None:
        """Nobody reads it."""

    def abort(self) -> None:
        for one in self.pair:
            one.close()

    def is_closing(self) -> bool:
        """Not by the other side."""
        return False


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True, deadline=None)
@given(form=st.sampled_from(FORMS), cuts=st.sets(st.integers(1, 120)), every_byte=st.booleans())
def test_an_answer_is_the_same_wherever_its_bytes_are_cut(
    form: tuple[bytes, HttpAnswer], cuts: set[int], every_byte: bool
):
    sent, expected = form

    async def read() -> HttpAnswer:
        connection = connections._Connection(set())
        wire = Wire()
        connection.connection_made(wire)
        asking = asyncio.ensure_future(connection.ask(b"", bodyless=False))
        await asyncio.sleep(0)
        places = range(len(sent)) if every_byte else sorted({0, *(cut for cut in cuts if cut < len(sent))})
        for begin, end in zip(places, [*places[1:], len(sent)], strict=True):
            connection.data_received(sent[begin:end])
        await asking
        answer = HttpAnswer(connection.status, connection.reason, connection.wait, await connection.rest(1000))
        wire.abort()
        return answer

    assert asyncio.run(read()) == expected


async def test_errors_of_calls_say_what_was_asked_and_never_show_the_token():
    server = Server([b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: 4\r\n\r\nslow"], [END])
    async with serving(server) as pool:
        cluster = HttpCluster(pool._base_url, "the-secret")
        with pytest.raises(ApiError) as refused:
            await cluster.create_pod("n", {})
        assert (refused.value.status, refused.value.retry_after_seconds) == (429, 7.0)
        with pytest.raises(Transient, match=r"POST /api/v1/namespaces/n/pods: .*before it answered") as broken:
            await cluster.create_pod("n", {})
        assert "secret" not in f"{broken.value!r} {broken.value.__cause__!r}"
        await cluster.close()
    assert "\r\nAuthorization: Bearer the-secret\r\n" in server.asked[0][1]


@pytest.mark.parametrize("token", ["se\r\ncret", "sécret"])
async def test_a_token_that_no_header_can_carry_is_refused_unseen(token: str):
    cluster = HttpCluster("http://127.0.0.1:9", lambda: token)
    with pytest.raises(Transient, match="the token of the cluster") as refused:
        await cluster.get_pod("n", "a")
    assert "cret" not in f"{refused.value!r} {refused.value.__cause__!r} {refused.value.__context__!r}"
