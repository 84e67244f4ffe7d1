"""
The health of nodes, looked at every `utilisation_seconds` and said where it changed.

Each source speaks for itself: what DCGM counts, the nodes' own conditions, NVSentinel, device taints, missing devices.
In memory are damping and the last counters only; what was said is the ledger's, so that after a restart a cause that
has gone meanwhile is taken back, and one that stands is not said twice. A source that is away says nothing.
"""

from collections.abc import Mapping
from typing import Protocol

import structlog

from tessera.domain.devices.resources import Node
from tessera.domain.state import State
from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.informer import Informer
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.process.leases import Members, partition_of
from tessera.kernel.service.context import Ports
from tessera.reclamation.health.conditions import (
    conditions_of_node,
    missing_devices,
    quarantine_of_node,
    taints_of_devices,
)
from tessera.reclamation.health.counters import GpuCounters, HealthSamples
from tessera.reclamation.health.damping import Damper, Sighting
from tessera.reclamation.settings import ReclamationSettings
from tessera_schemas.cluster.health import (
    CONDITIONS,
    DCGM,
    DEVICES,
    SENTINEL,
    TAINTS,
    Ailment,
    HealthAction,
    HealthPolicy,
)
from tessera_schemas.facts import HealthSeen

GAP_PERIODS = 4
AGAIN_SECONDS = 300
"""From when a word that the ledger has not taken in is said again."""

log = structlog.get_logger()


class CountersOfNodes(Protocol):
    """Source of what DCGM counts. Raises Transient while it is away."""

    async def look(self) -> Mapping[str, HealthSamples]: ...


class HealthLooks:
    """Every replica looks at every node, and speaks of those of its partitions. Without a policy nobody looks."""

    def __init__(
        self,
        ports: Ports,
        settings: ReclamationSettings,
        state: State,
        nodes: Informer,
        members: Members,
        counters: CountersOfNodes | None,
    ) -> None:
        """`counters`: None where no exporter is named."""
        self._ports, self._settings, self._state = ports, settings, state
        self._nodes, self._members, self._source = nodes, members, counters
        self._facts = Facts(ports.bus, settings.shard, "reclamation")
        self._counters = GpuCounters()
        gap = GAP_PERIODS * settings.utilisation_seconds
        self._dampers = {
            source: Damper(settings.health_looks, settings.health_gone_seconds, gap)
            for source in (DCGM, CONDITIONS, SENTINEL, TAINTS, DEVICES)
        }
        self._sent: dict[tuple[str, str], tuple[frozenset[tuple[str, str]], int]] = {}

    async def report(self) -> None:
        """Looks every `utilisation_seconds`, for ever."""
        while True:
            await self._ports.clock.sleep(self._settings.utilisation_seconds)
            body = self._state.config.body
            if body is not None and body.health is not None:
                await self._look(body.health)

    async def _look(self, policy: HealthPolicy) -> None:
        now = int(self._ports.clock.monotonic())
        counted = await self._read_counters()
        for node in list(self._state.nodes.values()):
            if node.gone:
                continue
            found = self._shown_by(node)
            if node.name in counted:
                found[DCGM] = self._counters.look(node.name, counted[node.name], now)
            for source, sightings in found.items():
                told = self._dampers[source].look(node.name, self._known(node.name, source), sightings, now)
                try:
                    await self._publish(node.name, source, told, policy, now)
                except Transient as error:
                    log.warning("health_not_said", node=node.name, error=str(error))
        self._forget()

    async def _read_counters(self) -> Mapping[str, HealthSamples]:
        if self._source is None:
            return {}
        try:
            return await self._source.look()
        except Transient as error:
            log.warning("health_not_read", error=str(error))
            return {}

    def _shown_by(self, node: Node) -> dict[str, list[Sighting]]:
        """Sightings of the node in the cluster and the ledger; a source that cannot be asked now is not among them."""
        found = {TAINTS: taints_of_devices(node), DEVICES: missing_devices(node)}
        shown = self._nodes.named(node.name) if self._nodes.synced else None
        if shown is not None:
            found[CONDITIONS] = conditions_of_node(shown, self._settings.health_conditions)
            found[SENTINEL] = quarantine_of_node(shown)
        return found

    def _known(self, node: str, source: str) -> tuple[Ailment, ...]:
        known = self._state.health.get(node)
        return () if known is None else tuple(one.ailment for one in known.ailments if one.source == source)

    async def _publish(self, node: str, source: str, told: tuple[Ailment, ...], policy: HealthPolicy, now: int) -> None:
        """Says what the source sees of a node of ours where the ledger has it otherwise."""
        if partition_of(node) not in self._members.partitions():
            return
        heard = tuple(each for each in told if policy.action_for(each.cause) is not HealthAction.IGNORE)
        if _named(heard) == _named(self._known(node, source)):
            self._sent.pop((node, source), None)
            return
        sent, at = self._sent.get((node, source), (None, 0))
        if sent == _named(heard) and now - at < AGAIN_SECONDS:
            return  # on its way
        await self._facts.publish(HealthSeen(kind="health_seen", node=node, source=source, ailments=heard))
        self._sent[node, source] = _named(heard), now
        log.info("health_seen", node=node, source=source, causes=[str(each.cause) for each in heard])

    def _forget(self) -> None:
        memories: list[GpuCounters | Damper] = [self._counters, *self._dampers.values()]
        for memory in memories:
            memory.forget([node for node in memory.nodes if self._state.nodes.get(node) is None])
        there = self._state.nodes
        self._sent = {key: sent for key, sent in self._sent.items() if there.get(key[0]) is not None}


def _named(ailments: tuple[Ailment, ...]) -> frozenset[tuple[str, str]]:
    return frozenset((each.cause, each.device) for each in ailments)
