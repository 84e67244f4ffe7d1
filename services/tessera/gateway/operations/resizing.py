"""
Operations that give a job that runs another size or program: replicas of a service and what they run, pods between the
roles of a run, and CPU and memory of its pods.
"""

from collections.abc import Awaitable, Callable

from aiohttp import web

from tessera.domain.entities import Job
from tessera.domain.state import State
from tessera.engine.preemption.resizes import ResizePlan, plan_resize
from tessera.engine.preemption.shifts import shift_faults
from tessera.engine.queueing.updates import rollout_faults, scale_fault
from tessera.gateway.entrance.bodies import read_as, read_body
from tessera.gateway.entrance.problems import all_of
from tessera.gateway.operations import models
from tessera.gateway.operations.commanding import Arrivals, read_key, shift_of
from tessera.gateway.operations.rollouts import RolloutBody, program_faults, read_wish
from tessera.gateway.reading.specs import Specs
from tessera.kernel.ids import random_key
from tessera_schemas.commands import ResizePods, RollService, ScaleService, ShiftRoles
from tessera_schemas.work.spec_changes import RolloutWish


class SizeHandlers:
    """`live` is the job that a request names, and `order` sends a command about it."""

    def __init__(
        self,
        state: State,
        arrivals: Arrivals,
        live: Callable[[web.Request], Job],
        order: Callable[..., Awaitable[web.Response]],
        specs: Specs,
        answer_seconds: float,
    ) -> None:
        self._state, self._arrivals, self._live, self._order = state, arrivals, live, order
        self._specs, self._answer_seconds = specs, answer_seconds

    async def scale_service(self, request: web.Request) -> web.Response:
        """Sends the order that gives a service another number of replicas; raises Refusal for what it may not have."""
        body, known = await read_body(request, models.ScaleBody), self._live(request)
        replicas = body.model_dump()["replicas"]
        if (fault := scale_fault(known, replicas)) is not None:
            raise all_of([fault])
        return await self._order(request, ScaleService, "scale_service", replicas=replicas)

    async def roll_service(self, request: web.Request) -> web.Response:
        """Sends the order that gives a service's replicas other programs; raises Refusal with all against it."""
        body, known = await read_body(request, RolloutBody), self._live(request)
        revision = 1 if known.array is None else known.array.revision
        if against := rollout_faults(known, body.revision or revision, body.undo):
            raise all_of(against)
        spec = None if body.undo else await self._specs.of(known)
        wish = read_as(RolloutWish, read_wish(body, spec, revision))
        if spec is not None and (against := program_faults(known, wish, spec)):
            raise all_of(against)
        return await self._order(request, RollService, "roll_service", **wish.model_dump(mode="json"))

    async def shift_roles(self, request: web.Request) -> web.Response:
        """
        Sends the order that moves pods between a run's roles; raises Refusal with all that is against it now, or that
        the ledger had against it by then.
        """
        body, known = await read_body(request, models.RolesBody), self._live(request)
        fields = body.model_dump() | {"key": read_key(request, body.key) or random_key()}
        against = shift_faults(self._state, known, fields["key"], body.roles, body.have)
        if against:
            raise all_of(against)
        run = self._state.runs.get(known.run_id)
        async with self._arrivals.expecting(shift_of(known.job_id, fields["key"])) as arrival:
            answer = await self._order(request, ShiftRoles, "shift_roles", **fields)
            # A repeat of what was carried out gets no record of its own.
            if run is None or fields["key"] not in run.shifts:
                against = list(await arrival.within(self._answer_seconds) or ())
        if against:
            raise all_of(against)
        return answer

    async def resize_pods(self, request: web.Request) -> web.Response:
        """
        Sends the order that gives pods of a run another size in place; raises Refusal with all that is against it now,
        or that the ledger had against it by then.
        """
        body, known = await read_body(request, models.SizeBody), self._live(request)
        fields = body.model_dump() | {"key": read_key(request, body.key) or random_key()}
        found = plan_resize(self._state, known, body.size)
        if not isinstance(found, ResizePlan):
            raise all_of(found)
        async with self._arrivals.expecting(shift_of(known.job_id, fields["key"])) as arrival:
            answer = await self._order(request, ResizePods, "resize_pods", **fields)
            # The size that the pods have is no news, and gets no record.
            against = await arrival.within(self._answer_seconds) if found.to is not None else ()
        if against:
            raise all_of(against)
        return answer
