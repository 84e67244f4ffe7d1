"""Attacks on the one loop of the gateway: requests that are few and cost much."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.gateway.entrance import loop_shares
from tessera.gateway.entrance.loop_shares import LoopShare, MeteredSteps
from tessera.gateway.entrance.problems import Refusal
from tessera.gateway.operations import handlers, paging
from tessera.gateway.settings import GatewaySettings
from tessera.kernel.clock import thread_seconds
from tests.unit.gateway.gateway_world import World


@dataclass
class Loop:
    """A clock that goes on when somebody works on the loop, and when all wait for it."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)
    _until: list[tuple[float, int, "asyncio.Future[None]"]] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        ends = asyncio.get_running_loop().create_future()
        heappush(self._until, (self.now + seconds, len(self.slept), ends))
        asyncio.get_running_loop().call_soon(self._go_on)
        await ends

    def _go_on(self) -> None:
        until, _, ends = heappop(self._until)
        self.now = max(self.now, until)
        ends.set_result(None)

    def work(self, milliseconds: int) -> None:
        self.now += milliseconds / 1000


def share_of(loop: Any, ms_per_second: int = 200, ms_burst: int = 1000) -> LoopShare:
    return LoopShare(GatewaySettings(loop_ms_per_second=ms_per_second, loop_ms_burst=ms_burst), loop, loop.monotonic)


async def test_only_a_requests_own_steps_are_charged_not_what_it_waits_for() -> None:
    loop, took = Loop(), list[int]()

    async def request() -> str:
        loop.work(3)
        await loop.sleep(50)
        loop.work(4)
        return "done"

    assert await MeteredSteps(request(), loop.monotonic, took.append) == "done"
    assert [round(each / 1000) for each in took] == [3, 4]
    waited = asyncio.get_running_loop().create_future()
    took.clear()

    async def waits() -> None:
        loop.work(2)
        await waited
        loop.work(1)

    waiting = asyncio.ensure_future(serve(MeteredSteps(waits(), loop.monotonic, took.append)))
    await asyncio.sleep(0)
    loop.work(1000)  # somebody else's
    waited.set_result(None)
    await waiting
    assert [round(each / 1000) for each in took] == [2, 1]


async def serve(work: Any) -> Any:
    return await work


