"""Job commands: who sends them, which job is meant, sending one, and seeing it carried out."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from tessera.client.connect.job_glance import ENDED
from tessera.client.connect.shard_views import ReadViews, is_whole_id
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure, Refused
from tessera.client.views.rendering import notify
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient
from tessera_schemas import subjects
from tessera_schemas.base import Strict
from tessera_schemas.commands import CancelJob
from tessera_schemas.reasons import Code
from tessera_schemas.work.arrays import INDEX_MAX, task_id

if TYPE_CHECKING:
    from tessera.kernel.provisioning.credential_files import Credential

T = TypeVar("T")
PUBLISH_SECONDS = 60.0
SEEN_SECONDS = 5.0
POLL_SECONDS = 0.05


def choose_identity(where: Where, identity: str | None) -> "Credential":
    """
    The identity that sends a job command: the named one, else the only credential, else the operator. Raises Failure.
    """
    return where.identity(identity) if identity else where.single or where.identity(subjects.OPERATOR)


async def find_job_id(where: Where, named: str, doing: str = "") -> str:
    """
    The id of a job by its id, the beginning of one, or its name. Raises Failure.

    `doing` is the verb of a command for live jobs: then an ended one is a Failure, too. Where nobody may read the
    views, a job is named by its whole id.
    """
    if not where.can_read():
        of, _, index = named.rpartition("_")
        if is_whole_id(named):
            return named
        if is_whole_id(of) and index.isascii() and index.isdigit() and int(index) <= INDEX_MAX:
            return task_id(of, int(index))
        raise Failure(Exit.USAGE, f"job {named}: these credentials cannot look jobs up; name it by its whole id")
    if is_whole_id(named) and not doing:
        return named
    try:
        async with where.views() as views:
            if doing and not is_whole_id(named):
                found = await views.live_job(named)
            else:
                found = await (views.job(named) if doing else views.work(named))
    except (Failure, Transient):
        if is_whole_id(named):
            return named  # the views may be behind or away, and the command is stored all the same
        raise
    if doing and found.phase in ENDED:
        raise Failure(Exit.CONFLICT, f"job {found.job_id}: has ended ({found.phase}); there is nothing to {doing}")
    return found.job_id


async def find_awaited_id(where: Where, named: str) -> str:
    """As `find_job_id`, for a job that another waits for: also a task of an array that is not queued yet."""
    if not where.can_read() or is_whole_id(named):
        return await find_job_id(where, named)
    async with where.views() as views:
        return await views.id_to_wait_for(named)


async def cancel_many(where: Where, identity: str | None, jobs: Sequence[str], why: str) -> Exit | None:
    """Cancel jobs by their whole ids; what is against one keeps no other from its end, and is said."""
    if where.commands_api is None or identity is not None:

        async def order(job: str) -> None:
            await send(where, identity, CancelJob(kind="cancel_job", v=1, job_id=job, why=why), job)

        return await each(jobs, order)
    from tessera.client.sending.sending_by_api import cancel_by_api

    failed = await cancel_by_api(where.commands_api, jobs, why)
    for job, reason in failed:
        notify(f"refused: job {job}: {reason.sentence()}")
    return Exit.REFUSED if failed else None


async def send(where: Where, identity: str | None, command: Strict, job: str = "") -> bool:
    """Store the command; False when nobody has answered yet. Raises Refused, or Failure when there is no such job."""
    return await send_all(where, identity, [(job, command)])


async def send_all(where: Where, identity: str | None, commands: Iterable[tuple[str, Strict]]) -> bool:
    """
    Store commands, each with the job that it is about, over one connection; False when not all were answered.

    Raises Refused, or Failure when there is no such job; then those after it are not sent.
    """
    commands, answered = list(commands), True
    if where.commands_api is not None and identity is None:
        from tessera.client.sending.sending_by_api import ACTIONS, order_by_api

        if all(getattr(command, "kind", "") in ACTIONS for _, command in commands):
            for job, command in commands:
                answered &= await order_by_api(where.commands_api, command, job)
            return answered
    from tessera.kernel.messaging.requests import Requester

    who = choose_identity(where, identity)
    operator = who.identity.role == subjects.OPERATOR
    subject = subjects.control(where.shard) if operator else subjects.submit(where.shard, who.identity.name)
    async with where.bus(who) as bus:
        requester = await Requester.open(bus, who.identity.name)
        for job, command in commands:
            answer = await requester.ask(subject, command, publish_seconds=PUBLISH_SECONDS)
            if answer is None:
                answered = False
            elif any(reason.code == Code.NO_SUCH_JOB for reason in answer.reasons):
                raise Failure(Exit.NOT_FOUND, f"job {job}: there is none; see `tessera ls`")
            elif not answer.accepted:
                raise Refused(answer.reasons, job)
    return answered


async def each(jobs: Iterable[str], order: Callable[[str], Awaitable[None]], quiet: bool = False) -> Exit | None:
    """Order about one job after the other, also where one fails; what failed is said, and the last such code."""
    say: Callable[[str], None] = (lambda _: None) if quiet else notify
    failed = None
    for named in jobs:
        try:
            await order(named)
        except Refused as refused:
            say(f"refused: job {named}: {refused}")
            failed = Exit.REFUSED
        except Failure as failure:
            say(f"error: {failure}")
            failed = failure.code
    return failed


async def poll(
    condition: Callable[[], Awaitable[bool]], seconds: float | None, every_seconds: float = POLL_SECONDS
) -> bool:
    """Ask until it holds, or False after so many seconds; whoever answers being away only makes it longer."""
    clock = SystemClock()
    until = None if seconds is None else clock.monotonic() + seconds
    while True:
        try:
            if await condition():
                return True
        except Transient:
            pass
        if until is not None and clock.monotonic() >= until:
            return False
        await clock.sleep(every_seconds)


async def unless_away(reading: Awaitable[T]) -> T | None:
    """The result of reading the views; None where nobody answers, as commands on NATS go on without a gateway."""
    try:
        return await reading
    except Failure as failure:
        if failure.code is not Exit.UNAVAILABLE:
            raise
        return None


async def is_seen(where: Where, condition: Callable[[ReadViews], Awaitable[bool]]) -> bool | None:
    """Whether the views show it within SEEN_SECONDS; None where nobody here may read them."""
    if not where.can_read():
        return None

    async def see() -> bool:
        async with where.views() as views:
            return await poll(lambda: condition(views), SEEN_SECONDS)

    return await unless_away(see())
