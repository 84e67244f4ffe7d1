"""
Counters of DCGM, by the nodes' exporters themselves or by Prometheus, which has asked them: samples of each node.

A node that does not answer, or that Prometheus has nothing of, is not among the answers: nothing is known of it then.
"""

import re
from collections.abc import Callable, Collection, Mapping

from tessera.kernel.errors import Transient
from tessera.reclamation.health.counters import METRICS
from tessera.reclamation.idle_runs.exporters import NodeScrapes, PrometheusQueries, read_vector
from tessera.reclamation.idle_runs.samples import read_samples

NodeSamples = list[tuple[str, Mapping[str, str], str]]
NODE_LABELS = ("exported_node", "node", "Hostname", "kubernetes_node", "instance")
"""Labels that may name the node of a sample; the first that is a known node's name does."""
_PORT = re.compile(r":[0-9]+$")


class ScrapedCounters:
    """The exporters of all nodes with GPUs, one scrape each; a sample is of the node that was asked."""

    def __init__(self, url: str, nodes: Callable[[], Collection[str]]) -> None:
        self._nodes, self._scrapes = nodes, NodeScrapes(url)
        self.close = self._scrapes.close

    async def look(self) -> dict[str, NodeSamples]:
        """Samples by node. Raises Transient when no node answers."""
        return await self._scrapes.read(self._nodes(), lambda text: list(read_samples(text, METRICS)))


class QueriedCounters:
    """Prometheus; `query` gives the metrics by their names, each sample with a label that names its node."""

    def __init__(self, url: str, query: str, nodes: Callable[[], Collection[str]]) -> None:
        self._query, self._nodes, self._queries = query, nodes, PrometheusQueries(url)
        self.close = self._queries.close

    async def look(self) -> dict[str, NodeSamples]:
        """Samples by node. Raises Transient while there is no answer that can be read."""
        nodes, found = frozenset(self._nodes()), dict[str, NodeSamples]()
        for labels, value in read_vector(await self._queries.ask(self._query)):
            if not isinstance(labels, Mapping):
                raise Transient("prometheus: a sample without labels")
            words = {str(key): str(text) for key, text in labels.items()}
            if (node := _node_of(words, nodes)) is not None:
                found.setdefault(node, []).append((words.get("__name__", ""), words, str(value)))
        if nodes and not found:
            raise Transient("prometheus has no sample of any node")
        return found


def _node_of(labels: Mapping[str, str], nodes: Collection[str]) -> str | None:
    names = (_PORT.sub("", labels[key]) for key in NODE_LABELS if key in labels)
    return next((name for name in names if name in nodes), None)
