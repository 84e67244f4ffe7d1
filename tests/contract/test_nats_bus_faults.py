"""What the Bus over NATS does when the server, the connection or the live path fails."""

import asyncio
import gc
import signal
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tessera.kernel.errors import Conflict, Full, Poison, StartupError, Transient, UnknownOutcome
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.nats import follow as nats_follow
from tessera.kernel.nats.bus import NatsBus
from tessera.kernel.nats.follow import NatsFollow
from tessera.kernel.nats.once import connect_once
from tessera.kernel.nats.protocol import delivery_position, number, publish_outcome
from tessera.kernel.ports import Outgoing
from tessera_local.free_port import free_port
from tests.contract.bus_worlds import PATIENT, NatsWorld, drain, out, seqs
from tests.servers import NatsServer, start_nats


async def until(bus: NatsBus, *, connected: bool) -> None:
    async with asyncio.timeout(PATIENT):
        while bus.connected is not connected:
            await asyncio.sleep(0.01)


def reconnected(bus: NatsBus) -> asyncio.Event:
    """Set when the connection that holds now was lost and made again."""
    event = asyncio.Event()
    bus._wire.on_reconnect(event.set)
    return event


class TestAnswers:
    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            ('{"code":400,"err_code":10071,"description":"wrong last sequence: 4"}', Conflict),
            ('{"code":400,"err_code":10164,"description":"wrong last sequence"}', Conflict),
            ('{"code":503,"err_code":10077,"description":"maximum bytes exceeded"}', Full),
            ('{"code":503,"err_code":10077,"description":"no space left on device"}', Transient),
            ('{"code":400,"err_code":10054,"description":"message size exceeds maximum allowed"}', Poison),
            ('{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}', Transient),
        ],
        ids=["lost-swap", "lost-to-one-under-way", "full", "disk", "too-big", "no-leader"],
    )
    def test_each_refusal_has_its_kernel_error(self, error: str, expected: type[Exception]) -> None:
        assert type(publish_outcome("s", f'{{"error":{error},"seq":0}}'.encode(), b"")) is expected

    def test_a_sender_cannot_forge_the_servers_headers(self) -> None:
        headers = b"NATS/1.0\r\nNats-Sequence: 999\r\nNats-Stream: S\r\nNats-Sequence: 7\r\n\r\n"
        assert number(headers, b"Nats-Sequence") == 7

    @pytest.mark.parametrize(
        "reply", [b"$JS.ACK.Q.worker.3.41.17.1700000000000.0", b"$JS.ACK.hub.acc.Q.worker.3.41.17.1700000000000.0.tok"]
    )
    def test_a_delivery_knows_its_sequence_count_and_time_from_its_ack_subject(self, reply: bytes) -> None:
        assert delivery_position(reply) == (41, 3, 1_700_000)


class TestStartup:
    async def test_a_missing_server_is_one_line_that_says_what_to_do(self) -> None:
        url = f"nats://127.0.0.1:{free_port()}"
        with pytest.raises(StartupError) as error:
            await NatsBus.connect(url, startup_seconds=0.3)
        assert url in str(error.value)
        assert "\n" not in str(error.value)

    async def test_what_was_tried_in_vain_leaves_no_error_that_nobody_took(self) -> None:
        said: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
        with pytest.raises(StartupError):
            await NatsBus.connect(f"nats://127.0.0.1:{free_port()}", startup_seconds=0.3)
        gc.collect()
        await asyncio.sleep(0)
        assert said == []

    async def test_wrong_credentials_are_refused_at_once(self, nats_server: NatsServer) -> None:
        with pytest.raises(StartupError, match="refuses user 'mallory'"):
            await NatsBus.connect(nats_server.url, user="mallory", password="x", startup_seconds=60)


class TestOpenServers:
    async def test_a_server_that_came_back_without_its_users_is_told_and_so_is_one_with_them(
        self, own_nats_server: NatsServer
    ) -> None:
        bus = await NatsBus.connect(own_nats_server.url, user="admin", password="admin")
        try:
            assert not bus.lets_anybody_in
            again, config = reconnected(bus), own_nats_server.directory / "nats.conf"
            users = next(line for line in config.read_text().splitlines() if line.startswith("authorization"))
            config.write_text(config.read_text().replace(users, ""))
            own_nats_server.restart()
            await asyncio.wait_for(again.wait(), PATIENT)
            assert bus.lets_anybody_in
        finally:
            await bus.close()


