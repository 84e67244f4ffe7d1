"""
`update`: another time limit, begin, name, or other jobs to wait for; `roles`: sizes of a run's roles; `resize`: CPU and
memory of its pods.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from tessera.client.commands.context import AccessOptions, command
from tessera.client.commands.jobs.orders import order_job
from tessera.client.connect.shard_views import ID_CHARACTERS, ShardViews
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure
from tessera.client.sending import ordering
from tessera.client.sending.job_input import read_command
from tessera.client.slurm import values
from tessera.client.views.completing import JobReference
from tessera.kernel.clock import SystemClock
from tessera.kernel.ids import random_key
from tessera_schemas.commands import UpdateJob
from tessera_schemas.text import quantities
from tessera_schemas.text.quantities import QuantityError
from tessera_schemas.views import JobView
from tessera_schemas.work.spec_changes import SpecChanges

NONE = "none"
REFUSED_LATE = ", unless the ledger refused it, as the story in `tessera explain JOB` says"


@command
async def update(
    at: AccessOptions,
    job: JobReference,
    time_limit: Annotated[str | None, typer.Option(help="Such as 2h or 90m; none: without")] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION:JOB", help="Wait for another job, as in afterok:JOB; several times; none: for none"
        ),
    ] = None,
    begin: Annotated[
        str | None, typer.Option(help="Such as now+2hours, 16:00 or 2030-01-31T12:00; now: at once")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Its new name")] = None,
) -> Exit | None:
    """Change a job that waits, an array with its tasks that wait; of one that runs, lower the time limit."""
    said: dict[str, Any] = {}
    if time_limit is not None:
        said["time_limit_seconds"] = _seconds(time_limit)
    if begin is not None:
        said["begin_ts"] = _begin_ms(begin)
    if after:
        said["after"] = await _dependencies(at.find(), after)
    if name is not None:
        said["name"] = name
    if not said:
        raise Failure(Exit.USAGE, "update: no change is named; add --time-limit, --begin, --after or --name")
    seen = list[JobView]()

    def is_so(view: JobView) -> bool:
        seen.append(view)
        return shows(view, seen[0], changes)

    def asked_of(found: str) -> UpdateJob:
        asked: UpdateJob = read_command({"kind": "update_job", "job_id": found, **said})
        return asked

    changes = asked_of("a" * ID_CHARACTERS).changes
    return await order_job(
        at,
        job,
        "update",
        asked_of,
        is_so,
        lambda view: f"has {_words(changes)} now",
        otherwise=REFUSED_LATE,
    )


@command
async def roles(
    at: AccessOptions,
    job: JobReference,
    steps: Annotated[list[str], typer.Argument(metavar="ROLE=STEP", help="Such as trainer=-1 rollout=+1")],
    have: Annotated[
        list[str] | None, typer.Option(metavar="ROLE=PODS", help="Refuse where the role has another number of pods now")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Key of the request: repeated, it changes nothing")] = None,
) -> Exit | None:
    """Move pods of a running job between its elastic roles: what some give up the others get, and nobody else."""
    where = at.find()
    named = {"roles": _numbers("roles", steps), "have": _numbers("--have", have or ()), "key": key or random_key()}
    found = await ordering.find_job_id(where, job, "shift the roles of")
    order = read_command({"kind": "shift_roles", "job_id": found, **named})
    answered = await ordering.send(where, at.identity, order, found)
    said = "accepted" if answered else "stored, and not answered yet"
    print(f"job {found}: the request is {said}; `tessera explain {found}` tells how far it is, the ledger why not")
    return None


@command
async def resize(
    at: AccessOptions,
    job: JobReference,
    cpu: Annotated[str | None, typer.Option(help="CPU of each pod, such as 4 or 1500m")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory of each pod, such as 16Gi")] = None,
    role: Annotated[str | None, typer.Option(help="Role of the pods, where the job has several")] = None,
    key: Annotated[str | None, typer.Option(help="Key of the request, for its record")] = None,
) -> Exit | None:
    """Give the pods of a running job other CPU and memory in place: no pod is stopped."""
    if cpu is None and memory is None:
        raise Failure(Exit.USAGE, "resize: no size is named; add --cpu, --memory or both")
    size: dict[str, Any] = {"role": role} if role else {}
    try:
        size |= {} if cpu is None else {"cpu_milli": quantities.cpu_milli(cpu)}
        size |= {} if memory is None else {"memory_bytes": quantities.memory_bytes(memory)}
    except QuantityError as error:
        raise Failure(Exit.USAGE, f"resize: {error}") from error
    where = at.find()
    found = await ordering.find_job_id(where, job, "resize the pods of")
    order = read_command({"kind": "resize_pods", "job_id": found, "key": key or random_key(), **size})
    answered = await ordering.send(where, at.identity, order, found)
    said = "accepted" if answered else "stored, and not answered yet"
    print(f"job {found}: the resize is {said}; `tessera explain {found}` tells how far it is, the ledger why not")
    return None


def _numbers(field: str, said: Sequence[str]) -> dict[str, int]:
    """Numbers by role, of texts such as trainer=-1. Raises Failure."""
    found = dict[str, int]()
    for text in said:
        name, _, number = text.partition("=")
        try:
            found[name] = int(number)
        except ValueError as error:
            raise Failure(Exit.USAGE, f"{field}: {text}: write ROLE=NUMBER, as in trainer=-1") from error
    return found


async def await_changes(where: Where, job: str, changes: SpecChanges, first: JobView | None) -> None:
    """
    Wait until the views show the changes of a job that they showed as `first` before. Raises Failure where they do not.
    """

    async def are_shown(views: ShardViews) -> bool:
        view = await views.job(job)
        return shows(view, first or view, changes)

    if await ordering.is_seen(where, are_shown) is False:
        late = f"stored, but not carried out after {ordering.SEEN_SECONDS:g} s{REFUSED_LATE}"
        raise Failure(Exit.GAVE_UP, f"job {job}: the update is {late}")


def shows(view: JobView, first: JobView, changes: SpecChanges) -> bool:
    """Whether the view shows all of the changes; what a job waits for may have come true since `first`."""
    holds = [changes.time_limit_seconds in (None, view.time_limit_seconds), changes.name in (None, view.name)]
    if changes.begin_ts is not None:
        holds.append(view.not_before in (changes.begin_ts, 0) or bool(view.attempt))
    if changes.after is not None:
        moved_on = view.after != first.after and {each.job for each in view.after} <= {
            each.job for each in changes.after
        }
        holds.append(view.after == changes.after or moved_on)
    return all(holds)


def _words(changes: SpecChanges) -> str:
    names = {"time_limit_seconds": "time limit", "begin_ts": "begin", "after": "jobs to wait for", "name": "name"}
    return "its new " + ", ".join(names[field] for field in changes.given)


def _seconds(text: str) -> int:
    try:
        return 0 if text == NONE else quantities.seconds(text)
    except QuantityError as error:
        raise Failure(Exit.USAGE, f"update: --time-limit: {error}; none: without one") from error


def _begin_ms(text: str) -> int:
    if text == "now":
        return 0
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000).astimezone()
    return values.begin_ms(values.Said("update", "begin", text), now)


async def _dependencies(where: Where, after: list[str]) -> list[dict[str, str]]:
    """Conditions on jobs by their ids; `none` alone is none. Raises Failure."""
    if after == [NONE]:
        return []
    pairs = [pair for text in after for pair in values.dependencies_of(values.Said("update", "after", text))]
    return [
        {"condition": condition, **({"job": await ordering.find_awaited_id(where, other)} if other else {})}
        for condition, other in pairs
    ]
