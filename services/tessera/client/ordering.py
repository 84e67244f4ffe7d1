"""Orders about what is there already: who gives them, which job is meant, sending one, and seeing it carried out."""

from collections.abc import Awaitable, Callable

from tessera.client.outcomes import Exit, Failure, Refused
from tessera.client.shard_views import ENDED, ShardViews
from tessera.client.where import Where
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient
from tessera.kernel.messaging.requests import Asking
from tessera.kernel.provisioning.credential_files import Credential
from tessera_schemas import subjects
from tessera_schemas.base import Strict
from tessera_schemas.reasons import Code

PUBLISH_SECONDS = 60.0
SEEN_SECONDS = 5.0
POLL_SECONDS = 0.05
ID_CHARACTERS = 20


def choose_identity(where: Where, identity: str | None) -> Credential:
    """
    The identity that sends a job command: the named one, else the only credential, else the operator. Raises Failure.
    """
    return where.identity(identity) if identity else where.single or where.identity(subjects.OPERATOR)


async def find_live_job(where: Where, who: Credential, named: str, doing: str) -> str:
    """
    The id of a live job by its id, the beginning of one, or its name. Raises Failure.

    Looked up as the operator, where he is at hand; a tenant alone must name its job by the whole id. `doing` ends the
    sentence about a job that has ended.
    """
    whole = len(named) == ID_CHARACTERS and named.isalnum()
    if not where.can_be(subjects.OPERATOR):
        if whole:
            return named
        raise Failure(Exit.USAGE, f"job {named}: {who.identity.name} cannot look jobs up; name it by its whole id")
    try:
        async with where.store(where.identity(subjects.OPERATOR)) as store:
            found = await ShardViews(store).job(named)
    except (Failure, Transient):
        if whole:
            return named  # the views may be behind or away, and the order is stored all the same
        raise
    if found.phase in ENDED:
        raise Failure(Exit.CONFLICT, f"job {found.job_id}: it is {found.phase} already; there is nothing to {doing}")
    return found.job_id


async def give(where: Where, who: Credential, command: Strict, job: str = "") -> bool:
    """Store the order; False when nobody has answered yet. Raises Refused, or Failure when there is no such job."""
    operator = who.identity.role == subjects.OPERATOR
    subject = subjects.control(where.shard) if operator else subjects.submit(where.shard, who.identity.name)
    async with where.bus(who) as bus:
        asking = await Asking.open(bus, who.identity.name)
        answer = await asking.ask(subject, command, publish_seconds=PUBLISH_SECONDS)
    if answer is not None and not answer.accepted:
        if any(reason.code == Code.NO_SUCH_JOB for reason in answer.reasons):
            raise Failure(Exit.NOT_FOUND, f"job {job}: there is none; see `tessera ls`")
        raise Refused(answer.reasons, job)
    return answer is not None


async def seen(
    where: Where, condition: Callable[[ShardViews], Awaitable[bool]], seconds: float = SEEN_SECONDS
) -> bool | None:
    """Whether the views show it within so many seconds; None where nobody here may read them."""
    if not where.can_be(subjects.OPERATOR):
        return None
    clock = SystemClock()
    until = clock.monotonic() + seconds
    async with where.store(where.identity(subjects.OPERATOR)) as store:
        while True:
            try:
                if await condition(ShardViews(store)):
                    return True
            except Transient:
                pass
            if clock.monotonic() >= until:
                return False
            await clock.sleep(POLL_SECONDS)