class TestEncryption:
    async def test_a_server_that_wants_tls_gets_it_and_one_that_nobody_vouches_for_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        key, certificate = tmp_path / "server.key", tmp_path / "server.crt"
        openssl = ["openssl", "req", "-x509", "-nodes", "-days", "2", "-newkey", "ec", "-subj", "/CN=nats"]
        openssl += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run([*openssl, "-keyout", key, "-out", certificate], check=True, capture_output=True)
        server = start_nats(tmp_path / "nats", extra=f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}')
        trusting = ssl.create_default_context(cafile=str(certificate))
        login: dict[str, Any] = {"user": "admin", "password": "admin"}
        try:
            bus = await NatsBus.connect(server.url, tls=trusting, **login)
            with pytest.raises(Transient, match="stream not found"):
                await bus.usage("NONE")
            await bus.close()
            with pytest.raises(StartupError, match="certificate"):
                await NatsBus.connect(server.url.replace("nats://", "tls://"), startup_seconds=1.0, **login)
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            admin = await connect_once(server.url.replace("nats://", "tls://"), "admin", "admin", seconds=60)
            await admin.close()
            await asyncio.sleep(0.1)
            assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
        finally:
            server.stop()


class TestPublishing:
    async def test_no_answer_in_time_is_an_unknown_outcome_and_the_append_may_come_later(
        self, own_world: NatsWorld, own_nats_server: NatsServer
    ) -> None:
        await own_world.add_stream("S", "s")
        bus = await own_world.connect(ack_seconds=0.2)
        own_nats_server.freeze()
        with pytest.raises(UnknownOutcome):
            await bus.publish(out("s", b"zombie", expected_last_subject_seq=0))
        own_nats_server.thaw()
        zombie = (await drain(bus.follow("S", "s", 0), 1))[0]
        assert zombie.data == b"zombie"
        patient = await own_world.connect()
        with pytest.raises(Conflict):
            await patient.publish(out("s", expected_last_subject_seq=0))

    async def test_a_disconnect_before_the_answer_is_an_unknown_outcome(
        self, own_world: NatsWorld, own_nats_server: NatsServer
    ) -> None:
        await own_world.add_stream("S", "s")
        bus = await own_world.connect()
        own_nats_server.freeze()
        publishing = asyncio.ensure_future(bus.publish_all([out("s")] * 3))
        await asyncio.sleep(0.05)
        own_nats_server.stop(signal.SIGKILL)
        with pytest.raises(UnknownOutcome):
            await publishing
        own_nats_server.start()
        await until(bus, connected=True)

    async def test_without_a_connection_nothing_is_sent_then_or_later(
        self, own_world: NatsWorld, own_nats_server: NatsServer
    ) -> None:
        await own_world.add_stream("S", "s")
        bus = await own_world.connect()
        own_nats_server.stop()
        await until(bus, connected=False)
        with pytest.raises(Transient) as error:
            await bus.publish(out("s"))
        assert type(error.value) is Transient
        with pytest.raises(Transient):
            await bus.publish_all([out("s")] * 3)
        own_nats_server.start()
        await until(bus, connected=True)
        assert await bus.publish(out("s", b"first", expected_last_subject_seq=0)) == 1

    async def test_over_a_new_connection_the_ledger_is_appended_to_once_its_tail_was_read(
        self, own_world: NatsWorld, own_nats_server: NatsServer
    ) -> None:
        await own_world.add_stream("LEDGER_main", "ledger.main")
        bus = await own_world.connect()
        ledger, again = StreamLedger(bus, "main"), reconnected(bus)
        await ledger.append(b"first", 0)
        own_nats_server.restart()
        await again.wait()
        with pytest.raises(Conflict, match="the tail is to be read first"):
            await ledger.append(b"second", 1)
        await ledger.tail()
        with pytest.raises(Conflict, match="the tail is to be read first"):  # it was compared with nothing
            await ledger.append(b"second", 1)
        await ledger.tail(to_append=True)
        assert await ledger.append(b"second", 1) == 2

    async def test_a_forbidden_subject_is_refused_without_waiting_for_a_time_out(
        self, own_world: NatsWorld, own_nats_server: NatsServer
    ) -> None:
        bus = await own_world.connect(user="limited", password="limited", inbox_prefix="_INBOX.limited", ack_seconds=60)
        with pytest.raises(Transient, match="may not publish"):
            await bus.publish(out("forbidden"))
        assert bus.connected

    async def test_bytes_above_the_servers_limit_are_poison(self, nats_world: NatsWorld) -> None:
        await nats_world.add_stream("S", "s")
        bus = await nats_world.connect()
        with pytest.raises(Poison):
            await bus.publish(out("s", bytes(2 << 20)))

    @pytest.mark.parametrize("over", [1, 10, 50])
    async def test_headers_count_towards_the_limit_and_do_not_cost_the_connection(
        self, nats_world: NatsWorld, over: int
    ) -> None:
        await nats_world.add_stream("S", "s")
        bus = await nats_world.connect()
        headers = {"Tessera-Reply": "_INBOX.lab.answers.1"}
        room = (1 << 20) - len(b"NATS/1.0\r\nTessera-Reply: _INBOX.lab.answers.1\r\n\r\n")
        lost = reconnected(bus)
        with pytest.raises(Poison):
            await bus.publish(Outgoing("s", bytes(room + over), headers=headers))
        assert await bus.publish(Outgoing("s", bytes(room), headers=headers)) == 1
        assert not lost.is_set()

    async def test_a_closed_bus_is_transient_for_good(self, nats_world: NatsWorld) -> None:
        bus = await nats_world.connect()
        await bus.close()
        with pytest.raises(Transient):
            await bus.publish(out("s"))
        with pytest.raises(Transient):
            await bus.follow("S", "s", 0).next()
        with pytest.raises(Transient):
            await bus.work("Q", "worker").next()