async def test_a_cancelled_request_is_cancelled_within_and_charged() -> None:
    loop, took, ended = Loop(), list[int](), list[str]()

    async def request() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            ended.append("cancelled")
            loop.work(5)
            raise

    task = asyncio.ensure_future(serve(MeteredSteps(request(), loop.monotonic, took.append)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cancelled"]
    assert round(took[-1] / 1000) == 5


async def test_a_time_limit_within_a_request_still_ends_it() -> None:
    async def request() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.get_running_loop().create_future()
        except TimeoutError:
            return "in time"
        return "never"

    assert await MeteredSteps(request(), thread_seconds, lambda _: None) == "in time"


@pytest.mark.parametrize(("spent_ms", "refused"), [(1001, True), (1000, False)])
async def test_a_burst_may_be_used_up_and_no_more(spent_ms: int, refused: bool) -> None:
    loop = Loop()
    share = share_of(loop, ms_per_second=1)
    await spend(share, loop, spent_ms)
    if refused:
        with pytest.raises(Refusal):
            share.check()
    else:
        share.check()


async def spend(share: LoopShare, loop: Loop, milliseconds: int) -> None:
    async def request() -> None:
        loop.work(milliseconds)

    await share.serve(request())


async def test_what_is_owed_is_told_and_paid_in_the_time_that_is_told() -> None:
    loop = Loop()
    share = share_of(loop)
    await spend(share, loop, 2000)  # of which the burst had 1,000
    with pytest.raises(Refusal) as refusal:
        share.check()
    problem = refusal.value.problem()
    assert (refusal.value.status, problem.code, problem.reasons[0].numbers["charged_ms"]) == (429, "RateLimited", 2000)
    assert problem.retry_after == 5 == refusal.value.retry_after
    loop.now += problem.retry_after - 0.5
    with pytest.raises(Refusal):
        share.check()
    loop.now += 0.5
    share.check()


@given(costs=st.lists(st.integers(1, 500), min_size=1, max_size=60), pauses=st.lists(st.integers(0, 300), max_size=60))
async def test_whatever_a_tenant_asks_it_gets_its_part_of_the_loop_and_one_step_more(
    costs: list[int], pauses: list[int]
) -> None:
    loop, used = Loop(), 0
    share, began = share_of(loop, 200, 300), loop.now
    for at, cost in enumerate(costs):
        loop.now += (pauses[at] if at < len(pauses) else 0) / 1000
        try:
            share.check()
        except Refusal:
            continue
        await spend(share, loop, cost)
        used += cost
        assert used <= 300 + 200 * (loop.now - began) + max(costs) + 1


def in_line() -> tuple[Loop, LoopShare, list[int], Callable[[int], Coroutine[Any, Any, None]]]:
    """A small share, and requests of half a second that note the order in which they have their turn."""
    loop, order = Loop(), list[int]()
    share = share_of(loop, 200, 100)

    async def request(number: int) -> None:
        await share.turn()
        order.append(number)
        loop.work(500)

    return loop, share, order, request


async def test_requests_that_came_in_together_are_each_charged_before_the_next_begins() -> None:
    loop, share, order, request = in_line()

    share.check()  # all pass
    await asyncio.gather(*(share.serve(request(number)) for number in range(4)))
    assert order == [0, 1, 2, 3]
    assert sum(loop.slept) >= 3 * 2  # each of the others waited for what its predecessor owed


async def test_of_one_tenants_requests_one_begins_between_two_of_others() -> None:
    loop, order = Loop(), list[str]()
    flood, modest = share_of(loop), share_of(loop)

    async def request(share: LoopShare, name: str, steps: int) -> None:
        for _ in range(steps):  # what is read before the handler begins
            await asyncio.sleep(0)
        await share.turn()
        order.append(name)
        loop.work(10)

    floods = [flood.serve(request(flood, f"flood {number}", 0)) for number in range(40)]
    await asyncio.gather(*floods, modest.serve(request(modest, "modest", 3)))
    assert order.index("modest") <= 3
    assert [name for name in order if name != "modest"] == [f"flood {number}" for number in range(40)]


async def test_who_is_cancelled_in_line_keeps_nobody_behind() -> None:
    _, share, order, request = in_line()

    tasks = [asyncio.ensure_future(serve(share.serve(request(number)))) for number in range(4)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [1, 3]


@pytest.fixture
async def busy(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A search, and an order's consequences, keep the loop for 65 ms; `tokens` are there before it starts."""
    spent = 0.0

    def busy_seconds() -> float:
        return thread_seconds() + spent

    def costly(done: Any) -> Any:
        def works(*given: Any, **more: Any) -> Any:
            nonlocal spent
            spent += 0.065
            return done(*given, **more)

        return works

    monkeypatch.setattr(loop_shares, "thread_seconds", busy_seconds)
    monkeypatch.setattr(paging, "page_of", costly(paging.page_of))
    monkeypatch.setattr(handlers, "explained", costly(handlers.explained))
    monkeypatch.setattr(handlers, "told_consequences", costly(handlers.told_consequences))
    world.tokens = {name: world.token(name.partition("/")[0] or None) for name in ("lab", "lab/2", "other", "", "/2")}
    async with world.gateway(loop_ms_per_second=1, loop_ms_burst=130):
        yield world


DRAIN = {"command": {"kind": "drain_node", "v": 1, "node": "node-a"}}


@pytest.mark.parametrize(
    ("method", "path", "body", "operator"),
    [
        ("GET", "/v1/jobs?search=a", None, False),
        ("GET", "/v1/jobs?named=train", None, False),
        ("POST", "/v1/consequences", DRAIN, True),
    ],
    ids=["a search", "a name", "the consequences of an order"],
)
async def test_costly_requests_of_one_caller_are_refused_and_others_are_answered(
    busy: World, method: str, path: str, body: Any, operator: bool
) -> None:
    hostile, modest = busy.tokens["" if operator else "lab"], busy.tokens["other"]
    said = [await busy.ask(method, path, hostile, body) for _ in range(12)]
    assert sum(each.status == 200 for each in said) <= 3
    last = said[-1]
    assert (last.status, last.code) == (429, "RateLimited")
    assert last.body["reasons"][0]["numbers"]["charged_ms"] >= 65
    assert int(last.headers["Retry-After"]) == last.body["retry_after"] >= 1
    assert (await busy.ask("GET", "/v1/jobs?search=a", modest)).status == 200
    second = await busy.ask(method, path, busy.tokens["/2" if operator else "lab/2"], body)
    assert second.status == (200 if operator else 429)  # tokens of a tenant share; an operator's is its own
