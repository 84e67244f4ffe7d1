"""Queries of the API as pydantic models, beside the bodies and answers in `models`; unknown fields are refused."""

from difflib import get_close_matches
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from tessera.engine.accounts.owners import GpuCause
from tessera_schemas.base import INT_MAX, JobName, Name, Strict
from tessera_schemas.cluster.device_claims import DevicesOfClass
from tessera_schemas.events import short_type, short_types

PAGE_MAX = 500
WAIT_SECONDS_MAX = 300
JobIdText = Annotated[str, StringConstraints(max_length=64)]

ListedPhase = Literal[
    "queued", "allocated", "binding", "running", "evicting", "succeeded", "failed", "cancelled", "refused"
]
# Phases of jobs, and what a submit is that became none: those are listed for operators.


ListOrder = Literal["newest", "live"]


class PageQuery(Strict):
    """A page of a list."""

    limit: Annotated[int, Field(ge=1, le=PAGE_MAX)] = 100
    cursor: Annotated[
        str, StringConstraints(max_length=200), Field(description="Cursor: `next` of the page before")
    ] = ""


class JobQuery(PageQuery):
    """Filter for a list of jobs."""

    tenant: Annotated[Name | None, Field(description="Tenant to list, for operators; tenants see their own")] = None
    queue: Name | None = None
    phase: Annotated[tuple[ListedPhase, ...], Field(max_length=16, description="Phases to list, any of these")] = ()
    name: JobName | None = None
    array: Annotated[JobIdText | None, Field(description="Array whose tasks to list, by their indexes")] = None
    tasks: Annotated[bool, Field(description="false: no tasks; their array stands for them")] = True
    search: Annotated[
        str,
        StringConstraints(max_length=100),
        Field(description="Text to find, in any case, in name, id, queue, tenant, owner or, of live jobs, user"),
    ] = ""
    named: Annotated[
        str,
        StringConstraints(max_length=100),
        Field(description="Name of jobs, their number, or the beginning of their id, of four characters at least"),
    ] = ""
    order: Annotated[
        ListOrder,
        Field(description="`newest` job first; or `live`: live jobs, refused work, ended jobs, each oldest first"),
    ] = "newest"
    count: Annotated[bool, Field(description="Count all jobs that match, on this page and on others")] = False


def known_type(text: str) -> str:
    """The type as subjects have it. Raises ValueError for one that no event has."""
    found = short_type(text)
    if found not in short_types():
        alike = get_close_matches(found, short_types(), 1)
        raise ValueError(f"no such event type; {f'is {alike[0]} meant?' if alike else 'see docs/contract.md'}")
    return found


EVENTS_MAX = 1_000


class EventQuery(Strict):
    """Filter for a stream of events, and where it begins and ends; without both from now on, for ever."""

    after: Annotated[
        int | None, Field(ge=0, le=INT_MAX, description="Event id to begin after; 0: all kept. `Last-Event-ID` wins")
    ] = None
    tenant: Annotated[Name | None, Field(description="Tenant of the events, for operators; tenants see their own")] = (
        None
    )
    job: JobIdText | None = None
    type: Annotated[
        tuple[Annotated[str, AfterValidator(known_type)], ...],
        Field(max_length=16, description="Event types, such as `job.allocated.v1`; empty: all"),
    ] = ()
    last: Annotated[
        int | None,
        Field(ge=1, le=EVENTS_MAX, description="Number of newest kept events to begin with; an `after` wins"),
    ] = None
    follow: Annotated[bool, Field(description="false: end at the newest event stored when the stream begins")] = True


class LogQuery(Strict):
    """One pod of a job, and the part of its log to read."""

    rank: Annotated[int, Field(ge=0, le=INT_MAX, description="Rank of the pod in the gang")] = 0
    attempt: Annotated[int | None, Field(ge=1, le=INT_MAX, description="Attempt of the run; left out: the newest")] = (
        None
    )
    follow: Annotated[bool, Field(description="Follow until the pod ends")] = False
    tail: Annotated[int, Field(ge=0, le=1_000_000, description="Number of newest lines; 0: all")] = 0
    since_seconds: Annotated[int, Field(ge=0, le=INT_MAX, description="Age in seconds of the oldest line; 0: all")] = 0


class WaitQuery(Strict):
    """Seconds to wait for a job's end."""

    timeout: Annotated[
        int,
        Field(ge=0, le=WAIT_SECONDS_MAX, description="Seconds to wait for the job's end before it is shown as it is"),
    ] = 60


class SpecQuery(Strict):
    """A change that `explain` offers as `submittable`, by its three fields; without a kind, the spec as it is."""

    kind: Name | None = None
    role: Annotated[str, StringConstraints(max_length=63), Field(description="Name of the role; empty: all")] = ""
    value: Annotated[str, StringConstraints(max_length=63), Field(description="New value")] = ""


class SlotQuery(Strict):
    """A time that is ahead; 0: now."""

    at: Annotated[
        int,
        Field(ge=0, le=INT_MAX, description="Milliseconds since the epoch at which pods are to start; 0: now"),
    ] = 0


class NoQuery(Strict):
    """No query."""


class UsageQuery(Strict):
    """The time to show, up to now."""

    hours: Annotated[
        int, Field(ge=1, le=366 * 24, description="Number of hours up to now; steps grow to an hour and a day")
    ] = 6
    resource: Annotated[Literal["gpu", "cpu", "memory"], Field(description="Resource to count")] = "gpu"
    by: Annotated[
        Literal["tenant", "project"], Field(description="Whose use `held` tells apart; projects by full hours or days")
    ] = "tenant"


def known_cause(text: str) -> str:
    """The cause itself. Raises ValueError for one that the account does not have."""
    if text not in set(GpuCause):
        raise ValueError(f"no such cause; there are {', '.join(GpuCause)}")
    return text


class AccountQuery(Strict):
    """The time to sum up, and by what; times are widened to full hours, or days where hours are not kept."""

    since: Annotated[int, Field(ge=0, le=INT_MAX, description="Begin in Unix milliseconds; 0: where it begins")] = 0
    until: Annotated[int, Field(ge=0, le=INT_MAX, description="End in Unix milliseconds; 0: where it ends")] = 0
    by: Annotated[
        Literal["tenant", "queue", "user", "project", "job", "flavor", "cause"], Field(description="Field to sum up by")
    ] = "tenant"
    cause: Annotated[
        tuple[Annotated[str, AfterValidator(known_cause)], ...],
        Field(max_length=32, description="Causes to list, such as `quota`; none: all"),
    ] = ()
    resource: Annotated[
        Literal["gpu", "cpu", "memory"] | DevicesOfClass,
        Field(description="Resource to sum up, or `class:NAME`: devices that jobs have by claims of that class"),
    ] = "gpu"
    step: Annotated[Literal["", "hours", "days"], Field(description="Steps of time to list apart; empty: none")] = ""
    format: Annotated[Literal["json", "csv"], Field(description="`csv`: one line per row and cause")] = "json"
