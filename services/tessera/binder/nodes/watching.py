"""The shard's nodes as they come, change and go, published as facts by whoever has the node's partition."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import structlog

from tessera.binder.decide.discovery import known_kinds
from tessera.binder.decide.nodes import node_gone, node_seen
from tessera.binder.decide.told_data import unread_words
from tessera.binder.devices.decide.gpus import PublishedGpus, known_gpus, known_offer
from tessera.binder.devices.decide.numa_zones import ZoneFacts
from tessera.binder.devices.reports import DeviceReports
from tessera.binder.nodes.excess_use import DOUBT_SECONDS, SurplusByNode
from tessera.binder.nodes.others import OthersByNode, with_more
from tessera.binder.nodes.ownership import Ownership
from tessera.domain.devices.resources import Node
from tessera.domain.devices.slots import is_as_seen, while_held
from tessera.domain.state import State
from tessera.kernel.kubernetes.informer import Delta, Informer
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.ports import Clock
from tessera.kernel.process.leases import Members, partition_of, rounds
from tessera.kernel.tasks.worklist import Worklist
from tessera_schemas.base import Json
from tessera_schemas.cluster.device_layouts import NodeOffer
from tessera_schemas.cluster.device_vendors import GpuResource
from tessera_schemas.config import Pool
from tessera_schemas.facts import NodeSeen, Others
from tessera_schemas.shard.ledger_form import NUMA_ZONES_FROM, SUMS_FROM, TOLD_DATA_FROM

log = structlog.get_logger()

COMPARED_AT_ONCE = 256
"""Nodes that are compared with the ledger before others get their turn: a node takes 0.1 ms."""


@dataclass(frozen=True, slots=True)
class NodeSources:
    """
    What a node's fact is made of, and the ledger's node that it is compared with.

    `node` is None without one, and for one of another shard: the ledger keeps that, for nothing new, while our runs
    hold it.
    """

    name: str
    node: Json | None
    others: Others
    pools: tuple[Pool, ...]
    known: Node | None
    offer: NodeOffer
    published: PublishedGpus
    gpu_resources: tuple[GpuResource, ...]
    zones: ZoneFacts
    tells_data: bool

    def seen(self) -> NodeSeen:
        """The fact; a node without an object is gone."""
        if self.node is None:
            return node_gone(self.name)
        devices = self.offer, self.published, self.gpu_resources
        fact = node_seen(self.node, self.others, self.pools, *devices, self.zones)
        return fact if self.tells_data or not fact.datasets else fact.model_copy(update={"datasets": ()})

    def unread_data(self) -> tuple[str, ...]:
        """The node's words about data sets that count for nothing."""
        meta: Json = {} if self.node is None else self.node["metadata"]
        return unread_words(meta.get("labels") or {}, meta.get("annotations") or {})

    def agree(self) -> bool:
        """Tell whether the ledger's node is as the fact says."""
        return is_as_seen(self.known, while_held(self.seen(), self.known))

    def are_those(self, before: "NodeSources | None") -> bool:
        """Tell whether all are the same objects as before; none of them ever changes in place."""
        return (
            before is not None
            and self.node is before.node
            and self.others is before.others
            and self.pools is before.pools
            and self.gpu_resources == before.gpu_resources
            and self.known is before.known
            and self.offer is before.offer
            and self.zones == before.zones
            and self.tells_data is before.tells_data
        )


