"""
Looks at what a service judges runs by: the ledger and the API server answer, and no copy of theirs is behind.

An idle watch looks like one that hangs. So each look asks for one node, of those in trouble in turn, and compares: what
the server said a look ago the copy must hold by now.
"""

from collections.abc import Collection, Iterable

from tessera.domain.state import State
from tessera.kernel.kubernetes.informer import Informer
from tessera.kernel.ports import Cluster, Ledger
from tessera_schemas.base import Json


class Looks:
    """One look of a service: `informers` are its copies, `nodes` the one of nodes, `state` what it folded."""

    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        state: State,
        nodes: Informer,
        informers: Iterable[Informer],
        in_trouble: Collection[str],
    ) -> None:
        """`in_trouble` are the nodes whose trouble is being counted, as of each moment."""
        self._cluster, self._ledger, self._state = cluster, ledger, state
        self._nodes, self._informers, self._in_trouble = nodes, (nodes, *informers), in_trouble
        self._head: int | None = None
        self._asked: tuple[str, str, str] | None = None  # a node, its version at the server, and in the copy
        self._turn = 0
        self.caught_up = False
        """Whether what the ledger had at some look has been folded."""

    async def look(self) -> bool:
        """Whether nothing is behind. Raises Transient, ApiError."""
        before, tail = self._head, await self._ledger.tail()
        self._head = 0 if tail is None else tail.seq
        folded = self._state.n >= (self._head if before is None else before)
        self.caught_up = self.caught_up or folded
        synced = all(informer.synced for informer in self._informers)
        return await self._copy_follows() and synced and folded

    async def _copy_follows(self) -> bool:
        asked, self._asked = self._asked, None
        behind = asked is not None and asked[1] != asked[2] == _version(self._nodes.named(asked[0]))
        name = self._next_name()
        found, _ = await self._cluster.list("nodes", "", f"metadata.name={name}")
        self._asked = name, _version(found[0] if found else None), _version(self._nodes.named(name))
        return not behind

    def _next_name(self) -> str:
        names = (
            list(self._in_trouble) or [node["metadata"]["name"] for node in self._nodes.objects.values()] or ["none"]
        )
        self._turn += 1
        return str(names[self._turn % len(names)])


def _version(node: Json | None) -> str:
    return "" if node is None else str(node["metadata"]["resourceVersion"])
