"""
Whether the job that somebody orders about is there, as far as admission can know it.

The views show every job that was taken in, a moment late. So a job that they do not show may be on its way: its submit
may lie in another replica's hands, or behind the order itself. Only when they hold all that the ledger held a moment
ago, and still do not show it, is it certain that there is none.
"""

from collections import OrderedDict
from collections.abc import Callable
from enum import Enum, auto

from tessera.domain.work.phases import TERMINAL
from tessera.kernel.errors import KernelError
from tessera.kernel.ports import Clock, Ledger, ProjectionStore
from tessera_schemas.reasons import Reason
from tessera_schemas.views import JobView

ENDED = frozenset(phase.value for phase in TERMINAL)
REMEMBERED = 10_000
SHORT_SECONDS, LONG_SECONDS = 0.1, 0.5
"""How long the views may take to catch up with the ledger: at first sight, and before a job is said not to be there."""
LOOK_SECONDS = 0.02


class JobPresence(Enum):
    """Whether a job exists. THERE also while the views cannot answer, so that the command goes on."""

    THERE = auto()
    ABSENT = auto()
    SOMEBODY_ELSES = auto()


class KnownJobs:
    """Jobs in the views, and submits that passed through here; each call costs one read per job."""

    def __init__(self, store: ProjectionStore, ledger: Ledger, clock: Clock) -> None:
        self._store, self._ledger, self._clock = store, ledger, clock
        self._passed: OrderedDict[str, None] = OrderedDict()

    def note(self, job_id: str) -> None:
        """Note that a submit was accepted here, so that commands about the job are accepted behind it."""
        self._passed[job_id] = None
        if len(self._passed) > REMEMBERED:
            self._passed.popitem(last=False)

    async def look(self, job_id: str, tenant: str) -> JobPresence:
        """A job of the tenant; "" stands for an operator, to whom every job is one."""
        if job_id in self._passed:
            return JobPresence.THERE
        try:
            n, (stored,) = await self._store.fields_as_of(("jobs", job_id))
        except KernelError:
            return JobPresence.THERE
        if stored is None:
            return JobPresence.ABSENT if n else JobPresence.THERE  # lost, and being built again
        return JobPresence.THERE if tenant in ("", JobView.from_bytes(stored).tenant) else JobPresence.SOMEBODY_ELSES

    async def find_refusal(self, job_id: str, against: Callable[[JobView], Reason | None]) -> Reason | None:
        """Reason against an order, by views that hold all of the ledger; None where they may not, or show no job."""
        why = None
        for looked in range(2):
            try:
                _, (stored,) = await self._store.fields_as_of(("jobs", job_id))
            except KernelError:
                return None
            why = None if stored is None else against(JobView.from_bytes(stored))
            if why is None or (not looked and not await self.caught_up(SHORT_SECONDS)):
                return None
        return why

    async def known(self, job_id: str, memory_seconds: int) -> JobView | None:
        """
        The job as the views show it, waiting a moment for them when they show it alive; None where they show none.

        One whose key is remembered no longer counts as none, though a quiet ledger lets the views show it still.
        """
        try:
            _, (stored,) = await self._store.fields_as_of(("jobs", job_id))
            if stored is not None and JobView.from_bytes(stored).phase not in ENDED:
                await self.caught_up(SHORT_SECONDS)
                _, (stored,) = await self._store.fields_as_of(("jobs", job_id))
        except KernelError:
            return None
        job = None if stored is None else JobView.from_bytes(stored)
        if job is not None and job.ended_ts and job.ended_ts + memory_seconds * 1000 <= self._clock.now_ms():
            return None
        return job

    async def caught_up(self, seconds: float) -> bool:
        """Wait until the views hold all that is in the ledger now; False when they do not, or nobody can say."""
        try:
            tail = await self._ledger.tail()
            until = self._clock.monotonic() + seconds
            while tail is not None and await self._store.cursor() < tail.seq:
                if self._clock.monotonic() >= until:
                    return False
                await self._clock.sleep(LOOK_SECONDS)
        except KernelError:
            return False
        return tail is not None
