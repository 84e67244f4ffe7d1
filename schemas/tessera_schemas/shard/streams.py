"""
Every stream of a shard: who writes it, who reads it, how long it is kept.

One table feeds `tessera init` (streams and consumers), the permissions of every identity, and the generated AsyncAPI
document, so that the three cannot drift apart; who writes and reads is declared with each service, in `services`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tessera_schemas.shard import services
from tessera_schemas.subjects import BY_OPERATOR, KUBERNETES, MESSAGE_BYTES_MAX, PAYLOAD_BYTES_MAX, TENANT, live, stream

HOUR_SECONDS = 3_600
DAY_SECONDS = 86_400
SHORTEST_WINDOW_SECONDS = 0.1
"""The shortest time for which a NATS server will remember message ids, where it must."""


class Retention(StrEnum):
    """Retention policy of a stream."""

    KEPT = "kept"
    WORK_QUEUE = "work_queue"
    AGE = "age"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """
    One stream of one shard.

    `live` streams are republished on `live.<subject>` once stored, which is what followers listen to. `last` keeps
    that many messages per subject (0 = no bound); `per_subject_cap` refuses more than that many (0 = no bound).
    `bytes_max` refuses what would not fit into the whole stream (0 = no bound); it is reserved on the disk.

    `writers` and `readers` are roles. `own` confines a writer to its part of the stream, `{self}` standing for its
    name ("" = all of it); the writers in `given` write exactly there. A tenant that reads is always confined to `own`,
    and only listens or reads its durable subscribers: fetching by sequence would show it everybody's messages.

    `fetchers` may fetch, as readers may, and not listen.

    `any_ids`: programs that are not ours write here, each with message ids of its own making, so that the server must
    compare none of them: two pipelines may both call something `build-42`.

    `in_order`: a work queue of which the next message is handed out once the one before is done with, whatever fails.
    """

    name: str
    subjects: tuple[str, ...]
    retention: Retention
    description: str
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    fetchers: tuple[str, ...]
    given: tuple[tuple[str, str], ...]
    own: str = ""
    live: bool = False
    max_age_seconds: int = 0
    last: int = 0
    per_subject_cap: int = 0
    message_bytes_max: int = MESSAGE_BYTES_MAX
    bytes_max: int = 0
    durables: tuple[str, ...] = ()
    in_order: bool = False
    any_ids: bool = False

    @property
    def duplicate_window_seconds(self) -> float:
        """
        Time for which the server drops messages with an id that it has seen. We send no ids; the server needs a value.
        """
        return 0.0 if self.any_ids else SHORTEST_WINDOW_SECONDS

    def written_by(self, role: str, name: str) -> tuple[str, ...]:
        """The subjects that the identity `name` in `role` may publish; () when it writes nothing here."""
        if role not in self.writers:
            return ()
        given = tuple(subject for writer, subject in self.given if writer == role)
        return given or (self._part(name) if self.own else self.subjects)

    def select_subjects(self, role: str, name: str) -> tuple[str, ...]:
        """The live subjects that the identity may listen to; () when there are none for it."""
        if role not in self.readers or not self.live:
            return ()
        heard = self._part(name) if role == TENANT else self.subjects
        return tuple(live(subject) for subject in heard)

    def fetched_by(self, role: str) -> bool:
        """Whether the role may fetch any stored message; never from a work queue, which hands out its own."""
        return role in (*self.readers, *self.fetchers) and role != TENANT and self.retention is not Retention.WORK_QUEUE

    def _part(self, name: str) -> tuple[str, ...]:
        return (self.own.replace("{self}", name),)


def _stream(
    kind: str, shard: str, subjects: tuple[str, ...], retention: Retention, description: str, **more: Any
) -> StreamSpec:
    """The stream of one kind, written and read by the roles that declare so."""
    return StreamSpec(
        stream(kind, shard),
        subjects,
        retention,
        description,
        services.writers(kind),
        services.readers(kind),
        services.fetchers(kind),
        services.given(kind, shard),
        **more,
    )


def streams(shard: str) -> tuple[StreamSpec, ...]:
    """The streams of a shard, as `tessera init` makes them."""
    return _commands(shard) + _inputs(shard) + _ledger(shard) + _derived(shard) + _side_streams(shard)


def used_by(role: str, shard: str) -> dict[str, StreamSpec]:
    """The streams that a role reads or writes, by kind: `FACTS`."""
    found = [spec for spec in streams(shard) if role in spec.readers or role in spec.writers]
    return {spec.name.removesuffix(f"_{shard}"): spec for spec in found}


def _commands(shard: str) -> tuple[StreamSpec, ...]:
    """Streams of input from outside."""
    return (
        _stream(
            "SUBMIT",
            shard,
            (f"submit.{shard}.*", f"submit.{shard}.*.{KUBERNETES}", f"submit.{shard}.*.{BY_OPERATOR}"),
            Retention.WORK_QUEUE,
            "Jobs and control of jobs, by tenant; a full subject is that tenant's backlog limit.",
            own=f"submit.{shard}.{{self}}",
            per_subject_cap=50_000,
            message_bytes_max=PAYLOAD_BYTES_MAX,
            bytes_max=2 * 1024**3,  # a flood of large bodies must not take the disk from the ledger
            durables=("admission",),
            any_ids=True,
        ),
        _stream(
            "CONTROL",
            shard,
            (f"control.{shard}", f"control.{shard}.health", f"control.{shard}.reservations"),
            Retention.WORK_QUEUE,
            "Configuration, operators' control of any job, reports of nodes' health, and reservations of nodes.",
            per_subject_cap=1_000,
            message_bytes_max=PAYLOAD_BYTES_MAX,
            bytes_max=256 * 1024**2,
            durables=("admission-control",),
            any_ids=True,
            in_order=True,  # an operator's drain that failed at first must not come after its undo
        ),
    )


def _inputs(shard: str) -> tuple[StreamSpec, ...]:
    """Streams that the committer takes in."""
    return (
        _stream(
            "FACTS",
            shard,
            (f"fact.{shard}.>",),
            Retention.AGE,
            "What the services saw; the committer takes it into the ledger.",
            own=f"fact.{shard}.{{self}}.>",
            live=True,
            max_age_seconds=7 * DAY_SECONDS,
        ),
        _stream(
            "ORDERS",
            shard,
            (f"order.{shard}.*",),
            Retention.LAST,
            "Per pool, the next jobs in line.",
            live=True,
            last=1,
        ),
    )


def _ledger(shard: str) -> tuple[StreamSpec, ...]:
    """The truth of the shard."""
    return (
        _stream(
            "LEDGER",
            shard,
            (f"ledger.{shard}",),
            Retention.KEPT,
            "The truth: what was taken in and what was decided, chained, appended by compare-and-swap.",
            live=True,
        ),
    )


def _derived(shard: str) -> tuple[StreamSpec, ...]:
    """Streams made from the ledger."""
    return (
        _stream(
            "EVENTS",
            shard,
            (f"events.{shard}.>",),
            Retention.AGE,
            "Public CloudEvents, a pure function of the ledger; the oldest go when `init --events-gib` are full.",
            own=f"events.{shard}.{{self}}.>",
            live=True,
            max_age_seconds=30 * DAY_SECONDS,
        ),
        _stream(
            "SNAP",
            shard,
            (f"snap.{shard}.>",),
            Retention.LAST,
            "Snapshots of the fold in chunks, the manifest last.",
            last=10,
        ),
    )


def _side_streams(shard: str) -> tuple[StreamSpec, ...]:
    """Streams that no decision depends on."""
    return (
        _stream(
            "DLQ",
            shard,
            (f"dlq.{shard}.>",),
            Retention.AGE,
            "Input that can never be handled, with the reason in its headers.",
            own=f"dlq.{shard}.{{self}}.>",
            max_age_seconds=90 * DAY_SECONDS,
        ),
        _stream(
            "LEASES",
            shard,
            (f"lease.{shard}.>",),
            Retention.LAST,
            "Who is alive and who leads; liveness only, never a proof of exclusivity.",
            own=f"lease.{shard}.{{self}}.>",
            max_age_seconds=HOUR_SECONDS,  # far above any lease: it only sweeps up replicas that are long gone
            last=1,
        ),
    )
