"""
Streams of a shard, their durables, and tenants' durable subscribers, as `tessera init` makes them.

Idempotent. A stream or durable that differs from the table is refused with every differing field, not mended in
silence: somebody changed it for a reason, or another version of Tessera owns it. Services never come here.
"""

import dataclasses
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import orjson
from nats.aio.client import Client
from nats.js import api
from nats.js.errors import APIError, NotFoundError
from nats.js.manager import JetStreamManager

from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import StartupError
from tessera.kernel.provisioning.credentials import tenant_identity
from tessera_schemas import subjects
from tessera_schemas.config import Tenant
from tessera_schemas.events import short_type
from tessera_schemas.shard.ledger_form import plain_json
from tessera_schemas.shard.receivers import Webhook
from tessera_schemas.shard.streams import Retention, StreamSpec, streams

ACK_WAIT_SECONDS = 30.0  # a handler that needs longer says so every third of it
ACK_PENDING_MAX = 1_000
ASKED_MAX, AGAIN_SECONDS = 12, 1.0  # beside the five seconds for which each request waits
NO_LEADER_YET = 10_008  # the server's code for "JetStream system temporarily unavailable"
EVENT_TYPE = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*(\.>)?")
DELIVER_ALL, DELIVER_NEW = api.DeliverPolicy.ALL, api.DeliverPolicy.NEW
BEGINS = {DELIVER_ALL: "begins with the oldest event that is kept", DELIVER_NEW: "begins with new events"}


AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class Bounds:
    """
    Bounds that depend on the installation. `ledger_bytes_max` is reserved on the disk; a full ledger refuses appends.
    So is `events_bytes_max`; of EVENTS the oldest go when it is full, some million jobs later.

    `first_seqs` are the numbers, by stream, with which a stream begins that is made now; 1 elsewhere.
    """

    replicas: int = 1
    ledger_bytes_max: int = 8 * 1024**3
    events_bytes_max: int = 4 * 1024**3
    first_seqs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drift:
    """One field of a stream or durable that is not what the table says."""

    stream: str
    field: str
    expected: Any
    found: Any

    def __str__(self) -> str:
        return f"{self.stream}.{self.field} is {self.found!r}, expected {self.expected!r}"


async def ensure_streams(admin: Client, shard: str, bounds: Bounds | None = None, *, mend: bool = False) -> list[str]:
    """
    Make every stream and durable of the shard that is missing; returns the names of what was made or mended.

    FACTS begins behind the last fact that the ledger has taken in, or new ones would be passed over as known.

    With `mend`, what differs is set to what the table says, where the server permits it (it never permits to weaken
    a ledger's protection). Raises StartupError on drift otherwise, with all of it in one line.
    """
    made: list[str] = []
    drift: list[Drift] = []
    jetstream, bounds = admin.jsm(), bounds or Bounds()
    facts, taken_in = subjects.stream("FACTS", shard), await _facts_taken_in(jetstream, shard)
    bounds = dataclasses.replace(bounds, first_seqs={facts: taken_in + 1, **bounds.first_seqs})
    for spec in streams(shard):
        stream_made, stream_drift = await _ensure_stream(jetstream, stream_config(spec, bounds), mend)
        if spec.name == facts and not stream_made:
            stream_made, behind = await _ensure_facts_go_on(jetstream, facts, taken_in, mend)
            stream_drift += behind
        made += stream_made
        drift += stream_drift
        for durable in spec.durables:
            config = durable_config(durable, spec.in_order)
            durable_made, durable_drift = await _ensure_durable(jetstream, spec.name, config, mend)
            made += durable_made
            drift += durable_drift
    if drift:
        story = "; ".join(str(item) for item in drift)
        old = "; NATS 2.14 or later can be without it" if ".duplicate_window" in story else ""
        raise StartupError(
            f"streams of shard {shard}: {story}; undo the change, or accept the table by `tessera init --mend`{old}"
        )
    return made


