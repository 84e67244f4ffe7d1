"""The use of GPUs from its sources: the DCGM exporters themselves, or Prometheus, which has asked them."""

import asyncio
from collections.abc import Callable, Collection

import aiohttp
import orjson
import structlog

from tessera.kernel.errors import Transient
from tessera.reclamation.idle_runs.decide import GpuUsage
from tessera.reclamation.idle_runs.samples import busiest, read_exposition


class BoundedHttp:
    """One session, opened by the first request. Every failure is a Transient that begins with the name of the peer."""

    def __init__(self, timeout_seconds: float, bytes_max: int) -> None:
        self._timeout_seconds, self._bytes_max = timeout_seconds, bytes_max
        self._session: aiohttp.ClientSession | None = None

    async def read(self, peer: str, url: str, form: dict[str, str] | None = None) -> bytes:
        """Body of the answer to a GET, or to a POST of a form. Raises Transient for any answer but 200."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._timeout_seconds)
            self._session = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        method = "GET" if form is None else "POST"
        try:
            async with self._session.request(method, url, data=form, allow_redirects=False) as response:
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > self._bytes_max:
                        raise Transient(f"{peer} answered more than {self._bytes_max} bytes")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise Transient(f"{peer}: {error!r}") from error
        if response.status != 200:
            raise Transient(f"{peer} answered {response.status}: {body[:200].decode(errors='replace')}")
        return bytes(body)

    async def close(self) -> None:
        """Closes the session, if one is open; the next request opens another."""
        if self._session is not None:
            await self._session.close()
            self._session = None


ANSWER_BYTES_MAX = 4 * 1024 * 1024
TIMEOUT_SECONDS = 5.0
AT_ONCE = 32

log = structlog.get_logger()


class Exporters:
    """
    One scrape of each node that runs hold GPUs of, at `url` with the node's name in place of `{node}`.

    A node that does not answer leaves its pods unmeasured, and so in use; when none answers the source is away.
    """

    def __init__(self, url: str, metric: str, nodes: Callable[[], Collection[str]]) -> None:
        self._url, self._metric, self._nodes = url, metric, nodes
        self._http = BoundedHttp(TIMEOUT_SECONDS, ANSWER_BYTES_MAX)
        self.close = self._http.close
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def usage(self) -> GpuUsage:
        """Percent per pod by one scrape of each node. Raises Transient when no node answers."""
        nodes = sorted(self._nodes())
        answers = await asyncio.gather(*(self._scrape(node) for node in nodes))
        silent = [answer for answer in answers if isinstance(answer, Transient)]
        if silent and len(silent) == len(nodes):
            raise silent[0]
        if silent:
            log.warning("exporters_silent", nodes=len(silent), of=len(nodes), first=str(silent[0]))
        read = [answer for answer in answers if not isinstance(answer, Transient)]
        return {pod: percent for usage in read for pod, percent in usage.items()}

    async def _scrape(self, node: str) -> GpuUsage | Transient:
        peer = f"exporter of {node}"
        try:
            async with self._turn:
                body = await self._http.read(peer, self._url.replace("{node}", node))
            return read_exposition(body.decode(errors="replace"), self._metric)
        except Transient as error:
            return error
        except ValueError as error:
            return Transient(f"{peer}: {error!r}")


ANSWER_BYTES_MAX = 64 * 1024 * 1024
TIMEOUT_SECONDS = 10.0


class Prometheus:
    """
    Prometheus' HTTP query API at `url`; `query` gives one sample for each pod, the percent of its busiest GPU.
    """

    def __init__(self, url: str, query: str) -> None:
        self._url, self._query = f"{url.rstrip('/')}/api/v1/query", query
        self._http = BoundedHttp(TIMEOUT_SECONDS, ANSWER_BYTES_MAX)
        self.close = self._http.close

    async def usage(self) -> GpuUsage:
        """Percent per pod by one query. Raises Transient while there is no answer that can be read."""
        return read_usage(await self._http.read("prometheus", self._url, {"query": self._query}))


def read_usage(answer: bytes) -> GpuUsage:
    """An instant vector; a sample that is no number, or names no pod, says nothing. Raises Transient for all else."""
    try:
        body = orjson.loads(answer)
        if body["status"] != "success" or body["data"]["resultType"] != "vector":
            raise Transient("prometheus: the query gives no vector")
        return busiest((sample["metric"], sample["value"][1]) for sample in body["data"]["result"])
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise Transient(f"prometheus: the answer cannot be read: {error!r}") from error
