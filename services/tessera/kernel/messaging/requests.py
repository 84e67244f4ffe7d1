"""A command on its way: stored under retries, then answered, or not, on a private inbox."""

import asyncio
import itertools

import structlog

from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Full, Poison, Transient
from tessera.kernel.ids import random_key
from tessera.kernel.ports import Bus, Clock, Outgoing
from tessera.kernel.service.trace import COMMAND, pass_trace
from tessera.kernel.tasks.waiting import wait_for
from tessera_schemas import subjects
from tessera_schemas.base import Strict
from tessera_schemas.commands import END_HEADER, REPLY_HEADER, Answer

BACKOFF_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)
ANY_TENANT = "*"

log = structlog.get_logger()


class Requester:
    """Sends commands as one identity. Made by `open` or `for_tenants`, since it listens for answers first."""

    def __init__(self, bus: Bus, inbox: str, clock: Clock) -> None:
        self._bus, self._inbox, self._clock = bus, inbox, clock
        self._requests = itertools.count(1)
        self._answers: dict[str, Answer] = {}
        self._arrived: dict[str, asyncio.Event] = {}

    @classmethod
    async def open(cls, bus: Bus, identity: str, clock: Clock | None = None) -> "Requester":
        """Listen on an inbox of `identity` under a random name: processes of one identity never mix answers."""
        return await cls._listening(bus, f"{subjects.inbox(identity)}.{random_key()}", clock)

    @classmethod
    async def for_tenants(cls, bus: Bus, clock: Clock | None = None) -> "Requester":
        """Requester of the gateway: every `ask` names the tenant for which it speaks, and whose inbox is answered."""
        return await cls._listening(bus, f"{subjects.gateway_inbox(ANY_TENANT)}.{random_key()}", clock)

    @classmethod
    async def _listening(cls, bus: Bus, inbox: str, clock: Clock | None) -> "Requester":
        requester = cls(bus, inbox, clock or SystemClock())
        await bus.listen(f"{inbox}.*", requester._on_answer)
        return requester

    async def ask(
        self,
        subject: str,
        command: Strict | bytes,
        *,
        tenant: str = ANY_TENANT,
        answer_seconds: float = subjects.ANSWER_SECONDS,
        publish_seconds: float | None = None,
        when_full: bool = True,
        tell_end: bool = False,
    ) -> Answer | None:
        """
        Store the command, then wait for its answer; None when none came, which says nothing about the command.

        The publish is repeated until it is acknowledged, or raises what it failed with once `publish_seconds` are over;
        without `when_full` a full backlog raises at once. `tell_end`: the answer is to say how the job ended if it has.
        """
        inbox = f"{self._inbox.replace(ANY_TENANT, tenant)}.{next(self._requests)}"
        arrived = self._arrived[inbox] = asyncio.Event()
        data = command if isinstance(command, bytes) else command.to_bytes()
        wish = {END_HEADER: "1"} if tell_end else {}
        out = Outgoing(subject, data, headers={REPLY_HEADER: inbox, **wish, **pass_trace(COMMAND)})
        try:
            await self._publish(out, publish_seconds, when_full)
            await wait_for(arrived, self._clock, answer_seconds)
            return self._answers.pop(inbox, None)
        finally:
            del self._arrived[inbox]

    async def _publish(self, out: Outgoing, seconds: float | None, when_full: bool) -> None:
        began, failures = self._clock.monotonic(), 0
        while True:
            try:
                await self._bus.publish(out)
            except Poison:
                raise
            except Transient as error:
                wait = BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)]
                if seconds is not None and self._clock.monotonic() - began + wait > seconds:
                    raise
                if isinstance(error, Full) and not when_full:
                    raise
                log.debug("publish_retries", subject=out.subject, error=str(error))
                failures += 1
                await self._clock.sleep(wait)
            else:
                return

    def _on_answer(self, subject: str, data: bytes) -> None:
        arrived = self._arrived.get(subject)
        if arrived is None or arrived.is_set():
            return
        try:
            self._answers[subject] = Answer.from_bytes(data)
        except ValueError as error:
            log.warning("answer_unreadable", error=str(error))
        arrived.set()
