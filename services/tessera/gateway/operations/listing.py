"""Operations about what a caller has beside its jobs: services, data sets and where these are, budgets."""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import structlog
from aiohttp import web
from pydantic import ValidationError

from tessera.domain.devices.datasets import told_nodes
from tessera.domain.state import State
from tessera.gateway.entrance.bodies import read_body, written
from tessera.gateway.entrance.guard import CALLER
from tessera.gateway.entrance.problems import all_of, json_response, refused
from tessera.gateway.entrance.tokens import Caller
from tessera.gateway.operations import dataset_models, models, slot_models
from tessera.gateway.operations.commanding import Commands
from tessera.gateway.reading.bookings import booking_fault, reservation_rows
from tessera.gateway.reading.budgets import budget_standings
from tessera.gateway.reading.groups import dataset_places, service_rows
from tessera.kernel.ports import Clock
from tessera_schemas.commands import EndReservation, ReserveNodes, TellDataset
from tessera_schemas.config import Queue
from tessera_schemas.reasons import Code, Reason

log = structlog.get_logger()

SEEN_SECONDS, SEEN_POLL_SECONDS = 3.0, 0.05
"""How long an order is waited for in the state, and how often that is looked at."""


class ListHandlers:
    """`sees_pool` says whether a caller sees a pool; `queues_of` are the queues that it sees; `commands` sends."""

    def __init__(
        self,
        state: State,
        clock: Clock,
        sees_pool: Callable[[Caller, str], bool],
        queues_of: Callable[[Caller], Iterable[Queue]],
        commands: Commands,
    ) -> None:
        self._state, self._clock, self._sees_pool, self._queues_of = state, clock, sees_pool, queues_of
        self._commands = commands

    async def budgets(self, request: web.Request) -> web.Response:
        """Answers with the budgets of the caller, and of the queues that take its jobs; to an operator with all."""
        caller = request[CALLER]
        queues = [queue.name for queue in self._queues_of(caller)]
        items = budget_standings(self._state, self._clock.now_ms(), caller.tenant, queues)
        return json_response(models.BudgetList(as_of=self._state.n, items=items))

    async def reservations(self, request: web.Request) -> web.Response:
        """Answers with the reservations of nodes in the pools that the caller sees; for whom they are, if for it."""
        caller = request[CALLER]
        pools = {node.pool for node in self._state.nodes.values() if self._sees_pool(caller, node.pool)}
        items = reservation_rows(self._state, self._clock.now_ms(), caller.tenant, pools)
        return json_response(slot_models.ReservationList(as_of=self._state.n, items=items))

    async def reserve(self, request: web.Request) -> web.Response:
        """Keeps nodes in windows of time: 201 once the ledger has it, 202 while that is not known; else a Refusal."""
        caller = _operator(request)
        body = await read_body(request, slot_models.ReservationBody)
        said = body.model_dump() | {"by": f"token {caller.token_id}"}
        order = ReserveNodes.model_validate({"kind": "reserve_nodes", "v": 1, **said})
        if against := booking_fault(self._state, order, self._clock.now_ms()):
            raise all_of([against])
        await self._commands.reserve(order)
        log.info("reservation_ordered", reservation=order.name, token=caller.token_id)
        return await self._known(order.name, is_there=True)

    async def end_reservation(self, request: web.Request) -> web.Response:
        """Ends a reservation: 200 once it is no more, 202 while that is not known; raises Refusal for none."""
        caller, name = _operator(request), request.match_info["reservation"]
        if self._state.bookings.get(name) is None:
            raise refused(Code.NO_SUCH_RESERVATION, "reservation", name if name.isprintable() else "")
        await self._commands.reserve(EndReservation(kind="end_reservation", v=1, name=name))
        log.info("reservation_ended", reservation=name, token=caller.token_id)
        return await self._known(name, is_there=False)

    async def _known(self, name: str, is_there: bool) -> web.Response:
        """Answers once the state has the reservation, or has it no more; at the latest when patience is over."""
        until = self._clock.monotonic() + SEEN_SECONDS
        while (seen := self._state.bookings.get(name) is not None) is not is_there and self._clock.monotonic() < until:
            await self._clock.sleep(SEEN_POLL_SECONDS)
        done = seen is is_there
        state: Literal["kept", "ended", "stored"] = ("kept" if is_there else "ended") if done else "stored"
        kept = self._state.bookings.found((name,)) if is_there else []
        rows = reservation_rows(self._state, self._clock.now_ms(), None, {each.pool for each in kept})
        found = next((row for row in rows if row.name == name), None)
        body = slot_models.OrderedReservation(name=name, state=state, as_of=self._state.n, reservation=found)
        return json_response(body, (201 if is_there else 200) if done else 202)

    async def datasets(self, request: web.Request) -> web.Response:
        """Answers with the data sets of the caller on nodes of its pools; to an operator with all."""
        caller = request[CALLER]
        pools = {node.pool for node in self._state.nodes.values() if self._sees_pool(caller, node.pool)}
        items = dataset_places(self._state, caller.tenant, pools)
        return json_response(dataset_models.DatasetList(as_of=self._state.n, items=items))

    async def tell_places(self, request: web.Request) -> web.Response:
        """Sends what a tenant says of a data set of its own, unless the ledger knows; raises Refusal by field."""
        tenant, name = request[CALLER].tenant, request.match_info["dataset"]
        if tenant is None:
            raise refused(Code.FORBIDDEN, "Authorization", "tell with a token of the data set's tenant")
        places = await read_body(request, dataset_models.PlacesBody)
        told = {"kind": "tell_dataset", "v": 1, "dataset": name, "tenant": tenant, **places.model_dump(mode="json")}
        try:
            command = TellDataset.model_validate_json(written(told))
        except ValidationError:
            raise refused(Code.INVALID_FIELD, "dataset", "1 to 63 of a-z, 0-9 and -") from None
        if against := list(self._unknown(request[CALLER], places.nodes)):
            raise all_of(against)
        if not told_nodes(self._state, tenant, name, command.places):
            return json_response(dataset_models.NotedPlaces(dataset=name, state="known", as_of=self._state.n))
        answer = await self._commands.send(tenant, command.model_dump(mode="json", exclude_defaults=True))
        log.info("places_told", dataset=name, tenant=tenant, token=request[CALLER].token_id)
        state: Literal["accepted", "stored"] = "stored" if answer is None else "accepted"
        return json_response(dataset_models.NotedPlaces(dataset=name, state=state, as_of=self._state.n), 202)

    def _unknown(self, caller: Caller, names: Iterable[str]) -> Iterator[Reason]:
        for at, name in enumerate(names):
            node = self._state.nodes.get(name)
            if node is None or node.gone or not self._sees_pool(caller, node.pool):
                detail = f"{name} is no node of a pool that the tenant has a queue in"
                yield Reason(code=Code.INVALID_FIELD, field=f"nodes[{at}]", detail=detail[:200])

    async def services(self, request: web.Request) -> web.Response:
        """Answers with the services of the caller; to an operator with those of all tenants."""
        items = service_rows(self._state, request[CALLER].tenant)
        return json_response(models.ServiceList(as_of=self._state.n, items=items))


def _operator(request: web.Request) -> Caller:
    """The operator who asks; raises Refusal for a tenant."""
    caller: Caller = request[CALLER]
    if caller.tenant is not None or caller.source is not None:
        raise refused(Code.FORBIDDEN, "Authorization", "nodes are an operator's to reserve")
    return caller
