"""
Permissions of each identity on NATS and Redis, derived from the table of streams and keys.

Allow-lists only: a deny list leaks (a queue subscription gets around it), and whoever has no list at all may do
everything, so that an identity always has both. Nobody below the operator may create or edit a stream or a consumer:
creating one on a filtered name was seen to rewrite another tenant's durable.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.kernel.provisioning.credential_files import Identity
from tessera_schemas import subjects
from tessera_schemas.shard import keys
from tessera_schemas.shard.services import BY_NAME, SERVICES
from tessera_schemas.shard.streams import StreamSpec, streams


@dataclass(frozen=True, slots=True)
class Allowed:
    """The two allow-lists of a NATS user."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def allowed(identity: Identity, shard: str) -> Allowed:
    """The NATS allow-lists of an identity in one shard."""
    publish: list[str] = []
    subscribe = [f"{subjects.inbox(identity.name)}.>"]
    for stream in streams(shard):
        publish += _stream_publishes(stream, identity)
        subscribe += stream.select_subjects(identity.role, identity.name)
    for name in identity.subscribers:
        publish += _durable(subjects.stream("EVENTS", shard), subjects.subscriber_durable(identity.name, name))
    spec = BY_NAME.get(identity.role)
    if spec is not None and spec.answers:
        # Its answers go to whatever private inbox a client named; the tenants are not known when this is written.
        publish.append("_INBOX.>")
    if spec is not None and spec.speaks_for_tenants:
        subscribe += [f"{subjects.gateway_inbox('*')}.>", subjects.login(shard, "*")]
        publish.append(f"{subjects.login_inbox('*')}.*")
    if identity.role in (subjects.TENANT, subjects.OPERATOR):
        publish.append(subjects.login(shard, identity.name))
    if identity.role == subjects.OPERATOR:
        publish += [*_LOOKS, "$JS.API.CONSUMER.>", f"$JS.API.STREAM.MSG.DELETE.{subjects.stream('DLQ', shard)}"]
    if identity.role == subjects.ADMINISTRATOR:
        publish += _admin(shard)
    return Allowed(tuple(sorted(set(publish))), tuple(sorted(set(subscribe))))


def tenant_border(shard: str) -> Allowed:
    """The patterns that cover every tenant's allow-lists, whoever the tenants are and will be."""
    anybody = allowed(Identity("*", subjects.TENANT), shard)
    durables = _durable(subjects.stream("EVENTS", shard), "*")
    return Allowed(tuple(sorted({*anybody.publish, *durables})), anybody.subscribe)


def _stream_publishes(spec: StreamSpec, identity: Identity) -> list[str]:
    """Subjects that an identity publishes to use one stream: its own, and requests of the JetStream API."""
    written = list(spec.written_by(identity.role, identity.name))
    reads = identity.role in spec.readers
    if identity.role == subjects.TENANT or not (written or reads or spec.fetched_by(identity.role)):
        return written
    requests = [f"$JS.API.STREAM.INFO.{spec.name}"]
    if spec.fetched_by(identity.role):
        # The leader's get shows no more than the direct get; the newest message must come from the leader.
        direct = f"$JS.API.DIRECT.GET.{spec.name}"
        requests += [direct, f"{direct}.>", f"$JS.API.STREAM.MSG.GET.{spec.name}"]
    if reads and identity.role in SERVICES:
        requests += [request for durable in spec.durables for request in _durable(spec.name, durable)]
    return written + requests


def _durable(stream: str, durable: str) -> list[str]:
    """Reading one durable that exists already: see it, pull from it, answer it."""
    return [
        f"$JS.API.CONSUMER.INFO.{stream}.{durable}",
        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}",
        f"$JS.ACK.{stream}.{durable}.>",
    ]


_LOOKS = ("$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.STREAM.INFO.*")


def _admin(shard: str) -> list[str]:
    """
    The administrator's requests: make, edit and see streams and consumers, and roll the ledger over.

    Who may edit a stream can bound it to one message, which is a purge by another name: so the operator, whose identity
    is in use every day, may not. Deleting and restoring a stream, and purging any other, are for nobody.
    FACTS is purged where it began anew, so that it goes on behind what the ledger has taken in; orders and events that
    are ahead of the ledger go one by one, where they are false.
    """
    return [
        *_LOOKS,
        "$JS.API.STREAM.CREATE.*",
        "$JS.API.STREAM.UPDATE.*",
        "$JS.API.CONSUMER.>",
        *(f"$JS.API.STREAM.PURGE.{subjects.stream(kind, shard)}" for kind in ("LEDGER", "SNAP", "FACTS", "ORDERS")),
        f"$JS.API.STREAM.MSG.DELETE.{subjects.stream('EVENTS', shard)}",
    ]


_REDIS_CONNECTION = ("ping", "client|setname", "command", "select", "info")
_REDIS_READ = ("get", "mget", "exists", "hget", "hmget", "hgetall", "hlen", "hexists", "hscan", "multi", "exec")
_REDIS_WRITE = (
    *("set", "del", "unlink", "hset", "hdel", "rename", "expire", "persist", "watch", "unwatch", "discard", "scan"),
    *("evalsha", "script|load", "script|exists"),
)


def redis_rules(role: str, shard: str) -> str | None:
    """
    The rules of a Redis ACL user without its name and password, or None for a role that needs no Redis.

    Redis 6.2 has no read-only key patterns, so a reader gets read commands only. INFO is the one command of the
    dangerous class: it is how a service sees that the server evicts nothing.
    """
    if role in keys.WRITERS:
        commands: tuple[str, ...] = _REDIS_CONNECTION + _REDIS_READ + _REDIS_WRITE
    elif role in keys.READERS:
        commands = _REDIS_CONNECTION + _REDIS_READ
    else:
        return None
    return f"on ~{keys.pattern(shard)} resetchannels -@all " + " ".join(f"+{command}" for command in commands)


def redis_nobody(shards: Sequence[str]) -> str:
    """
    The line of Redis's user `default`, as whom nobody can log in.

    He may write all the same: Redis replays its append-only file with his rights, and up to 8.4 it passes over each
    transaction of a script whose commands he may not run, so that a restart would lose the views (from 7.2 on it ends
    itself instead).
    """
    patterns = " ".join(f"~{keys.pattern(shard)}" for shard in shards)
    commands = " ".join(f"+{command}" for command in (*_REDIS_READ, *_REDIS_WRITE) if "|" not in command)
    return f"user default off resetkeys {patterns} resetchannels -@all {commands}"
