"""Answers about when jobs start, beside those in `operations.models`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from tessera.gateway.operations.models import AsOf, SpecDifference
from tessera_schemas.base import Lenient, Millis, Strict
from tessera_schemas.job import JobSpec
from tessera_schemas.shard.quotes import QuoteScores, StartQuote


class WaitingQuote(Lenient):
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
    items: tuple[WaitingQuote, ...]
    next: str | None = None


class PoolScores(QuoteScores):
    """How quotes of a pool's jobs held."""

    pool: str


class ScoreList(Lenient):
    as_of: AsOf
    ts: Annotated[int, Field(description="Time of the state up to which quotes are scored; 0: none are")]
    items: tuple[PoolScores, ...]


class QuoteBody(Strict):
    """A job as it would be submitted."""

    spec: JobSpec
    changes: Annotated[
        bool, Field(description="Look for changes of the spec after which it would start earlier; each is tried")
    ] = False


class QuoteEnvelope(Strict):
    """The body of a quote as far as the gateway reads it: the spec is admission's to judge, with all reasons."""

    spec: dict[str, Any]
    changes: bool = False


class EarlierStart(Lenient):
    """A change of the spec, and when the changed job would start; `kind`, `role` and `value` are as in `changes`."""

    kind: str
    text: str
    role: str = ""
    value: str = ""
    quote: StartQuote
    cost_micros: int = 0
    differences: Annotated[tuple[SpecDifference, ...], Field(description="Fields of the spec that differ")]


class SpecQuote(Lenient):
    """When a job would start if it were submitted now, and what its run would take and cost; nothing is stored."""

    as_of: AsOf
    pool: str
    quote: StartQuote
    length_ms: Annotated[
        int, Field(description="Expected length of a run; 0 where no such run was seen and there is no time limit")
    ]
    length_rests_on: Annotated[
        Literal["learnt_runtimes", "time_limits", ""], Field(description="Ground of the length")
    ] = ""
    cost_micros: Annotated[
        int,
        Field(description="Cost of that length on the dearest flavor that it may get, in millionths of the currency"),
    ] = 0
    currency: str = ""
    changes: Annotated[tuple[EarlierStart, ...], Field(description="The cheapest for the job's owner first")] = ()
    tried: Annotated[int, Field(description="Number of changes that were tried")] = 0
