"""
The AsyncAPI 3 document: every stream of the subject table as a channel, with who sends and who receives what.

Only what a message says is added here; senders, receivers, retention and limits come from `streams`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from tessera_schemas.base import Json
from tessera_schemas.documents.registry import (
    CLUSTER_COMMANDS,
    OPERATOR_COMMANDS,
    TENANT_COMMANDS,
    Registered,
    kind_of,
    registered,
)
from tessera_schemas.facts import FACTS
from tessera_schemas.shard.services import SPECS
from tessera_schemas.shard.streams import StreamSpec, streams
from tessera_schemas.subjects import KUBERNETES, TENANT, inbox, live, subscriber_durable, webhook_durable

SCHEMA_FORMAT = "application/schema+json;version=draft-2020-12"
OPAQUE = {
    "snapshot_chunk": "A piece of a snapshot of the fold; only projection's own build reads it.",
    "snapshot_manifest": "What the chunks before it make up, and the n and hash of the state.",
    "dead_letter": "The bytes of the input as they came; the reason is in the headers.",
    "lease": "Who holds the name and until when.",
}
PARAMETERS = {
    "shard": "The shard's name; `main` unless there are several.",
    "tenant": "The tenant's name; the server enforces who may use which.",
    "service": "The service that wrote it; the server enforces it.",
    "kind": "The kind of the fact.",
    "pool": "The node pool.",
    "queue": "The queue's name.",
    "type": "The event's type without its prefix, for example `job.allocated.v1`; it spans several tokens.",
    "index": "The number of the chunk.",
    "n": "The number of the ledger's message that it belongs to.",
    "stream": "The stream that the input came from.",
    "seq": "Its sequence there.",
    "name": "`leader`, or the id of one replica.",
    "id": "One request of the client.",
    "subscriber": "The subscriber's name in the tenant's configuration.",
    "webhook": "The webhook's name in the tenant's configuration.",
}


@dataclass(frozen=True, slots=True)
class Channel:
    """
    One subject pattern of one stream and the types on it; `stream` None: it is none's own, and `description` says what
    is there. `extension` is what JetStream needs beyond.
    """

    name: str
    address: str
    types: tuple[str, ...]
    stream: StreamSpec | None = None
    senders: tuple[str, ...] = ()
    receivers: tuple[str, ...] = ()
    description: str = ""
    extension: Mapping[str, str] | None = None


def ids(prefix: str) -> tuple[str, ...]:
    return tuple(entry.id for entry in registered() if entry.id.startswith(prefix))


RESERVING = ("command.end_reservation.v1", "command.reserve_nodes.v1")
"""Types of the commands about reservations."""


def list_channels() -> dict[str, tuple[tuple[str, str, tuple[str, ...]], ...]]:
    """Channels by stream: name, tail of the address, types. A stream that is missing here fails the generation."""
    tenants = tuple(f"command.{kind_of(model)}.v1" for model in TENANT_COMMANDS)
    operators = tuple(f"command.{kind_of(model)}.v1" for model in OPERATOR_COMMANDS)
    cluster = tuple(f"command.{kind_of(model)}.v1" for model in CLUSTER_COMMANDS)
    return {
        "SUBMIT": (("submit", ".{tenant}", tenants), ("adoptions", f".{{tenant}}.{KUBERNETES}", cluster)),
        "CONTROL": (
            ("control", "", operators),
            ("health_reports", ".health", ("command.report_health.v1",)),
            ("reservations", ".reservations", RESERVING),
        ),
        "FACTS": (("facts", ".{service}.{kind}", ids("fact.")),),
        "ORDERS": (("orders", ".{pool}", ("order.v1",)),),
        "LEDGER": (("ledger", "", ("ledger_message.v1",)),),
        "EVENTS": (("events", ".{tenant}.{queue}.{type}", ids("io.tessera.")),),
        "SNAP": (
            ("snapshot_chunks", ".chunk.{index}", ("snapshot_chunk",)),
            ("snapshot_manifests", ".manifest", ("snapshot_manifest",)),
            ("generation_chunks", ".generation.chunk.{index}", ("snapshot_chunk",)),
            ("generation_manifests", ".generation.manifest", ("snapshot_manifest",)),
            ("generation_kept", ".generation.kept.{n}", ("ledger_message.v1",)),
        ),
        "DLQ": (("dead_letters", ".{service}.{stream}.{seq}", ("dead_letter",)),),
        "LEASES": (("leases", ".{service}.{name}", ("lease",)),),
    }


def channels() -> list[Channel]:
    """Every channel, in the order of the table."""
    table = list_channels()
    found = []
    for spec in streams("{shard}"):
        root = spec.subjects[0].removesuffix(".*").removesuffix(".>")
        for name, tail, types in table[spec.name.removesuffix("_{shard}")]:
            senders = tuple(role for role in spec.writers if _reaches(spec.written_by(role, role), root + tail))
            found.append(Channel(name, root + tail, types, spec, senders, spec.readers))
    answering = tuple(spec.name for spec in SPECS if spec.answers)
    answered = (TENANT, *(spec.name for spec in SPECS if spec.speaks_for_tenants))
    told = "Answers to one client's commands: at most once, not stored."
    found.append(Channel("answers", inbox("{tenant}") + ".{id}", ("answer.v1",), None, answering, answered, told))
    return found + _readings(next(channel for channel in found if channel.name == "events"))


def _readings(events: Channel) -> list[Channel]:
    """Ways to read events: live by who listens, or by the durable consumers that the configuration declares."""
    spec = events.stream
    if spec is None:
        raise ValueError("events are stored")
    listeners = tuple(role for role in spec.readers if spec.select_subjects(role, role))
    heard = "Events as they are stored: at most once, to who listens. A tenant may listen to its own alone."
    pulled = "The server sends the events that are asked for to the request's inbox, each at least once."
    made = "`tessera apply` makes the consumer, and nobody else may make or change it."
    tenant = f"A tenant's durable subscriber, by pull; no other tenant may read it. {pulled} {made}"
    webhook = f"What a tenant's webhook is to get, by pull of the notifier. {pulled} {made}"
    return [
        Channel("live_events", live(events.address), events.types, None, (), listeners, heard),
        _pulled("subscriber_events", spec, events, subscriber_durable("{tenant}", "{subscriber}"), TENANT, tenant),
        _pulled("webhook_events", spec, events, webhook_durable("{tenant}", "{webhook}"), "notifier", webhook),
    ]


def _pulled(name: str, spec: StreamSpec, events: Channel, consumer: str, reader: str, description: str) -> Channel:
    """One durable consumer as a channel; its address is the subject of the pull request."""
    at = f"{spec.name}.{consumer}"
    extension = {
        "stream": spec.name,
        "consumer": consumer,
        "info": f"$JS.API.CONSUMER.INFO.{at}",
        "pull": f"$JS.API.CONSUMER.MSG.NEXT.{at}",
        "acknowledge": f"$JS.ACK.{at}.>",
        "message_subject": events.address,
    }
    address = extension["pull"]
    return Channel(name, address, events.types, None, (), (reader,), description, extension)


def _reaches(patterns: Iterable[str], address: str) -> bool:
    """Whether a subject of the address can be one of those that the patterns allow."""
    return any(_meet(pattern.split("."), address.split(".")) for pattern in patterns)


def _meet(pattern: list[str], address: list[str]) -> bool:
    if pattern and pattern[-1] == ">":
        pattern, address = pattern[:-1], address[: len(pattern) - 1]
    same = (one == two or one == "*" or two.startswith("{") for one, two in zip(pattern, address, strict=False))
    return len(pattern) == len(address) and all(same)


def document() -> Json:
    """The whole document."""
    every = channels()
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Tessera",
            "version": "1.0.0",
            "description": "Every stream of a shard on NATS JetStream: its subjects, messages, senders and receivers.",
        },
        "defaultContentType": "application/json",
        "channels": {channel.name: _channel(channel) for channel in every},
        "operations": dict(operation for channel in every for operation in _operations(channel)),
        "components": {
            "messages": {
                **{entry.id: _message(entry) for entry in registered() if _sent(entry, every)},
                **{name: {"name": name, "summary": text} for name, text in OPAQUE.items()},
            },
            "parameters": {name: {"description": text} for name, text in PARAMETERS.items()},
        },
    }


def _sent(entry: Registered, every: Iterable[Channel]) -> bool:
    return any(entry.id in channel.types for channel in every)


def _summary(entry: Registered) -> str:
    said = (entry.model.__doc__ or "").strip()
    return said.splitlines()[0] if said else entry.name


def _message(entry: Registered) -> Json:
    content = "application/json"
    payload: Json = {"$ref": f"./{entry.id}.json"}
    if entry.name.startswith("io.tessera."):
        # The envelope is the same for all; what differs is `data`.
        content = "application/cloudevents+json"
        typed = {"properties": {"type": {"const": entry.id}, "data": payload}}
        payload = {"allOf": [{"$ref": "./cloud_event.v1.json"}, typed]}
    elif entry.name.startswith("fact."):
        payload = {"allOf": [{"$ref": "./fact_message.v1.json"}, {"properties": {"fact": payload}}]}
    return {
        "name": entry.id,
        "summary": _summary(entry),
        "contentType": content,
        "payload": {"schemaFormat": SCHEMA_FORMAT, "schema": payload},
    }


def _parameters(address: str) -> Json:
    return {name: {"$ref": f"#/components/parameters/{name}"} for name in re.findall(r"{(\w+)}", address)}


def _channel(channel: Channel) -> Json:
    spec = channel.stream
    made: Json = {
        "address": channel.address,
        "description": spec.description if spec else channel.description,
        "parameters": _parameters(channel.address),
        "messages": {type_: {"$ref": f"#/components/messages/{type_}"} for type_ in channel.types},
    }
    if spec is not None:
        facts = asdict(spec)
        for told_elsewhere in ("writers", "readers", "description", "own", "given"):
            del facts[told_elsewhere]
        made["x-jetstream"] = {
            key: list(value) if isinstance(value, tuple) else value.value if key == "retention" else value
            for key, value in facts.items()
        }
        if spec.live:
            made["x-jetstream"]["republished_on"] = live(channel.address)
    if channel.extension is not None:
        made["x-jetstream"] = dict(channel.extension)
    return made


def _operations(channel: Channel) -> Iterable[tuple[str, Json]]:
    for action, roles in (("send", channel.senders), ("receive", channel.receivers)):
        for role in roles:
            yield (
                f"{role}.{action}.{channel.name}",
                {
                    "action": action,
                    "channel": {"$ref": f"#/channels/{channel.name}"},
                    "tags": [{"name": role}],
                    "messages": [
                        {"$ref": f"#/channels/{channel.name}/messages/{type_}"}
                        for type_ in channel.types
                        if action == "receive" or _may_send(role, type_)
                    ],
                },
            )


def _may_send(role: str, type_: str) -> bool:
    """Each kind of fact has exactly one service that may send it; of plans, each cause has."""
    if not type_.startswith("fact."):
        return True
    return role in next(model.senders for model in FACTS if f"fact.{kind_of(model)}.v1" == type_)
