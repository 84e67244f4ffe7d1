"""What every Bus promises: over a real nats-server and in memory."""

import asyncio

import pytest

from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Conflict, Full, Poison, Transient
from tessera.kernel.messaging.dead_letters import BODY_BYTES_MAX, DeadLetters
from tessera.kernel.messaging.work_queue import work
from tessera.kernel.ports import Bus, Delivery, Message, Usage
from tessera_schemas.subjects import MESSAGE_BYTES_MAX
from tests.contract.bus_worlds import PATIENT, World, drain, out, seqs

A, B = {"Nats-Msg-Id": "a"}, {"Nats-Msg-Id": "b"}


async def cancelled(waiting: "asyncio.Future[list[Message]]") -> list[Message]:
    """What a wait that was cancelled brought all the same."""
    waiting.cancel()
    try:
        return await waiting
    except asyncio.CancelledError:
        return []


class TestPublishing:
    async def test_sequences_rise_by_one(self, world: World) -> None:
        await world.add_stream("S", "s.>")
        bus: Bus = await world.connect()
        assert [await bus.publish(out("s.a")), await bus.publish(out("s.b"))] == [1, 2]

    async def test_a_swap_on_the_stream_wins_only_with_its_last_sequence(self, world: World) -> None:
        await world.add_stream("S", "s.>")
        bus = await world.connect()
        assert await bus.publish(out("s.a", expected_last_seq=0)) == 1
        assert await bus.publish(out("s.b", expected_last_seq=1)) == 2
        with pytest.raises(Conflict):
            await bus.publish(out("s.a", expected_last_seq=1))

    async def test_a_swap_on_a_subject_takes_no_notice_of_other_subjects(self, world: World) -> None:
        await world.add_stream("S", "s.>")
        bus = await world.connect()
        await bus.publish_all([out("s.a"), out("s.b")])
        assert await bus.publish(out("s.a", expected_last_subject_seq=1)) == 3
        with pytest.raises(Conflict):
            await bus.publish(out("s.a", expected_last_subject_seq=1))
        with pytest.raises(Conflict):
            await bus.publish(out("s.c", expected_last_subject_seq=1))

    async def test_of_two_swaps_under_way_with_the_same_expectation_one_wins(self, world: World) -> None:
        await world.add_stream("S", "s")
        one, two = await world.connect(), await world.connect()
        for expected in range(20):
            swap = out("s", expected_last_subject_seq=expected)
            outcomes = await asyncio.gather(one.publish(swap), two.publish(swap), return_exceptions=True)
            assert expected + 1 in outcomes
            assert [type(outcome) for outcome in outcomes].count(Conflict) == 1

    async def test_many_are_stored_in_order(self, world: World) -> None:
        await world.add_stream("S", "s")
        bus = await world.connect()
        assert await bus.publish_all([out("s", b"%d" % i) for i in range(1500)]) == list(range(1, 1501))
        assert [m.data for m in await drain(bus.follow("S", "s", 0), 1500)] == [b"%d" % i for i in range(1500)]

    async def test_many_larger_than_the_window_are_stored(self, world: World) -> None:
        await world.add_stream("S", "s")
        bus = await world.connect()
        assert await bus.publish_all([out("s", bytes(500_000))] * 20) == list(range(1, 21))

    async def test_the_first_error_of_many_comes_after_all_were_answered(self, world: World) -> None:
        await world.add_stream("S", "s.>")
        bus = await world.connect()
        with pytest.raises(Conflict):
            await bus.publish_all([out("s.a"), out("s.b", expected_last_subject_seq=9), out("s.c")])
        assert [m.subject for m in await drain(bus.follow("S", "s.>", 0), 2)] == ["s.a", "s.c"]

    async def test_a_repeated_message_id_is_stored_once_and_answers_the_first_sequence(self, world: World) -> None:
        await world.add_stream("S", "s")
        bus = await world.connect()
        assert await bus.publish_all([out("s", headers=A), out("s", headers=B), out("s", headers=A)]) == [1, 2, 1]
        assert await bus.publish(out("s")) == 3

    async def test_a_lost_swap_is_a_conflict_even_when_its_id_was_stored(self, world: World) -> None:
        await world.add_stream("S", "s")
        bus = await world.connect()
        await bus.publish(out("s", headers=A, expected_last_subject_seq=0))
        with pytest.raises(Conflict):
            await bus.publish(out("s", headers=A, expected_last_subject_seq=0))

    @pytest.mark.parametrize("limit", [{"messages_max": 2}, {"bytes_max": 500}, {"messages_per_subject_max": 2}])
    async def test_a_full_stream_refuses_and_keeps_what_it_has(self, world: World, limit: dict[str, int]) -> None:
        await world.add_stream("S", "s.>", **limit)
        bus = await world.connect()
        await bus.publish_all([out("s.a", bytes(150)), out("s.a", bytes(150))])
        with pytest.raises(Full):
            await bus.publish(out("s.a", bytes(350)))
        assert await bus.get("S", 1) is not None

    async def test_when_a_message_was_stored_is_told_to_whoever_fetches_it(self, world: World) -> None:
        await world.add_stream("S", "s.>")
        bus = await world.connect()
        assert (await bus.usage("S")).first_ms == 0
        before_ms = SystemClock().now_ms()
        await bus.publish_all([out("s.a", b"1"), out("s.b", b"2")])
        fetched = [await bus.get("S", 2), await bus.last("S", "s.a"), *await bus.last_all("S", "s.*")]
        told = [0 if message is None else message.stored_ms for message in fetched]
        assert all(before_ms - 1 <= ms <= SystemClock().now_ms() for ms in (*told, (await bus.usage("S")).first_ms))

    async def test_how_full_a_stream_is_can_be_asked(self, world: World) -> None:
        await world.add_stream("S", "s.>", bytes_max=5000)
        await world.add_stream("T", "t.>")
        bus = await world.connect()
        assert await bus.usage("S") == Usage(0, 5000)
        await bus.publish(out("s.a", bytes(1000)))
        used = await bus.usage("S")
        assert 1000 <= used.bytes < 1200
        assert used.bytes_max == 5000
        assert (await bus.usage("T")).bytes_max == 0
        with pytest.raises(Transient):
            await bus.usage("NONE")

    async def test_one_full_subject_leaves_room_for_the_others(self, world: World) -> None:
        await world.add_stream("S", "s.*", messages_per_subject_max=1)
        bus = await world.connect()
        await bus.publish(out("s.greedy"))
        with pytest.raises(Full):
            await bus.publish(out("s.greedy"))
        await bus.publish(out("s.modest"))

    async def test_a_subject_that_no_stream_takes_is_refused(self, world: World) -> None:
        bus = await world.connect()
        with pytest.raises(Transient, match="no stream"):
            await bus.publish(out("nobody.listens"))

    async def test_a_message_above_the_streams_size_is_poison(self, world: World) -> None:
        await world.add_stream("S", "s", message_bytes_max=100)
        bus = await world.connect()
        with pytest.raises(Poison):
            await bus.publish(out("s", bytes(101)))


