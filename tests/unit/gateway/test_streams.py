"""Events over HTTP: resumed from any place without a gap, and no client is slowed by another."""

import asyncio
import socket

import pytest

from tessera.gateway.entrance import tokens as token_module
from tessera.gateway.entrance.tokens import drop_token
from tessera_schemas import subjects
from tests.builders import SHARD
from tests.unit.gateway.gateway_world import World


def texts(events: list) -> list[str]:  # type: ignore[type-arg]
    return [event.data["data"]["job_id"] for event in events]


async def test_a_stream_begins_now_or_after_the_event_that_is_named(world: World) -> None:
    token = world.token("lab")
    ids = [world.event("lab", f"old-{i}") for i in range(3)]
    async with (
        world.gateway(),
        world.streaming("/v1/events", token) as now,
        world.streaming("/v1/events?after=0", token) as every,
        world.streaming(f"/v1/events?after={ids[0]}", token) as some,
    ):
        world.event("lab", "new")
        assert texts(await now.take(1)) == ["new"]
        assert texts(await every.take(4)) == ["old-0", "old-1", "old-2", "new"]
        assert texts(await some.take(3)) == ["old-1", "old-2", "new"]


async def test_a_stream_that_does_not_follow_ends_with_the_newest_event_of_its_beginning_however_busy_the_shard(
    world: World,
) -> None:
    token, other = world.token("lab"), world.token("ops")
    for i in range(300):
        world.event(("lab", "busy")[i % 2], str(i))
    stored = [str(i) for i in range(0, 300, 2)]
    async with world.gateway(events_held=16):
        async with world.streaming("/v1/events?follow=false", token) as stream:
            assert texts(await stream.take(100)) == stored[:100]
            for i in range(20):
                world.event("lab", f"later-{i}")
            assert texts(await stream.take(50)) == stored[100:]
            (told,) = await stream.take(1)
            assert (told.name, told.data) == ("complete", {"as_of": 299})
            assert await stream.next() is None
        async with world.streaming("/v1/events?follow=false&after=319", token) as stream:
            assert texts(await stream.take(1)) == ["later-19"]
            assert (await stream.take(1))[0].name == "complete"
        async with world.streaming("/v1/events?follow=false", other) as stream:
            assert (await stream.take(1))[0].name == "complete"


@pytest.mark.parametrize("rare", [1, 7, 40], ids=["each", "every 7th", "every 40th"])
async def test_a_stream_may_begin_with_the_newest_that_are_kept_however_rare_they_are(world: World, rare: int) -> None:
    token, other = world.token("lab"), world.token("ops")
    for i in range(400):
        world.event("busy" if i % rare else "lab", str(i))
    mine = [str(i) for i in range(0, 400, rare)]
    async with world.gateway(events_held=16), world.streaming("/v1/events?last=5", token) as stream:
        assert texts(await stream.take(5)) == mine[-5:]
        world.event("lab", "new")
        assert texts(await stream.take(1)) == ["new"]
        async with world.streaming("/v1/events?last=1000&follow=false", token) as every:
            assert texts(await every.take(len(mine) + 1)) == [*mine, "new"]
            assert (await every.take(1))[0].name == "complete"
        async with world.streaming("/v1/events?last=5", other) as none:
            world.event("ops", "first")
            assert texts(await none.take(1)) == ["first"]
        async with world.streaming("/v1/events?last=5&after=400", token) as some:
            assert texts(await some.take(1)) == ["new"]


async def test_who_goes_on_behind_what_was_complete_misses_nothing(world: World) -> None:
    token = world.token("lab")
    world.event("lab", "one")
    async with world.gateway():
        async with world.streaming("/v1/events?follow=false", token) as stream:
            world.event("lab", "two")
            assert texts(await stream.take(1)) == ["one"]
            (told,) = await stream.take(1)
        async with world.streaming("/v1/events", token, Last_Event_ID=str(told.id)) as stream:
            assert texts(await stream.take(1)) == ["two"]


async def test_last_event_id_wins_over_after_so_that_a_browsers_retry_goes_on(world: World) -> None:
    token = world.token("lab")
    ids = [world.event("lab", str(i)) for i in range(3)]
    async with world.gateway(), world.streaming("/v1/events?after=0", token, Last_Event_ID=str(ids[1])) as stream:
        assert texts(await stream.take(1)) == ["2"]


