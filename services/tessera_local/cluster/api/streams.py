"""Watches and logs as HTTP responses, until they end, the client goes or the time is up."""

import asyncio
from collections.abc import Callable

import orjson
from aiohttp import web

from tessera.kernel.ports import ApiError, Clock
from tessera_local.cluster.api import answers
from tessera_local.cluster.api.watching import WatchReader
from tessera_local.cluster.machines.logs import Log

_LINGER_SECONDS = 0.002  # events of a burst share a write: one system call, one wake-up of the reader
_LONGEST_SECONDS = 1800.0
_LOG_SECONDS = 0.25  # between two looks at a log that is followed


async def stream_watch(
    request: web.BaseRequest, watch: WatchReader, clock: Clock, stopping: asyncio.Event
) -> web.StreamResponse:
    """Send what the watch sees. A 410 that comes late is the stream's last event, as in the API."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    bookmarks = request.query.get("allowWatchBookmarks") in ("1", "true")
    ready = asyncio.Event()
    ready.set()
    watch.on_ready = ready.set
    seconds = float(request.query.get("timeoutSeconds") or _LONGEST_SECONDS)
    closing = asyncio.get_running_loop().call_later(seconds, watch.close)
    try:
        await response.prepare(request)
        while not watch.closed and not stopping.is_set():
            await ready.wait()
            await clock.sleep(_LINGER_SECONDS)
            ready.clear()
            await _send_all(response, watch, bookmarks)
        if bookmarks:
            await response.write(_line(*watch.bookmark()))
    except ApiError as error:
        await response.write(_line("ERROR", orjson.dumps(answers.status_object(error))))
    except ConnectionError:  # the client went
        pass
    finally:
        closing.cancel()
        watch.close()
    return response


async def stream_log(
    request: web.BaseRequest, read: Callable[[bool], Log], clock: Clock, stopping: asyncio.Event
) -> web.StreamResponse:
    """Send a pod's log as the query asks for it; with `follow` until the program has ended or the pod is gone."""
    query, log = request.query, read(False)
    since = query.get("sinceSeconds")
    begin_ms = clock.now_ms() - int(since) * 1000 if since else 0
    lines = log.newest(int(query.get("tailLines", 0)), begin_ms)
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    try:
        await response.prepare(request)
        while True:
            await response.write(b"".join(line.to_bytes() for line in lines))
            if log.is_whole or query.get("follow") != "true" or stopping.is_set():
                break
            await clock.sleep(_LOG_SECONDS)
            sent, log = len(log.lines), read(True)
            lines = log.lines[sent:]
    except (ApiError, ConnectionError):  # the pod, or the client, went
        pass
    return response


async def _send_all(response: web.StreamResponse, watch: WatchReader, bookmarks: bool) -> None:
    while events := watch.take():
        lines = [_line(kind, json) for kind, json in events if bookmarks or kind != "BOOKMARK"]
        if lines:
            await response.write(b"".join(lines))


def _line(kind: str, json: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), json)
