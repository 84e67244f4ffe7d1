"""Limits of a tenant, and how its history counts beside what it holds."""

from itertools import pairwise
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from tessera_schemas.base import Count, Positive, Strict, later

YEAR_SECONDS = 31_536_000


class PodAmounts(Strict):
    """CPU and memory of one pod, sidecars and init containers included. None: nothing is said."""

    cpu_milli: Annotated[Positive | None, Field(description="Thousandths of a CPU core")] = None
    memory_bytes: Annotated[Positive | None, Field(description="Bytes of memory")] = None


class PodMaximum(PodAmounts):
    """The same, and GPUs of one pod: whole ones, shares and instances, without its claims."""

    gpus: Annotated[Count | None, Field(description="GPUs; a share counts as its part of one")] = None


class Limits(Strict):
    """Limits of one tenant. None: no limit."""

    jobs: Annotated[Positive | None, Field(description="Number of jobs that have not ended")] = 10_000
    gpus: Annotated[Positive | None, Field(description="GPUs requested by jobs that have not ended")] = None
    gpus_per_job: Annotated[Positive | None, Field(description="GPUs that one job may request")] = None
    pods_per_job: Annotated[Positive | None, Field(description="Pods that one job may request")] = None
    pods: Annotated[
        Positive | None, Field(description="Pods of jobs that have not ended, elastic ones at their largest")
    ] = later(None)
    services: Annotated[
        Count | None, Field(description="Services that have not ended; their replicas count as jobs and pods")
    ] = later(None)
    sessions: Annotated[Count | None, Field(description="Sessions of all users together that have not ended")] = later(
        None
    )
    sessions_per_user: Annotated[
        Count | None,
        Field(description="Sessions (notebooks, workspaces, terminals) of each user that have not ended"),
    ] = later(None)
    pod_default: Annotated[
        PodAmounts, Field(description="CPU and memory of submitted pods that say none; else a share of a node")
    ] = later(PodAmounts())
    pod_min: Annotated[PodAmounts, Field(description="Least CPU and memory that a pod may ask for")] = later(
        PodAmounts()
    )
    pod_max: Annotated[PodMaximum, Field(description="Most CPU, memory and GPUs that a pod may ask for")] = later(
        PodMaximum()
    )
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

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for name in ("cpu_milli", "memory_bytes"):
            bounds = (("pod_min", self.pod_min), ("pod_default", self.pod_default), ("pod_max", self.pod_max))
            said = [(where, amount) for where, of in bounds if (amount := getattr(of, name)) is not None]
            for (low, less), (high, more) in pairwise(said):
                if less > more:
                    raise ValueError(f"{low}.{name}: {less} is more than {more} of {high}")
        return self


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
