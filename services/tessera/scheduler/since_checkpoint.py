"""
How much a committer has written since the last checkpoint of the state hash.

Followers start from a snapshot, which a checkpoint vouches for, and fold what came since: that is bounded in messages,
in records and in bytes, for a message has one fact or a thousand. A replay reads from the ledger where checkpoints are.
"""

from itertools import islice

from tessera.kernel.ledger.shard import Entry
from tessera.scheduler.settings import SchedulerSettings
from tessera_schemas.ledger import Checkpoint

OPENING_RECORDS = 3
"""The checkpoint stands behind the format and the epoch at most."""


class SinceCheckpoint:
    """Counts the committer's own messages: an epoch begins with a checkpoint."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._messages_max = settings.checkpoint_every
        self._records_max, self._bytes_max = settings.checkpoint_records, settings.checkpoint_bytes
        self._records = self._bytes = 0

    def is_due(self, n: int) -> bool:
        """Tells whether message `n` is to have a checkpoint."""
        return n % self._messages_max == 0 or self._records >= self._records_max or self._bytes >= self._bytes_max

    def count(self, entry: Entry) -> None:
        """Take in a message that is in the ledger."""
        if any(type(record) is Checkpoint for record in islice(entry.message.records, OPENING_RECORDS)):
            self._records = self._bytes = 0
        self._records += len(entry.message.records)
        self._bytes += len(entry.stored)
