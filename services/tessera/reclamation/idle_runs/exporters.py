"""The use of GPUs from its sources: the DCGM exporters themselves, or Prometheus, which has asked them."""

import asyncio
from collections.abc import Callable, Collection

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


ANSWER_BYTES_MAX = 4 * 1024 * 1024
TIMEOUT_SECONDS = 5.0
AT_ONCE = 32

log = structlog.get_logger()


class Exporters:
    """
    One scrape of each node that runs hold GPUs of, at `url` with the node's name in place of `{node}`.

    A node that does not answer leaves its pods unmeasured, and so in use; when none answers the source is away.
    """

    def __init__(self, url: str, metric: str, nodes: Callable[[], Collection[str]], memory_metric: str = "") -> None:
        self._url, self._metrics, self._nodes = url, (metric, memory_metric), nodes
        self._http = BoundedHttp(TIMEOUT_SECONDS, ANSWER_BYTES_MAX)
        self.close = self._http.close
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def usage(self) -> GpuUsage:
        """Use by one scrape of each node. Raises Transient when no node answers."""
        nodes = sorted(self._nodes())
        answers = await asyncio.gather(*(self._scrape(node) for node in nodes))
        silent = [answer for answer in answers if isinstance(answer, Transient)]
        if silent and len(silent) == len(nodes):
            raise silent[0]
        if silent:
            log.warning("exporters_silent", nodes=len(silent), of=len(nodes), first=str(silent[0]))
        read = [answer for answer in answers if not isinstance(answer, Transient)]
        return {pod: samples for usage in read for pod, samples in usage.items()}

    async def _scrape(self, node: str) -> GpuUsage | Transient:
        peer = f"exporter of {node}"
        try:
            async with self._turn:
                body = await self._http.read(peer, self._url.replace("{node}", node))
            return read_exposition(body.decode(errors="replace"), *self._metrics)
        except Transient as error:
            return error
        except ValueError as error:
            return Transient(f"{peer}: {error!r}")


ANSWER_BYTES_MAX = 64 * 1024 * 1024
TIMEOUT_SECONDS = 10.0


class Prometheus:
    """
    Prometheus' HTTP query API at `url`; `query` gives a sample for each GPU of each pod, its percent of use, and
    `memory_query` one in MiB. Without the latter, or while it fails, no memory is known.
    """

    def __init__(self, url: str, query: str, memory_query: str = "") -> None:
        self._url, self._query, self._memory_query = f"{url.rstrip('/')}/api/v1/query", query, memory_query
        self._http = BoundedHttp(TIMEOUT_SECONDS, ANSWER_BYTES_MAX)
        self.close = self._http.close

    async def usage(self) -> GpuUsage:
        """Use by one query, and one for memory. Raises Transient while there is no answer that can be read."""
        percents, memories = await asyncio.gather(self._ask(self._query), self._memories())
        return read_usage(percents, memories)

    async def _ask(self, query: str) -> bytes:
        return await self._http.read("prometheus", self._url, {"query": query})

    async def _memories(self) -> bytes:
        if not self._memory_query:
            return b""
        try:
            read_vector(answer := await self._ask(self._memory_query))
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
