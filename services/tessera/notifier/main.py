"""Wiring of the notifier: the webhooks that are declared now, and one work queue for each."""

import asyncio
from collections import defaultdict
from contextlib import suppress
from functools import partial

import structlog
from pydantic import ValidationError

from tessera.kernel.errors import Transient
from tessera.kernel.messaging.dead_letters import DeadLetters
from tessera.kernel.messaging.work_queue import work
from tessera.kernel.ports import ProjectionStore
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.task_group import cancel_all
from tessera.kernel.tasks.waiting import wait_for
from tessera.notifier.delivering import Deliveries, Receiver, open_session
from tessera.notifier.settings import NotifierSettings
from tessera_schemas import subjects
from tessera_schemas.config import Config
from tessera_schemas.shard.receivers import Webhook

BATCH = 32
AGAIN_SECONDS = 1.0

log = structlog.get_logger()
Declared = dict[tuple[str, str], Webhook]
"""Webhooks by tenant and name."""


async def serve(ports: Ports, settings: NotifierSettings, stop: asyncio.Event) -> None:
    """Deliver until `stop`; requests in flight are finished."""
    counted = Deliveries(ports.metrics)
    running: dict[tuple[str, str], _Queue] = {}
    ports.health.check("webhooks", lambda: next((queue.trouble for queue in running.values() if queue.trouble), None))
    connections: dict[str, asyncio.Semaphore] = defaultdict(partial(asyncio.Semaphore, settings.connections_per_tenant))
    ports.health.started()
    async with open_session(settings) as session:

        def begin(key: tuple[str, str], webhook: Webhook) -> _Queue:
            receiver = Receiver(key[0], webhook, session, settings, ports.clock, counted, connections[key[0]])
            return _Queue(webhook, ports, settings, key, receiver)

        try:
            while not stop.is_set():
                declared = await declared_now(ports.store)
                if declared is not None:
                    for key in [key for key, queue in running.items() if declared.get(key) != queue.webhook]:
                        await running.pop(key).end(settings.deliver_seconds)
                    for key, webhook in declared.items():
                        if key not in running:
                            running[key] = begin(key, webhook)
                for queue in running.values():
                    queue.check()
                await wait_for(stop, ports.clock, settings.config_seconds)
        finally:
            await asyncio.gather(*(queue.end(settings.deliver_seconds) for queue in running.values()))


async def declared_now(store: ProjectionStore) -> Declared | None:
    """Webhooks of the configuration in force; None where it cannot be read now."""
    try:
        n, (stored,) = await store.fields_as_of(("config", "config"))
        if not n:
            return None  # the views were lost, and are built again
        config = Config() if stored is None else Config.model_validate_json(stored)
    except (Transient, ValidationError) as error:
        log.warning("configuration_not_read", error=str(error)[:200])
        return None
    tenants = () if config.body is None else config.body.tenants
    return {(tenant.name, webhook.name): webhook for tenant in tenants for webhook in tenant.webhooks}


class _Queue:
    """The work queue of one webhook, in a task."""

    def __init__(
        self, webhook: Webhook, ports: Ports, settings: NotifierSettings, key: tuple[str, str], receiver: Receiver
    ) -> None:
        self.webhook, self.trouble = webhook, ""
        self._stop = asyncio.Event()
        stream = subjects.stream("EVENTS", settings.shard)
        self._task = asyncio.create_task(
            work(
                ports.bus.work(stream, subjects.webhook_durable(*key)),
                receiver.on_events,
                dead_letter=DeadLetters(ports.bus, settings.shard, "notifier", stream),
                clock=ports.clock,
                stop=self._stop,
                limit=BATCH,
                redelivery_seconds=settings.retry_seconds,
                note=partial(self._note, ".".join(key)),
            ),
            name=f"webhook {key}",
        )

    def _note(self, name: str, trouble: str) -> None:
        self.trouble = trouble and f"{name}: {trouble}; if its durable is gone, `tessera apply` makes it anew"

    def check(self) -> None:
        """Raises what ended the queue by itself."""
        if self._task.done():
            self._task.result()

    async def end(self, seconds: float) -> None:
        """Finish what is in flight, for so long at most."""
        self._stop.set()
        await asyncio.wait({self._task}, timeout=seconds)
        with suppress(Exception):
            await cancel_all(self._task)
