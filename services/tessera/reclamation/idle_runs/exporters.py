"""The use of GPUs from the nodes' own exporters (DCGM's text format), where no Prometheus collects it."""

import asyncio
from collections.abc import Callable, Collection

import structlog

from tessera.kernel.errors import Transient
from tessera.reclamation.idle_runs.bounded_http import BoundedHttp
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
        self._http = BoundedHttp(TIMEOUT_SECONDS, ANSWER_BYTES_MAX)
        self.close = self._http.close
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def usage(self) -> Usage:
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

    async def _scrape(self, node: str) -> Usage | Transient:
        peer = f"exporter of {node}"
        try:
            async with self._turn:
                body = await self._http.read(peer, self._url.replace("{node}", node))
            return read_exposition(body.decode(errors="replace"), self._metric)
        except Transient as error:
            return error
        except ValueError as error:
            return Transient(f"{peer}: {error!r}")
