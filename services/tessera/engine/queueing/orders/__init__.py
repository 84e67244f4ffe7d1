"""
The orders that a queue may have: who goes first among jobs of one class that share nothing with each other.

A new order is a module here with the functions of `JobOrder`, and its name in the contract's `OrderName`. Whether it
lets younger jobs pass older ones, which a checker of ledgers has to know, is in the contract as well (`OVERTAKING`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import NamedTuple, get_args

from tessera.domain.entities import Job
from tessera.domain.folding.line_keys import Bucket, QueuedJob
from tessera.domain.state import State
from tessera_schemas.config import OrderName


class WaitingJobs(NamedTuple):
    """Waiting jobs of one queue, or of one tenant or user of it: by class and age, and apart for each bucket."""

    by_age: Iterable[QueuedJob]
    by_bucket: Mapping[Bucket, Iterable[QueuedJob]]


class JobOrder(NamedTuple):
    """An order, and what it says of itself to those who wait."""

    order: Callable[[WaitingJobs, State, int], Iterable[QueuedJob]]
    """The jobs of a line at a time (ms): the higher class first, then by the order. Its last key is unique."""

    before: tuple[str, ...]
    """Every reason that `why_before` may give, in the order in which they are told, as they follow "3 jobs"."""

    why_before: Callable[[State, Job, Job], str]
    """The reason why the second job stands before the first one, which is equal to it in all that the line asks."""

    describe: Callable[[State, Job], Iterator[str]]
    """Sentences on what the order means for a waiting job; none where nothing is to be said."""


def _order_of(name: OrderName) -> JobOrder:
    module = import_module(f"{__name__}.{name}")
    return JobOrder(module.order, module.BEFORE, module.why_before, module.describe)


ORDERS: Mapping[OrderName, JobOrder] = {name: _order_of(name) for name in get_args(OrderName)}