class NodeReports:
    """Publishes each node that differs from what was published last, and compares all with the ledger every while."""

    def __init__(
        self,
        informer: Informer,
        others: OthersByNode,
        devices: DeviceReports,
        ownership: Ownership,
        facts: Facts,
        state: State,
        members: Members,
        clock: Clock,
        others_seconds: float,
        caught_up: Callable[[], bool] = lambda: True,
    ) -> None:
        """`caught_up` says whether the ledger was folded to its end: earlier, pods seem to be of runs that it lost."""
        self._caught_up = caught_up
        self._informer, self._others, self._ownership, self._facts = informer, others, ownership, facts
        self._devices = devices
        devices.on_nodes.append(self._look_later)
        self._state, self._members, self._clock = state, members, clock
        self._others_seconds = others_seconds
        self._surplus = SurplusByNode(state, clock)
        self._reported: dict[str, NodeSeen] = {}
        self._unread: dict[str, tuple[str, ...]] = {}
        self._agreed: dict[str, NodeSources] = {}
        self.worklist = Worklist(self._work, clock, at_once=16)

    def loops(self, every_seconds: float) -> list[Coroutine[Any, Any, None]]:
        """Loops that run as long as the service does."""
        others = [self.follow_others(informer) for informer in self._others.informers]
        return [self.follow(), *others, self.resync(every_seconds), self.worklist.run()]

    async def follow(self) -> None:
        """Follows the watch of nodes for ever, and names each node that changed for a report."""
        while True:
            deltas = await self._informer.next()
            self._devices.take_nodes(deltas)
            for delta in deltas:
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
            await self._name_what_differs()

    async def _name_what_differs(self) -> None:
        """A node is compared when something of it is another object than when it last agreed with the ledger."""
        agreed: dict[str, NodeSources] = {}
        there = [node["metadata"]["name"] for node in self._informer.objects.values()]
        names = dict.fromkeys([*there, *(node.name for node in self._state.nodes.values())])
        for number, name in enumerate(names, start=1):
            sources = self._sources(name)
            if sources.are_those(self._agreed.get(name)) or sources.agree():
                agreed[name] = sources
            else:
                self._reported.pop(name, None)
                self.worklist.name(name)
            if number % COMPARED_AT_ONCE == 0:
                await self._clock.sleep(0)
        self._agreed = agreed

    def _sources(self, name: str) -> "NodeSources":
        node, body, known = self._informer.named(name), self._state.config.body, self._state.nodes.get(name)
        offer = self._devices.offer(name)
        return NodeSources(
            name,
            node if self._ownership.is_ours(name) else None,
            self._taken_on(name),
            () if body is None else body.pools,
            known,
            known_offer(known) if offer is None else offer,
            known_gpus(known) if offer is None else self._devices.gpus(name),
            known_kinds(self._state),
            self._devices.zones.of(name, known) if self._state.format >= NUMA_ZONES_FROM else (),
            self._state.format >= TOLD_DATA_FROM,
        )

    def _taken_on(self, name: str) -> Others:
        """Use of the node by others, and by bound pods beyond their runs."""
        others, surplus = self._others.on(name), self._surplus.on(name)
        return with_more(others, surplus) if surplus else others

    @property
    def _is_synced(self) -> bool:
        """Whether nodes and others' pods are listed and the ledger is read: else a node's use would be told wrongly."""
        return self._informer.synced and self._others.synced and self._caught_up()

    async def _work(self, name: str) -> None:
        if not self._is_synced:
            return  # `resync` names everything once it is
        if partition_of(name) not in self._members.partitions():
            return
        if self._surplus.in_doubt(name):
            self.worklist.name_later(name, DOUBT_SECONDS)
        sources = self._sources(name)
        fact = sources.seen()
        self._warn_of_data(name, sources.unread_data())
        if self._state.format < SUMS_FROM:  # a committer of an earlier version reads no later field
            fact = fact.model_copy(update={"cordoned": False, "capacity": {}})
        if self._reported.get(name) == fact or not await self._concerns_us(name, fact):
            return
        if fact.offer.layout:
            await self._devices.tell_layout(name)
        await self._facts.publish(fact)
        self._reported[name] = fact

    def _warn_of_data(self, name: str, words: tuple[str, ...]) -> None:
        """Tell the operator of words about data sets that count for nothing, once for each change of them."""
        if words != self._unread.get(name, ()):
            self._unread[name] = words
            if words:
                log.warning("datasets_not_read", node=name, words=", ".join(words)[:500])

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
