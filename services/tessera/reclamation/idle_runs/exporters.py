"""The use of GPUs from the nodes' own exporters (DCGM's text format), where no Prometheus collects it."""

import asyncio
from collections.abc import Callable, Collection

import aiohttp
import structlog

from tessera.kernel.errors import Transient
from tessera.reclamation.idle_runs.decide import Usage
from tessera.reclamation.idle_runs.samples import read_exposition

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
        self._session: aiohttp.ClientSession | None = None
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def usage(self) -> Usage:
        """Raises Transient when no node answers."""
        nodes = sorted(self._nodes())
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
            self._session = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        answers = await asyncio.gather(*(self._scrape(self._session, node) for node in nodes))
        silent = [node for node, answer in zip(nodes, answers, strict=True) if isinstance(answer, Transient)]
        if silent and len(silent) == len(nodes):
            raise next(answer for answer in answers if isinstance(answer, Transient))
        if silent:
            log.warning("exporters_silent", nodes=len(silent), of=len(nodes), first=silent[0])
        told = [answer for answer in answers if not isinstance(answer, Transient)]
        return {pod: percent for usage in told for pod, percent in usage.items()}

    async def close(self) -> None:
        """Closes the HTTP session, if one is open; the next scrape opens another."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _scrape(self, session: aiohttp.ClientSession, node: str) -> Usage | Transient:
        try:
            async with self._turn, session.get(self._url.replace("{node}", node), allow_redirects=False) as response:
                if response.status != 200:
                    return Transient(f"exporter of {node} answered {response.status}")
                body = await response.content.read(ANSWER_BYTES_MAX + 1)
                while len(body) <= ANSWER_BYTES_MAX and (more := await response.content.read(ANSWER_BYTES_MAX)):
                    body += more
            if len(body) > ANSWER_BYTES_MAX:
                return Transient(f"exporter of {node} answered more than {ANSWER_BYTES_MAX} bytes")
            return read_exposition(body.decode(errors="replace"), self._metric)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return Transient(f"exporter of {node}: {error!r}")
