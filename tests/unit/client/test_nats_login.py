"""A tenant's credential for NATS gets a token from a gateway, and sends it nowhere that is not the gateway's."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tessera.client.connect import nats_login
from tessera.client.connect.nats_login import NatsLogin
from tessera.client.outcomes import Exit, Failure
from tessera.kernel.clock import SystemClock
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.provisioning.credential_files import Credential, Identity, Login


@dataclass
class Place:
    """A shard on which a gateway answers with `url`; with none nobody does."""

    url: str
    nats_url: str = "nats://nats.example:4222"
    shard: str = "main"
    gateway_url: str = ""
    identity: str = "lab"
    asked: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[MemoryBus]:
        broker = MemoryBroker(SystemClock())
        bus = MemoryBus(broker)

        def answer(subject: str, question: bytes) -> None:
            self.asked.append(subject)
            if self.url:
                broker.send(
                    f"_INBOX.{self.identity}.login.{question.decode()}",
                    json.dumps({"url": self.url, "token": "t"}).encode(),
                )

        await bus.listen("login.main.*", answer)
        yield bus


def login(url: str, **more: Any) -> tuple[NatsLogin, Place]:
    place = Place(url, **more)
    who = Credential(Identity(place.identity, "tenant"), Login(place.identity, "x"), None)
    return NatsLogin(place, who, place.bus), place  # type: ignore[arg-type]


async def test_a_token_is_asked_for_once_and_used_for_a_while() -> None:
    made, place = login("https://t.example")
    assert [(await made.obtain()).url for _ in range(2)] == ["https://t.example"] * 2
    assert place.asked == ["login.main.lab"]


async def test_without_a_gateway_it_is_said_how_a_tenant_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_login, "ANSWER_SECONDS", 0.01)
    with pytest.raises(Failure, match="no gateway answered on NATS") as raised:
        await login("")[0].obtain()
    assert raised.value.code is Exit.UNAVAILABLE


@pytest.mark.parametrize("url", ["http://t.example", "http://127.0.0.1:8480", "https://localhost", "ftp://t.example"])
async def test_a_token_goes_neither_in_clear_nor_to_who_listens_on_this_machine(url: str) -> None:
    with pytest.raises(Failure):
        await login(url)[0].obtain()


async def test_on_this_machine_it_goes_to_a_gateway_on_this_machine() -> None:
    made, _ = login("http://127.0.0.1:8480", nats_url="nats://127.0.0.1:4222")
    assert (await made.obtain()).token == "t"


async def test_a_token_goes_to_the_address_that_is_said_here_before_the_one_that_the_gateway_gives() -> None:
    made, _ = login("http://127.0.0.1:8480", gateway_url="https://reached.example")
    assert (await made.obtain()).url == "https://reached.example"


async def test_an_operator_asks_as_itself() -> None:
    made, place = login("https://t.example", identity="operator")
    assert (await made.obtain()).token == "t"
    assert place.asked == ["login.main.operator"]
