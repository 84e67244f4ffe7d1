"""
The orders that a queue may have: who goes first among jobs of one class that share nothing with each other.

A new order is a module here, with a function `order`, called as the contract's `OrderName` calls it.
"""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import get_args

from tessera.domain.state import QueuedJob, State
from tessera.engine.queueing.orders.waiting_jobs import WaitingJobs
from tessera_schemas.config import OrderName

__all__ = ["ORDERS", "JobOrder", "WaitingJobs"]

JobOrder = Callable[[WaitingJobs, State, int], Iterable[QueuedJob]]
"""The jobs of a line at a time (ms): the higher class first, then by the order. Its last key is unique."""

ORDERS: Mapping[OrderName, JobOrder] = {name: import_module(f"{__name__}.{name}").order for name in get_args(OrderName)}
