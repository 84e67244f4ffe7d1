"""
Who may publish, hear, read and write what on NATS and Redis: the whole matrix, held against real servers.

Tenants `acme` (with a durable subscriber `ci`) and `other`, in the shard `main`.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable

from nats.aio.client import Client
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

from tessera.kernel.provisioning.credential_files import Login
from tessera_schemas.shard import keys, services

SERVICES = frozenset(services.SERVICES)
FOLLOWERS = SERVICES - {"admission", "notifier"} | {"operator"}
MAKERS = frozenset({"operator", "administrator"})
"""Those who see every stream, and make consumers."""
TENANT_NEXT = "$JS.API.CONSUMER.MSG.NEXT.EVENTS_main.acme_ci"
PUBLISH: dict[str, set[str] | frozenset[str]] = {
    "submit.main.acme": {"acme", "gateway"},
    "submit.main.other": {"other", "gateway"},
    "submit.main.acme.kubernetes": {"binder"},
    "submit.main.acme.operator": {"gateway"},
    "submit.main.acme.other": set(),
    "submit.second.acme": set(),
    "control.main": {"operator"},
    "control.main.health": {"gateway"},
    "control.main.other": set(),
    "control.second.health": set(),
    **{
        f"fact.main.{name}.x": {name} & {"admission", "binder", "preemption", "reclamation"}
        for name in sorted(SERVICES)
    },
    "order.main.pool": {"queueing"},
    "ledger.main": {"scheduler"},
    "events.main.acme.q.job.admitted.v1": {"projection"},
    "snap.main.manifest": {"projection"},
    "snap.main.generation.manifest": {"projection", "administrator"},
    "dlq.main.admission.SUBMIT_main.1": {"admission"},
    "dlq.main.scheduler.FACTS_main.1": {"scheduler"},
    "dlq.main.notifier.EVENTS_main.1": {"notifier"},
    "$JS.API.CONSUMER.MSG.NEXT.EVENTS_main.notifier_acme_hook": MAKERS,  # until `apply` declares that webhook
    **{f"lease.main.{name}.leader": {name} for name in sorted(SERVICES)},
    "live.ledger.main": set(),
    "live.events.main.acme.q.x": set(),
    "login.main.acme": {"acme"},
    "login.main.other": {"other"},
    "login.second.acme": set(),
    "_INBOX.acme.x": {"admission"},
    "_INBOX.acme.login.x": {"admission", "gateway"},
    "_INBOX.scheduler.x": {"admission"},
    "$SYS.REQ.SERVER.PING": set(),
    "$JS.API.STREAM.CREATE.EVIL": {"administrator"},
    "$JS.API.STREAM.UPDATE.LEDGER_main": {"administrator"},
    "$JS.API.STREAM.DELETE.LEDGER_main": set(),
    "$JS.API.STREAM.PURGE.SUBMIT_main": set(),
    "$JS.API.STREAM.PURGE.FACTS_main": {"administrator"},
    "$JS.API.STREAM.PURGE.LEDGER_main": {"administrator"},
    "$JS.API.STREAM.PURGE.SNAP_main": {"administrator"},
    "$JS.API.STREAM.PURGE.ORDERS_main": {"administrator"},
    "$JS.API.STREAM.PURGE.EVENTS_main": set(),
    "$JS.API.STREAM.MSG.DELETE.EVENTS_main": {"administrator"},
    "$JS.API.STREAM.RESTORE.EVIL": set(),
    "$JS.API.STREAM.MSG.DELETE.SUBMIT_main": set(),
    "$JS.API.STREAM.MSG.DELETE.DLQ_main": {"operator"},
    "$JS.API.CONSUMER.CREATE.EVENTS_main": MAKERS,
    "$JS.API.CONSUMER.CREATE.EVENTS_main.evil.events.main.acme.>": MAKERS,
    "$JS.API.CONSUMER.DURABLE.CREATE.EVENTS_main.acme_ci": MAKERS,
    "$JS.API.CONSUMER.DELETE.SUBMIT_main.admission": MAKERS,
    "$JS.API.CONSUMER.MSG.NEXT.SUBMIT_main.admission": {"admission"} | MAKERS,
    "$JS.API.CONSUMER.MSG.NEXT.CONTROL_main.admission-control": {"admission"} | MAKERS,
    TENANT_NEXT: {"acme"} | MAKERS,
    "$JS.API.CONSUMER.INFO.EVENTS_main.acme_ci": {"acme"} | MAKERS,  # how clients open a consumer that exists
    "$JS.API.CONSUMER.INFO.EVENTS_main.other_ci": MAKERS,
    "$JS.API.CONSUMER.MSG.NEXT.EVENTS_main.other_ci": MAKERS,
    "$JS.ACK.SUBMIT_main.admission.1.1.1.1.0": {"admission"},
    "$JS.ACK.EVENTS_main.acme_ci.1.1.1.1.0": {"acme"},
    "$JS.API.STREAM.INFO.LEDGER_main": FOLLOWERS | {"admission", "administrator"},
    "$JS.API.DIRECT.GET.LEDGER_main": FOLLOWERS | {"admission", "administrator"},
    "$JS.API.STREAM.MSG.GET.LEDGER_main": FOLLOWERS | {"admission", "administrator"},
    "$JS.API.DIRECT.GET.FACTS_main": {"scheduler", "gateway", "operator"},
    "$JS.API.STREAM.INFO.SUBMIT_main": {"admission", "binder", "gateway"} | MAKERS,
    "$JS.API.STREAM.INFO.CONTROL_main": {"admission", "gateway"} | MAKERS,
    "$JS.API.DIRECT.GET.ORDERS_main.order.main.pool": SERVICES | {"operator", "administrator"},
    "$JS.API.DIRECT.GET.EVENTS_main": SERVICES | MAKERS,
    "$JS.API.DIRECT.GET.EVENTS_main.events.main.acme.q.x": SERVICES | MAKERS,
    "$JS.API.STREAM.MSG.GET.EVENTS_main": SERVICES | MAKERS,
    "$JS.API.DIRECT.GET.SNAP_main": SERVICES | MAKERS,
    "$JS.API.DIRECT.GET.DLQ_main": {"operator"},
    "$JS.API.DIRECT.GET.LEASES_main": SERVICES | {"operator"},
    "$JS.API.STREAM.MSG.GET.LEASES_main": SERVICES | {"operator"},
    "$JS.API.DIRECT.GET.SUBMIT_main": set(),
    "$JS.API.STREAM.MSG.GET.SUBMIT_main": set(),
}
SUBSCRIBE: dict[str, set[str] | frozenset[str]] = {
    ">": set(),
    "live.>": set(),
    "_INBOX.>": set(),
    "_INBOX.acme.>": {"acme"},
    "_INBOX.scheduler.>": {"scheduler"},
    "_INBOX.acme.gateway.>": {"acme", "gateway"},
    "_INBOX.*.gateway.>": {"gateway"},
    "_INBOX.acme.login.>": {"acme"},
    "_INBOX.*.login.>": set(),
    "login.main.*": {"gateway"},
    "login.main.acme": {"gateway"},
    "_INBOX.*.>": set(),
    "submit.main.*": set(),
    "submit.main.*.kubernetes": set(),
    "submit.main.acme": set(),
    "control.main.>": set(),
    "ledger.main": set(),
    "live.ledger.main": FOLLOWERS,
    "live.fact.main.>": {"scheduler", "operator"},
    "live.order.main.*": {"scheduler", "operator"},
    "live.events.main.>": {"projection", "notifier", "gateway", "operator"},
    "live.events.main.acme.>": {"acme", "projection", "notifier", "gateway", "operator"},
    "live.events.main.other.>": {"other", "projection", "notifier", "gateway", "operator"},
    "$JS.EVENT.ADVISORY.>": set(),
    "$SYS.>": set(),
}
IDENTITIES = (*services.SERVICES, "operator", "administrator", "acme", "other")


REFUSED = re.compile(r'permissions violation for (?:publish|subscription) to "([^"]+)"', re.IGNORECASE)


def granted(asked: Iterable[str], texts: list[str]) -> set[str]:
    """The subjects that no refusal names; the client hands the server's text on in lower case."""
    refused = {match.group(1).lower() for text in texts if (match := REFUSED.search(text))}
    return {subject for subject in asked if subject.lower() not in refused}


