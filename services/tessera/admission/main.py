"""Wiring of admission: two work queues, the policy they are judged by, and the count of what is not recorded."""

import asyncio
from functools import partial

from tessera.admission.handlers import CommandHandlers
from tessera.admission.limits import TenantLimits
from tessera.admission.policy_view import PolicyView
from tessera.admission.refusals import FLUSH_SECONDS, Refusals
from tessera.admission.settings import AdmissionSettings
from tessera.kernel.ledger.room import LedgerRoom
from tessera.kernel.messaging.dead_letters import DeadLetters
from tessera.kernel.messaging.work_queue import Handle, work
from tessera.kernel.process.leases import Members
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.task_group import gather_all, run_loops
from tessera_schemas import subjects


async def serve(ports: Ports, settings: AdmissionSettings, stop: asyncio.Event) -> None:
    """Judge commands until `stop`; what is in flight is finished and answered."""
    shard, clock = settings.shard, ports.clock
    policy = PolicyView(ports.store, clock, settings.policy_seconds, bool(settings.steps_image))
    members = Members(ports.bus, clock, shard, "admission", ports.instance, settings.lease_seconds)
    room = LedgerRoom(ports.bus, clock, ports.metrics, shard)
    limits = TenantLimits(policy, room, clock, lambda: members.count)
    handlers = CommandHandlers(ports, shard, policy, limits, Refusals(clock, settings.refusals_per_second))
    ports.health.check("policy", policy.problem)
    ports.health.check("ledger", room.problem)

    async def queue(kind: str, durable: str, handle: Handle) -> None:
        stream = subjects.stream(kind, shard)
        dead_letters, trouble = DeadLetters(ports.bus, shard, "admission", stream), [""]
        ports.health.check(f"queue {kind}", lambda: trouble[0] and f"{trouble[0]}; `tessera init` makes what is gone")
        note = partial(trouble.__setitem__, 0)
        await work(ports.bus.work(stream, durable), handle, dead_letter=dead_letters, clock=clock, stop=stop, note=note)

    async def submits() -> None:
        # Not one is taken before it can be judged: a delivery that waits for policy would use up its deliveries.
        await run_loops(stop, policy.wait_for_first())
        if not stop.is_set():
            await queue("SUBMIT", "admission", handlers.on_submits)

    async def count_refusals() -> None:
        while True:
            await clock.sleep(FLUSH_SECONDS)
            await handlers.flush_counted()

    async def queues() -> None:
        await gather_all(queue("CONTROL", "admission-control", handlers.on_controls), submits())

    await members.join()
    await room.look()
    ports.health.started()
    try:
        # The queues end by themselves, after what is in flight; the rest ends with them.
        await run_loops(asyncio.Event(), queues(), policy.keep_fresh(), count_refusals(), room.watch())
    finally:
        await handlers.flush_counted()
        await members.leave()
