"""
The real servers of the contract tests.

One server for the session and an account of its own for each test. Deleting streams instead does not isolate: when a
stream is made again right after its deletion, nats-server 2.15.1 brings the old messages back in about 2 of 100 cases.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.contract.bus_worlds import MemoryWorld, NatsWorld, World
from tests.servers import NatsServer, start_nats

ACCOUNTS = 500


def account_names() -> Iterator[str]:
    return (f"test-{number}" for number in range(ACCOUNTS))


@pytest.fixture(scope="session")
def unused_accounts() -> Iterator[str]:
    return account_names()


@pytest.fixture
async def nats_world(nats_server: NatsServer, unused_accounts: Iterator[str]) -> AsyncIterator[NatsWorld]:
    world = await NatsWorld.at(nats_server, next(unused_accounts))
    yield world
    await world.close()


@pytest.fixture
async def own_world(own_nats_server: NatsServer) -> AsyncIterator[NatsWorld]:
    world = await NatsWorld.at(own_nats_server)
    yield world
    await world.close()


@pytest.fixture(params=["memory", "nats"])
def world(request: pytest.FixtureRequest) -> World:
    made: World = MemoryWorld() if request.param == "memory" else request.getfixturevalue("nats_world")
    return made


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    account = "{name}: {{ jetstream: enabled, users: [ {{user: {name}, password: {name}}} ] }}"
    accounts = "\n".join(account.format(name=name) for name in account_names())
    server = start_nats(tmp_path_factory.mktemp("nats"), extra=f"accounts {{ {accounts} }}")
    yield server
    server.stop()


@pytest.fixture
def own_nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """For a test that restarts or freezes its server, or that needs another user."""
    limited = (
        '{user: limited, password: limited, permissions: {publish: ["allowed.>"], subscribe: ["_INBOX.limited.>"]}}'
    )
    server = start_nats(tmp_path / "nats", users=(limited,))
    yield server
    server.stop()