def stream_config(spec: StreamSpec, bounds: Bounds) -> api.StreamConfig:
    """The JetStream configuration of one line of the table."""
    queue = spec.retention is Retention.WORK_QUEUE
    kept = spec.retention is Retention.KEPT
    return api.StreamConfig(
        name=spec.name,
        description=spec.description,
        subjects=list(spec.subjects),
        retention=api.RetentionPolicy.WORK_QUEUE if queue else api.RetentionPolicy.LIMITS,
        storage=api.StorageType.FILE,
        num_replicas=bounds.replicas,
        discard=api.DiscardPolicy.NEW if queue or kept else api.DiscardPolicy.OLD,
        discard_new_per_subject=queue,
        max_msgs=-1,
        max_msgs_per_subject=spec.per_subject_cap or spec.last or -1,
        max_bytes=_bytes_max(spec, bounds),
        max_age=float(spec.max_age_seconds),
        max_msg_size=spec.message_bytes_max,
        max_consumers=-1,
        duplicate_window=spec.duplicate_window_seconds,
        deny_delete=kept,
        deny_purge=False,  # a roll-over purges what is exported; the administrator alone may ask for it
        first_seq=bounds.first_seqs.get(spec.name),
        allow_rollup_hdrs=False,
        allow_direct=not queue,
        sources=[_nothing_from(spec)] if spec.any_ids else None,
        republish=api.RePublish(src=">", dest=subjects.live(">")) if spec.live else None,
        compression=api.StoreCompression.NONE,  # docs/adr/0037: a replica that is truncated spoils compressed blocks
    )


def _bytes_max(spec: StreamSpec, bounds: Bounds) -> int:
    if spec.retention is Retention.KEPT:
        return bounds.ledger_bytes_max
    return bounds.events_bytes_max if spec.name.startswith("EVENTS_") else spec.bytes_max or -1


def _nothing_from(spec: StreamSpec) -> api.StreamSource:
    """
    A source that never gives anything.

    The server compares message ids of every stream for at least a tenth of a second, but for those that also take
    from another stream, whose window may be none (nats-server 2.14 and later).
    """
    shard = spec.name.partition("_")[2]
    return api.StreamSource(name=subjects.stream("LEASES", shard), filter_subject=subjects.lease(shard, "none", "none"))


def durable_config(durable: str, in_order: bool = False) -> api.ConsumerConfig:
    """
    A work queue's consumer. It redelivers for ever: the handler counts and dead-letters, because a server that
    gives up leaves the message in the stream and says so only once.
    """
    return api.ConsumerConfig(
        durable_name=durable,
        ack_policy=api.AckPolicy.EXPLICIT,
        deliver_policy=api.DeliverPolicy.ALL,
        ack_wait=ACK_WAIT_SECONDS,
        max_deliver=-1,
        max_ack_pending=1 if in_order else ACK_PENDING_MAX,
    )


async def _ensure_stream(
    jetstream: JetStreamManager, config: api.StreamConfig, mend: bool
) -> tuple[list[str], list[Drift]]:
    name = config.name or ""
    try:
        found = (await _answer(partial(jetstream.stream_info, name), f"stream {name}")).config
    except NotFoundError:
        made = await _answer(partial(jetstream.add_stream, config), f"stream {name}")
        return [name], _differences(name, config, made.config)
    drift = _differences(name, config, found)
    if drift and mend:
        config = dataclasses.replace(config, deny_purge=found.deny_purge)
        made = await _answer(partial(jetstream.update_stream, config), f"stream {name}")
        return [name], _differences(name, config, made.config)
    return [], drift


async def _facts_taken_in(jetstream: JetStreamManager, shard: str) -> int:
    """Number of the fact up to which the ledger has taken them in; 0 without a ledger."""
    ledger = subjects.stream("LEDGER", shard)
    try:
        tail = await _answer(partial(jetstream.get_last_msg, ledger, subjects.ledger(shard)), f"stream {ledger}")
        return int(orjson.loads(plain_json(tail.data or b""))["facts_upto"])
    except (NotFoundError, orjson.JSONDecodeError, KeyError, TypeError):
        return 0  # none yet, or damaged: whoever folds it says so