async def all_answered(client: Client) -> None:
    """The first ping may overtake what is still buffered; refusals come before the answer to the second."""
    await client.flush()
    await client.flush()


async def published(client: Client, identity: str, texts: list[str]) -> set[str]:
    """Subjects of the matrix that the server let this identity publish to; `texts` is what its refusals say."""
    for subject in PUBLISH:
        await client.publish(subject, b"not json", reply=f"_INBOX.{identity}.matrix")
    await all_answered(client)
    return granted(PUBLISH, texts)


async def heard(client: Client, queue: str, texts: list[str]) -> set[str]:
    """Subjects of the matrix that the server let this identity subscribe to."""
    for subject in SUBSCRIBE:
        await client.subscribe(subject, queue=queue)
    await all_answered(client)
    return granted(SUBSCRIBE, texts)


def may_publish(identity: str) -> set[str]:
    """Subjects of the matrix that this identity is granted."""
    return {subject for subject, may in PUBLISH.items() if identity in may}


def may_hear(identity: str) -> set[str]:
    """Subjects of the matrix that this identity may subscribe to."""
    return {subject for subject, may in SUBSCRIBE.items() if identity in may}


HELD = keys.cursor("main", "1")
READS = (("GET", HELD), ("HGETALL", keys.view("main", "1", "jobs")), ("INFO", "memory"))
WRITES = (("SET", HELD, "1"), ("HSET", keys.view("main", "1", "jobs"), "a", "b"), ("SCRIPT", "LOAD", "return 1"))
NEVER = (
    ("GET", "tessera:{second}:current"),
    ("CONFIG", "GET", "*"),
    ("KEYS", "*"),
    ("FLUSHALL",),
    ("EVAL", "return 1", "0"),
    ("ACL", "LIST"),
    ("SHUTDOWN",),
)


