"""Job commands: who sends them, which job is meant, sending one, and seeing it carried out."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from tessera.client.connect.connecting import api_of, open_bus, views_of
from tessera.client.connect.shard_views import ENDED, ShardViews, is_whole_id
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure, Refused
from tessera.client.views.rendering import notify
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient
from tessera_schemas import subjects
from tessera_schemas.base import Strict
from tessera_schemas.commands import CancelJob
from tessera_schemas.reasons import Code
from tessera_schemas.views import JobView
from tessera_schemas.work.arrays import INDEX_MAX, task_id

if TYPE_CHECKING:
    from tessera.kernel.provisioning.credential_files import Credential

T = TypeVar("T")
PUBLISH_SECONDS = 60.0
SEEN_SECONDS = 5.0
POLL_SECONDS, SEEN_POLL_SECONDS = 0.05, 0.1


def choose_identity(where: Where, identity: str | None) -> "Credential":
    """
    The identity that sends a job command: the named one, else the only credential, else the operator. Raises Failure.
    """
    return where.identity(identity) if identity else where.single or where.identity(subjects.OPERATOR)


def check_operator(where: Where, identity: str | None, doing: str, what: str) -> None:
    """Raises Failure where the identity that sends is a tenant's; `what` is an operator's alone to do."""
    who = choose_identity(where, identity)
    if who.identity.role != subjects.OPERATOR:
        raise Failure(Exit.USAGE, f"{doing}: {who.identity.name} is a tenant; only operators {what}: --as operator")


async def find_job_id(where: Where, named: str, doing: str = "") -> str:
    """The id of a job, as `find_job` has it."""
    return (await find_job(where, named, doing))[0]


async def find_job(where: Where, named: str, doing: str = "") -> tuple[str, str]:
    """
    The id of a job by its id, the beginning of one, or its name, and the Kubernetes owner of its pods. Raises Failure.

    `doing` is the verb of a command for live jobs: then an ended one is a Failure, too. A whole id needs no list: with
    it a command is sent on NATS while no gateway answers.
    """
    if is_whole_id(named) and not doing:
        return named, ""
    try:
        views = views_of(where)
        if doing and not is_whole_id(named):
            found = await views.live_job(named)
        else:
            found = await (views.job(named) if doing else views.work(named))
    except (Failure, Transient) as error:
        away = not isinstance(error, Failure) or error.code is Exit.UNAVAILABLE
        if whole := named if is_whole_id(named) else _task_by_whole_id(named) if away else "":
            return whole, ""  # the views may be behind or away, and the command is stored all the same
        raise
    if doing and found.phase in ENDED:
        raise Failure(Exit.CONFLICT, f"job {found.job_id}: has ended ({found.phase}); there is nothing to {doing}")
    return found.job_id, found.owner


def describe_cancelled_owner(owner: str) -> str:
    """What becomes of the owner of a cancelled job's pods, and who else would make pods in their place."""
    if owner.startswith("Pod/"):
        whoever = "a Deployment, StatefulSet or Job that made it makes another one, which is a new job"
        return f"{owner} is evicted; {whoever}: scale that down (kubectl scale --replicas=0) or delete it"
    return f"{owner} is suspended, or its pods are evicted; to be rid of it delete it in Kubernetes"


def _task_by_whole_id(named: str) -> str:
    """Id of a task that is named by its array's whole id and its index; "" for other names."""
    of, _, index = named.rpartition("_")
    is_task = is_whole_id(of) and index.isascii() and index.isdigit() and int(index) <= INDEX_MAX
    return task_id(of, int(index)) if is_task else ""


async def find_awaited_id(where: Where, named: str) -> str:
    """As `find_job_id`, for a job that another waits for: also a task of an array that is not queued yet."""
    if is_whole_id(named):
        return named
    views = views_of(where)
    return await views.id_to_wait_for(named)


async def cancel_many(where: Where, identity: str | None, jobs: Sequence[str], why: str) -> Exit | None:
    """Cancel jobs by their whole ids; what is against one keeps no other from its end, and is said."""
    if where.login is None or identity is not None:

        async def order(job: str) -> None:
            await send(where, identity, CancelJob(kind="cancel_job", v=1, job_id=job, why=why), job)

        return await each(jobs, order)
    from tessera.client.sending.sending_by_api import cancel_by_api

    failed = await cancel_by_api(api_of(where), jobs, why)
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
    if where.login is not None and identity is None:
        from tessera.client.sending.sending_by_api import ACTIONS, order_by_api

        api = api_of(where)
        if all(getattr(command, "kind", "") in ACTIONS for _, command in commands):
            for job, command in commands:
                answered &= await order_by_api(api, command, job)
            return answered
    from tessera.kernel.messaging.requests import Requester

    who = choose_identity(where, identity)
    operator = who.identity.role == subjects.OPERATOR
    subject = subjects.control(where.shard) if operator else subjects.submit(where.shard, who.identity.name)
    async with open_bus(where, who) as bus:
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


async def job_now(where: Where, job: str) -> JobView | None:
    """The job as the views show it; None where they cannot be read, or do not show it."""
    try:
        return await views_of(where).job(job)
    except (Failure, Transient):
        return None


async def is_seen(where: Where, condition: Callable[[ShardViews], Awaitable[bool]]) -> bool | None:
    """Whether the views show it within SEEN_SECONDS; None where no gateway answers, without which commands go on."""
    has_answered = False

    async def see() -> bool:
        nonlocal has_answered
        found = await condition(views)
        has_answered = True
        return found

    try:
        views = views_of(where)
        seen = await poll(see, SEEN_SECONDS, SEEN_POLL_SECONDS)
    except Failure as failure:
        if failure.code not in (Exit.UNAVAILABLE, Exit.USAGE):
            raise
        return None
    return seen if has_answered else None
