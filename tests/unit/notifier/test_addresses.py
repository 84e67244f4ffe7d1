"""Addresses that a webhook may reach, whatever form leads there."""

import socket
from ipaddress import ip_network

import aiohttp
import pytest
from aiohttp import web

from tessera.notifier.addresses import AddressRefused, checked_sockets, is_reachable

INSIDE = (
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "168.63.129.16",
    "::ffff:168.63.129.16",
    "169.254.169.254",
    "172.16.5.4",
    "192.0.0.8",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1%eth0",
    "fec0::1",
    "fd00::1",
    "3fff:fff::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::a00:1",
    "2002:7f00:1::",
    "2001:0:4136:e378:8000:63bf:f5ff:fffe",
)
OUTSIDE = ("1.1.1.1", "93.184.215.14", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101")


@pytest.mark.parametrize("address", INSIDE)
def test_an_address_inside_is_refused_in_every_form(address: str) -> None:
    assert not is_reachable(address, ())


@pytest.mark.parametrize("address", OUTSIDE)
def test_a_public_address_is_reached(address: str) -> None:
    assert is_reachable(address, ())


def test_the_operator_allows_networks_by_name_of_their_own() -> None:
    allowed = (ip_network("10.2.0.0/16"), ip_network("fd00::/64"))
    assert is_reachable("10.2.3.4", allowed)
    assert is_reachable("::ffff:10.2.3.4", allowed)
    assert is_reachable("fd00::1", allowed)
    assert not is_reachable("10.3.0.1", allowed)
    assert not is_reachable("fd00:0:0:1::1", allowed)


async def status_of(host: str, *allowed: str) -> int:
    """Answer of a server on loopback to a client with the checked sockets; 0 without a connection."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=204)

    app = web.Application()
    app.router.add_post("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    connector = aiohttp.TCPConnector(socket_factory=checked_sockets([ip_network(each) for each in allowed]))
    try:
        async with (
            aiohttp.ClientSession(connector=connector) as http,
            http.post(f"http://{host}:{runner.addresses[0][1]}/") as said,
        ):
            return said.status
    except aiohttp.ClientError:
        return 0
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "2130706433", "[::ffff:127.0.0.1]", "0"])
async def test_no_spelling_of_loopback_gets_a_connection(host: str) -> None:
    """The check stands before each socket, so that literals, names and odd forms meet it alike."""
    assert await status_of(host) == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_what_the_operator_allows_is_connected_to(host: str) -> None:
    assert await status_of(host, "127.0.0.0/8", "::1/128") == 204


def test_a_socket_of_another_kind_is_refused() -> None:
    with pytest.raises(AddressRefused):
        checked_sockets(())((socket.AF_UNIX, socket.SOCK_STREAM, 0, "", ("/run/x",)))
