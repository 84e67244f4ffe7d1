"""Short tokens: for the tenant of the subject alone, by a key that nobody else has, until they end."""

import asyncio
import json

import pytest

from tessera.gateway.entrance.short_tokens import TOKEN_SECONDS, LoginDesk, ShortTokens, address_of
from tessera.gateway.entrance.tokens import TokenFile
from tessera.gateway.settings import GatewaySettings
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tests.virtual_time import VirtualClock

QUESTION = "0123456789abcdef" * 2


def tokens_of(secret: str = "s", shard: str = "main", clock: VirtualClock | None = None) -> ShortTokens:
    return ShortTokens(secret, shard, clock or VirtualClock())


def test_a_token_stands_for_its_tenant_at_every_gateway_of_the_shard_until_it_ends() -> None:
    clock = VirtualClock()
    token, other = tokens_of(clock=clock).make("lab"), TokenFile(None, tokens_of(clock=clock))
    caller = other.caller(token)
    assert caller is not None
    assert (caller.tenant, other.holds(caller)) == ("lab", True)
    clock.now += TOKEN_SECONDS + 1
    assert (other.caller(token), other.holds(caller)) == (None, False)


def test_no_other_token_is_accepted() -> None:
    clock = VirtualClock()
    tokens = TokenFile(None, tokens_of(clock=clock))
    token = tokens_of(clock=clock).make("lab")
    _, token_id, mac = token.split("_")
    kind, tenant, end = token_id.split(".")
    forged = [
        f"tessera_{kind}.ops.{end}_{mac}",
        f"tessera_{kind}.{tenant}.{int(end) + 1}_{mac}",
        f"tessera_{kind}.{tenant}.{end}_{'0' * 64}",
        f"tessera_{kind}.{tenant}.{end}_",
        f"tessera_{kind}.{tenant}.{end}_{mac}é",
        f"tessera_{kind}.{tenant}.{end}.{end}_{mac}",
        f"other_{token_id}_{mac}",
        tokens_of("another", clock=clock).make("lab"),
        tokens_of(shard="second", clock=clock).make("lab"),
        tokens_of("", clock=clock).make("lab"),
    ]
    assert [text for text in forged if tokens.caller(text) is not None] == []
    assert tokens.caller(token) is not None
    assert TokenFile(None).caller(token) is None


def test_the_operators_token_is_no_tenants() -> None:
    tokens = TokenFile(None, short := tokens_of())
    caller = tokens.caller(short.make("operator"))
    assert caller is not None
    assert (caller.tenant, tokens.holds(caller)) == (None, True)


async def test_the_answer_goes_to_the_tenant_of_the_subject_and_to_well_formed_questions_alone() -> None:
    broker, tokens = MemoryBroker(VirtualClock()), tokens_of()
    heard: list[tuple[str, bytes]] = []
    bus = MemoryBus(broker)
    await bus.listen("_INBOX.>", lambda subject, data: heard.append((subject, data)))
    desk = asyncio.create_task(LoginDesk(bus, "main", tokens, "https://t.example").run())
    try:
        await asyncio.sleep(0)
        for subject, data in (
            ("login.main.lab", QUESTION.encode()),
            ("login.main.ops", b"_INBOX.lab.login.x"),
            ("login.main.ops", QUESTION.encode() + b".lab"),
            ("login.main.lab", b""),
            ("login.main.LAB", QUESTION.encode()),
        ):
            await bus.send(subject, data)
        async with asyncio.timeout(60):
            while not heard:
                await asyncio.sleep(0)
        await asyncio.sleep(0.01)
    finally:
        desk.cancel()
    ((subject, data),) = heard
    answer = json.loads(data)
    caller = TokenFile(None, tokens).caller(answer["token"])
    assert (subject, answer["url"]) == (f"_INBOX.lab.login.{QUESTION}", "https://t.example")
    assert caller is not None
    assert caller.tenant == "lab"


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ({}, "http://127.0.0.1:7"),
        ({"api_host": "0.0.0.0", "allowed_hosts": ("t.example",)}, "https://t.example"),
        (
            {"api_host": "0.0.0.0", "allowed_hosts": ("t.example",), "tls_certificate_file": "c", "tls_key_file": "k"},
            "https://t.example:7",
        ),
        ({"public_url": "https://public.example/"}, "https://public.example"),
    ],
    ids=["loopback", "behind a proxy", "with TLS of its own", "as it is set"],
)
def test_a_gateway_says_where_clients_reach_it(settings: dict[str, object], address: str) -> None:
    assert address_of(GatewaySettings.model_validate({"shard": "main", **settings}), 7) == address
