"""Operations about free slots: pods of each size, or of a role, that could start now, and what keeps GPUs idle."""

from collections.abc import Callable, Iterable
from dataclasses import asdict

from aiohttp import web

from tessera.domain.devices.free_slots import Size, Slots
from tessera.domain.devices.resources import RoleNeed, role_need
from tessera.domain.folding.device_offers import weigh_claims
from tessera.domain.state import State
from tessera.domain.work.gang import bearing
from tessera.engine.placement.free_slots import slots, slots_for
from tessera.engine.queueing.state_ahead import state_at
from tessera.gateway.entrance.bodies import read_body, read_query
from tessera.gateway.entrance.guard import CALLER
from tessera.gateway.entrance.problems import json_response, refused
from tessera.gateway.entrance.tokens import Caller
from tessera.gateway.operations import queries, slot_models
from tessera.gateway.reading.capacity import CapacityReader
from tessera.gateway.reading.explaining import KeptAnswers
from tessera.kernel.ports import Clock
from tessera_schemas.config import Queue
from tessera_schemas.reasons import Code
from tessera_schemas.shard.bookings import AHEAD_MAX_MS


class SlotHandlers:
    """`pools_of` and `queues_of` are the pools and queues that a caller sees."""

    def __init__(
        self,
        state: State,
        clock: Clock,
        kept: KeptAnswers,
        pools_of: Callable[[Caller], set[str]],
        queues_of: Callable[[Caller], Iterable[Queue]],
    ) -> None:
        self._state, self._kept, self._pools_of, self._queues_of = state, kept, pools_of, queues_of
        self._capacity, self._clock = CapacityReader(state, clock), clock

    async def slots(self, request: web.Request) -> web.Response:
        """
        Free slots of the pools that the caller sees, now or at a time ahead, if nothing else starts; counted anew once
        a second at most.
        """
        at, caller = read_query(request, queries.SlotQuery).at, request[CALLER]
        if at > self._clock.now_ms() + AHEAD_MAX_MS:
            raise refused(Code.INVALID_FIELD, "at", "it is more than a year from now")
        if at:
            sizes = [self._kept.of(self._slots_at, pool, at) for pool in sorted(self._pools_of(caller))]
            items = tuple(slot_models.PoolSlots.model_validate({**asdict(each), "held_back": []}) for each in sizes)
            return json_response(slot_models.SlotList(as_of=self._state.n, items=items))
        found = self._capacity.read()
        items = found.slots(self._pools_of(caller), caller, {queue.name for queue in self._queues_of(caller)})
        return json_response(slot_models.SlotList(as_of=found.as_of, items=items))

    def _slots_at(self, pool: str, at: int) -> Slots:
        return slots(self._kept.of(self._state_at, at), pool)

    def _state_at(self, at: int) -> State:
        return state_at(self._state, at)

    async def pod_slots(self, request: web.Request) -> web.Response:
        """Pods of a role that could start in the pools that the caller sees, with its tenant's standing tolerations."""
        body, caller = await read_body(request, slot_models.PodSlotsBody), request[CALLER]
        tolerated = self._state.tree.tolerated_by(caller.tenant) if caller.tenant else ()
        (role,) = weigh_claims(self._state, bearing((role_need(body.role, tenant=caller.tenant or ""),), tolerated))
        sizes = [(pool, self._kept.of(self._slots_for, pool, role)) for pool in sorted(self._pools_of(caller))]
        items = tuple(slot_models.PodSlots(pool=pool, slots=size.slots, largest=size.largest) for pool, size in sizes)
        return json_response(slot_models.PodSlotList(as_of=self._state.n, items=items))

    def _slots_for(self, pool: str, role: RoleNeed) -> Size:
        return slots_for(self._state, pool, role)

    async def idle(self, request: web.Request) -> web.Response:
        """Causes of idle GPUs and reservations by node, of the pools that the caller sees; a second old at most."""
        found, caller = self._capacity.read(), request[CALLER]
        return json_response(slot_models.IdleList(as_of=found.as_of, items=found.idle(self._pools_of(caller), caller)))