class TestReading:
    async def test_a_message_comes_back_with_its_own_headers_and_its_id(self, world: World) -> None:
        await world.add_stream("S", "s.>")
        bus = await world.connect()
        await bus.publish(out("s.a", b"hello", headers={"cursor": "7.0", "Nats-Msg-Id": "id-1"}))
        expected = Message("s.a", 1, b"hello", {"cursor": "7.0", "Nats-Msg-Id": "id-1"})
        assert await bus.get("S", 1) == expected
        assert await bus.last("S", "s.a") == expected
        assert await bus.last_all("S", "s.>") == [expected]
        assert await drain(bus.follow("S", "s.>", 0), 1) == [expected]

    async def test_a_message_without_headers_has_none(self, world: World) -> None:
        await world.add_stream("S", "s")
        bus = await world.connect()
        await bus.publish(out("s", b""))
        assert [await bus.get("S", 1), await bus.last("S", "s")] == [Message("s", 1, b"", {})] * 2

    async def test_what_is_not_there_is_none(self, world: World) -> None:
        await world.add_stream("S", "s.>")
        bus = await world.connect()
        assert await bus.last("S", "s.a") is None
        assert await bus.get("S", 1) is None
        assert await bus.last_all("S", "s.*") == []

    async def test_the_newest_of_every_subject(self, world: World) -> None:
        await world.add_stream("S", "s.>", last_per_subject=1)
        bus = await world.connect()
        await bus.publish_all([out("s.a"), out("s.b"), out("s.a"), out("s.other.a")])
        assert seqs(await bus.last_all("S", "s.*")) == [2, 3]

    async def test_a_stream_that_does_not_exist_is_transient(self, world: World) -> None:
        bus = await world.connect()
        for read in (bus.get("NONE", 1), bus.last("NONE", "s"), bus.last_all("NONE", "s")):
            with pytest.raises(Transient):
                await read


