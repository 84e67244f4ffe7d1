"""Jobs that wait, and their quotes as projection keeps them in Redis."""

from tessera.kernel.clock import SystemClock
from tessera_schemas.base import job_id
from tessera_schemas.shard.quotes import KeptQuotes, QuoteScores, StartQuote
from tests.builders import SHARD, admitted, job_spec, role
from tests.unit.gateway.gateway_world import World

DAY, HALF_HOUR = 86_400_000, 1_800_000
SCORES = QuoteScores(
    quotes=40,
    held_by_50=510,
    held_by_80=800,
    held_by_95=950,
    held_in_80=790,
    held_in_95=940,
    error_ms=60_000,
    naive_ahead_ms=240_000,
    naive_running_ms=180_000,
    naive_class_ms=150_000,
)


def job_of(key: str, tenant: str = "lab") -> str:
    return job_id(SHARD, tenant, key)


def kept(days: dict[str, int], now_ms: int, **scores: QuoteScores) -> KeptQuotes:
    """Quotes whose medians are so many days ahead, and so much more as a test may take."""
    quotes = {
        job: StartQuote(
            ts=now_ms,
            by_10_ts=now_ms,
            by_50_ts=now_ms + ahead * DAY + HALF_HOUR,
            by_80_ts=now_ms + 2 * ahead * DAY + HALF_HOUR,
            by_95_ts=now_ms + 3 * ahead * DAY + HALF_HOUR,
        )
        for job, ahead in days.items()
    }
    return KeptQuotes(n=7, ts=now_ms, quotes=quotes, scores=scores)


async def waiting(world: World, **days: int) -> str:
    """Jobs of `lab` by key, and one of `other`, that wait for two that run; returns a token of `lab`."""
    whole = job_spec(role(gpus=8))
    for key in ("runs", "runs-too"):
        world.committed.commit(admitted(key, whole))
        world.committed.start(job_of(key), key)
    world.committed.commit(*(admitted(key, whole) for key in days), admitted("theirs", whole, tenant="other"))
    world.committed.commit(orders=(world.committed.line(),))
    await world.publish_what_is_committed()
    told = {job_of(key): ahead for key, ahead in days.items()} | {job_of("theirs", "other"): 1, job_of("gone"): 2}
    world.views.quotes = kept(told, SystemClock().now_ms(), default=SCORES, elsewhere=SCORES).model_dump_json().encode()
    return world.token("lab")