_READER = (
    *("ping", "client|setname", "select", "info", "command"),
    *("get", "mget", "exists", "hget", "hmget", "hgetall", "hlen", "hexists", "hscan", "multi", "exec"),
)
_WRITER = (
    *("set", "del", "unlink", "hset", "hdel", "rename", "expire", "persist", "watch", "unwatch", "discard", "scan"),
    *("evalsha", "script|load", "script|exists"),
)
REDIS_COMMANDS: dict[str, frozenset[str]] = {
    identity: frozenset((*_READER, *(_WRITER if identity == "projection" else ())))
    for identity in (*services.SERVICES, "operator")
}
"""Of the commands that a Redis server has, those that an identity may use; tenants have no login there."""


async def granted_commands(url: str, login: Login) -> set[str]:
    """
    The commands of the server that it does not refuse this login, each tried on a connection of its own.

    A command with subcommands is tried by these, `command` as one. Who may not even connect is granted nothing.
    """
    one = Redis.from_url(url, username=login.user, password=login.password)
    try:
        commands = [found async for found in _commands(one)]
        granted = {name for name, words in commands if await _not_refused(one, words)}
        return {"command" if name.startswith("command|") else name for name in granted}
    except AuthenticationError:
        return set()
    finally:
        await one.aclose()


async def _commands(client: Redis) -> AsyncIterator[tuple[str, list[str]]]:
    """Every command with words for it, as many as it wants at least; those that ask for no login are left out."""
    connection = client.connection_pool.make_connection()
    try:
        await connection.send_command("COMMAND")
        for name, arity, flags, *_, subcommands in await connection.read_response():
            for each, words, marks in [(of[0], of[1], of[2]) for of in subcommands] or [(name, arity, flags)]:
                if b"no_auth" not in marks:
                    parts = each.decode().split("|")
                    yield each.decode(), [*parts, *[HELD] * (abs(words) - len(parts))]
    finally:
        await connection.disconnect()


async def _not_refused(client: Redis, words: list[str]) -> bool:
    connection = client.connection_pool.make_connection()
    try:
        await connection.send_command(*words)
        async with asyncio.timeout(60):
            await connection.read_response()
    except NoPermissionError:
        return False
    except ResponseError as error:
        return "not allowed" not in str(error)  # DEBUG and MODULE are the server's own to refuse
    finally:
        await connection.disconnect()
    return True


async def permitted(client: Redis, *command: str) -> bool:
    """Whether the server lets the login do it; one that fails for what another test left under the key is let."""
    try:
        await client.execute_command(*command)
    except NoPermissionError:
        return False
    except ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
    return True
