"""The shard's nodes as they come, change and go, published as facts by whoever has the node's partition."""

import structlog

from tessera.binder.decide.nodes import node_gone, node_seen
from tessera.binder.excess_use import SurplusByNode, with_surplus
from tessera.binder.others import OthersByNode
from tessera.binder.ownership import Ownership
from tessera.domain.devices import while_held
from tessera.domain.resources import is_as_seen
from tessera.domain.state import State
from tessera.kernel.kubernetes.informer import Delta, Informer
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.ports import Clock
from tessera.kernel.process.leases import Members, partition_of, rounds
from tessera.kernel.tasks.worklist import Worklist
from tessera_schemas.facts import NodeSeen

log = structlog.get_logger()


class NodeReports:
    """Publishes each node that differs from what was published last, and compares all with the ledger every while."""

    def __init__(
        self,
        informer: Informer,
        others: OthersByNode,
        ownership: Ownership,
        facts: Facts,
        state: State,
        members: Members,
        clock: Clock,
        others_seconds: float,
    ) -> None:
        self._informer, self._others, self._ownership, self._facts = informer, others, ownership, facts
        self._state, self._members, self._clock = state, members, clock
        self._others_seconds = others_seconds
        self._surplus = SurplusByNode(state)
        self._reported: dict[str, NodeSeen] = {}
        self.worklist = Worklist(self._work, clock, at_once=16)

    async def follow(self) -> None:
        """Follows the watch of nodes for ever, and names each node that changed for a report."""
        while True:
            for delta in await self._informer.next():
                self.worklist.name(delta.object["metadata"]["name"])

    async def follow_others(self, informer: Informer) -> None:
        """Follows a watch of pods that Tessera did not place, for ever; their nodes are reported later."""
        while True:
            self._look_later(self._others.hold(await informer.next()))

    def on_users(self, deltas: list[Delta]) -> None:
        """Takes in changes of users' pods, and has the nodes that they touch reported later."""
        self._look_later(self._others.take(deltas))
        self._look_later(self._surplus.take(deltas))

    def on_pods(self, deltas: list[Delta]) -> None:
        """Takes in changes of our pods, and has the nodes that they touch reported later."""
        self._look_later(self._surplus.take(deltas))

    def _look_later(self, names: list[str]) -> None:
        """Gather changed use by others for a while: a rollout of theirs changes a node many times."""
        for name in names:
            self.worklist.name_later(name, self._others_seconds)

    async def resync(self, every_seconds: float) -> None:
        """
        Publish again what the ledger does not have, now and then and as soon as our partitions change.

        Nodes may go while nobody looks, and a replica that is behind may publish an older state last.
        """
        async for _ in rounds(self._members, self._clock, every_seconds, lambda: self._is_synced):
            self._name_what_differs()

    def _name_what_differs(self) -> None:
        there = [node["metadata"]["name"] for node in self._informer.objects.values()]
        for name in dict.fromkeys([*there, *(node.name for node in self._state.nodes.values())]):
            before = self._state.nodes.get(name)
            if not is_as_seen(before, while_held(self._seen(name), before)):
                self._reported.pop(name, None)
                self.worklist.name(name)

    def _seen(self, name: str) -> NodeSeen:
        """A node that went to another shard is gone: the ledger keeps it, for nothing new, while our runs hold it."""
        node = self._informer.named(name)
        if node is None or not self._ownership.is_ours(name):
            return node_gone(name)
        body = self._state.config.body
        others = with_surplus(self._others.on(name), *self._surplus.on(name))
        return node_seen(node, others, () if body is None else body.pools)

    @property
    def _is_synced(self) -> bool:
        """Tell whether nodes and others' pods are listed; earlier a node would be reported with too much free."""
        return self._informer.synced and self._others.synced

    async def _work(self, name: str) -> None:
        if not self._is_synced:
            return  # `resync` names everything once it is
        if partition_of(name) not in self._members.partitions():
            return
        fact = self._seen(name)
        if self._reported.get(name) == fact or not await self._concerns_us(name, fact):
            return
        await self._facts.publish(fact)
        self._reported[name] = fact

    async def _concerns_us(self, name: str, fact: NodeSeen) -> bool:
        """Tell whether to report the node: no other shard owns it or has pods there (`resync` looks again)."""
        if name in self._reported or self._state.nodes.get(name) is not None:
            return True
        if fact.gone:
            return False
        held = await self._ownership.is_held_by_others(name)
        if held:
            log.info("node_not_taken", node=name, reason="pods of another shard run there")
        return not held
