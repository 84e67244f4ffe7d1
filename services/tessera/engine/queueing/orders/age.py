"""The oldest first."""

from collections.abc import Iterable

from tessera.domain.state import InLine, State
from tessera.engine.queueing.orders.line import JobLine


def order(line: JobLine, state: State, ts: int) -> Iterable[InLine]:
    """The higher class first, then the older job, as the index has them."""
    return line.by_age
