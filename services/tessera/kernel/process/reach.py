"""
Readiness of a service by what it needs at hand: each stream that it reads or writes, and Redis where views are read.

A stream that was deleted, or has no leader, leaves everybody connected and idle, so that only a look tells. So does
one that begins anew: who followed it waits for a number that will not come for long, and ends to begin anew with it.
"""

from functools import partial

import structlog

from tessera.kernel.errors import Conflict, Denied, KernelError
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.task_group import gather_all
from tessera_schemas.shard.services import BY_NAME, RedisUse
from tessera_schemas.shard.streams import used_by

LOOK_SECONDS = 5.0
LEDGER_CHECK = "stream LEDGER"

log = structlog.get_logger()


class Reach:
    """
    A check of `/readyz` for each stream of the service (`stream ORDERS`), and one of Redis for readers of views.

    A Redis that is away is no reason not to be ready, since readers do what they can without it; one that refuses us
    stays so until somebody mends it.
    """

    def __init__(self, ports: Ports, shard: str, service: str) -> None:
        self._ports = ports
        self._streams = {spec.name: f"stream {kind}" for kind, spec in used_by(service, shard).items()}
        self._followed = {
            spec.name for spec in used_by(service, shard).values() if spec.live and service in spec.readers
        }
        self._ends: dict[str, int] = {}
        self._gone_back: set[str] = set()
        self._trouble: dict[str, str] = {}
        self._reads_views = service in BY_NAME and BY_NAME[service].redis is RedisUse.READS
        for check in (*self._streams.values(), *(("redis",) if self._reads_views else ())):
            ports.health.check(check, partial(self._trouble.get, check))

    async def watch(self) -> None:
        """Look every five seconds until cancelled. Raises Conflict when a stream that is followed began anew."""
        while True:
            await self.look()
            await self._ports.clock.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """One request for each stream and one to Redis, all at once."""
        looks = [self._look_at_stream(name, check) for name, check in self._streams.items()]
        await gather_all(*looks, *([self._look_at_redis()] if self._reads_views else []))

    async def _look_at_stream(self, name: str, check: str) -> None:
        try:
            end = (await self._ports.bus.usage(name)).last_seq
        except KernelError as error:
            way_out = "restore its newest copy" if check == LEDGER_CHECK else "`tessera init` makes it anew"
            self._note(check, f"{error}; if it is gone, {way_out}")
        else:
            self._note(check, "")
            self._hold_against_before(name, end)

    def _hold_against_before(self, name: str, end: int) -> None:
        """One look is not enough: a deposed leader of the stream answers with what it had."""
        if end >= self._ends.get(name, 0):
            self._ends[name] = end
            self._gone_back.discard(name)
        elif name in self._gone_back:
            raise Conflict(f"{name} ended at {self._ends[name]}, and ends at {end} now: it was made anew or restored")
        elif name in self._followed:
            self._gone_back.add(name)

    async def _look_at_redis(self) -> None:
        try:
            await self._ports.store.cursor()
        except Denied as error:
            self._note("redis", f"{error}; load the ACL file that `tessera init` wrote, or mend the credentials")
        except KernelError:
            pass  # whoever asks for views is told
        else:
            self._note("redis", "")

    def _note(self, check: str, trouble: str) -> None:
        if trouble and check not in self._trouble:
            log.error("out_of_reach", check=check, error=trouble)
        if trouble:
            self._trouble[check] = trouble
        elif self._trouble.pop(check, None):
            log.info("in_reach_again", check=check)