class TestFollowing:
    async def test_it_starts_after_the_cursor_and_goes_on_with_what_comes(self, world: World) -> None:
        await world.add_stream("S", "s")
        bus = await world.connect()
        await bus.publish_all([out("s")] * 5)
        follow = bus.follow("S", "s", after=3)
        assert seqs(await drain(follow, 2)) == [4, 5]
        await bus.publish_all([out("s")] * 300)
        assert seqs(await drain(follow, 300)) == list(range(6, 306))

    async def test_it_waits_for_the_first_message_of_an_empty_stream(self, world: World) -> None:
        await world.add_stream("S", "s")
        bus = await world.connect()
        follow = bus.follow("S", "s", after=0)
        assert await follow.next(timeout=0.05) == []
        waiting = asyncio.ensure_future(follow.next())
        await asyncio.sleep(0.05)
        await bus.publish(out("s"))
        assert seqs(await waiting) == [1]

    async def test_a_batch_is_never_larger_than_asked_for(self, world: World) -> None:
        await world.add_stream("S", "s")
        bus = await world.connect()
        await bus.publish_all([out("s")] * 10)
        follow = bus.follow("S", "s", after=0)
        assert [seqs(await follow.next(limit=4)) for _ in range(3)] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]

    @pytest.mark.parametrize(
        ("subject", "expected"),
        [("s.a.x", [1, 4, 7]), ("s.*.x", [1, 2, 4, 5, 7]), ("s.b.>", [2, 3, 5]), ("s.>", [1, 2, 3, 4, 5, 6, 7])],
    )
    async def test_a_filter_gets_its_subjects_in_order_stored_and_live(
        self, world: World, subject: str, expected: list[int]
    ) -> None:
        await world.add_stream("S", "s.>")
        bus = await world.connect()
        stored = ["s.a.x", "s.b.x", "s.b.y", "s.a.x", "s.b.x", "s.c.y", "s.a.x"]
        await bus.publish_all([out(name) for name in stored])
        follow = bus.follow("S", subject, after=0)
        assert seqs(await drain(follow, len(expected))) == expected
        for name in stored:
            await bus.publish(out(name))
        assert seqs(await drain(follow, len(expected))) == [seq + 7 for seq in expected]

    async def test_replaced_messages_of_a_last_value_stream_are_passed_over(self, world: World) -> None:
        await world.add_stream("S", "s.*", last_per_subject=1)
        bus = await world.connect()
        await bus.publish_all([out("s.a"), out("s.b"), out("s.a")])
        follow = bus.follow("S", "s.*", after=0)
        assert seqs(await drain(follow, 2)) == [2, 3]
        await bus.publish(out("s.b"))
        assert seqs(await drain(follow, 1)) == [4]

    async def test_nothing_is_lost_when_a_wait_is_cancelled(self, world: World) -> None:
        await world.add_stream("S", "s")
        bus = await world.connect()
        follow = bus.follow("S", "s", after=0)
        got: list[int] = []
        for _ in range(30):
            publishing = asyncio.ensure_future(bus.publish_all([out("s")] * 3))
            waiting = asyncio.ensure_future(follow.next())
            await asyncio.sleep(0.001)
            got += seqs(await cancelled(waiting))
            await publishing
        if len(got) < 90:
            got += seqs(await drain(follow, 90 - len(got)))
        assert got == list(range(1, 91))

    async def test_closing_ends_a_wait(self, world: World) -> None:
        await world.add_stream("S", "s")
        follow = (await world.connect()).follow("S", "s", after=0)
        waiting = asyncio.ensure_future(follow.next())
        await asyncio.sleep(0.02)
        await follow.close()
        assert await waiting == []
        assert await follow.next() == []

    async def test_several_writers_and_followers_see_one_order(self, world: World) -> None:
        await world.add_stream("S", "s.*")
        buses = [await world.connect() for _ in range(3)]
        follows = [bus.follow("S", "s.*", 0) for bus in buses]
        writes = [bus.publish_all([out(f"s.{i}", b"%d" % n) for n in range(200)]) for i, bus in enumerate(buses)]
        results = await asyncio.gather(*(drain(follow, 600) for follow in follows), *writes)
        assert results[0] == results[1] == results[2]
        assert seqs(results[0]) == list(range(1, 601))


