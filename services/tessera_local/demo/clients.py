"""The tenant's side: submits a few at a time, and remembers what was acknowledged, answered and refused."""

import asyncio
from collections import Counter
from collections.abc import Sequence

from tessera.client.outcomes import Refused
from tessera.client.sending.sdk import Tessera
from tessera.kernel.ports import Clock
from tessera_local.demo.picture import Picture
from tessera_schemas.base import job_id
from tessera_schemas.job import JobSpec

AT_ONCE = 32


class Clients:
    """`begun_ms` says per job when its submit began."""

    def __init__(self, tessera: Tessera, picture: Picture, clock: Clock) -> None:
        self._tessera, self._picture, self._clock = tessera, picture, clock
        self._turn = asyncio.Semaphore(AT_ONCE)
        self.begun_ms: dict[str, int] = {}
        self.acknowledged: list[tuple[str, str]] = []
        self.reasons: Counter[str] = Counter()

    async def submit(self, specs: Sequence[JobSpec]) -> None:
        """Returns once all of them are stored and answered."""
        async with asyncio.TaskGroup() as group:
            for spec in specs:
                group.create_task(self._submit(spec))

    async def _submit(self, spec: JobSpec) -> None:
        key, tenant = f"demo-{spec.name}", self._tessera.tenant
        async with self._turn:
            id_ = job_id(self._tessera.shard, tenant, key)
            self.begun_ms[id_] = self._clock.now_ms()
            try:
                await self._tessera.submit(spec, key)
            except Refused as refused:
                self._picture.refuse(id_)
                self.reasons.update(
                    f"{reason.code}: {reason.detail or reason.sentence()}" for reason in refused.reasons
                )
            self.acknowledged.append((tenant, key))

    @property
    def all_ended(self) -> bool:
        """True when events, or the answer to the submit, have shown the end of every job begun so far."""
        return all(self._picture.ended(id_) for id_ in self.begun_ms)
