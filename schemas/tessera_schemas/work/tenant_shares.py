"""Limits of a tenant, and how its history counts beside what it holds."""

from typing import Annotated

from pydantic import AfterValidator, Field

from tessera_schemas.base import Count, Positive, Strict, later

YEAR_SECONDS = 31_536_000


class Limits(Strict):
    """Limits of one tenant. None: no limit."""

    jobs: Annotated[Positive | None, Field(description="Number of jobs that have not ended")] = 10_000
    gpus: Annotated[Positive | None, Field(description="GPUs requested by jobs that have not ended")] = None
    gpus_per_job: Annotated[Positive | None, Field(description="GPUs that one job may request")] = None
    pods_per_job: Annotated[Positive | None, Field(description="Pods that one job may request")] = None
    submits_per_second: Annotated[
        Positive | None,
        Field(le=1_000_000, description="Sustained rate of submits; as many commands about jobs are allowed besides"),
    ] = later(100)
    submits_burst: Annotated[Positive, Field(le=10_000_000, description="Submits at once after a pause")] = later(2_000)
    bytes_per_second: Annotated[
        Positive | None, Field(description="Sustained rate of bytes submitted; the ledger keeps them for good")
    ] = later(256 * 1024)
    bytes_burst: Annotated[Positive, Field(description="Bytes allowed at once after a pause")] = later(64 * 1024**2)
    time_limit_max_seconds: Annotated[
        Positive | None, Field(le=YEAR_SECONDS, description="Longest time limit of a job")
    ] = later(None)


def _half_life(seconds: int) -> int:
    if 0 < seconds < 3600:  # of such a history most is held still, which counts by itself; often meant as days
        raise ValueError("is less than an hour; write 3600 or more, 604800 for a week, 0 for none")
    return seconds


class FairShare(Strict):
    """History in the order of the line, beside what is held now."""

    half_life_seconds: Annotated[
        Count,
        Field(le=YEAR_SECONDS, description="Seconds after which used GPU time counts half, from 3600; 0: no history"),
        AfterValidator(_half_life),
    ] = later(0)
    by_price: Annotated[
        bool, Field(description="Used GPU time counts by its flavor's price over the dearest; 1 without a price")
    ] = later(False)
