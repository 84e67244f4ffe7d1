"""The names of subjects, streams, identities and inboxes. Names that enter a subject match `[a-z0-9-]{1,63}`."""

import re

TENANT = "tenant"  # the role of every tenant; its identity is the tenant's own name
OPERATOR = "operator"
ADMINISTRATOR = "administrator"
MAIN_SHARD = "main"
"""The shard that is meant where none is named: nodes without a label are its own."""
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

KUBERNETES = "kubernetes"
"""The last part of the subjects on which the binder submits what it adopts."""
BY_OPERATOR = "operator"
"""The last part of the subjects on which the gateway sends what an operator orders about a tenant's jobs."""

MESSAGE_BYTES_MAX = 512 * 1024
SUBMIT_BYTES_MAX = 384 * 1024
"""
How large a command may be: a script of 256 KiB, what JSON adds to its lines and quotes, and the job around it.

Its stream takes more, so that what is too large is refused on record.
"""
FACT_BYTES_MAX = SUBMIT_BYTES_MAX + 32 * 1024
"""How large a fact may be: a job and what admission fills in; with some records it fits in a message of the ledger."""
ANSWER_SECONDS = 10.0
"""How long a client waits for the answer to a command, unless told otherwise."""
PAYLOAD_BYTES_MAX = 1024 * 1024
"""What a NATS server takes unless told otherwise, headers included."""


def stream(kind: str, shard: str) -> str:
    """The name of a stream, `LEDGER` of shard `main` being `LEDGER_main`."""
    return f"{kind}_{shard}"


def submit(shard: str, tenant: str) -> str:
    return f"submit.{shard}.{tenant}"


def submit_adopted(shard: str, tenant: str) -> str:
    """Subject on which the binder submits users' work from the tenant's namespace."""
    return f"{submit(shard, tenant)}.{KUBERNETES}"


def submit_by_operator(shard: str, tenant: str) -> str:
    """Subject on which the gateway sends an operator's orders about the tenant's jobs; no tenant may write there."""
    return f"{submit(shard, tenant)}.{BY_OPERATOR}"


def sent_by(subject: str) -> tuple[str, str]:
    """
    The tenant of a command on SUBMIT, and who sent it: KUBERNETES, BY_OPERATOR, or "" for the tenant itself.

    ("", "") for any other subject.
    """
    match subject.split("."):
        case ["submit", _, tenant]:
            return tenant, ""
        case ["submit", _, tenant, origin] if origin in (KUBERNETES, BY_OPERATOR):
            return tenant, origin
    return "", ""


def control(shard: str) -> str:
    return f"control.{shard}"


def health_reports(shard: str) -> str:
    """Subject on which the gateway sends reports of nodes' health; admission takes no other command there."""
    return f"{control(shard)}.health"


def reservations(shard: str) -> str:
    """Subject on which the gateway sends operators' reservations of nodes; admission takes no other command there."""
    return f"{control(shard)}.reservations"


def fact(shard: str, service: str, kind: str) -> str:
    return f"fact.{shard}.{service}.{kind}"


def order(shard: str, pool: str) -> str:
    return f"order.{shard}.{pool}"


def ledger(shard: str) -> str:
    return f"ledger.{shard}"


def event(shard: str, tenant: str, queue: str, kind: str) -> str:
    """`kind` is the event's type without its prefix, for example `job.allocated.v1`."""
    return f"events.{shard}.{tenant}.{queue}.{kind}"


def snapshot_chunk(shard: str, index: int) -> str:
    return f"snap.{shard}.chunk.{index}"


def snapshot_manifest(shard: str) -> str:
    return f"snap.{shard}.manifest"


def generation_chunk(shard: str, index: int) -> str:
    """A piece of the state with which a generation of the ledger opens."""
    return f"snap.{shard}.generation.chunk.{index}"


def generation_manifest(shard: str) -> str:
    """Subject on which a generation is complete."""
    return f"snap.{shard}.generation.manifest"


def generation_kept(shard: str, n: int) -> str:
    """Ledger message `n`, kept beside the ledger for the live jobs that it took in."""
    return f"snap.{shard}.generation.kept.{n}"


def generation_kept_all(shard: str) -> str:
    """Pattern of all messages that are kept so."""
    return f"snap.{shard}.generation.kept.*"


def account_now(shard: str) -> str:
    """The account's newest five minutes, and which messages have the hour and the day that they are part of."""
    return f"snap.{shard}.account.now"


def account_open(shard: str, length: str) -> str:
    """The hour or day of the account that is not over."""
    return f"snap.{shard}.account.{length}.open"


def account_period(shard: str, length: str, slot: int) -> str:
    """A period of the account that is over; periods take the slots of those that are too old."""
    return f"snap.{shard}.account.{length}.{slot}"


def quotes_chunk(shard: str, index: int) -> str:
    """A piece of what quotes of starts rest on."""
    return f"snap.{shard}.quotes.chunk.{index}"


def quotes_manifest(shard: str) -> str:
    """Subject on which the pieces before it are complete."""
    return f"snap.{shard}.quotes.manifest"


def dead_letter(shard: str, service: str, source_stream: str, seq: int) -> str:
    return f"dlq.{shard}.{service}.{source_stream}.{seq}"


def lease(shard: str, service: str, name: str) -> str:
    """`name` is `leader`, or the id of one replica that says it is alive."""
    return f"lease.{shard}.{service}.{name}"


def live(subject: str) -> str:
    """Subject on which a stored message of a live stream is republished."""
    return f"live.{subject}"


def user(identity: str, shard: str) -> str:
    """
    User name of an identity at NATS and Redis, which shards share: all but the main shard's carry the shard.

    The sign is in no name, so that no identity of one shard is called like one of another.
    """
    return identity if shard == MAIN_SHARD else f"{identity}@{shard}"


def identity_of(user: str) -> str:
    """The identity's name within its shard, whatever shard that is."""
    return user.partition("@")[0]


def shard_of(user: str) -> str:
    return user.partition("@")[2] or MAIN_SHARD


def inbox(identity: str) -> str:
    """The private prefix of an identity's inboxes; answers to others' requests cannot be read."""
    return f"_INBOX.{identity}"


def gateway_inbox(tenant: str) -> str:
    """
    The part of a tenant's inbox where the gateway is answered when it speaks for that tenant.

    Admission answers to the inbox of the command's tenant and nowhere else; the gateway hears that of `*`.
    """
    return f"{inbox(tenant)}.gateway"


def login(shard: str, tenant: str) -> str:
    """Subject on which a tenant asks the gateway for a token; the server lets nobody else write there."""
    return f"login.{shard}.{tenant}"


def login_inbox(tenant: str) -> str:
    """The part of a tenant's inbox where the gateway may answer that."""
    return f"{inbox(tenant)}.login"


def webhook_durable(tenant: str, name: str) -> str:
    """The durable by which the notifier reads the events of a tenant's webhook."""
    return subscriber_durable("notifier", f"{tenant}_{name}")


def subscriber_durable(tenant: str, name: str) -> str:
    """
    A durable subscriber that a tenant's configuration declares; the tenant can only read from it.

    The underscore is in no name, so that subscriber `c` of tenant `a-b` is not subscriber `b-c` of tenant `a`.
    """
    return f"{tenant}_{name}"
