"""`/readyz` while NATS lets anybody in, as it may once it was started again with another configuration."""

from types import SimpleNamespace
from typing import Any, cast

from tessera.kernel.process.lifecycle import trouble_of_nats
from tessera.kernel.process.settings import ServiceSettings


def trouble(connected: bool = True, open_to_all: bool = False, **settings: Any) -> str:
    bus = SimpleNamespace(connected=connected, lets_anybody_in=open_to_all)
    return trouble_of_nats(cast(Any, bus), ServiceSettings(**settings)) or ""


def test_a_server_that_lets_anybody_in_is_red_with_the_way_out_unless_that_is_allowed() -> None:
    assert "include nats-auth.conf" in trouble(open_to_all=True)
    assert trouble(open_to_all=True, allow_anybody=True) == ""
    assert trouble() == ""
    assert "not connected" in trouble(connected=False, open_to_all=True)
