"""Servers that have just started answer nothing until they have chosen who leads JetStream: init asks them again."""

from types import SimpleNamespace
from typing import Any

import pytest
from nats.errors import TimeoutError as NoAnswer
from nats.js.errors import NotFoundError, ServiceUnavailableError

from tessera.kernel.errors import StartupError
from tessera.kernel.provisioning import streams as module
from tessera.kernel.provisioning.streams import ensure_streams


class Starting:
    """A JetStream that answers only from the request number `leads_from` on, with nothing made before."""

    def __init__(self, leads_from: int, before: Exception) -> None:
        self.leads_from, self.before, self.asked = leads_from, before, 0

    def jsm(self) -> "Starting":
        return self

    def answer(self) -> None:
        self.asked += 1
        if self.asked < self.leads_from:
            raise self.before

    async def stream_info(self, name: str) -> Any:
        self.answer()
        raise NotFoundError

    async def get_last_msg(self, stream: str, subject: str) -> Any:
        self.answer()
        raise NotFoundError

    async def consumer_info(self, stream: str, durable: str) -> Any:
        self.answer()
        raise NotFoundError

    async def add_stream(self, config: Any) -> Any:
        return SimpleNamespace(config=config)

    async def add_consumer(self, stream: str, config: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.0)


@pytest.mark.parametrize("before", [NoAnswer(), ServiceUnavailableError(code=503, err_code=10_008)])
async def test_streams_are_made_once_there_is_a_leader(before: Exception) -> None:
    assert "LEDGER_main" in await ensure_streams(Starting(4, before), "main")  # type: ignore[arg-type]


async def test_servers_without_a_majority_are_told_of_in_one_line() -> None:
    with pytest.raises(StartupError, match="NATS does not answer; JetStream needs more than half of its servers"):
        await ensure_streams(Starting(99, NoAnswer()), "main")  # type: ignore[arg-type]


async def test_a_server_without_jetstream_is_asked_once() -> None:
    server = Starting(99, ServiceUnavailableError())
    with pytest.raises(StartupError, match="JetStream is not switched on"):
        await ensure_streams(server, "main")  # type: ignore[arg-type]
    assert server.asked == 1
