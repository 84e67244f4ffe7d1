"""One plain connection to NATS that either stands at once or says why not: for checks and for an operator's work."""

import asyncio
import logging

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError

from tessera.kernel.errors import StartupError
from tessera.kernel.nats.bus import NatsBus
from tessera_schemas import subjects

# nats-py upgrades a plain stream to TLS, of which asyncio then says that it has no half-open end: true and harmless.
logging.getLogger("asyncio").addFilter(lambda record: "eof_received" not in record.getMessage())


async def check_closed(url: str, user: str, password: str) -> None:
    """Raises StartupError for a server that lets anybody in, whatever password is shown to it, by its greeting."""
    bus = await NatsBus.connect(url, user=user, password=password)
    await bus.close()
    if bus.lets_anybody_in:
        raise StartupError(
            f"NATS at {url}: lets anybody in, to write any tenant's jobs and records; "
            "TESSERA_ALLOW_ANYBODY=true where that is fine, as on your own machine"
        )


async def connect_once(url: str, user: str, password: str, seconds: float = 5.0) -> Client:
    """
    Connect to one of the servers of `url`, which commas separate.

    Raises StartupError when nobody answers, or refuses this user, within `seconds`.
    """

    async def keep_quiet(_error: Exception) -> None:
        """The one error that matters is raised below."""

    connecting = nats.connect(
        [each.strip() for each in url.split(",")],
        user=user or None,
        password=password or None,
        inbox_prefix=subjects.inbox(subjects.identity_of(user)) if user else "_INBOX",
        allow_reconnect=False,
        max_reconnect_attempts=1,  # counts for the first connection too, whose default is two minutes of trying
        reconnect_time_wait=0,
        error_cb=keep_quiet,
    )
    try:
        async with asyncio.timeout(seconds):
            return await connecting
    except (NatsError, OSError, TimeoutError) as error:
        why = str(error) or type(error).__name__
        raise StartupError(
            f"NATS at {url}: cannot connect as {user or 'nobody'} ({why}); "
            "start it, or set TESSERA_NATS_URL and TESSERA_CREDENTIALS_FILE"
        ) from error
