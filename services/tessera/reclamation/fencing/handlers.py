"""
Lost and sick nodes are turned off: those that are due are reported, and for each request of the ledger the webhook is
called until it confirms.

The request in the ledger is the memory: whoever has the node's partition calls, with the request's key, so that a
restart or a second replica repeats a call and never makes another. Right before each call the API server is asked
whether the node is still silent; while most nodes are, none is turned off.

A sick node may answer: there the ledger says whether it is still to be turned off, and no call is made while it is not
read. That it is off is believed once it is silent as well: else a machine that began anew within seconds would count as
one on which nothing runs.
"""

import asyncio
from dataclasses import dataclass

import structlog

from tessera.domain.health.known import Fence
from tessera.domain.state import State
from tessera.domain.work.stops import (
    against_fence,
    against_fence_of_sick,
    ailment_to_fence,
    brake_on_sick,
    fencing_of,
    waiting_on,
)
from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.informer import Informer
from tessera.kernel.kubernetes.node_troubles import NodeTroubles, TroubleKind
from tessera.kernel.ledger.timestamps import LedgerTime
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.ports import ApiError
from tessera.kernel.process.leases import Members, partition_of
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.freshness import Freshness
from tessera.reclamation.fencing.webhook import PowerSwitch
from tessera.reclamation.settings import ReclamationSettings
from tessera_schemas.cluster.fencing import FenceAnswered, FenceDue, Fencing

LOOK_SECONDS = 1.0
AGAIN_SECONDS = 5.0
"""Between two calls for one request that is not confirmed."""

log = structlog.get_logger()


@dataclass(slots=True)
class _Calls:
    """Calls for one request: from when on the next is due, and what came of the last."""

    due: float = 0.0
    last: str = "it was not called yet"
    told: int = 0  # sequence of the fact that ended the request