@pytest.mark.parametrize("held", [16, 4096])
async def test_a_client_that_leaves_and_comes_back_misses_nothing_and_ids_are_stable(world: World, held: int) -> None:
    token, found, last = world.token("lab"), list[tuple[int, str]](), 0
    async with world.gateway(events_held=held):
        for turn in range(6):
            for i in range(40):
                world.event(("lab", "ops")[i % 2], f"{turn}-{i}")
            async with world.streaming(f"/v1/events?after={last}", token) as stream:
                events = await stream.take(13)
            found += [(event.id, event.data["data"]["job_id"]) for event in events]
            last = events[-1].id
        async with world.streaming("/v1/events?after=0", token) as stream:
            again = [(event.id, event.data["data"]["job_id"]) for event in await stream.take(len(found))]
    assert found == again
    assert [text for _, text in found] == [f"{t}-{i}" for t in range(6) for i in range(0, 40, 2)][: len(found)]


async def test_a_client_goes_on_at_another_gateway_or_after_a_restart(world: World) -> None:
    token = world.token("lab")
    async with world.gateway(), world.streaming("/v1/events", token) as stream:
        world.event("lab", "one")
        world.event("lab", "two")
        (first,) = await stream.take(1)
    world.event("lab", "three")
    async with world.gateway(), world.streaming("/v1/events", token, Last_Event_ID=str(first.id)) as stream:
        world.event("lab", "four")
        assert texts(await stream.take(3)) == ["two", "three", "four"]


async def test_tenants_see_their_own_and_an_operator_all_or_one(world: World) -> None:
    lab, ops, operator = world.token("lab"), world.token("ops"), world.token(None)
    for tenant in ("lab", "ops", "lab"):
        world.event(tenant, tenant)
    async with world.gateway():
        async with world.streaming("/v1/events?after=0", lab) as stream:
            assert texts(await stream.take(2)) == ["lab", "lab"]
        async with world.streaming("/v1/events?after=0", operator) as stream:
            assert texts(await stream.take(3)) == ["lab", "ops", "lab"]
        async with world.streaming("/v1/events?after=0&tenant=ops", operator) as stream:
            assert texts(await stream.take(1)) == ["ops"]
        foreign = await world.ask("GET", "/v1/events?tenant=lab", ops)
    assert (foreign.status, foreign.code) == (403, "Forbidden")


async def test_a_stream_may_be_of_one_job_and_of_some_types(world: World) -> None:
    token = world.token("lab")
    for kind in ("job.admitted.v1", "job.bound.v1", "job.failed.v1"):
        for job in ("a", "b"):
            world.event("lab", job, kind)
    async with world.gateway():
        async with world.streaming("/v1/events?after=0&job=b", token) as stream:
            assert texts(await stream.take(3)) == ["b", "b", "b"]
        async with world.streaming("/v1/events?after=0&type=job.bound.v1&type=job.failed.v1", token) as stream:
            kinds = [event.data["type"] for event in await stream.take(4)]
        async with world.streaming("/v1/events?after=0&type=io.tessera.job.bound.v1", token) as stream:
            assert texts(await stream.take(2)) == ["a", "b"], "the form that stands in every event is taken"
        refused = await world.ask("GET", "/v1/events?type=job.faild.v1", token)
        assert (refused.status, "is job.failed.v1 meant?" in str(refused.body)) == (422, True)
    assert kinds == [f"io.tessera.job.{kind}.v1" for kind in ("bound", "bound", "failed", "failed")]


async def test_heartbeats_move_the_place_on_past_events_of_others(world: World) -> None:
    token = world.token("lab")
    async with world.gateway(heartbeat_seconds=0.05), world.streaming("/v1/events", token) as stream:
        last = [world.event("ops") for _ in range(5)][-1]
        waiting = asyncio.create_task(stream.next())
        async with asyncio.timeout(60):
            while stream.last_id < last or stream.heartbeats < 3:
                await asyncio.sleep(0.01)
        world.event("lab", "mine")
        event = await waiting
    assert event is not None
    assert event.id == last + 1


async def test_a_place_that_is_not_kept_any_more_is_told_as_a_gap_and_the_rest_follows(world: World) -> None:
    token = world.token("lab")
    for i in range(5):
        world.event("lab", str(i))
    for seq in (1, 2, 3):
        world.stream("EVENTS").remove(seq)
    async with world.gateway(), world.streaming("/v1/events?after=2", token) as stream:
        gap, *rest = await stream.take(3)
    assert (gap.name, gap.data["code"]) == ("gap", "EventsGone")
    assert texts(rest) == ["3", "4"]


async def test_a_place_that_was_never_there_is_refused_instead_of_waited_for(world: World) -> None:
    token = world.token("lab")
    world.event("lab")
    async with world.gateway():
        said = await world.ask("GET", "/v1/events?after=99", token)
        wrong = await world.ask("GET", "/v1/events", token, headers={"Last-Event-ID": "4.2"})
    assert (said.status, said.code) == (409, "EventsGone")
    assert (wrong.status, wrong.body["field"]) == (422, "Last-Event-ID")


