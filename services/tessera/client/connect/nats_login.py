"""A NATS credential as a login at the gateway: it gets a token for minutes when one is needed (ADR 0041, ADR 0047)."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tessera.client.connect.contexts import LOOPBACK, ApiLogin, check_url
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure
from tessera.kernel.clock import SystemClock
from tessera.kernel.ids import random_key
from tessera_schemas import subjects

if TYPE_CHECKING:
    from tessera.kernel.ports import Bus
    from tessera.kernel.provisioning.credential_files import Credential

ANSWER_SECONDS = 2.0
KEPT_SECONDS = 300.0
"""How long a token is used; a gateway makes it for twice as long."""


class NatsLogin:
    """Reads by HTTP with what the gateway answers on NATS; commands stay on NATS, which needs no gateway."""

    def __init__(
        self, where: Where, credential: "Credential", connect: "Callable[[], AbstractAsyncContextManager[Bus]]"
    ) -> None:
        self._where, self._identity, self._connect = where, credential.identity.name, connect
        self._kept: ApiLogin | None = None
        self._until = 0.0

    async def obtain(self) -> ApiLogin:
        """The gateway's address and a token of the identity. Raises Failure where no gateway answers."""
        now = SystemClock().monotonic()
        if self._kept is None or now > self._until:
            self._kept, self._until = await self._ask(), now + KEPT_SECONDS
        return self._kept

    async def _ask(self) -> ApiLogin:
        identity, question = self._identity, random_key()
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def take(_: str, data: bytes) -> None:
            if not answered.done():
                answered.set_result(data)

        async with self._connect() as bus:
            await bus.listen(f"{subjects.login_inbox(identity)}.{question}", take)
            await bus.send(subjects.login(self._where.shard, identity), question.encode())
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    said = json.loads(await answered)
            except TimeoutError as error:
                raise Failure(
                    Exit.UNAVAILABLE,
                    f"identity {identity}: no gateway answered on NATS, and lists are read there; see "
                    "`tessera status`, or log in by HTTP with a token from an operator: `tessera login URL`",
                ) from error
        return ApiLogin(self._where.gateway_url or self._check_address(said["url"]), said["token"])

    def _check_address(self, url: str) -> str:
        """
        The address that the gateway gives, where a token may go to. Raises Failure.

        On this machine anybody may listen: a token that a gateway elsewhere made does not go there.
        """
        url = check_url(url)
        if urlsplit(url).hostname in LOOPBACK and urlsplit(self._where.nats_url).hostname not in LOOPBACK:
            raise Failure(
                Exit.UNAVAILABLE,
                f"identity {self._identity}: the gateway gives its address as {url}, which means this machine; an "
                "operator has to set public_url of the gateway, or set TESSERA_API to the address that you reach",
            )
        return url
