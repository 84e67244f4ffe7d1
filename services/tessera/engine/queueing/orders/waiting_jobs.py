"""The jobs that an order puts in order."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tessera.domain.state import Bucket, QueuedJob


class WaitingJobs(NamedTuple):
    """Waiting jobs of one queue, or of one tenant or user of it: by class and age, and apart for each bucket."""

    by_age: Iterable[QueuedJob]
    by_bucket: Mapping[Bucket, Iterable[QueuedJob]]
