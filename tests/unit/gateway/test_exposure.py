"""Off loopback the gateway listens only when nobody gets in without a token and no token goes in the clear."""

from pathlib import Path
from typing import Any

import pytest

from tessera.gateway.settings import GatewaySettings, check_exposure
from tessera.kernel.errors import StartupError
from tests.unit.gateway.gateway_world import World

OPEN = {"api_host": "0.0.0.0", "allowed_hosts": ("tessera.example",), "plaintext_ok": True}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_on_loopback_nothing_more_is_asked(host: str) -> None:
    check_exposure(GatewaySettings(api_host=host), tokens=0)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.1.2.3", "tessera.example"])
def test_off_loopback_tokens_names_and_tls_are_needed(host: str) -> None:
    check_exposure(GatewaySettings(**{**OPEN, "api_host": host}), tokens=1)
    for change, tokens, said in (
        ({}, 0, "no token exists"),
        ({"allowed_hosts": ()}, 1, "allowed_hosts"),
        ({"plaintext_ok": False}, 1, "without TLS"),
    ):
        with pytest.raises(StartupError, match=said):
            check_exposure(GatewaySettings(**{**OPEN, "api_host": host, **change}), tokens)


def test_half_of_tls_is_none(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="TLS needs both"):
        check_exposure(GatewaySettings(tls_certificate_file=tmp_path / "cert.pem"), tokens=1)


@pytest.mark.parametrize(
    "settings",
    [{**OPEN}, {"tls_certificate_file": Path("none.pem"), "tls_key_file": Path("none.pem")}, {"api_host": "192.0.2.1"}],
    ids=["open without tokens", "no certificate there", "another's address without anything"],
)
async def test_a_gateway_that_may_not_listen_does_not_start(world: World, settings: dict[str, Any]) -> None:
    with pytest.raises(StartupError):
        async with world.gateway(**settings):
            pass


async def test_loopback_names_do_not_count_off_loopback(world: World) -> None:
    token = world.token("lab")
    async with world.gateway(**OPEN):
        refused = await world.ask("GET", "/v1/jobs", token)
        said = await world.ask("GET", "/v1/jobs", token, headers={"Host": "tessera.example"})
    assert (refused.status, refused.body["field"]) == (403, "Host")
    assert said.status == 200