async def test_a_client_that_reads_nothing_is_dropped_with_its_reason_and_slows_nobody(world: World) -> None:
    slow, quick = world.token("lab"), world.token("lab")
    async with world.gateway(slow_seconds=0.5), world.streaming("/v1/events", quick) as other:
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", world.port))
        reader.sendall(f"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {slow}\r\n\r\n".encode())
        await asyncio.sleep(0.2)
        large = "x" * 50_000
        for i in range(200):
            world.event("lab", f"{i}-{large}")
            if i % 20 == 19:  # the other one reads as they come
                assert len(await other.take(20)) == 20
        async with asyncio.timeout(60):
            while not world.measured("tessera_gateway_slow_readers_total"):
                await asyncio.sleep(0.02)
        said = await asyncio.to_thread(_all_that_comes, reader)
        world.event("lab", "still here")
        assert texts(await other.take(1)) == ["still here"]
    assert b"event: end" in said[-2000:]
    assert b"SlowReader" in said[-2000:]


def _all_that_comes(reader: socket.socket) -> bytes:
    reader.settimeout(60)
    found = b""
    while chunk := reader.recv(1 << 20):
        found = (found + chunk)[-10_000:]
    reader.close()
    return found


async def test_a_stop_ends_every_stream_with_its_reason(world: World) -> None:
    token = world.token("lab")
    async with (
        world.gateway(),
        world.streaming("/v1/events", token) as one,
        world.streaming("/v1/events", token) as two,
    ):
        world.stop.set()
        for stream in (one, two):
            end = await stream.next()
            assert end is not None
            assert (end.name, end.data["code"], end.data["retry_after"]) == ("end", "ShuttingDown", 1)
            assert await stream.next() is None


async def test_a_token_that_is_taken_back_ends_its_streams(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_module, "RELOAD_SECONDS", 0.05)
    token, other = world.token("lab"), world.token("lab")
    async with (
        world.gateway(heartbeat_seconds=0.05),
        world.streaming("/v1/events", token) as gone,
        world.streaming("/v1/events", other) as stays,
    ):
        drop_token(world.tokens_file, token.split("_")[1])
        end = await gone.next()
        assert end is not None
        assert (end.name, end.data["code"]) == ("end", "Unauthorized")
        assert (await world.ask("GET", "/v1/jobs", token)).status == 401
        world.event("lab", "on")
        assert texts(await stays.take(1)) == ["on"]


async def test_a_token_that_is_made_while_the_gateway_runs_is_taken(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_module, "RELOAD_SECONDS", 0.05)
    async with world.gateway():
        token = world.token("lab")
        async with asyncio.timeout(60):
            while (await world.ask("GET", "/v1/jobs", token)).status != 200:
                await asyncio.sleep(0.02)


async def test_open_streams_are_bounded_per_token_and_given_back(world: World) -> None:
    one, other = world.token("lab"), world.token("lab")
    async with world.gateway(streams_per_token=1, heartbeat_seconds=0.05):
        async with world.streaming("/v1/events", one):
            said = await world.ask("GET", "/v1/events", one)
            assert (said.status, said.code, said.headers["Retry-After"]) == (429, "RateLimited", "5")
            async with world.streaming("/v1/events", other):
                pass
        async with asyncio.timeout(60):
            while True:
                try:
                    async with world.streaming("/v1/events", one):
                        break
                except AssertionError:
                    await asyncio.sleep(0.02)


async def test_an_event_is_handed_on_byte_for_byte(world: World) -> None:
    token = world.token("lab")
    world.event("lab", 'a "quoted"\nline')
    (stored,) = world.stream("EVENTS").messages.values()
    async with world.gateway(), world.streaming("/v1/events?after=0", token) as stream:
        (event,) = await stream.take(1)
    assert event.data["data"]["job_id"] == 'a "quoted"\nline'
    assert stored.subject == subjects.event(SHARD, "lab", "research", "job.waiting.v1")


async def test_events_of_nodes_are_an_operators_and_no_tenants(world: World) -> None:
    lab, operator = world.token("lab"), world.token(None)
    world.event("operator", "sick", "node.health-changed.v1", "default")
    world.event("lab", "mine")
    async with world.gateway():
        async with world.streaming("/v1/events?after=0&type=node.health-changed.v1", operator) as stream:
            assert texts(await stream.take(1)) == ["sick"]
        async with world.streaming("/v1/events?after=0", lab) as stream:
            assert texts(await stream.take(1)) == ["mine"]
        refused = await world.ask("GET", "/v1/events?tenant=operator", lab)
    assert (refused.status, refused.code) == (403, "Forbidden")
