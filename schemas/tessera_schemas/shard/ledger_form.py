"""
Stored form of a ledger message: its JSON, or that JSON compressed by zlib.

The chain is over the JSON, so that a backup or an export, which hold it in plain lines, verify by the same hashes.
"""

import hashlib
import json
import re
import zlib
from dataclasses import dataclass

COMPRESSED_FROM = 3
"""The format of a ledger from which on its messages are compressed: whoever knows it reads both."""
NODE_FAILURES_FROM = 3
"""The format from which on nodes are avoided that failed pods which a run grew by, or earlier pods of one owner."""
STOP_TIMES_FROM = 4
"""The format from which on jobs know how long a run of theirs takes to stop: their notice and grace."""
SUMS_FROM = 4
"""
The format from which on GPUs held in slots that a node lost count against those that it has, where nobody names
cards, and from which on nodes know since when they are silent or cordoned.
"""
RUN_ENDS_FROM = 4
"""The format from which on facts tell more of how runs end: several nodes, and what keeps pods from starting."""
NUMBERS_FROM = 4
"""The format from which on each job that is taken in gets the next number of its shard."""
OPERATOR_HOLDS_FROM = 4
"""The format from which on a hold is known as an operator's, which no tenant ends."""
REQUEUES_FROM = 4
"""The format from which on a run is stopped by its owner's word that the job goes back in line."""
RUN_SUMS_FROM = 4
"""The format from which on a job knows what its runs have held, and how long the earlier ones took."""
UPDATES_FROM = 5
"""The format from which on fields of a job's spec change after its submit, and a change that is refused is recorded."""
ENDED_NODES_FROM = 5
"""The format from which on a job that has ended keeps its time limit, and the nodes of its last run."""
ENDED_ARRAYS_FROM = 5
"""The format from which on an array that has ended answers for the tasks that it never queued."""
ARRAY_SLOTS_FROM = 6
"""The format from which on an array counts its tasks that wait aside, and its limit bounds those that run."""
BOOKS_ANEW_FROM = 6
"""The format from which on a new configuration makes books of queues anew, and removed ones stay to their last run."""
POOL_PARTS_FROM = 6
"""The format from which on a quota may be a part of its pool, and nodes know since when they lack something."""
QUEUE_NAMES_FROM = 6
"""The format from which on a configuration says which queues the names of other systems' queues stand for."""
RESTART_PLACES_FROM = 6
"""The format from which on a gang that restarts keeps what is well of its place."""
PASSED_FROM = 6
"""The format from which on an allocation names the blocked jobs that it passes, and why it may."""
ONE_MODEL_FROM = 6
"""The format from which on pods of a new job's gang are on one GPU model, and a launcher's shares on distinct GPUs."""
UNNEEDED_STOPS_FROM = 6
"""The format from which on a run knows that whoever it is to stop for needs its room no more, and may be spared."""
LENT_KEPT_FROM = 6
"""The format from which on a run knows since when its disruption budget keeps lent quota, and may be called in."""
GPU_RESOURCES_FROM = 6
"""The format from which on a node's GPUs are of any vendor, and replicas of NVIDIA's are shares."""
OWNER_ENDS_FROM = 6
"""The format from which on an adopted job ends as its owner does, and keeps how its last run ended until the next."""
BUDGETS_FROM = 6
"""The format from which on adopted work whose disruption budget lets none of its pods go does not borrow."""
MINIMUMS_FROM = 6
"""The format from which on adopted replicas name their service, of which plans leave a guaranteed minimum."""
LENDING_HOURS_FROM = 6
"""The format from which on a configuration says by hour which part of a quota may be lent."""
SCRIPT_WORDS_FROM = 6
"""The format from which on a run ends as its own script asks, and its end tells its steps."""
STARTS_TELL_ALL_FROM = 6
"""The format from which on a run's start tells that its pods are bound, and its success that it started."""
UNMADE_FROM = 6
"""The format from which on a tenant's jobs stay in line while many of its runs have no pods yet."""
PRICES_FROM = 6
"""The format from which on a configuration has prices, and jobs count what their runs cost."""
SPENDING_FROM = 6
"""The format from which on a configuration has budgets, which count what is spent in each month."""
HISTORY_FROM = 6
"""The format from which on what was used counts in the order of the line, by a half-life."""
GPU_USE_FROM = 6
"""The format from which on runs and ended jobs know what was measured of the use of their GPUs."""
PUBLISHED_DEVICES_FROM = 6
"""The format from which on nodes offer devices that drivers publish, which jobs claim."""
NUMA_ZONES_FROM = 6
"""The format from which on nodes have the NUMA zones within one of which their kubelets keep each pod."""
TOLD_DATA_FROM = 6
"""The format from which on nodes say which data sets they have."""
SESSION_WARNINGS_FROM = 6
"""The format from which on runs know that their session's pod has warned its user."""
PROGRESS_FROM = 6
"""The format from which on runs stall that report no progress, and jobs have a ladder of restarts."""
LATE_PODS_FROM = 6
"""The format from which on a run holds room for pods of its gang that come once the others run."""
FENCING_FROM = 6
"""The format from which on a webhook may be asked to turn nodes off that do not answer, or are sick."""
SPARES_FROM = 6
"""The format from which on pools keep spare nodes, and jobs know that a node broke under their last run."""
MOVES_FROM = 6
"""The format from which on a configuration has runs asked before they move."""
NODE_TESTS_FROM = 6
"""The format from which on suspected nodes get test jobs."""
BOOKINGS_FROM = 6
"""The format from which on nodes are kept in windows of time."""
NODE_EVENTS_FROM = 6
"""The format from which on records of nodes name the pool, by which they are public events of operators."""
PLAIN_BYTES_MAX = 16 * 1024 * 1024
"""No message's JSON is longer, and nobody unpacks more, whatever is stored."""