class TestFollowing:
    @pytest.mark.parametrize("subject", ["s.a", "s.*", "s.>"])
    async def test_what_was_stored_during_a_restart_is_caught_up(
        self, own_world: NatsWorld, own_nats_server: NatsServer, subject: str
    ) -> None:
        await own_world.add_stream("S", "s.*")
        reader, writer = await own_world.connect(), await own_world.connect()
        follow = reader.follow("S", subject, 0)
        await writer.publish_all([out("s.a")] * 10)
        got = await drain(follow, 10)
        waiting = asyncio.ensure_future(follow.next())
        back = reconnected(writer)
        own_nats_server.restart()
        await asyncio.wait_for(back.wait(), PATIENT)
        await writer.publish_all([out("s.a")] * 10)
        got += await waiting
        got += await drain(follow, 20 - len(got)) if len(got) < 20 else []
        assert seqs(got) == list(range(1, 21))

    @pytest.mark.parametrize("subject", ["s.a", "s.*", "s.>"])
    async def test_lost_live_messages_are_read_from_the_stream(
        self, nats_world: NatsWorld, monkeypatch: pytest.MonkeyPatch, subject: str
    ) -> None:
        await nats_world.add_stream("S", "s.*")
        bus = await nats_world.connect()
        hear = NatsFollow._on_live

        def hard_of_hearing(self: NatsFollow, to: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
            if (number(headers, b"Nats-Sequence") or 0) % 3:
                hear(self, to, reply, data, headers)

        monkeypatch.setattr(NatsFollow, "_on_live", hard_of_hearing)
        follow = bus.follow("S", subject, 0)
        assert await follow.next(timeout=0.05) == []
        for _ in range(30):
            await bus.publish(out("s.a"))
        assert seqs(await drain(follow, 30)) == list(range(1, 31))

    async def test_a_partial_wildcard_does_not_let_a_later_subject_overtake_a_lost_one(
        self, nats_world: NatsWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await nats_world.add_stream("S", "s.>")
        bus = await nats_world.connect()
        hear = NatsFollow._on_live

        def deaf_to_x(self: NatsFollow, to: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
            if not to.endswith(b".x"):
                hear(self, to, reply, data, headers)

        monkeypatch.setattr(NatsFollow, "_on_live", deaf_to_x)
        follow = bus.follow("S", "s.a.*", 0)
        assert await follow.next(timeout=0.05) == []
        await bus.publish_all([out("s.b.z"), out("s.a.x"), out("s.a.y")])
        assert [message.subject for message in await drain(follow, 2)] == ["s.a.x", "s.a.y"]

    async def test_a_reader_that_falls_behind_forgets_the_live_copies_and_reads_the_stream(
        self, nats_world: NatsWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(nats_follow, "BUFFER_MESSAGES", 10)
        await nats_world.add_stream("S", "s")
        bus = await nats_world.connect()
        follow = bus.follow("S", "s", 0)
        assert await follow.next(timeout=0.05) == []
        await bus.publish_all([out("s")] * 95)
        await asyncio.sleep(0.05)
        assert len(follow._live) <= 10
        assert seqs(await drain(follow, 95)) == list(range(1, 96))

    async def test_who_is_far_behind_takes_no_live_copies_until_it_has_caught_up(
        self, nats_world: NatsWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(nats_follow, "BUFFER_MESSAGES", 10)
        await nats_world.add_stream("S", "s")
        bus = await nats_world.connect()
        follow = bus.follow("S", "s", 0)
        assert await follow.next(timeout=0.05) == []
        await bus.publish_all([out("s")] * 95)
        async with asyncio.timeout(PATIENT):
            while not follow._far_behind:
                await asyncio.sleep(0.01)
        got = seqs(await follow.next(limit=20))
        assert follow._sid is None  # nothing is received only to be thrown away
        got += seqs(await drain(follow, 95 - len(got)))
        assert got == list(range(1, 96))
        assert await follow.next(timeout=0.05) == []
        assert follow._sid is not None
        await bus.publish(out("s"))
        assert seqs(await follow.next(timeout=PATIENT)) == [96]

    async def test_closing_that_is_given_up_half_way_leaves_the_connection_as_it_was(
        self, own_world: NatsWorld, own_nats_server: NatsServer
    ) -> None:
        await own_world.add_stream("S", "s")
        bus = await own_world.connect()
        follow = bus.follow("S", "s", 0)
        assert await follow.next(timeout=0.05) == []
        own_nats_server.freeze()
        closing = asyncio.ensure_future(follow.close())
        await asyncio.sleep(0.05)
        assert not closing.done()  # it waits for the server to say that all has come
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        own_nats_server.thaw()
        assert await bus.publish(out("s")) == 1

    async def test_a_missing_stream_is_transient(self, nats_world: NatsWorld) -> None:
        with pytest.raises(Transient, match="no such stream"):
            await (await nats_world.connect()).follow("NONE", "s", 0).next()

    async def test_messages_larger_than_one_read_come_through(self, nats_world: NatsWorld) -> None:
        await nats_world.add_stream("S", "s")
        bus = await nats_world.connect()
        await bus.publish_all([out("s", bytes(900_000))] * 12)
        assert seqs(await drain(bus.follow("S", "s", 0), 12)) == list(range(1, 13))


class TestWorking:
    async def test_it_goes_on_after_a_restart(self, own_world: NatsWorld, own_nats_server: NatsServer) -> None:
        await own_world.add_stream("Q", "q", work_queue=True)
        await own_world.add_durable("Q", "worker")
        bus = await own_world.connect()
        queue = bus.work("Q", "worker")
        await bus.publish(out("q"))
        await queue.ack((await queue.next(timeout=PATIENT))[0])
        waiting = asyncio.ensure_future(queue.next())
        back = reconnected(bus)
        own_nats_server.restart()
        await asyncio.wait_for(back.wait(), PATIENT)
        await bus.publish(Outgoing("q", b"after"))
        assert [delivery.message.data for delivery in await waiting] == [b"after"]

    async def test_a_missing_durable_is_transient(self, nats_world: NatsWorld) -> None:
        await nats_world.add_stream("Q", "q", work_queue=True)
        with pytest.raises(Transient, match="no such durable"):
            await (await nats_world.connect()).work("Q", "nobody").next()

    async def test_credit_is_renewed_for_more_than_one_pull(self, nats_world: NatsWorld) -> None:
        await nats_world.add_stream("Q", "q", work_queue=True)
        await nats_world.add_durable("Q", "worker")
        bus = await nats_world.connect()
        await bus.publish_all([out("q")] * 2000)
        queue = bus.work("Q", "worker")
        got = 0
        while got < 2000:
            batch = await queue.next(timeout=PATIENT)
            assert 0 < len(batch) <= 256
            for delivery in batch:
                await queue.ack(delivery)
            got += len(batch)
        assert await queue.next(timeout=0.1) == []
