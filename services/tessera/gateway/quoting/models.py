"""Answers about when jobs start, beside those in `operations.models`."""

from typing import Annotated

from pydantic import Field

from tessera.gateway.operations.models import AsOf
from tessera_schemas.base import Lenient, Millis
from tessera_schemas.shard.quotes import QuoteScores, StartQuote


class QuotedJob(Lenient):
    """A job that waits for GPUs, and when it starts."""

    job_id: str
    name: str
    tenant: str
    queue: str
    pool: str
    user: Annotated[str, Field(description="User within the tenant, where the job names one")] = ""
    gpu_milli: int
    submitted_ts: Millis
    quote: StartQuote


class QuoteList(Lenient):
    """Quotes as of `ts`, which is 0 while there are none; without `next` these are the last."""

    as_of: AsOf
    ts: Annotated[int, Field(description="Time of the state from which the quotes were drawn")]
    items: tuple[QuotedJob, ...]
    next: str | None = None


class PoolScores(QuoteScores):
    """How quotes of a pool's jobs held."""

    pool: str


class ScoreList(Lenient):
    as_of: AsOf
    ts: Annotated[int, Field(description="Time of the state up to which quotes are scored; 0: none are")]
    items: tuple[PoolScores, ...]
