"""Long computations in slices, between which the loop serves others."""

from collections.abc import Generator
from typing import TypeVar

from tessera.kernel.ports import Clock

T = TypeVar("T")


async def run_in_slices(work: Generator[None, None, T], clock: Clock) -> T:
    """Result of the generator; others run wherever it yields."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            found: T = done.value
            return found
        await clock.sleep(0)
