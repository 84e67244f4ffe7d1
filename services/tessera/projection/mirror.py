"""
Redis as the mirror of the state.

What the fold touches is remembered as names of fields. Their values are made when they are sent, so that a Redis that
is slow or away for a while gets each field once, as it is then. Beyond a bound, or when Redis does not hold what it
should, the views are built anew in a generation of their own; readers have the old one until it is complete.
"""

import asyncio
from collections.abc import Callable, Iterable

import structlog

from tessera.domain.state import State
from tessera.kernel.errors import Conflict, Transient
from tessera.kernel.messaging.follow import BACKOFF_SECONDS
from tessera.kernel.ports import Change
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.waiting import wait_for
from tessera.projection.settings import ProjectionSettings
from tessera.projection.views import Field, Views
from tessera_schemas.shard.ledger_form import Head

STAND_BY_SECONDS = 0.5  # how soon a standby sees that it leads, and what the leader has sent
SHARE_SECONDS = 0.05  # between two batches: a job that moves on meanwhile is written once
FIELDS_PER_TURN = 2_000  # made in one go; then others run
CHANGES_BYTES_MAX = 16 << 20  # of values in one script, which holds Redis, and us, as long as it takes

log = structlog.get_logger()


class Mirror:
    """
    Keeps the store at the state.

    The store holds, or was found to hold, the state after `_base`; `_touched` are the fields that moved since. `_anew`
    asks for a build of all views, and `_fresh` is true from its beginning until the first change after it: meanwhile
    what is touched must be remembered, however much it is. Of messages up to `held`, which the store held at the start,
    nothing is touched: a service that starts behind it would build all views anew, as they are. `trouble` says why
    Redis lags, None while all is well.
    """

    def __init__(self, ports: Ports, settings: ProjectionSettings, state: State, views: Views, held: int = 0) -> None:
        self._ports, self._state, self._views, self._held = ports, state, views, held
        self._changes_max, self._check_seconds = settings.view_changes_max, settings.redis_check_seconds
        self._touched: dict[Field, None] = {}
        self._base = state.n
        self._anew = self._fresh = False
        self._moved = asyncio.Event()
        self.trouble: str | None = None

    def touch(self, fields: dict[Field, None]) -> None:
        """The state has moved; these fields may have changed."""
        self._moved.set()
        if self._state.n <= self._held:
            self._base = self._state.n
            return
        if self._anew and not self._fresh:
            return  # all of them are made anew anyway
        self._touched |= fields
        if len(self._touched) > self._changes_max and not self._fresh:
            self._anew, self._touched = True, {}

    async def run(self, leading: Callable[[], bool], caught_up: asyncio.Event) -> None:
        """
        Bring Redis up to the state again and again while `leading`.

        Starts once the ledger's end has been reached: a rebuild on the way would only be the first of many.
        """
        await caught_up.wait()
        failures, checked = 0, False
        while True:
            try:
                if not leading():
                    checked = False
                    await self._stand_by()
                elif checked:
                    await self._bring_up()
                else:
                    await self._check()
                    checked = True
                failures, self.trouble = 0, None
            except Conflict as error:
                # Emptied, set back, or switched by somebody else. Whoever lost this only starts from what is there.
                log.warning("views_conflict", error=str(error), n=self._state.n)
                self._ports.metrics.conflicts.inc()
                self._anew = True
                await self._ports.clock.sleep(BACKOFF_SECONDS[0])
            except Transient as error:
                self.trouble = f"the views in Redis stand at {self._base} of {self._state.n}: {error}"
                log.warning("views_wait", error=str(error), n=self._state.n, base=self._base)
                await self._ports.clock.sleep(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])
                failures += 1

    async def _bring_up(self) -> None:
        if self._anew:
            await self._replace()
        elif self._state.n > self._base:
            await self._apply()
            await self._ports.clock.sleep(SHARE_SECONDS)
        else:
            self._moved.clear()
            if not await wait_for(self._moved, self._ports.clock, self._check_seconds):
                await self._check()

    async def _stand_by(self) -> None:
        """Forget what the leader has sent."""
        if await self._ports.store.cursor() >= self._state.n:
            self._base, self._touched = self._state.n, {}
        await self._ports.clock.sleep(STAND_BY_SECONDS)

    async def _check(self) -> None:
        """
        Whether Redis holds what it should: it may have lost its last writes, or everything.

        One that is ahead of us is left as it is: where it is ahead of the ledger too, it proves what the ledger lost.
        """
        held = await self._ports.store.cursor()
        if held < self._base:
            self._build_anew(f"Redis holds views up to {held}, not {self._base}")

    def _build_anew(self, why: str) -> None:
        log.warning("views_built_anew", reason=why, n=self._state.n)
        self._anew = True

    async def _apply(self) -> None:
        fields, first, head = self._touched, self._base + 1, self._head()
        self._touched = {}
        changes = [self._views.change(field) for field in fields]
        if sum(len(change.value or b"") for change in changes) > CHANGES_BYTES_MAX:
            self._build_anew(f"{len(changes)} changed fields are too large for one script")
            return
        try:
            await self._send(first, head, changes)
        except Transient:
            self._touched = fields | self._touched
            raise
        self._base, self._fresh = head.n, False

    def _head(self) -> Head:
        """
        Raises Transient while a message is folded in part.

        Its number beside the hash of the one before it would say of the ledger, for good, that it was written again.
        Whoever folded it has the reason, and halts us with it; it may be a few ticks behind us.
        """
        if not self._state.is_whole:
            raise Transient(f"record {self._state.n} is folded in part")
        return Head(self._state.n, self._state.chain)

    async def _send(self, first: int, head: Head, changes: list[Change]) -> None:
        """Values are absolute, so that a store which stands inside the batch takes it from there."""
        store = self._ports.store
        try:
            await store.apply(first, head.n, changes, head.chain)
        except Conflict:
            held = await store.cursor()
            if held < first:
                raise
            if held < head.n:
                await store.apply(held + 1, head.n, changes, head.chain)

    async def _replace(self) -> None:
        """
        Build all views as of one n, while the fold goes on.

        Fields are made a few thousand at a time; those touched meanwhile are made again at the end, in one go.
        """
        self._touched, self._fresh = {}, True
        try:
            rows: dict[Field, bytes | None] = {}
            names = list(self._views.fields())
            for start in range(0, len(names), FIELDS_PER_TURN):
                self._make(rows, names[start : start + FIELDS_PER_TURN])
                await self._ports.clock.sleep(0)
            while len(self._touched) > FIELDS_PER_TURN:
                again, self._touched = self._touched, {}
                self._make(rows, again)
                await self._ports.clock.sleep(0)
            self._make(rows, self._touched)
            head, self._touched = self._head(), {}
            await self._ports.store.replace(
                head.n, [Change(*name, value) for name, value in rows.items() if value is not None], head.chain
            )
        except (Conflict, Transient):
            self._fresh = False
            raise
        self._base, self._anew = head.n, False
        log.info("views_replaced", n=head.n, fields=len(rows))

    def _make(self, rows: dict[Field, bytes | None], names: Iterable[Field]) -> None:
        for name in names:
            rows[name] = self._views.value(name)
