"""Bodies that are not what their headers say: the client is told what to send; nothing becomes a mistake of ours."""

import asyncio
import gzip
import json

import aiohttp
import pytest
from structlog.testing import capture_logs

from docs.make_openapi import document
from tests.unit.gateway.gateway_world import SECONDS, World

BODY = b'{"key": "k1"}'
JSON = "Content-Type: application/json"


async def send(world: World, token: str, *headers: str, body: bytes) -> tuple[int, dict[str, object]]:
    """Status and body of the answer to raw bytes, as a client sends them that gets its framing wrong."""
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    try:
        lines = ["POST /v1/jobs HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}", *headers]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.write(body)
        async with asyncio.timeout(SECONDS):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(line for line in head.lower().split("\r\n") if line.startswith("content-length:"))
            return int(head.split()[1]), json.loads(await reader.readexactly(int(length.split(":")[1])))
    finally:
        writer.close()


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "x-none", "GZIP"])
@pytest.mark.parametrize("body", [BODY, gzip.compress(BODY)], ids=["plain", "gzip"])
async def test_a_body_with_a_content_coding_is_refused_whatever_it_holds(
    world: World, coding: str, body: bytes
) -> None:
    token = world.token("lab")
    with capture_logs() as logs:
        async with world.gateway():
            length = f"Content-Length: {len(body)}"
            status, said = await send(world, token, JSON, f"Content-Encoding: {coding}", length, body=body)
    assert (status, said["code"], said["field"]) == (422, "InvalidField", "Content-Encoding")
    assert "without Content-Encoding" in str(said["sentence"])
    assert "request_failed" not in [entry["event"] for entry in logs]


@pytest.mark.parametrize("body", [b"xyz\r\n", b"5\r\nhelloworld\r\n"], ids=["no size", "too long"])
async def test_chunks_that_are_none_are_the_clients_mistake(world: World, body: bytes) -> None:
    token = world.token("lab")
    with capture_logs() as logs:
        async with world.gateway(body_seconds=0.1):
            status, said = await send(world, token, JSON, "Transfer-Encoding: chunked", body=body)
    assert (status, said["code"], said["field"]) == (422, "InvalidField", "body")
    assert "chunks" in str(said["sentence"])
    assert "request_failed" not in [entry["event"] for entry in logs]


@pytest.mark.parametrize(
    "head",
    [b"GET / HTTP/9.9\r\n\r\n", b"GET /v1/jobs HTTP/1.1\r\nno colon\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\r\n\r\n"],
    ids=["version", "header", "TLS"],
)
async def test_a_head_that_is_no_http_is_answered_and_logs_no_traceback(
    world: World, head: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.gateway():
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(head)
        async with asyncio.timeout(SECONDS):
            assert (await reader.readline()).split()[1] == b"400"
        writer.close()
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("framing", ["Content-Length: 100", "Transfer-Encoding: chunked"])
async def test_a_client_that_goes_away_within_its_body_is_no_mistake_of_ours(world: World, framing: str) -> None:
    token = world.token("lab")
    with capture_logs() as logs:
        async with world.gateway():
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(send(world, token, JSON, framing, body=b""), 1)
            while not world.measured("tessera_gateway_requests_total", route="submit", status="422"):
                await asyncio.sleep(0.01)
    assert "request_failed" not in [entry["event"] for entry in logs]


@pytest.mark.parametrize("charset", ["utf-16", "latin-1", "none-such"])
async def test_another_charset_than_utf_8_is_refused(world: World, charset: str) -> None:
    token = world.token("lab")
    async with world.gateway():
        headers = (f"{JSON}; charset={charset}", f"Content-Length: {len(BODY)}")
        status, said = await send(world, token, *headers, body=BODY)
    assert (status, said["code"], said["field"]) == (422, "InvalidField", "Content-Type")
    assert "UTF-8" in str(said["sentence"])


async def test_utf_8_by_name_and_identity_are_taken(world: World) -> None:
    token = world.token("lab")
    async with world.gateway():
        headers = (f"{JSON}; charset=UTF-8", "Content-Encoding: Identity", f"Content-Length: {len(BODY)}")
        _, said = await send(world, token, *headers, body=BODY)
    assert said["field"] not in ("Content-Type", "Content-Encoding")


@pytest.mark.parametrize(
    ("offered", "packed"),
    [("gzip", True), ("br, GZIP;q=0.5", True), ("", False), ("gzip;q=0", False), ("identity", False), ("*", False)],
)
async def test_long_answers_are_packed_for_clients_that_take_it(world: World, offered: str, packed: bool) -> None:
    token = world.token("lab")
    headers = {"Accept-Encoding": offered, "Authorization": f"Bearer {token}"}
    async with world.gateway(), aiohttp.ClientSession(world.url, auto_decompress=False) as http:
        for path in ("/openapi.json", "/ui/app.js", "/ui/style.css"):
            async with http.get(path, headers=headers) as answer:
                body, told = await answer.read(), answer.headers
            assert told.get("Content-Encoding") == ("gzip" if packed else None)
            assert told["Vary"] == "Accept-Encoding"
            plain = gzip.decompress(body) if packed else body
            assert not packed or 3 * len(body) < 2 * len(plain)
            if path == "/openapi.json":
                assert json.loads(plain) == document()
            else:
                async with http.get(path, headers={**headers, "If-None-Match": told["ETag"]}) as again:
                    assert (again.status, again.headers.get("Content-Encoding")) == (304, None)


async def test_short_answers_and_streams_are_not_packed(world: World) -> None:
    token = world.token("lab")
    async with world.gateway():
        async with aiohttp.ClientSession(world.url, auto_decompress=False) as http:
            headers = {"Accept-Encoding": "gzip", "Authorization": f"Bearer {token}"}
            async with http.get("/v1/me", headers=headers) as short:
                assert "Content-Encoding" not in short.headers
                assert json.loads(await short.read())["tenant"] == "lab"
        async with world.streaming("/v1/events", token, Accept_Encoding="gzip") as stream:
            assert "Content-Encoding" not in stream.answer.headers
