"""Attacks on the limit per address: behind a proxy, and by who says to be one."""

import asyncio
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp.test_utils import make_mocked_request

from tessera.gateway.entrance.addresses import Addresses, counted
from tessera.gateway.settings import GatewaySettings
from tests.unit.gateway.gateway_world import World

PROXIES = ("10.0.0.0/8", "fd00::/8")


def client_of(peer: str, *lines: str, **settings: object) -> str:
    made = make_mocked_request("GET", "/", headers=[("X-Forwarded-For", line) for line in lines])  # type: ignore[arg-type]
    given = GatewaySettings(**{"trusted_proxies": PROXIES, **settings})  # type: ignore[arg-type]
    return Addresses(given, Mock()).client(made.clone(remote=peer))


@pytest.mark.parametrize(
    ("peer", "lines", "client"),
    [
        ("198.51.100.7", ["203.0.113.9"], "198.51.100.7"),
        ("10.1.2.3", ["203.0.113.9"], "203.0.113.9"),
        ("10.1.2.3", ["192.0.2.1, 203.0.113.9"], "203.0.113.9"),
        ("10.1.2.3", ["192.0.2.1", "203.0.113.9, 10.7.7.7"], "203.0.113.9"),
        ("10.1.2.3", ["10.9.9.9, 203.0.113.9 , 10.7.7.7"], "203.0.113.9"),
        ("10.1.2.3", ["203.0.113.9:5712"], "203.0.113.9"),
        ("fd00::1", ["[2001:db8::7]:443"], "2001:db8::7"),
        ("fd00::1", ["2001:db8::7"], "2001:db8::7"),
        ("10.1.2.3", [], "10.1.2.3"),
        ("10.1.2.3", ["203.0.113.9, unknown, 10.7.7.7"], "10.7.7.7"),
        ("10.1.2.3", ["203.0.113.9, , "], "10.1.2.3"),
        ("10.1.2.3", ["10.9.9.9"], "10.9.9.9"),
    ],
    ids=[
        "a stranger's header counts for nothing",
        "a proxy names its client",
        "what the client wrote itself is passed over",
        "in several lines, and behind two proxies",
        "a client may not say that it is a proxy",
        "with a port",
        "IPv6 with a port",
        "IPv6",
        "a proxy that names nobody",
        "what is no address ends at the proxy that wrote it",
        "nor is nothing",
        "only proxies",
    ],
)
def test_a_request_is_of_the_nearest_address_that_no_trusted_proxy_has(
    peer: str, lines: list[str], client: str
) -> None:
    assert client_of(peer, *lines) == client


def test_nobody_is_trusted_unless_told() -> None:
    assert client_of("10.1.2.3", "203.0.113.9", trusted_proxies=()) == "10.1.2.3"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("::ffff:203.0.113.9", "203.0.113.9", True),
        ("::ffff:203.0.113.9", "::ffff:203.0.113.8", False),
        ("fe80::1%eth0", "fe80::1", True),
    ],
)
def test_addresses_that_one_machine_has_count_as_one(one: str, other: str, same: bool) -> None:
    assert (counted(one) == counted(other)) is same


async def test_behind_a_proxy_one_client_has_its_own_limit_and_leaves_room_for_others(world: World) -> None:
    token = world.token("lab")
    limits = {"trusted_proxies": ("127.0.0.1/32",), "connections_per_address": 3}
    async with world.gateway(heartbeat_seconds=0.05, **limits), aiohttp.ClientSession() as http:

        async def opened(client: str) -> aiohttp.ClientResponse:
            headers = {"Authorization": f"Bearer {token}", "X-Forwarded-For": f"192.0.2.1, {client}"}
            return await http.get(f"{world.url}/v1/events", headers=headers)

        held = [await opened("203.0.113.9") for _ in range(3)]
        assert [each.status for each in held] == [200] * 3
        over = await opened("203.0.113.9")
        assert (over.status, (await over.json())["reasons"][0]["field"]) == (429, "connections_per_address")
        others = [await opened("203.0.113.10") for _ in range(3)]  # more connections than the limit, of one proxy
        assert [each.status for each in others] == [200] * 3
        held[0].close()
        async with asyncio.timeout(60):
            while (again := await opened("203.0.113.9")).status != 200:
                await asyncio.sleep(0.05)
        for each in (*held, *others, again):
            each.close()


async def test_without_trust_a_header_gives_nobody_more_than_its_own_connections(world: World) -> None:
    token = world.token("lab")
    async with world.gateway(connections_per_address=3), aiohttp.ClientSession() as http:
        url, held = f"{world.url}/v1/events", []
        for number in range(3):
            headers = {"Authorization": f"Bearer {token}", "X-Forwarded-For": f"203.0.113.{number}"}
            held.append(await http.get(url, headers=headers))
        with pytest.raises(aiohttp.ClientError):
            await http.get(url, headers={"Authorization": f"Bearer {token}", "X-Forwarded-For": "203.0.113.99"})
        for each in held:
            each.close()
