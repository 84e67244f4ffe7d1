"""Nodes as they come, change and go, said as facts by whoever has the node's partition."""

from tessera.binder.nodes import node_gone, node_seen
from tessera.domain.state import State
from tessera.kernel.errors import Transient
from tessera.kernel.facts import Facts, content_identity
from tessera.kernel.informer import Informer
from tessera.kernel.leases import Members, partition_of
from tessera.kernel.ports import Clock
from tessera.kernel.worklist import Worklist
from tessera_schemas.facts import NodeSeen


class Nodes:
    """Says each node when it differs from what was said last, and everything again every while."""

    def __init__(self, informer: Informer, facts: Facts, state: State, members: Members, clock: Clock) -> None:
        self._informer, self._facts, self._state, self._members, self._clock = informer, facts, state, members, clock
        self._said: dict[str, NodeSeen] = {}
        self.worklist = Worklist(self._work, clock, at_once=16)

    async def follow(self) -> None:
        while True:
            for delta in await self._informer.next():
                self.worklist.name(delta.object["metadata"]["name"])

    async def resync(self) -> None:
        """Nodes that came to our partitions, and nodes that went while nobody looked."""
        ours: frozenset[int] = frozenset()
        while True:
            now = self._members.partitions()
            if now != ours and self._informer.synced:
                ours = now
                self._said.clear()
                there = [node["metadata"]["name"] for node in self._informer.objects.values()]
                for name in dict.fromkeys([*there, *(node.name for node in self._state.nodes.values())]):
                    self.worklist.name(name)
            await self._clock.sleep(0.5)

    async def _work(self, name: str) -> None:
        if not self._informer.synced:
            raise Transient("the nodes have not been listed yet")
        if partition_of(name) not in self._members.partitions():
            return
        node = self._informer.named(name)
        fact = node_gone(name) if node is None else node_seen(node)
        if self._said.get(name) == fact:
            return
        await self._facts.publish(fact, f"{content_identity(fact)}:{self._state.n}")
        self._said[name] = fact