class TestWorking:
    async def queue(self, world: World, ack_wait_seconds: float = 30.0, pending_max: int = 1000) -> Bus:
        await world.add_stream("Q", "q.>", work_queue=True)
        await world.add_durable("Q", "worker", ack_wait_seconds, pending_max)
        bus: Bus = await world.connect()
        return bus

    async def test_each_message_goes_to_one_of_the_replicas_and_an_ack_ends_it(self, world: World) -> None:
        bus = await self.queue(world)
        replicas = [bus.work("Q", "worker"), (await world.connect()).work("Q", "worker")]
        await bus.publish_all([out("q.a", b"%d" % i) for i in range(40)])
        got: list[Delivery] = []
        while len(got) < 40:
            for replica in replicas:
                for delivery in await replica.next(timeout=0.1):
                    got.append(delivery)
                    await replica.ack(delivery)
        assert sorted(delivery.message.seq for delivery in got) == list(range(1, 41))
        assert {delivery.deliveries for delivery in got} == {1}
        assert await replicas[0].next(timeout=0.1) == []
        assert await bus.get("Q", 1) is None

    async def test_what_is_not_answered_comes_again_with_its_count(self, world: World) -> None:
        bus = await self.queue(world, ack_wait_seconds=1)
        queue = bus.work("Q", "worker")
        await bus.publish(out("q.a", b"first", headers={"k": "v"}))
        first, again = await queue.next(timeout=PATIENT), await queue.next(timeout=PATIENT)
        assert [first[0].deliveries, again[0].deliveries] == [1, 2]
        assert first[0].message == again[0].message == Message("q.a", 1, b"first", {"k": "v"})

    async def test_a_nak_puts_it_off_for_its_delay(self, world: World) -> None:
        bus = await self.queue(world)
        queue = bus.work("Q", "worker")
        await bus.publish(out("q.a"))
        await queue.nak((await queue.next(timeout=PATIENT))[0], 3)
        assert await queue.next(timeout=0.1) == []
        assert (await queue.next(timeout=PATIENT))[0].deliveries == 2

    async def test_a_queue_in_order_hands_out_nothing_behind_what_was_put_off(self, world: World) -> None:
        bus = await self.queue(world, pending_max=1)
        queue, other = bus.work("Q", "worker"), (await world.connect()).work("Q", "worker")
        await bus.publish_all([out("q.a", b"drain"), out("q.a", b"undo")])
        (first,) = await queue.next(timeout=PATIENT)
        assert await other.next(timeout=0.1) == []
        await queue.nak(first, 3)
        assert [*await other.next(timeout=0.1), *await queue.next(timeout=0.1)] == []
        got: list[bytes] = []
        while len(got) < 2:
            for replica in (queue, other):
                for delivery in await replica.next(timeout=0.2):
                    got.append(delivery.message.data)
                    await replica.ack(delivery)
        assert got == [b"drain", b"undo"]

    async def test_a_nak_without_delay_brings_it_back_at_once(self, world: World) -> None:
        bus = await self.queue(world)
        queue = bus.work("Q", "worker")
        await bus.publish(out("q.a"))
        await queue.nak((await queue.next(timeout=PATIENT))[0], 0)
        assert (await queue.next(timeout=PATIENT))[0].deliveries == 2

    async def test_a_terminated_message_never_comes_again(self, world: World) -> None:
        bus = await self.queue(world, ack_wait_seconds=2)
        queue = bus.work("Q", "worker")
        await bus.publish(out("q.a"))
        await queue.term((await queue.next(timeout=PATIENT))[0])
        assert await queue.next(timeout=2.5) == []

    async def test_a_message_in_progress_is_not_handed_out_again(self, world: World) -> None:
        bus = await self.queue(world, ack_wait_seconds=3)
        queue = bus.work("Q", "worker")
        await bus.publish(out("q.a"))
        delivery = (await queue.next(timeout=PATIENT))[0]
        for _ in range(4):
            await asyncio.sleep(0.9)
            await queue.in_progress(delivery)
        assert await queue.next(timeout=0.05) == []
        assert (await queue.next(timeout=PATIENT))[0].deliveries == 2

    async def test_a_late_ack_counts(self, world: World) -> None:
        bus = await self.queue(world, ack_wait_seconds=2)
        queue = bus.work("Q", "worker")
        await bus.publish(out("q.a"))
        first = (await queue.next(timeout=PATIENT))[0]
        await queue.next(timeout=PATIENT)
        await queue.ack(first)
        assert await queue.next(timeout=2.5) == []

    async def test_closing_gives_what_was_not_seen_to_another_replica_at_once(self, world: World) -> None:
        bus = await self.queue(world)
        leaving = bus.work("Q", "worker")
        await bus.publish_all([out("q.a")] * 10)
        assert len(await leaving.next(limit=4, timeout=PATIENT)) == 4
        await leaving.close()
        assert await leaving.next() == []
        staying = (await world.connect()).work("Q", "worker")
        got: list[Delivery] = []
        while len(got) < 6:
            batch = await staying.next(timeout=PATIENT)
            assert batch
            got += batch
        assert sorted(delivery.message.seq for delivery in got) == [5, 6, 7, 8, 9, 10]

    async def test_a_queue_of_large_messages_comes_a_few_at_a_time_and_each_once(self, world: World) -> None:
        bus = await self.queue(world)
        await bus.publish_all([out("q.a", bytes(2**20 - 100))] * 100)
        queue = (await world.connect()).work("Q", "worker")
        got: list[int] = []
        while len(got) < 100:
            await asyncio.sleep(0.05)  # the handler is slow; what was asked for comes meanwhile
            batch = await queue.next(timeout=PATIENT)
            assert batch
            for delivery in batch:
                assert delivery.deliveries == 1
                got.append(delivery.message.seq)
                await queue.ack(delivery)
        assert got == list(range(1, 101))

    @pytest.mark.parametrize("size", [MESSAGE_BYTES_MAX, 2**20 - 10_000])
    async def test_a_letter_that_would_not_fit_keeps_the_beginning_and_says_how_long_it_was(
        self, world: World, size: int
    ) -> None:
        await world.add_stream("DLQ", "dlq.>", message_bytes_max=MESSAGE_BYTES_MAX)
        bus = await world.connect()
        headers = {"Tessera-Reply": "_INBOX.lab.1", "huge": "x" * 5_000, "Tessera-Cut-From": "3"}
        headers |= {f"small-{number}": "y" * 900 for number in range(99)}
        letters = DeadLetters(bus, "main", "admission", "Q")
        await letters.put(Message("q.a", 7, b"a" * size, headers), "too much of everything")
        (letter,) = await drain(bus.follow("DLQ", "dlq.>", 0), 1)
        assert letter.data == b"a" * BODY_BYTES_MAX
        assert letter.headers["Tessera-Cut-From"] == str(size)
        assert letter.headers["Tessera-Reply"] == "_INBOX.lab.1"
        assert "huge" not in letter.headers

    async def test_the_loop_acks_the_good_and_buries_the_poison_with_its_story(self, world: World) -> None:
        bus = await self.queue(world)
        await world.add_stream("DLQ", "dlq.>")
        await bus.publish_all(
            [out("q.a", b"good"), out("q.a", b"bad", headers={"Nats-Msg-Id": "key"}), out("q.a", b"good")]
        )
        stop = asyncio.Event()

        async def handle(batch: list[Delivery]) -> list[object]:
            return [Poison("not\r\nJSON") if delivery.message.data == b"bad" else None for delivery in batch]

        letters = DeadLetters(bus, "main", "admission", "Q")
        running = asyncio.ensure_future(
            work(bus.work("Q", "worker"), handle, dead_letter=letters, clock=SystemClock(), stop=stop)
        )
        letter = (await drain(bus.follow("DLQ", "dlq.>", 0), 1))[0]
        while await bus.last("Q", "q.a") is not None:
            await asyncio.sleep(0.01)
        stop.set()
        await running
        assert (letter.subject, letter.data) == ("dlq.main.admission.Q.2", b"bad")
        assert letter.headers == {
            "Tessera-Subject": "q.a",
            "Tessera-Reason": "Poison: not JSON",
            "Tessera-Deliveries": "1",
            "Tessera-Msg-Id": "key",
        }


class TestSending:
    async def test_what_is_sent_reaches_those_who_listen_and_nobody_else(self, world: World) -> None:
        bus, client = await world.connect(), await world.connect()
        heard: list[tuple[str, bytes]] = []
        await client.listen("_INBOX.tenant-a.>", lambda subject, data: heard.append((subject, data)))
        await world.add_stream("S", "s")
        await client.last("S", "s")  # answered behind the subscription
        await bus.send("_INBOX.tenant-b.1", b"not for us")
        await bus.send("_INBOX.tenant-a.1", b"admitted")
        async with asyncio.timeout(PATIENT):
            while not heard:
                await asyncio.sleep(0.01)
        assert heard == [("_INBOX.tenant-a.1", b"admitted")]
