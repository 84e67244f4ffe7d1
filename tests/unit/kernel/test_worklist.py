"""Keys that are worked one at a time, again when named meanwhile, and later when they failed."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

from tessera.kernel.errors import InvariantViolation, Transient
from tessera.kernel.ports import ApiError
from tessera.kernel.tasks.waiting import MORE_SECONDS
from tessera.kernel.tasks.worklist import LONGEST_RETRY_SECONDS, Worklist
from tests.virtual_time import VirtualClock


class Workshop:
    """Work that fails as often as it is told, takes as long as it is told, and notes what it did."""

    def __init__(
        self, at_once: int = 4, owner_of: Callable[[str], str] = lambda key: "", per_owner: int | None = None
    ) -> None:
        self.clock = VirtualClock()
        self.worklist = Worklist(self.work, self.clock, at_once, owner_of, per_owner)
        self.done: list[str] = []
        self.fails: dict[str, list[Exception]] = {}
        self.seconds = 0.0
        self.busy: Counter[str] = Counter()
        self.busiest = 0
        self.running: asyncio.Task[None] | None = None

    async def work(self, key: str) -> None:
        assert not self.busy[key], f"{key} is worked twice at the same time"
        self.busy[key] += 1
        self.busiest = max(self.busiest, self.busy.total())
        try:
            if self.seconds:
                await self.clock.sleep(self.seconds)
            self.done.append(key)
            if self.fails.get(key):
                raise self.fails[key].pop(0)
        finally:
            self.busy[key] -= 1

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Workshop"]:
        self.running = asyncio.create_task(self.worklist.run())
        try:
            yield self
        finally:
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)


async def test_keys_are_worked_in_the_order_in_which_they_were_named() -> None:
    async with Workshop(at_once=1).open() as shop:
        for key in ("b", "a", "c"):
            shop.worklist.name(key)
        await shop.clock.run()
        assert shop.done == ["b", "a", "c"]


def tenant_of(key: str) -> str:
    return key.partition("-")[0]


async def test_the_many_keys_of_one_owner_do_not_delay_the_few_of_others() -> None:
    async with Workshop(at_once=4, owner_of=tenant_of).open() as shop:
        shop.seconds = 1.0
        for number in range(400):  # five times what is worked while the others come
            shop.worklist.name(f"flood-{number}")
        for second in range(20):
            shop.worklist.name(f"lab-{second}")
            shop.worklist.name(f"shop-{second}")
            await shop.clock.run(1.0)
            done = set(shop.done)
            assert {f"lab-{early}" for early in range(second)} <= done  # each within two seconds, as it would be alone
            assert {f"shop-{early}" for early in range(second)} <= done
        assert len(shop.done) >= 4 * 19  # and nobody idles meanwhile
        await shop.clock.run(110)
        assert len(shop.done) == 440


async def test_owners_take_turns_and_each_keeps_its_own_order() -> None:
    async with Workshop(at_once=1, owner_of=tenant_of).open() as shop:
        for key in ("a-1", "a-2", "a-3", "b-1", "c-1", "b-2"):
            shop.worklist.name(key)
        await shop.clock.run()
        assert shop.done == ["a-1", "b-1", "c-1", "a-2", "b-2", "a-3"]


async def test_one_owner_never_has_more_than_its_part_of_the_places() -> None:
    async with Workshop(at_once=4, owner_of=tenant_of, per_owner=2).open() as shop:
        shop.seconds = 1.0
        for number in range(6):
            shop.worklist.name(f"flood-{number}")
        await shop.clock.run(0.5)
        assert set(shop.busy.elements()) == {"flood-0", "flood-1"}
        shop.worklist.name("lab-0")
        await shop.clock.run(0.1)
        assert set(shop.busy.elements()) == {"flood-0", "flood-1", "lab-0"}  # at once
        await shop.clock.run(5)
        assert len(shop.done) == 7


async def test_new_work_comes_after_what_its_owner_has_begun_and_waits_for_nobody_elses() -> None:
    async with Workshop(at_once=1, owner_of=tenant_of).open() as shop:
        for key in ("a-1", "a-2", "b-1"):
            shop.worklist.name(key, new=True)
        for key in ("a-3", "a-4", "a-2"):
            shop.worklist.name(key)
            shop.worklist.name(key, new=True)
        await shop.clock.run()
        assert shop.done == ["a-3", "b-1", "a-4", "a-2", "a-1"]


async def test_a_key_whose_owner_is_no_longer_known_is_worked_once() -> None:
    owners = {"a": "lab"}
    async with Workshop(at_once=1, owner_of=lambda key: owners.get(key, "")).open() as shop:
        shop.worklist.name("a")
        owners.clear()
        shop.worklist.name("a")
        await shop.clock.run()
        assert shop.done == ["a"]


async def test_a_key_that_is_named_many_times_before_its_turn_is_worked_once() -> None:
    async with Workshop().open() as shop:
        for _ in range(5):
            shop.worklist.name("a")
        await shop.clock.run()
        assert shop.done == ["a"]


async def test_a_key_that_is_named_while_it_is_worked_is_worked_once_more() -> None:
    async with Workshop().open() as shop:
        shop.seconds = 1.0
        shop.worklist.name("a")
        await shop.clock.run(0.5)
        shop.worklist.name("a")
        shop.worklist.name("a")
        await shop.clock.run(5)
        assert shop.done == ["a", "a"]


async def test_no_more_keys_are_worked_at_once_than_allowed() -> None:
    async with Workshop(at_once=3).open() as shop:
        shop.seconds = 1.0
        for number in range(10):
            shop.worklist.name(f"k{number}")
        await shop.clock.run(10)
        assert shop.busiest == 3
        assert len(shop.done) == 10


async def test_what_failed_comes_back_later_each_time_up_to_a_bound() -> None:
    async with Workshop().open() as shop:
        shop.fails["a"] = [Transient("away")] * 20
        shop.worklist.name("a")
        times: list[float] = []
        for _ in range(120 * 10):
            before = len(shop.done)
            await shop.clock.run(0.1)
            times += [shop.clock.now] * (len(shop.done) - before)
        waits = [round(later - earlier, 1) for earlier, later in pairwise(times)]
        asked = [0.1, 0.2, 0.4, 0.8, 1.6]
        assert all(first - 0.11 <= wait <= first * 1.5 + 0.11 for first, wait in zip(asked, waits, strict=False))
        assert max(waits) <= LONGEST_RETRY_SECONDS + MORE_SECONDS + 0.1


async def test_keys_that_failed_together_do_not_all_come_back_at_once() -> None:
    async with Workshop(at_once=64).open() as shop:
        keys = [f"run-{number}" for number in range(20)]
        for key in keys:
            shop.fails[key] = [ApiError(503, "ServiceUnavailable", "away", retry_after_seconds=10.0)]
            shop.worklist.name(key)
        await shop.clock.run(9.9)
        assert len(shop.done) == 20
        await shop.clock.run(2.5)
        assert 20 < len(shop.done) < 40
        await shop.clock.run(2.7)
        assert len(shop.done) == 40


async def test_a_server_that_names_a_time_is_given_it() -> None:
    async with Workshop().open() as shop:
        shop.fails["a"] = [ApiError(429, "TooManyRequests", "slow down", retry_after_seconds=30.0)]
        shop.worklist.name("a")
        await shop.clock.run(29)
        assert shop.done == ["a"]
        await shop.clock.run(1 + MORE_SECONDS + 1)
        assert shop.done == ["a", "a"]


async def test_naming_a_key_that_failed_does_not_shorten_its_wait() -> None:
    async with Workshop().open() as shop:
        shop.fails["a"] = [ApiError(429, "TooManyRequests", "slow down", retry_after_seconds=30.0)]
        shop.worklist.name("a")
        await shop.clock.run(1)
        shop.worklist.name("a")
        await shop.clock.run(20)
        assert shop.done == ["a"]


async def test_failures_in_a_row_are_counted_until_the_key_succeeds() -> None:
    async with Workshop().open() as shop:
        shop.fails["a"] = [Transient("away"), Transient("away")]
        shop.worklist.name("a")
        await shop.clock.run(0.15)
        assert shop.worklist.failures("a") == 2
        await shop.clock.run(5)
        assert shop.worklist.failures("a") == 0


async def test_a_key_may_be_wished_for_later() -> None:
    async with Workshop().open() as shop:
        shop.worklist.name_later("a", 10)
        await shop.clock.run(9)
        assert shop.done == []
        await shop.clock.run(2)
        assert shop.done == ["a"]


async def test_a_key_due_in_an_hour_is_worked_at_once_when_it_changes() -> None:
    """A finished pod is kept for its hour, and is let go at once when somebody deletes it before."""
    async with Workshop().open() as shop:
        shop.worklist.name_later("a", 3600)
        shop.worklist.name("a")
        await shop.clock.run(1)
        assert shop.done == ["a"]
        await shop.clock.run(3600)
        assert shop.done == ["a", "a"]


async def test_a_failure_does_not_wait_for_an_earlier_wish_for_later() -> None:
    async with Workshop().open() as shop:
        shop.worklist.name_later("a", 3600)
        shop.fails["a"] = [Transient("away")]
        shop.worklist.name("a")
        await shop.clock.run(1)
        assert shop.done == ["a", "a"]


async def test_an_error_that_is_neither_the_bus_nor_the_api_ends_the_loop() -> None:
    async with Workshop().open() as shop:
        shop.fails["a"] = [InvariantViolation("books")]
        shop.worklist.name("a")
        await shop.clock.run()
        assert shop.running is not None
        assert isinstance(shop.running.exception(), InvariantViolation)


async def test_what_is_under_way_is_cancelled_with_the_loop() -> None:
    shop = Workshop()
    async with shop.open():
        shop.seconds = 100.0
        shop.worklist.name("a")
        shop.worklist.name_later("b", 50)
        await shop.clock.run(1)
    await shop.clock.run(200)
    assert shop.done == []
    assert not shop.busy.total()


async def test_of_several_wishes_to_look_later_the_soonest_stands() -> None:
    async with Workshop().open() as shop:
        shop.worklist.name_later("a", 15)
        shop.worklist.name_later("a", 2)
        shop.worklist.name_later("a", 9)
        await shop.clock.run(1.5)
        assert shop.done == []
        await shop.clock.run(1)
        assert shop.done == ["a"]
        await shop.clock.run(20)
        assert shop.done == ["a"]
