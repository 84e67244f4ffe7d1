"""`/v1/quotes`, and quotes beside places and jobs: who sees which, and what follows where there are none."""

from typing import Any

from tessera.gateway.reading.quotes import SharedQuotes
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient
from tessera.kernel.memory.store import MemoryStore, MemoryViews
from tests.unit.gateway.gateway_world import World
from tests.unit.gateway.quoted import job_of, kept, waiting
from tests.virtual_time import VirtualClock


async def test_the_list_is_of_ones_own_waiting_jobs_the_soonest_first_and_by_pages(world: World) -> None:
    lab, operator = await waiting(world, k1=6, k2=2, k3=4), world.token(None)
    async with world.gateway():
        every = (await world.ask("GET", "/v1/quotes", lab)).body
        first = (await world.ask("GET", "/v1/quotes?limit=2", lab)).body
        rest = (await world.ask("GET", f"/v1/quotes?limit=2&cursor={first['next']}", lab)).body
        to_operator = (await world.ask("GET", "/v1/quotes", operator)).body["items"]
    assert [item["job_id"] for item in every["items"]] == [job_of("k2"), job_of("k3"), job_of("k1")]
    assert every["items"][0]["quote"]["words"].startswith("in 2d (50 %), by 4d (80 %)")
    assert (every["as_of"], "next" in every, "next" in rest) == (7, False, False)
    assert [item["job_id"] for item in first["items"] + rest["items"]] == [job["job_id"] for job in every["items"]]
    assert [item["tenant"] for item in to_operator] == ["other", "lab", "lab", "lab"]


async def test_scores_are_of_the_pools_that_one_sees(world: World) -> None:
    lab = await waiting(world, k1=6)
    async with world.gateway():
        (pool,) = (await world.ask("GET", "/v1/quotes/scores", lab)).body["items"]
    assert (pool["pool"], pool["quotes"], pool["held_in_80"]) == ("default", 40, 790)


async def test_a_place_and_a_job_have_the_quote_and_others_places_none(world: World) -> None:
    lab = await waiting(world, k1=6)
    async with world.gateway():
        line = (await world.ask("GET", "/v1/line", lab)).body["items"]
        job = (await world.ask("GET", f"/v1/jobs/{job_of('k1')}", lab)).body
    assert {place["job_id"]: "quote" in place for place in line} == {job_of("k1"): True, "": False}
    assert job["quote"]["words"].startswith("in 6d (50 %)")


async def test_without_redis_or_quotes_lists_go_on_without_any(world: World) -> None:
    lab = await waiting(world, k1=6)
    world.store_faults.only = "quotes"
    world.store_faults.go_away(Transient("away"))
    async with world.gateway():
        line = await world.ask("GET", "/v1/line", lab)
        job = await world.ask("GET", f"/v1/jobs/{job_of('k1')}", lab)
        quotes = await world.ask("GET", "/v1/quotes", lab)
    assert (line.status, job.status, quotes.status) == (200, 200, 200)
    assert (["quote" in place for place in line.body["items"]], "quote" in job.body) == ([False, False], False)
    assert quotes.body["items"] == []


async def test_redis_is_asked_once_a_second_and_what_it_lost_is_told_no_more() -> None:
    class Counted(MemoryStore):
        asked = 0

        async def quotes(self) -> Any:
            self.asked += 1
            return await super().quotes()

    clock = VirtualClock()
    views = MemoryViews(SystemClock())
    store = Counted(views)
    quotes = SharedQuotes(store, clock, 1.0)
    views.quotes = kept({"a": 1}, 0).model_dump_json().encode()
    assert [len((await quotes.fresh()).quotes) for _ in range(3)] == [1, 1, 1]
    assert store.asked == 1
    views.quotes = b"{not json"
    clock.pause(1.0)
    assert (await quotes.fresh()).quotes == {}
    views.quotes = kept({"a": 1, "b": 2}, 0).model_dump_json().encode()
    clock.pause(1.0)
    assert len((await quotes.fresh()).quotes) == 2
    views.wipe()
    clock.pause(1.0)
    assert (await quotes.fresh()).quotes == {}
