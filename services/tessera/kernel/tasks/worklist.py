"""
Level-triggered work by key: a key is worked by one task at a time, and again if it was named meanwhile.

What failed for now comes back after a while, longer each time; naming a key that waits does not shorten its wait.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from itertools import chain

import structlog

from tessera.kernel.errors import Transient
from tessera.kernel.ports import ApiError, Clock
from tessera.kernel.tasks.task_group import cancel_all
from tessera.kernel.tasks.waiting import spread

FIRST_RETRY_SECONDS = 0.1
LONGEST_RETRY_SECONDS = 10.0

log = structlog.get_logger()


class Worklist:
    """
    Worklist of keys: at most `at_once` are worked at the same time, at most `per_owner` of one owner.

    The rest wait: owners take turns, and the keys of one come up in the order in which they were named, new ones last.
    """

    def __init__(
        self,
        work: Callable[[str], Awaitable[None]],
        clock: Clock,
        at_once: int,
        owner_of: Callable[[str], str] = lambda key: "",
        per_owner: int | None = None,
    ) -> None:
        self._work, self._clock, self._at_once, self._owner_of = work, clock, at_once, owner_of
        self._per_owner, self._busy_of = per_owner or at_once, Counter[str]()
        self._waiting: dict[str, tuple[str, bool]] = {}  # each key's owner, as of when it was named, and whether new
        self._turns: dict[str, tuple[dict[str, None], dict[str, None]]] = {}  # by owner, whose turn is next first
        self._busy: dict[str, str] = {}  # each key's owner, as of when it was named
        self._failures: dict[str, int] = {}
        self._later: dict[str, asyncio.Task[None]] = {}
        self._due: dict[str, float] = {}
        self._backing_off: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._broken: BaseException | None = None

    def name(self, key: str, new: bool = False) -> None:
        """Add the key; it comes up once its back-off is over, a `new` one after all that its owner has begun."""
        waits = self._waiting.get(key)
        if key not in self._backing_off and (waits is None or (waits[1] and not new)):
            self._drop(key)
            owner, _ = self._waiting[key] = self._owner_of(key), new
            self._turns.setdefault(owner, ({}, {}))[new][key] = None
            self._wake.set()

    def name_later(self, key: str, seconds: float) -> None:
        """Look at this key once `seconds` have passed; of several such wishes the soonest stands."""
        due, later = self._clock.monotonic() + seconds, self._later.get(key)
        if later is not None and self._due[key] <= due:
            return
        if later is not None:
            later.cancel()
        self._due[key] = due
        self._later[key] = asyncio.create_task(self._after(key, seconds, self._later))

    def forget(self, key: str) -> None:
        """The key is done with: nothing is remembered of its failures."""
        self._failures.pop(key, None)

    def failures(self, key: str) -> int:
        """Number of times in a row that this key has failed."""
        return self._failures.get(key, 0)

    async def run(self) -> None:
        """Work until cancelled; raises what is neither for now nor the API's answer."""
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if self._broken is not None:
                    raise self._broken
                for key in self._next_keys():
                    task = asyncio.create_task(self._one(key))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
        finally:
            await cancel_all(*tasks, *self._later.values(), *self._backing_off.values())

    def _next_keys(self) -> list[str]:
        keys, owners = list[str](), deque(self._turns)
        while owners and len(self._busy) < self._at_once:
            owner = owners.popleft()
            key = next((key for key in chain(*self._turns[owner]) if key not in self._busy), None)
            if key is None or self._busy_of[owner] >= self._per_owner:
                continue
            self._busy[key] = owner
            self._busy_of[owner] += 1
            keys.append(key)
            self._turns[owner] = self._turns.pop(owner)  # its next turn comes after everybody else's
            self._drop(key)
            if owner in self._turns:
                owners.append(owner)
        return keys

    def _drop(self, key: str) -> None:
        """Take the key out of those that wait."""
        if key in self._waiting:
            owner, new = self._waiting.pop(key)
            del self._turns[owner][new][key]
            if not any(self._turns[owner]):
                del self._turns[owner]

    async def _one(self, key: str) -> None:
        try:
            await self._work(key)
            self._failures.pop(key, None)
        except (Transient, ApiError) as error:
            self._retry(key, error)
        except Exception as error:
            self._broken = error
        finally:
            owner = self._busy.pop(key)
            self._busy_of[owner] -= 1
            if not self._busy_of[owner]:
                del self._busy_of[owner]
            self._wake.set()

    def _retry(self, key: str, error: Transient | ApiError) -> None:
        failures = self._failures[key] = self.failures(key) + 1
        wait = min(FIRST_RETRY_SECONDS * 2 ** min(failures - 1, 16), LONGEST_RETRY_SECONDS)
        if isinstance(error, ApiError) and error.retry_after_seconds:
            wait = max(wait, error.retry_after_seconds)
        wait = spread(wait, key, failures)
        log.info("work_retries", key=key, failures=failures, seconds=wait, error=str(error))
        self._drop(key)
        self._backing_off[key] = asyncio.create_task(self._after(key, wait, self._backing_off))

    async def _after(self, key: str, seconds: float, waiting: dict[str, asyncio.Task[None]]) -> None:
        await self._clock.sleep(seconds)
        del waiting[key]
        if waiting is self._later:
            del self._due[key]
        self.name(key)