async def _ensure_facts_go_on(
    jetstream: JetStreamManager, facts: str, taken_in: int, mend: bool
) -> tuple[list[str], list[Drift]]:
    """With `mend`, a stream that ends before `taken_in` goes on behind it; what it holds counts as taken in."""
    end = (await _answer(partial(jetstream.stream_info, facts), f"stream {facts}")).state.last_seq
    if end >= taken_in:
        return [], []
    if not mend:
        return [], [Drift(facts, "last_seq", taken_in, end)]
    await _answer(partial(jetstream.purge_stream, facts, seq=taken_in + 1), f"stream {facts}")
    return [facts], []


async def _ensure_durable(
    jetstream: JetStreamManager, stream: str, config: api.ConsumerConfig, mend: bool
) -> tuple[list[str], list[Drift]]:
    durable = config.durable_name or ""
    name = f"{stream}/{durable}"
    try:
        found = (await _answer(partial(jetstream.consumer_info, stream, durable), f"durable {name}")).config
    except NotFoundError:
        await _answer(partial(jetstream.add_consumer, stream, config), f"durable {name}")
        return [name], []
    drift = _differences(name, config, found)
    if drift and mend:
        await _answer(partial(jetstream.add_consumer, stream, config), f"durable {name}")
        return [name], []
    return [], drift


# What the server fills in for itself, or what is its administrator's business. A ledger made before there was a
# roll-over denies purges, and no server ever takes that back: the rest of its table holds.
_NOT_OURS = frozenset({"metadata", "placement", "consumer_limits", "name", "max_waiting", "first_seq", "deny_purge"})


def _differences(name: str, expected: Any, found: Any) -> list[Drift]:
    """Every field that differs, with the server's several ways of writing "not set" taken as one."""
    fields = [field.name for field in dataclasses.fields(expected) if field.name not in _NOT_OURS]
    pairs = [(field, _plain(getattr(expected, field)), _plain(getattr(found, field))) for field in fields]
    return [Drift(name, field, wanted, seen) for field, wanted, seen in pairs if wanted != seen]


def _plain(value: Any) -> Any:
    if value in (None, False, -1, 0, "", "none") or value == []:
        return None
    return getattr(value, "value", value)


async def ensure_subscribers(
    admin: Client,
    shard: str,
    declared: Mapping[str, Mapping[str, Sequence[str]]],
    begin_new: Collection[tuple[str, str]] = (),
) -> dict[str, str]:
    """
    Make the durable subscribers that tenants' configuration declares: {tenant: {name: [event types]}}.

    No types means all; a type is `job.allocated.v1` or a prefix such as `job.>`. The filter always begins with the
    tenant, so that nobody reads another's events. What a tenant named here declares no more is taken away.
    Those of `begin_new`, (tenant, name), begin with new events when they are made, others with the oldest that is kept.
    Returns what was done with each durable by its name. Raises StartupError for a name or type that is refused.
    """
    wanted = {
        subjects.subscriber_durable(tenant, name): _subscriber_config(
            shard, tenant, name, types, DELIVER_NEW if (tenant, name) in begin_new else DELIVER_ALL
        )
        for tenant, subscribers in sorted(declared.items())
        for name, types in sorted(subscribers.items())
    }
    return await _ensure_event_durables(admin, shard, declared, wanted)


async def ensure_webhooks(
    admin: Client, shard: str, tenants: Sequence[Tenant], before: Sequence[Tenant] = ()
) -> dict[str, str]:
    """
    Make the durables by which the notifier reads for webhooks, of all tenants; one that is new begins with new events.

    One that was declared `before`, and is gone, has lost its place: it begins with the oldest event that is kept, since
    nobody knows which were delivered. What is declared no more is taken away. Returns what was done with each durable
    by its name.
    """
    had = {(tenant.name, webhook.name) for tenant in before for webhook in tenant.webhooks}
    wanted = {
        subjects.webhook_durable(tenant.name, webhook.name): _webhook_config(
            shard, tenant.name, webhook, DELIVER_ALL if (tenant.name, webhook.name) in had else DELIVER_NEW
        )
        for tenant in tenants
        for webhook in tenant.webhooks
    }
    return await _ensure_event_durables(admin, shard, ("notifier",), wanted)


