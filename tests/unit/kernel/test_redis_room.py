"""How full Redis is becomes a metric, and one that does not answer stops nothing."""

import asyncio

from tessera.kernel.errors import Transient
from tessera.kernel.redis.room import LOOK_SECONDS, watching_redis
from tessera.kernel.service.metrics import Metrics
from tessera.testkit.sim.loop import VirtualClock, VirtualLoop


def test_what_redis_holds_and_may_hold_is_measured_again_and_again() -> None:
    loop, metrics, held = VirtualLoop(), Metrics("projection"), [10]

    async def look() -> tuple[int, int]:
        if not held:
            raise Transient("Redis is away")
        return held[0], 100

    def shown() -> tuple[float | None, float | None]:
        value = metrics.registry.get_sample_value
        return value("tessera_redis_bytes"), value("tessera_redis_bytes_max")

    async def main() -> None:
        async with watching_redis(look, metrics, VirtualClock(loop)):
            await asyncio.sleep(1)
            assert shown() == (10, 100)
            held.clear()
            await asyncio.sleep(LOOK_SECONDS)
            assert shown() == (10, 100)
            held.append(30)
            await asyncio.sleep(LOOK_SECONDS)
            assert shown() == (30, 100)

    loop.run_until_complete(main())
    loop.close()
