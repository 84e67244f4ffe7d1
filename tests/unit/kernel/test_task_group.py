"""Loops that run together end together, whatever one of them does with its cancellation. Time is virtual."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from tessera.kernel.errors import InvariantViolation
from tessera.kernel.tasks.task_group import AGAIN_SECONDS, END_SECONDS, cancel_all, gather_all, run_loops
from tessera.testkit.sim.loop import VirtualLoop
from tests.unit.kernel.swallowing import Swallowing

T = TypeVar("T")


class Failed(Exception):
    """What a loop of these tests fails with."""


def run(main: Coroutine[Any, Any, T]) -> T:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()


async def fails_after(seconds: float, error: Exception) -> None:
    await asyncio.sleep(seconds)
    raise error


def test_a_failure_is_raised_although_another_loop_swallows_its_cancellation() -> None:
    async def main() -> float:
        other = Swallowing(lost=1)
        with pytest.raises(Failed):
            await run_loops(asyncio.Event(), fails_after(1, Failed()), other.run())
        assert other.ended
        return asyncio.get_running_loop().time()

    assert run(main()) < 1 + 2 * AGAIN_SECONDS


def test_a_failure_is_raised_in_bounded_time_although_another_loop_never_ends() -> None:
    async def main() -> float:
        other = Swallowing(lost=None)
        with pytest.raises(Failed):
            await run_loops(asyncio.Event(), fails_after(1, Failed()), other.run())
        assert not other.ended
        assert other.swallowed > 2
        return asyncio.get_running_loop().time()

    assert run(main()) <= 1 + END_SECONDS + AGAIN_SECONDS


def test_a_stop_ends_loops_that_swallow_a_cancellation() -> None:
    async def main() -> None:
        stop, other = asyncio.Event(), Swallowing(lost=2)
        asyncio.get_running_loop().call_later(5, stop.set)
        await run_loops(stop, other.run())
        assert other.ended

    run(main())


def test_a_cancelled_service_ends_its_loops_before_it_ends_itself() -> None:
    async def main() -> None:
        outer, inner = Swallowing(lost=1), Swallowing(lost=1)

        async def nested() -> None:
            await run_loops(asyncio.Event(), inner.run())

        service = asyncio.ensure_future(run_loops(asyncio.Event(), outer.run(), nested()))
        await asyncio.sleep(1)
        assert not await cancel_all(service)
        assert service.cancelled()
        assert outer.ended
        assert inner.ended

    run(main())


def test_a_violated_invariant_is_raised_before_what_failed_earlier() -> None:
    async def violated_when_cancelled() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            raise InvariantViolation("the books contradict themselves")

    async def main() -> None:
        with pytest.raises(InvariantViolation):
            await run_loops(asyncio.Event(), fails_after(1, Failed()), violated_when_cancelled())

    run(main())


def test_a_cancellation_from_outside_is_not_lost_while_others_are_ended() -> None:
    async def main() -> None:
        async def ends_another() -> None:
            swallowing = asyncio.ensure_future(Swallowing(lost=2).run())
            await asyncio.sleep(0.1)
            await cancel_all(swallowing)
            raise AssertionError("its own cancellation was swallowed")

        ending = asyncio.ensure_future(ends_another())
        await asyncio.sleep(1)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending

    run(main())


def test_what_must_all_be_done_gives_its_results_in_order() -> None:
    async def after(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    async def main() -> list[float]:
        return await gather_all(after(2), after(1))

    assert run(main()) == [2, 1]


def test_the_first_failure_ends_what_had_to_be_done_beside_it() -> None:
    async def main() -> None:
        other = Swallowing(lost=1)
        with pytest.raises(Failed):
            await gather_all(fails_after(1, Failed()), other.run())
        assert other.ended

    run(main())
