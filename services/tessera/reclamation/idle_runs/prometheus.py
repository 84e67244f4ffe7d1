"""The use of GPUs as Prometheus has it from the DCGM exporter: one instant query, read into percent per pod."""

import aiohttp
import orjson

from tessera.kernel.errors import Transient
from tessera.reclamation.idle_runs.decide import Usage
from tessera.reclamation.idle_runs.samples import busiest

ANSWER_BYTES_MAX = 64 * 1024 * 1024
TIMEOUT_SECONDS = 10.0


class Prometheus:
    """
    Prometheus' HTTP query API at `url`; `query` gives one sample for each pod, the percent of its busiest GPU.
    """

    def __init__(self, url: str, query: str) -> None:
        self._url, self._query = f"{url.rstrip('/')}/api/v1/query", query
        self._session: aiohttp.ClientSession | None = None

    async def usage(self) -> Usage:
        """Raises Transient for an answer that is none."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
            self._session = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        try:
            async with self._session.post(self._url, data={"query": self._query}, allow_redirects=False) as response:
                answer = await _read(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Transient(f"prometheus: {error!r}") from error
        if response.status != 200:
            raise Transient(f"prometheus answered {response.status}: {answer[:200].decode(errors='replace')}")
        return read_usage(answer)

    async def close(self) -> None:
        """Closes the HTTP session, if one is open; the next query opens another."""
        if self._session is not None:
            await self._session.close()
            self._session = None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    chunks, size = [], 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > ANSWER_BYTES_MAX:
            raise Transient(f"prometheus answered more than {ANSWER_BYTES_MAX} bytes")
    return b"".join(chunks)


def read_usage(answer: bytes) -> Usage:
    """An instant vector; a sample that is no number, or names no pod, says nothing. Raises Transient for all else."""
    try:
        body = orjson.loads(answer)
        if body["status"] != "success" or body["data"]["resultType"] != "vector":
            raise Transient("prometheus: the query gives no vector")
        return busiest((sample["metric"], sample["value"][1]) for sample in body["data"]["result"])
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise Transient(f"prometheus: the answer cannot be read: {error!r}") from error
