"""
Free and idle GPUs for whoever asks: free slots by pool, and by node the causes of idleness and the reservations.

Causes come from the engine, as `tessera slots` and the metrics have them. A tenant sees which devices are kept for
jobs of others, and neither id nor name of these jobs.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from tessera.domain.devices.free_slots import NodeCauses, Slots
from tessera.domain.entities import Earmark
from tessera.domain.state import State
from tessera.engine.explain.held_back import held_back
from tessera.engine.placement.free_slots import slots_by_node
from tessera.gateway.entrance.tokens import Caller
from tessera.gateway.operations.slot_models import KeptDevices, NodeIdle, PoolSlots
from tessera.kernel.ports import Clock

FRESH_SECONDS = 1.0
# So old an answer may be: the count passes over every node.
REST = 4
# Where a count takes long, so many times as long as it took.


@dataclass(frozen=True, slots=True)
class Kept:
    """Devices of one node kept for the job `owner` of `tenant`, whose name is `name`."""

    tenant: str
    owner: str
    name: str
    shown: KeptDevices


@dataclass(frozen=True, slots=True)
class Capacity:
    """
    Free and idle GPUs of every pool as of one ledger record; `kept` is by node, and nodes by pool and name.
    """

    as_of: int
    pools: tuple[Slots, ...]
    nodes: tuple[NodeCauses, ...]
    kept: dict[str, list[Kept]]

    def slots(self, pools: set[str], caller: Caller, queues: set[str]) -> tuple[PoolSlots, ...]:
        """Free slots of these pools, by name, with the names of these queues and of the caller's jobs alone."""
        return tuple(_shown(found, caller, queues) for found in self.pools if found.pool in pools)

    def idle(self, pools: set[str], caller: Caller) -> tuple[NodeIdle, ...]:
        """Nodes of these pools that have idle or reserved GPUs, as the caller may see them."""
        return tuple(
            NodeIdle(node=found.node, pool=found.pool, stranded=found.stranded, reserved=self._kept(found.node, caller))
            for found in self.nodes
            if found.pool in pools
        )

    def _kept(self, node: str, caller: Caller) -> tuple[KeptDevices, ...]:
        return tuple(
            kept.shown.model_copy(update={"job_id": kept.owner, "name": kept.name})
            if caller.may_see(kept.tenant)
            else kept.shown
            for kept in self.kept.get(node, ())
        )


def capacity_of(state: State) -> Capacity:
    """Free and idle GPUs of the state, in one pass over its nodes."""
    found = [slots_by_node(state, pool) for pool in sorted(state.tree.queues_of)]
    kept = defaultdict[str, list[Kept]](list)
    for mark in state.earmarks.values():
        for name, each in _reservations(state, mark):
            kept[name].append(each)
    nodes = {each.node: each for _, causes in found for each in causes}
    for name in kept.keys() - nodes.keys():  # all of it is held by runs that are being stopped
        node = state.nodes.get(name)
        if node is not None:
            nodes[name] = NodeCauses(name, node.pool, ())
    return Capacity(
        state.n,
        tuple(replace(slots, held_back=held_back(state, slots.pool, slots.can_be_had)) for slots, _ in found),
        tuple(sorted(nodes.values(), key=lambda each: (each.pool, each.node))),
        dict(kept),
    )


def _shown(slots: Slots, caller: Caller, queues: set[str]) -> PoolSlots:
    # Of whom the caller does not see, the rule alone.
    seen = [each.seen_by(caller.tenant, queues) for each in slots.held_back]
    told = [{**asdict(each), "text": each.describe()} for each in seen]
    return PoolSlots.model_validate({**asdict(slots), "held_back": told})


def _reservations(state: State, mark: Earmark) -> Iterator[tuple[str, Kept]]:
    # Room that the earmark keeps, pod by pod, with the node of each.
    owner = state.jobs.get(mark.owner)
    tenant, name = ("", "") if owner is None else (owner.tenant, owner.name)
    for place in mark.placements:
        if place.devices:
            shown = KeptDevices(
                devices=place.devices, gpu_milli=place.gpu_milli, cause=mark.cause, until_ts=mark.deadline
            )
            yield place.node, Kept(tenant, mark.owner, name, shown)


class CapacityReader:
    """Counts the state anew when the last count is `FRESH_SECONDS` old and the ledger has moved."""

    def __init__(self, state: State, clock: Clock) -> None:
        self._state, self._clock = state, clock
        self._found: Capacity | None = None
        self._until = 0.0

    def read(self) -> Capacity:
        """Free and idle GPUs, at most `FRESH_SECONDS` behind the state."""
        now = self._clock.monotonic()
        if self._found is None or (now >= self._until and self._found.as_of != self._state.n):
            self._found, done = capacity_of(self._state), self._clock.monotonic()
            self._until = done + max(FRESH_SECONDS, REST * (done - now))
        return self._found
