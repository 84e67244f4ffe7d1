"""The use of GPUs from its sources: the DCGM exporters themselves, or Prometheus, which has asked them."""

import asyncio
from collections.abc import Callable, Collection
from typing import TypeVar

import aiohttp
import orjson
import structlog

from tessera.kernel.errors import Transient
from tessera.reclamation.idle_runs.decide import GpuUsage
from tessera.reclamation.idle_runs.samples import Samples, by_pod, read_exposition


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


SCRAPE_BYTES_MAX, SCRAPE_SECONDS = 4 * 1024 * 1024, 5.0
AT_ONCE = 32

PageT = TypeVar("PageT")

log = structlog.get_logger()


class NodeScrapes:
    """One scrape of each node's exporter, at `url` with the node's name in place of `{node}`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._http = BoundedHttp(SCRAPE_SECONDS, SCRAPE_BYTES_MAX)
        self.close = self._http.close
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def read(self, nodes: Collection[str], parse: Callable[[str], PageT]) -> dict[str, PageT]:
        """Page of each node that answers, parsed. Raises Transient when there are nodes and none answers."""
        order = sorted(nodes)
        answers = await asyncio.gather(*(self._scrape(node, parse) for node in order))
        silent = [answer for answer in answers if isinstance(answer, Transient)]
        if silent and len(silent) == len(order):
            raise silent[0]
        if silent:
            log.warning("exporters_silent", nodes=len(silent), of=len(order), first=str(silent[0]))
        pairs = zip(order, answers, strict=True)
        return {node: answer for node, answer in pairs if not isinstance(answer, Transient)}

    async def _scrape(self, node: str, parse: Callable[[str], PageT]) -> PageT | Transient:
        peer = f"exporter of {node}"
        try:
            async with self._turn:
                body = await self._http.read(peer, self._url.replace("{node}", node))
            return parse(body.decode(errors="replace"))
        except Transient as error:
            return error
        except ValueError as error:
            return Transient(f"{peer}: {error!r}")


class Exporters:
    """
    The exporters of the nodes that runs hold GPUs of.

    A node that does not answer leaves its pods unmeasured, and so in use; when none answers the source is away.
    """

    def __init__(self, url: str, metric: str, nodes: Callable[[], Collection[str]], memory_metric: str = "") -> None:
        self._metrics, self._nodes, self._scrapes = (metric, memory_metric), nodes, NodeScrapes(url)
        self.close = self._scrapes.close

    async def usage(self) -> GpuUsage:
        """Use by one scrape of each node. Raises Transient when no node answers."""
        read = await self._scrapes.read(self._nodes(), lambda text: read_exposition(text, *self._metrics))
        return {pod: samples for usage in read.values() for pod, samples in usage.items()}


QUERY_BYTES_MAX, QUERY_SECONDS = 64 * 1024 * 1024, 10.0


class PrometheusQueries:
    """Prometheus' HTTP query API at `url`."""

    def __init__(self, url: str) -> None:
        self._url, self._http = f"{url.rstrip('/')}/api/v1/query", BoundedHttp(QUERY_SECONDS, QUERY_BYTES_MAX)
        self.close = self._http.close

    async def ask(self, query: str) -> bytes:
        """The answer to a query. Raises Transient."""
        return await self._http.read("prometheus", self._url, {"query": query})


class Prometheus:
    """
    The use of GPUs by Prometheus at `url`: `query` gives a sample for each GPU of each pod, its percent of use, and
    `memory_query` one in MiB. Without the latter, or while it fails, no memory is known.
    """

    def __init__(self, url: str, query: str, memory_query: str = "") -> None:
        self._query, self._memory_query, self._queries = query, memory_query, PrometheusQueries(url)
        self.close = self._queries.close

    async def usage(self) -> GpuUsage:
        """Use by one query, and one for memory. Raises Transient while there is no answer that can be read."""
        percents, memories = await asyncio.gather(self._queries.ask(self._query), self._memories())
        return read_usage(percents, memories)

    async def _memories(self) -> bytes:
        if not self._memory_query:
            return b""
        try:
            read_vector(answer := await self._queries.ask(self._memory_query))
        except Transient as error:
            log.warning("gpu_memory_not_read", error=str(error))
            return b""
        return answer


def read_usage(percents: bytes, memories: bytes = b"") -> GpuUsage:
    """Two instant vectors; a sample that is no number, or names no pod, says nothing. Raises Transient for all else."""
    try:
        return by_pod(read_vector(percents), read_vector(memories) if memories else ())
    except (ValueError, TypeError, AttributeError) as error:
        raise Transient(f"prometheus: the answer cannot be read: {error!r}") from error


def read_vector(answer: bytes) -> Samples:
    """The samples of an instant vector. Raises Transient for any other answer."""
    try:
        body = orjson.loads(answer)
        if body["status"] != "success" or body["data"]["resultType"] != "vector":
            raise Transient("prometheus: the query gives no vector")
        return [(sample["metric"], sample["value"][1]) for sample in body["data"]["result"]]
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise Transient(f"prometheus: the answer cannot be read: {error!r}") from error
