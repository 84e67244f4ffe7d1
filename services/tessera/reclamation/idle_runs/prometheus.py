"""The use of GPUs as Prometheus has it from the DCGM exporter: one instant query, read into percent per pod."""

import orjson

from tessera.kernel.errors import Transient
from tessera.reclamation.idle_runs.bounded_http import BoundedHttp
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
        self._http = BoundedHttp(TIMEOUT_SECONDS, ANSWER_BYTES_MAX)
        self.close = self._http.close

    async def usage(self) -> Usage:
        """Percent per pod by one query. Raises Transient while there is no answer that can be read."""
        return read_usage(await self._http.read("prometheus", self._url, {"query": self._query}))


def read_usage(answer: bytes) -> Usage:
    """An instant vector; a sample that is no number, or names no pod, says nothing. Raises Transient for all else."""
    try:
        body = orjson.loads(answer)
        if body["status"] != "success" or body["data"]["resultType"] != "vector":
            raise Transient("prometheus: the query gives no vector")
        return busiest((sample["metric"], sample["value"][1]) for sample in body["data"]["result"])
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise Transient(f"prometheus: the answer cannot be read: {error!r}") from error