def stored_form(plain: bytes, known: int) -> bytes:
    """
    A message's JSON as a ledger of format `known` stores it.

    Compressed, it is by the fastest level, which leaves a fifth of a busy ledger.
    """
    return zlib.compress(plain, level=1) if known >= COMPRESSED_FROM else plain


def plain_json(stored: bytes) -> bytes:
    """
    The JSON of a stored message in either form.

    Anything else is handed back as it is, for the decoder to refuse: JSON, damaged bytes, compressed ones that end
    early, go on behind their end, or unpack to more than `PLAIN_BYTES_MAX`.
    """
    unpacking = zlib.decompressobj()
    try:
        plain = unpacking.decompress(stored, PLAIN_BYTES_MAX)
    except zlib.error:
        return stored
    return plain if unpacking.eof and not unpacking.unused_data else stored


def chain_hash(prev: str, stored: bytes) -> str:
    """The chain hash up to and including the message whose JSON is `stored`."""
    return hashlib.sha256(prev.encode() + stored).hexdigest()


def chain_after(stored: bytes) -> str:
    """Chain hash after the message of the JSON `stored`, from the hash before it that it names; ValueError for none."""
    try:
        return chain_hash(json.loads(stored)["prev"], stored)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no ledger message: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Head:
    """End of a ledger at some time: message `n`, and the chain hash after it."""

    n: int
    chain: str

    @classmethod
    def parse(cls, text: str) -> "Head":
        """`N:HASH`, as `tessera ledger head` prints it; raises ValueError for anything else."""
        n, _, chain = text.strip().partition(":")
        if not n.isdigit() or not re.fullmatch(r"[0-9a-f]{64}", chain):
            raise ValueError(f"{text!r} is no head; write N:HASH as `tessera ledger head` prints it")
        return cls(int(n), chain)

    def __str__(self) -> str:
        return f"{self.n}:{self.chain}"