class Fences:
    """`work` runs for ever; `switch` turns machines off."""

    def __init__(
        self,
        ports: Ports,
        settings: ReclamationSettings,
        state: State,
        nodes: Informer,
        troubles: NodeTroubles,
        members: Members,
        switch: PowerSwitch,
        fresh: Freshness,
    ) -> None:
        """`fresh` says since when the ledger and the cluster were looked at without a gap."""
        self._fresh = fresh
        self._ports, self._settings, self._state = ports, settings, state
        self._nodes, self._troubles, self._members, self._switch = nodes, troubles, members, switch
        self._facts = Facts(ports.bus, settings.shard, "reclamation")
        self._time = LedgerTime(ports.clock, state.ts)
        self._not_fenced = ports.metrics.nodes_not_fenced
        self._due: dict[str, int] = {}
        self._calls: dict[str, _Calls] = {}

    async def work(self) -> None:
        """Looks at silent nodes and open requests of our partitions every `LOOK_SECONDS`, for ever."""
        while True:
            await self._ports.clock.sleep(LOOK_SECONDS)
            fencing, ours = fencing_of(self._state), self._members.partitions()
            self._measure()
            if fencing is not None:
                await self._report_due(fencing)
                await self._report_sick()
            asked = [fence for name, fence in sorted(self._state.fences.items()) if not fence.outcome]
            self._calls = {fence.request: self._calls.get(fence.request, _Calls()) for fence in asked}
            await asyncio.gather(*(self._go_on(one, fencing) for one in asked if partition_of(one.node) in ours))

    # -- nodes that are due

    def _silent(self) -> list[str]:
        return [node.name for node in self._state.nodes.values() if node.silent and waiting_on(self._state, node.name)]

    def _measure(self) -> None:
        fenced = fencing_of(self._state) is not None
        rows = {name: self._state.fences.get(name) for name in self._silent()} if fenced else {}
        sick = {name: self._state.fences.get(name) for name in self._sick()} if fenced else {}
        ended = [row for row in rows.values() if row is not None and not row.back_ts]
        ended += [row for name, row in sick.items() if row is not None and row.cause and name not in rows]
        self._not_fenced.labels("failed").set(sum(row.outcome == "failed" for row in ended))
        anew = [name for name, row in rows.items() if row is None or row.back_ts]
        held = {name for name in anew if against_fence(self._state, name)}
        held |= {name for name in sick if brake_on_sick(self._state, name)}
        self._not_fenced.labels("held_back").set(len(held))

    def _sick(self) -> list[str]:
        return [name for name, _ in self._state.health.items() if ailment_to_fence(self._state, name) is not None]

    async def _report_sick(self) -> None:
        """Says which nodes are due for their health: what runs there has saved its work, or had the time for it."""
        ours, now = self._members.partitions(), self._time.now(self._state.ts)
        for name in sorted(self._sick()):
            if partition_of(name) not in ours or self._due.get(name, 0) > self._state.facts_upto or self._is_outage():
                continue
            drain = self._state.drains.get(name)
            if drain is None or not self._fresh.is_fresh or against_fence_of_sick(self._state, name, now):
                continue
            fact = FenceDue(kind="fence_due", node=name, seconds=(now - drain.since_ts) // 1000, sick=True)
            try:
                self._due[name] = await self._facts.publish(fact)
                log.warning("fence_due", node=name, seconds=fact.seconds, sick=True)
            except Transient as error:
                log.warning("fence_not_said", node=name, error=str(error))

    async def _report_due(self, fencing: Fencing) -> None:
        patience = self._state.tree.policy.node_lost_seconds + fencing.after_seconds
        ours = self._members.partitions()
        for name in sorted(self._silent()):
            trouble = self._troubles.of(name)  # asked of each, since asking keeps the count
            if trouble is None or trouble.kind is not TroubleKind.NOT_READY or trouble.seconds < patience:
                continue
            if partition_of(name) not in ours or self._due.get(name, 0) > self._state.facts_upto or self._is_outage():
                continue
            if against_fence(self._state, name):
                continue
            try:
                if await self._is_silent(name):
                    fact = FenceDue(kind="fence_due", node=name, seconds=int(trouble.seconds))
                    self._due[name] = await self._facts.publish(fact)
                    log.warning("fence_due", node=name, seconds=fact.seconds)
            except (Transient, ApiError) as error:
                log.warning("fence_not_said", node=name, error=str(error))

    def _is_outage(self) -> bool:
        return self._troubles.percent_not_ready() > self._settings.outage_percent

    async def _is_silent(self, name: str) -> bool:
        """Whether the API server itself says so now. Raises Transient, ApiError."""
        return await self._troubles.is_still(self._ports.cluster, name, TroubleKind.NOT_READY)

    # -- open requests

    async def _go_on(self, fence: Fence, fencing: Fencing | None) -> None:
        """Call for a request, unless it was a moment ago; end it when the webhook has answered, or time is up."""
        calls, now = self._calls[fence.request], self._ports.clock.monotonic()
        if calls.told > self._state.facts_upto:
            return
        waited = self._time.now(self._state.ts) - fence.asked_ts
        try:
            if fencing is None:
                await self._end(fence, "failed", "no webhook is configured any more")
            elif waited >= fencing.timeout_seconds * 1000:
                detail = f"not confirmed within {fencing.timeout_seconds} s; the last call: {calls.last}"
                await self._end(fence, "failed", detail)
            elif now >= calls.due:
                calls.due = now + AGAIN_SECONDS
                await self._call(fence, fencing, calls)
        except (Transient, ApiError) as error:
            calls.last = str(error)[:500]
            log.warning("fence_not_called", node=fence.node, request=fence.request, error=calls.last)

    async def _call(self, fence: Fence, fencing: Fencing, calls: _Calls) -> None:
        if self._is_outage():
            calls.last = "not made, since most nodes are silent at once"
            return
        if fence.cause and not self._fresh.is_fresh:
            calls.last = "not made, since the ledger was not read, which says whether the node is still sick"
            return
        if not fence.cause and not await self._is_silent(fence.node):
            calls.last = "not made, since the API server does not say any more that the node is silent"
            return
        node = self._nodes.named(fence.node) or {}
        body = {
            "node": fence.node,
            "provider_id": (node.get("spec") or {}).get("providerID", ""),
            "request": fence.request,
            "why": fence.why,
        }
        answer = await self._switch.turn_off(fencing.url, fence.request, body)
        calls.last = f"{answer.state or 'accepted'}{f', {answer.detail}' if answer.detail else ''}"
        is_off = answer.state == "off" and await self._is_believed(fence)
        if is_off or answer.state == "failed":
            await self._end(fence, answer.state, answer.detail)
        else:
            log.info("fence_called", node=fence.node, request=fence.request, answer=calls.last)

    async def _is_believed(self, fence: Fence) -> bool:
        """Whether a node that is said to be off does not answer either. Raises Transient, ApiError."""
        node = self._state.nodes.get(fence.node)
        return not fence.cause or (node is not None and node.silent and await self._is_silent(fence.node))

    async def _end(self, fence: Fence, outcome: str, detail: str) -> None:
        said = {"kind": "fence_answered", "node": fence.node, "request": fence.request}
        fact = FenceAnswered.model_validate({**said, "outcome": outcome, "detail": detail[:1000]})
        self._calls[fence.request].told = await self._facts.publish(fact)
        log.warning("fence_answered", node=fence.node, request=fence.request, outcome=outcome, detail=detail)