async def _ensure_event_durables(
    admin: Client, shard: str, owners: Collection[str], wanted: Mapping[str, api.ConsumerConfig]
) -> dict[str, str]:
    stream = subjects.stream("EVENTS", shard)
    jetstream = admin.jsm()
    consumers = await _all_consumers(jetstream, stream)
    existing = {info.name: info.config for info in consumers if info.name.split("_")[0] in owners}
    done = {name: "taken away" for name in sorted(existing) if name not in wanted}
    for name in done:
        await jetstream.delete_consumer(stream, name)
    for name, config in wanted.items():
        if name not in existing:
            await _answer(partial(jetstream.add_consumer, stream, config), f"subscriber {name}")
            done[name] = BEGINS[config.deliver_policy or DELIVER_ALL]
            continue
        config = _begun_as(existing[name], config)
        if _differences(name, config, existing[name]):
            await _answer(partial(jetstream.add_consumer, stream, config), f"subscriber {name}")
            done[name] = "goes on from its place with the events that are declared now"
    return done


def _begun_as(existing: api.ConsumerConfig, wanted: api.ConsumerConfig) -> api.ConsumerConfig:
    """The wanted configuration with the beginning of the durable that exists, which the server never changes."""
    return dataclasses.replace(
        wanted,
        deliver_policy=existing.deliver_policy,
        opt_start_seq=existing.opt_start_seq,
        opt_start_time=existing.opt_start_time,
    )


def _subscriber_config(
    shard: str, tenant: str, name: str, types: Sequence[str], begin: api.DeliverPolicy
) -> api.ConsumerConfig:
    tenant_identity(tenant, (name,))
    for kind in types:
        if not EVENT_TYPE.fullmatch(kind):
            raise StartupError(f"subscriber {name} of {tenant}: {kind!r} is no event type; write job.allocated.v1")
    config = durable_config(subjects.subscriber_durable(tenant, name))
    config = dataclasses.replace(config, deliver_policy=begin)
    return _filtered(
        config, sorted(subjects.event(shard, tenant, "*", short_type(kind)) for kind in types), shard, tenant
    )


def _webhook_config(shard: str, tenant: str, webhook: Webhook, begin: api.DeliverPolicy) -> api.ConsumerConfig:
    config = durable_config(subjects.webhook_durable(tenant, webhook.name))
    queues, kinds = webhook.queues or ("*",), tuple(map(short_type, webhook.types)) or (">",)
    filters = sorted(subjects.event(shard, tenant, queue, kind) for queue in queues for kind in kinds)
    filters = filters if webhook.queues or webhook.types else []
    return _filtered(dataclasses.replace(config, deliver_policy=begin), filters, shard, tenant)


def _filtered(config: api.ConsumerConfig, filters: list[str], shard: str, tenant: str) -> api.ConsumerConfig:
    # With more than one filter the server wants the list; with one it answers in the other field.
    filters = filters or [f"events.{shard}.{tenant}.>"]
    if len(filters) == 1:
        return dataclasses.replace(config, filter_subject=filters[0])
    return dataclasses.replace(config, filter_subjects=filters)


async def _all_consumers(jetstream: JetStreamManager, stream: str) -> list[api.ConsumerInfo]:
    """The server answers in pages."""
    found: list[api.ConsumerInfo] = []
    while page := await jetstream.consumers_info(stream, offset=len(found)):
        found += page
    return found


async def _answer(ask: Callable[[], Awaitable[AnswerT]], what: str) -> AnswerT:
    """
    The server's answer; a refusal becomes one line. Raises NotFoundError for what is not there.

    Servers of a cluster that have just started take seconds to choose who leads JetStream, and answer nothing before:
    they are asked again. What is asked for may be done twice.
    """
    clock = SystemClock()
    for _ in range(ASKED_MAX):
        try:
            return await ask()
        except NotFoundError:
            raise
        except TimeoutError:
            pass
        except APIError as error:
            if error.err_code != NO_LEADER_YET:
                why = error.description or "JetStream is not switched on"
                raise StartupError(f"{what}: NATS refuses it ({why}); see its log and limits") from error
        await clock.sleep(AGAIN_SECONDS)
    raise StartupError(f"{what}: NATS does not answer; JetStream needs more than half of its servers: see their logs")
