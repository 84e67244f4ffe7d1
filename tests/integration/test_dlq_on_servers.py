"""`tessera dlq` on a real server: what services buried is read back, by the operator and nobody else."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tessera.client.connect.connecting import open_bus
from tessera.client.connect.locating import find
from tessera.kernel.messaging.dead_letters import DeadLetters
from tessera.kernel.nats.once import connect_once
from tessera.kernel.ports import Message
from tessera_local.platform import Platform
from tests.e2e.live import Said, tessera

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def platform(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Platform]:
    async with Platform(tmp_path_factory.mktemp("dlq") / "up", services=[], cluster=False, tenants=["lab"]) as running:
        yield running


async def dlq(platform: Platform, *words: str) -> Said:
    return await tessera("dlq", *words, environment={"TESSERA_HOME": str(platform.directory), "COLUMNS": "80"})


async def bury(platform: Platform, seq: int, data: bytes, reason: str, **headers: Any) -> None:
    place = find(platform.directory)
    async with open_bus(place, place.identity("admission")) as bus:
        letters = DeadLetters(bus, "main", "admission", "SUBMIT_main")
        await letters.put(Message("submit.main.lab", seq, data, headers), reason, 5)


async def test_no_letters_are_said_to_be_none(platform: Platform) -> None:
    assert (await dlq(platform, "list")).out == "There are no dead letters.\n"
    assert (await dlq(platform, "list", "-o", "json")).json == {"items": [], "total": 0}


async def test_letters_are_listed_and_each_is_shown_in_full(platform: Platform) -> None:
    await bury(platform, 41, b'{"kind": "submit_job"}', "Poison: the first", REPLY="_INBOX.lab.1")
    await bury(platform, 42, b"\xff\x1b[2J" + b"x" * 2**20, "Transient: the second " + "long " * 40)
    said = await dlq(platform, "list")
    title, first, second, note = said.out.splitlines()
    assert title.split() == ["SEQ", "AGE", "SERVICE", "SUBJECT", "REASON"]
    assert [first.split()[0], *first.split()[2:]] == ["1", "admission", "submit.main.lab", "Poison:", "the", "first"]
    assert len(second) <= 80
    assert note == "2 of 2 dead letters"
    assert [line.split()[0] for line in (await dlq(platform, "list", "--last", "1")).out.splitlines()[1:]] == ["2", "1"]

    shown = await dlq(platform, "show", "1")
    assert shown.out.endswith('\n\n{"kind": "submit_job"}\n')
    assert "header REPLY  _INBOX.lab.1" in shown.out
    assert (await dlq(platform, "show", "1", "-o", "json")).json["data"] == '{"kind": "submit_job"}'
    cut = (await dlq(platform, "show", "2", "-o", "json")).json
    assert (cut["bytes_sent"], cut["source_seq"]) == (2**20 + 5, 42)
    assert cut["bytes_stored"] < cut["bytes_sent"]
    assert "\x1b" not in (await dlq(platform, "show", "2")).out


async def test_what_is_not_there_is_a_sentence_and_an_exit_code(platform: Platform) -> None:
    missing = await dlq(platform, "show", "999")
    assert (missing.code, missing.out) == (3, "")
    assert missing.err == "error: dead letter 999: there is none in shard main; see `tessera dlq list`\n"
    tenants_file = platform.credentials.file("lab")
    environment = {"TESSERA_NATS_URL": platform.nats.url, "TESSERA_CREDENTIALS_FILE": str(tenants_file)}
    foreign = await tessera("dlq", "list", environment=environment)
    assert (foreign.code, foreign.out) == (2, "")
    assert "the credentials in use are those of lab" in foreign.err


async def test_a_letter_that_was_dropped_leaves_the_others(platform: Platform) -> None:
    for seq in (50, 51, 52):
        await bury(platform, seq, b"x", "Poison: one of three")
    items = (await dlq(platform, "list", "-o", "json")).json["items"]
    numbers = [item["seq"] for item in items if item["reason"] == "Poison: one of three"]
    place = find(platform.directory)
    login = place.identity("operator").nats
    admin = await connect_once(place.nats_url, login.user, login.password, seconds=60)
    await admin.jsm().delete_msg("DLQ_main", numbers[1])
    await admin.close()
    left = (await dlq(platform, "list", "-o", "json")).json
    assert [item["seq"] for item in left["items"] if item["seq"] in numbers] == [numbers[0], numbers[2]]
    assert (await dlq(platform, "show", str(numbers[1]))).code == 3
