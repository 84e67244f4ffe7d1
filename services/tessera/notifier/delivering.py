"""One event to one webhook: signed, sent, answered 2xx or tried again."""

import asyncio
from collections.abc import Sequence
from urllib.parse import urlsplit

import aiohttp
import orjson
import structlog
from prometheus_client import Counter

from tessera.kernel.errors import KernelError, Poison, Transient
from tessera.kernel.messaging.signing import headers, read_secrets
from tessera.kernel.ports import Clock, Delivery
from tessera.kernel.service.metrics import Metrics
from tessera.notifier.addresses import AddressRefused, checked_sockets
from tessera.notifier.settings import NotifierSettings
from tessera_schemas.shard.receivers import Webhook


class Deliveries:
    """Attempts to deliver an event to a webhook, by outcome; labels name no tenant."""

    def __init__(self, metrics: Metrics) -> None:
        counter = Counter(
            "tessera_notifier_deliveries_total",
            "Attempts to deliver an event to a webhook",
            ["outcome"],
            registry=metrics.registry,
        )
        self.delivered, self.failed = counter.labels("delivered"), counter.labels("failed")


CONTENT_TYPE = "application/cloudevents+json"

log = structlog.get_logger()


def open_session(settings: NotifierSettings) -> aiohttp.ClientSession:
    """
    Session that connects to allowed addresses alone, by no proxy, and keeps no cookies.

    It bounds no connections: a wait for one would be shared by all tenants, and taken from the receiver's time.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, socket_factory=checked_sockets(settings.allowed_networks), use_dns_cache=False
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=settings.deliver_seconds),
        headers={"User-Agent": "tessera-notifier"},
        auto_decompress=False,
        trust_env=False,
    )


class Receiver:
    """Delivers to one webhook, several events at a time, while the tenant's `connections` are not used up."""

    def __init__(
        self,
        tenant: str,
        webhook: Webhook,
        session: aiohttp.ClientSession,
        settings: NotifierSettings,
        clock: Clock,
        counted: Deliveries,
        connections: asyncio.Semaphore,
    ) -> None:
        self._tenant, self._webhook, self._session = tenant, webhook, session
        self._settings, self._clock, self._counted = settings, clock, counted
        self._turn, self._connections = asyncio.Semaphore(settings.at_once), connections

    async def on_events(self, batch: list[Delivery]) -> Sequence[object]:
        """Outcome of each delivery: None, or why it failed."""
        return await asyncio.gather(*(self._deliver(delivery) for delivery in batch))

    async def _deliver(self, delivery: Delivery) -> KernelError | None:
        async with self._turn, self._connections:
            try:
                await self._post(delivery.message.data)
            except KernelError as error:
                self._counted.failed.inc()
                log.info(
                    "webhook_not_delivered",
                    tenant=self._tenant,
                    webhook=self._webhook.name,
                    seq=delivery.message.seq,
                    deliveries=delivery.deliveries,
                    reason=str(error),
                )
                return error
        self._counted.delivered.inc()
        return None

    async def _post(self, body: bytes) -> None:
        """Raises Transient unless the answer is 2xx, Poison for what is no event."""
        url, where = self._webhook.url, f"webhook {self._webhook.name} of {self._tenant}"
        if urlsplit(url).scheme != "https" and not self._settings.allow_http:
            raise Transient(f"{where}: plain http is not allowed; use https, or set the notifier's allow_http")
        try:
            event = orjson.loads(body)
            event_id = f"{self._settings.shard}.{event['id']}"  # a receiver may hear of several shards
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise Poison(f"{where}: not an event") from error
        secrets = read_secrets(self._settings.keys_dir, self._tenant, self._webhook.secret)
        signed = headers(secrets, event_id, self._clock.now_ms() // 1000, body)
        try:
            async with self._session.post(
                url, data=body, headers={"Content-Type": CONTENT_TYPE, **signed}, allow_redirects=False
            ) as answer:
                status = answer.status  # the body is nobody's business, however long
        except AddressRefused as error:
            raise Transient(f"{where}: {error}") from error
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise Transient(f"{where}: {_without_url(error)}") from error
        if 300 <= status < 400:
            raise Transient(f"{where}: HTTP {status}; redirects are not followed, give the URL that answers")
        if not 200 <= status < 300:
            raise Transient(f"{where}: HTTP {status}")
        log.info("webhook_delivered", tenant=self._tenant, webhook=self._webhook.name, job=event.get("subject"))


def _without_url(error: Exception) -> str:
    """Words for what went wrong, without the URL, which may hold what is not for logs."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, AddressRefused):
            return str(cause)
        cause = cause.__cause__ or getattr(cause, "os_error", None)
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect ({error.os_error.strerror or type(error.os_error).__name__})"
    return type(error).__name__
