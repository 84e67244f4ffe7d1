"""
The queue loop: batches of deliveries to one handler, and exactly one answer for each.

| outcome | answer |
|---|---|
| done, or seen before | ack |
| Transient, Conflict | nak, with back-off by the number of deliveries |
| Poison, or the fifth delivery failed | dead letter, then term |
| InvariantViolation | no answer; it goes to the caller, who halts |
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from tessera.kernel.errors import InvariantViolation, KernelError, Poison, Transient
from tessera.kernel.messaging.dead_letters import DeadLetters
from tessera.kernel.messaging.follow import BACKOFF_SECONDS, BATCH
from tessera.kernel.ports import Clock, Delivery, Work
from tessera.kernel.tasks.task_group import gather_all
from tessera.kernel.tasks.waiting import closed_at, wait_for

REDELIVERY_SECONDS = (1.0, 5.0, 30.0, 300.0)  # after the first, second, … failed delivery
DELIVERIES_MAX = len(REDELIVERY_SECONDS) + 1
SETTLED_SECONDS = 5.0  # without a refusal: the queue is there again, and empty
ACK_WAIT_SECONDS = 30.0  # of the durables that `tessera init` makes

Handle = Callable[[list[Delivery]], Awaitable[Sequence[object]]]
"""Gives one outcome per delivery: any value means done, a KernelError says what went wrong with that one."""

log = structlog.get_logger()


async def work(
    queue: Work,
    handle_batch: Handle,
    *,
    dead_letter: DeadLetters,
    clock: Clock,
    stop: asyncio.Event,
    ack_wait_seconds: float = ACK_WAIT_SECONDS,
    limit: int = BATCH,
    redelivery_seconds: Sequence[float] = REDELIVERY_SECONDS,
    note: Callable[[str], None] = lambda trouble: None,
) -> None:
    """
    Handle and answer every delivery of `queue` until `stop`; then finish what is in flight and close the queue.

    The handler may raise instead of returning: that is then the outcome of the whole batch, but Poison makes it see
    each delivery alone, so that one bad message does not take its neighbours along. `redelivery_seconds` are the waits
    after the first, second, … failed delivery; after one more the message is a dead letter.
    `note` is told why nothing comes, and "" once it does again: the durable may be gone although its stream is there.
    """
    loop = _WorkLoop(queue, handle_batch, dead_letter, clock, ack_wait_seconds, redelivery_seconds)
    async with closed_at(stop, queue):
        failures = 0
        while not stop.is_set():
            try:
                batch = await queue.next(limit, SETTLED_SECONDS if failures else None)
            except Transient as error:
                log.warning("work_retries", error=str(error), failures=failures + 1)
                note(str(error))
                await wait_for(stop, clock, BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])
                failures += 1
                continue
            failures = 0
            note("")
            if batch:
                await loop.run(batch)


class _WorkLoop:
    def __init__(
        self,
        queue: Work,
        handle_batch: Handle,
        dead_letter: DeadLetters,
        clock: Clock,
        ack_wait_seconds: float,
        redelivery_seconds: Sequence[float],
    ) -> None:
        self._queue, self._handle, self._dead_letter = queue, handle_batch, dead_letter
        self._clock, self._ack_wait_seconds = clock, ack_wait_seconds
        self._redelivery_seconds, self._deliveries_max = redelivery_seconds, len(redelivery_seconds) + 1

    async def run(self, batch: list[Delivery]) -> None:
        """Beyond the last delivery nobody handles it: it seems to kill or stall whoever does, before any answer."""
        fresh = [delivery for delivery in batch if delivery.deliveries <= self._deliveries_max]
        worn = [delivery for delivery in batch if delivery.deliveries > self._deliveries_max]
        keeper = asyncio.ensure_future(self._keep(batch))
        try:
            outcomes = await self._outcomes(fresh) if fresh else []
            why = Poison(f"delivered more than {self._deliveries_max} times without being handled")
            await self._answer_all([*zip(fresh, outcomes, strict=True), *((delivery, why) for delivery in worn)])
        finally:
            keeper.cancel()

    async def _outcomes(self, batch: list[Delivery]) -> Sequence[object]:
        try:
            return await self._handle(batch)
        except InvariantViolation:
            raise
        except Poison as error:
            if len(batch) == 1:
                return [error]
            return [outcome for delivery in batch for outcome in await self._outcomes([delivery])]
        except KernelError as error:
            return [error] * len(batch)

    async def _answer_all(self, answers: list[tuple[Delivery, object]]) -> None:
        """Dead letters wait for their acknowledgement all together; a violation is raised when the rest is answered."""
        burials = []
        violations = []
        for delivery, outcome in answers:
            if isinstance(outcome, InvariantViolation):
                violations.append(outcome)
            elif isinstance(outcome, KernelError) and (
                isinstance(outcome, Poison) or delivery.deliveries >= self._deliveries_max
            ):
                burials.append(self._bury(delivery, outcome))
            elif isinstance(outcome, KernelError):
                await self._answer(self._queue.nak(delivery, self._redelivery_seconds[delivery.deliveries - 1]))
            else:
                await self._answer(self._queue.ack(delivery))
        await gather_all(*burials)
        if violations:
            raise violations[0]

    async def _answer(self, answer: Awaitable[None]) -> None:
        try:
            await answer
        except Transient as error:
            # An answer that did not arrive means one more delivery, which every handler must bear anyway.
            log.warning("answer_lost", error=str(error))

    async def _bury(self, delivery: Delivery, why: KernelError) -> None:
        reason = f"{type(why).__name__}: {why}"
        try:
            await self._dead_letter.put(delivery.message, reason, delivery.deliveries)
        except Transient as error:
            log.warning("dead_letter_waits", subject=delivery.message.subject, error=str(error))
            await self._answer(self._queue.nak(delivery, self._redelivery_seconds[-1]))
            return
        log.warning("dead_letter", subject=delivery.message.subject, seq=delivery.message.seq, reason=reason)
        await self._answer(self._queue.term(delivery))

    async def _keep(self, batch: list[Delivery]) -> None:
        """Say that we are still at it, so that a slow batch is not handed to somebody else as well."""
        while True:
            await self._clock.sleep(self._ack_wait_seconds / 3)
            try:
                for delivery in batch:
                    await self._queue.in_progress(delivery)
            except Transient:
                continue  # the next round tries again
