"""
The orders that a queue may have: who goes first among jobs of one class that share nothing with each other.

A new order is a module here, its name in `ORDERS` and in the contract's `OrderName`.
"""

from collections.abc import Callable, Iterable, Mapping

from tessera.domain.state import InLine, State
from tessera.engine.queueing.orders.age import by_age
from tessera.engine.queueing.orders.expected import by_expected_time
from tessera.engine.queueing.orders.line import JobLine
from tessera_schemas.config import OrderName

__all__ = ["ORDERS", "JobLine", "JobOrder"]

JobOrder = Callable[[JobLine, State, int], Iterable[InLine]]
"""The jobs of a line at a time (ms): the higher class first, then by the order. Its last key is unique."""

ORDERS: Mapping[OrderName, JobOrder] = {"age": by_age, "expected": by_expected_time}
