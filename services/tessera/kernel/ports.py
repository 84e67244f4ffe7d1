"""
The only ways to the world: Clock, Bus, Ledger, ProjectionStore, Cluster.

Each port has a real adapter and an in-memory one (`kernel/memory/`) under the same contract tests. Services get them
injected, so that all of them run in one process under the simulator with virtual time and faults.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tessera_schemas.base import Json

if TYPE_CHECKING:
    from tessera_schemas.shard.ledger_form import Head

Objects = list[Json]


class Clock(Protocol):
    """Time and the waiting for it. Wall time never decides safety; it only becomes `ts` in a record."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the Unix epoch."""

    def monotonic(self) -> float:
        """Seconds that never go back; the only source of durations."""

    async def sleep(self, seconds: float) -> None:
        """Wait `seconds` of this clock's time; 0 only lets others run. Under the simulator no real time passes."""


@dataclass(frozen=True, slots=True)
class Message:
    """One stored message of a stream; `stored_ms` is when by the server's clock, 0 where a reader was not told."""

    subject: str
    seq: int
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    stored_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message handed out by a work queue; `token` is what the adapter needs to answer it."""

    message: Message
    deliveries: int
    token: Any


@dataclass(frozen=True, slots=True)
class Outgoing:
    """
    A message to be stored.

    `expected_last_seq` and `expected_last_subject_seq` make it a compare-and-swap on the stream or on its literal
    subject; None means no condition. There is no message id: the server compares those of all writers of a stream, so
    that one of them could keep another's messages out.
    """

    subject: str
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    expected_last_seq: int | None = None
    expected_last_subject_seq: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """
    Bytes in a stream, 0 as `bytes_max` where nothing bounds it, the number of its first message, 1 if empty, when
    that was stored, 0 if empty, and the number of the last message that it ever had, 0 without one.
    """

    bytes: int
    bytes_max: int
    first_seq: int = 1
    first_ms: int = field(default=0, compare=False)
    last_seq: int = field(default=0, compare=False)


class Follow(Protocol):
    """An ordered reader of a stream: no gap, no repeat, no ack; its cursor is the caller's."""

    async def next(self, limit: int = 256, timeout: float | None = None) -> list[Message]:
        """
        The next messages in order, at least one unless `timeout` seconds pass (then []).

        Returns what is waiting, up to `limit`; lingers 2 ms when only a few are there, so that bursts share a batch.
        Raises Transient if the bus is away for good.
        """

    async def close(self) -> None:
        """Stop reading; `next` returns [] from then on, also a `next` that is waiting."""


class Work(Protocol):
    """A durable work queue that `tessera init` made: each message is answered exactly one way."""

    async def next(self, limit: int = 256, timeout: float | None = None) -> list[Delivery]:
        """Deliveries to answer, up to `limit`; [] after `timeout` seconds. Raises Transient while no queue is there."""

    async def ack(self, delivery: Delivery) -> None:
        """Report the delivery as handled: never delivered again."""

    async def nak(self, delivery: Delivery, delay_seconds: float) -> None:
        """Give the delivery back, to be handed out again after `delay_seconds`."""

    async def term(self, delivery: Delivery) -> None:
        """Give the delivery up: never delivered again, although nobody handled the message."""

    async def in_progress(self, delivery: Delivery) -> None:
        """Ask for another whole ack wait, since handling the delivery takes long."""

    async def close(self) -> None:
        """Take no more deliveries; `next` returns [] from then on, also a `next` that is waiting."""


