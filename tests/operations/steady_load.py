"""Jobs of both tenants that come and end while something is done to a shard; each submit of them is acknowledged."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle

from tessera_schemas.job import JobSpec
from tests.e2e.live import TENANTS, Live, eventually, job

KINDS: tuple[JobSpec, ...] = (
    job("single", seconds=0.3),
    job("gang", gpus=2, replicas=3, seconds=0.4),
    job("failing", seconds=0.2, exit_code=1),
)


@asynccontextmanager
async def load(live: Live) -> AsyncIterator[None]:
    """Submit jobs of both tenants meanwhile: each submit is acknowledged, or the test fails."""
    submitted: list[str] = []
    over = asyncio.Event()

    async def submit() -> None:
        for spec, tenant in zip(cycle(KINDS), cycle(TENANTS), strict=False):
            submitted.append((await live.submit(spec, tenant, answer_seconds=0)).job_id)
            if over.is_set():
                return
            await asyncio.sleep(0.3)

    submitting = asyncio.create_task(submit())
    try:
        await eventually(lambda: len(submitted) >= 4 or submitting.done(), "the load has begun")
        yield
    finally:
        over.set()
        await submitting
    await live.until_ended(*submitted)
    phases = {(live.state.ended.get(job_id).name, live.phase(job_id)) for job_id in submitted}  # type: ignore[union-attr]
    assert phases == {("single", "succeeded"), ("gang", "succeeded"), ("failing", "failed")}