class Bus(Protocol):
    """Streams. Nobody creates one here; `tessera init` does."""

    @property
    def links(self) -> int:
        """Count of connections made so far: after a reconnect the streams may be other ones."""

    async def publish(self, out: Outgoing) -> int:
        """
        Store one message and return its stream sequence.

        Raises Conflict (a condition failed), UnknownOutcome (no answer), Transient (certainly not stored).
        """

    async def publish_all(self, batch: Sequence[Outgoing]) -> list[int]:
        """Store many, pipelined, in order; raises the first error after all have been answered."""

    def follow(self, stream: str, subject: str, after: int) -> Follow:
        """Read `subject` (wildcards allowed) of `stream` from the first sequence above `after`."""

    def work(self, stream: str, durable: str) -> Work:
        """Share in the work of the queue `durable` of `stream`: each message goes to one of those who share."""

    async def get(self, stream: str, seq: int) -> Message | None:
        """Message with sequence `seq`; None without one, or when a replica that lags has none yet."""

    async def last(self, stream: str, subject: str) -> Message | None:
        """The newest message on `subject`, from the stream's leader."""

    async def last_all(self, stream: str, subject: str) -> list[Message]:
        """The newest message of every subject that matches the wildcard `subject`."""

    async def usage(self, stream: str) -> Usage:
        """Use of the stream. Raises Transient when the server does not answer."""

    async def send(self, subject: str, data: bytes) -> None:
        """Sends at most once, without storing: for answers to a client's private inbox."""

    async def listen(self, subject: str, on_message: Callable[[str, bytes], None]) -> None:
        """Have `on_message(subject, data)` called with what others `send`, until the bus is closed."""


class Ledger(Protocol):
    """
    The one truth of a shard. Its stream sequence equals the record number n, from 1.

    After a roll-over the stream begins with a later record; of those before it, only the ones that live jobs need
    can still be read.
    """

    async def append(self, data: bytes, expected_seq: int, known: int = 0) -> int:
        """
        Append by compare-and-swap on the literal ledger subject and return the new sequence.

        `known`, the format that every reader of the shard knows, says how the message is kept; all reads give `data`.

        Raises Conflict (somebody else wrote `expected_seq` + 1, or the tail was not read `to_append` since the last
        reconnect: it may be another ledger's), UnknownOutcome (look for the transaction id at the tail; never resend),
        Transient (certainly not stored; Full: the ledger has no room for it).
        """

    async def tail(self, *, to_append: bool = False) -> Message | None:
        """
        The newest message, read through the leader; None while the ledger is empty.

        `to_append`: the caller makes sure that it is the one that it knows before it appends behind it.
        """

    async def first(self) -> int:
        """Number of the first record that is stored, or would be: 1 until a roll-over."""

    async def read(self, seq: int) -> Message | None:
        """Record number `seq`; None without one, or when a replica that lags has none yet."""

    def follow(self, after: int) -> Follow:
        """
        Read every record above number `after`, in order and without a gap.

        Its `next` raises RolledOver when records above `after` left the stream before they were read.
        """


class ProjectionStore(Protocol):
    """
    The shared working state in Redis: views and the cursor that says up to which n they hold.

    Views are hashes: `view` names the hash, `key` the field, the value is JSON bytes. A generation is one whole
    build of the views; readers follow the pointer to the current one.
    """

    async def cursor(self) -> int:
        """The n up to which the current generation holds; 0 when there is none."""

    async def head(self) -> "Head | None":
        """The ledger as it was when the views were last written; None where nobody noted it, as before 0.4."""

    async def apply(self, first_n: int, last_n: int, changes: Sequence["Change"], chain: str = "") -> int:
        """
        Apply `changes` of records first_n..last_n and move the cursor, in one atomic script; `chain` is the ledger's
        hash after last_n, kept beside the cursor ("": unknown).

        Does nothing when cursor >= last_n. Raises Conflict on a gap (cursor + 1 < first_n, or cursor inside the
        batch); returns the cursor after the call. Raises Transient when the store is away.
        """

    async def replace(self, n: int, changes: Sequence["Change"], chain: str = "") -> None:
        """
        Build a new generation that holds exactly `changes` as of n, then switch the pointer to it; `chain` as above.

        Raises Conflict when the pointer was moved meanwhile: then this build is dropped.
        """

    async def fields_as_of(self, *fields: tuple[str, str]) -> tuple[int, list[bytes | None]]:
        """Cursor and these (view, key) as of one moment: what is not there at this cursor does not exist."""

    async def rows_as_of(self, *views: str) -> tuple[int, list[dict[str, bytes]]]:
        """Cursor and these views whole, as of one moment."""

    async def digest(self) -> str:
        """A hash over every view, key and value of the current generation; independent of order."""

    async def put_quotes(self, value: bytes) -> None:
        """Keep quotes of starts beside the views: they are of no generation and no cursor. Raises Transient."""

    async def quotes(self) -> bytes | None:
        """The quotes that were put last; None where there are none. Raises Transient."""


@dataclass(frozen=True, slots=True)
class Change:
    """One field of one view; `value` None deletes it."""

    view: str
    key: str
    value: bytes | None


class ApiError(Exception):
    """An answer of the Kubernetes API that is not a success; `status` is the HTTP code, `reason` its CamelCase word."""

    def __init__(self, status: int, reason: str, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status, self.reason, self.message = status, reason, message
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """ADDED, MODIFIED, DELETED or BOOKMARK with the object as the API sends it."""

    type: str
    object: Json


Reduce = Callable[[Json], Json]
"""What is kept of an object, for readers of many who need little of each; it keeps uid, name and resourceVersion."""


def as_it_is(found: Json) -> Json:
    """Keep the whole object: the default of every `reduce`."""
    return found


def without_managed_fields(found: Json) -> Json:
    """Remove `managedFields`: often most of an object, and never read here."""
    found["metadata"].pop("managedFields", None)
    return found


class Cluster(Protocol):
    """
    The Kubernetes API as the binder and reclamation need it. Objects are the API's own JSON.

    Every call raises ApiError for an answer that is not a success, and Transient when there was none (the call may
    have had its effect).
    """

    async def list(
        self, kind: str, label_selector: str = "", field_selector: str = "", reduce: Reduce = as_it_is
    ) -> tuple[list[Json], str]:
        """
        All objects (of every namespace) of "pods", "nodes", "jobs" of batch, "priorityclasses",
        "poddisruptionbudgets", or of an apiVersion and kind ("ray.io/v1/RayCluster"), and the list's resourceVersion.

        Long lists are read in pages, and each object goes through `reduce` before the next page is asked for.
        """

    def watch(
        self, kind: str, resource_version: str, label_selector: str = "", field_selector: str = ""
    ) -> AsyncIterator[WatchEvent]:
        """
        Changes after `resource_version`; ends when the server closes it; ApiError 410 when it is too old.

        An object that comes into the selection is ADDED, one that leaves it is DELETED.
        """

    async def get_pod(self, namespace: str, name: str) -> Json:
        """Pod as stored now; 404 when no pod has that name."""

    def read_log(
        self, namespace: str, name: str, *, follow: bool = False, tail_lines: int = 0, since_seconds: int = 0
    ) -> AsyncGenerator[bytes, None]:
        """
        Log of a pod's first container in pieces as they come, lines split anywhere; with `follow` to the pod's end.
        The first piece is empty and comes once the log is open.

        `tail_lines` and `since_seconds` take the newest part alone; 0 takes all. 404 when no pod has that name, 400
        before the container has started.
        """

    async def create_pod(self, namespace: str, pod: Json) -> Json:
        """409 AlreadyExists when the name is taken."""

    async def bind_pod(
        self,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str],
        resource_version: str = "",
    ) -> None:
        """
        409 when the pod is bound already, its UID differs, or it changed since `resource_version`, if one is given.

        The annotations land in the same write.
        """

    async def delete_pod(self, namespace: str, name: str, uid: str, grace_seconds: int | None = None) -> None:
        """409 when the UID differs, 404 when it is gone."""

    async def evict_pod(
        self, namespace: str, name: str, uid: str, grace_seconds: int | None = None, dry_run: bool = False
    ) -> None:
        """
        Delete through the Eviction API: 429 when a disruption budget forbids it; else as `delete_pod`.

        `dry_run` says whether it would be done, and does nothing.
        """

    async def annotate_pod(
        self, namespace: str, name: str, uid: str, annotations: Mapping[str, str | None], resource_version: str = ""
    ) -> None:
        """
        Set these annotations (None: take it off) and leave the others. 404 when the pod is gone; 409 when its UID
        differs, or it changed since `resource_version`, if one is given.
        """

    async def label_pod(self, namespace: str, name: str, uid: str, labels: Mapping[str, str]) -> None:
        """Set these labels and leave the others. 404 when the pod is gone; 409 when its UID differs."""

    async def limit_pod(self, namespace: str, name: str, uid: str, seconds: int) -> None:
        """Let the pod run so long at most. 404 when it is gone; 409 when its UID differs; 422 for more than before."""

    async def resize_pod(self, namespace: str, name: str, uid: str, container: str, resources: Json) -> None:
        """
        Change requests and limits of CPU and memory of a container in place (`resources` as in its spec). 404 when the
        pod is gone, or the server knows no resizes; 409 when its UID differs; 422 for what it forbids.
        """

    async def annotate_node(self, name: str, resource_version: str, annotations: Mapping[str, str]) -> None:
        """Set these annotations of exactly this version of the node. 409 for another, 404 when it is gone."""

    async def label_node(self, name: str, resource_version: str, labels: Mapping[str, str | None]) -> None:
        """Set these labels of exactly this version of the node, or take away (None). 409 and 404 as above."""

    async def taint_node(
        self, name: str, resource_version: str, taints: Sequence[Json], annotations: Mapping[str, str | None]
    ) -> None:
        """Give the node exactly these taints, and set or take away (None) annotations, held to its version."""

    async def patch_pod_status(self, namespace: str, name: str, patch: Json) -> None:
        """A merge patch of the pod's status; 409 when it names another UID or version, 404 when the pod is gone."""

    async def patch_status(self, api_version: str, kind: str, namespace: str, name: str, patch: Json) -> None:
        """The same of any object in a namespace that has a status."""

    async def create_event(self, namespace: str, event: Json) -> None:
        """409 AlreadyExists when the name is taken."""

    async def list_events(self, namespace: str, uid: str) -> Objects:
        """Events in the namespace about the object with that UID; of more than a few hundred not all."""

    async def may(self, namespace: str, verb: str, resource: str, group: str = "") -> bool:
        """Whether we may do it there; `resource` with its subresource, as `pods/binding`. "" is the whole cluster."""

    async def get_object(self, api_version: str, kind: str, namespace: str, name: str) -> Json:
        """Any object, in a namespace or in none (""); 404 when it is not there, or the cluster has no such kind."""

    async def create_object(self, namespace: str, obj: Json) -> Json:
        """Any object, by its apiVersion and kind, as stored; 409 AlreadyExists when the name is taken."""

    async def patch_object(self, api_version: str, kind: str, namespace: str, name: str, patch: Json) -> None:
        """A merge patch; 409 when it names another UID or version, 404 when the object is gone."""

    async def remove_finalizer(self, namespace: str, name: str, uid: str, finalizer: str) -> None:
        """409 when the object changed meanwhile, 404 when it is gone; nothing when it is off already."""

    async def create_service(self, namespace: str, service: Json) -> Json:
        """Service as stored; 409 AlreadyExists when the name is taken."""

    async def get_service(self, namespace: str, name: str) -> Json:
        """Service as stored now; 404 when no service has that name."""

    async def delete_service(self, namespace: str, name: str, uid: str) -> None:
        """409 when the UID differs, 404 when it is gone."""

    async def create_secret(self, namespace: str, secret: Json) -> None:
        """409 AlreadyExists when the name is taken. Secrets are never read."""

    async def create_ingress(self, namespace: str, ingress: Json) -> None:
        """409 AlreadyExists when the name is taken. Ingresses are never read."""
