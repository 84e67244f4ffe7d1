"""An operator's `logs` of a pod that is gone come from the store of logs, which the gateway reads."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tessera.client.connect.api import Api
from tessera.client.connect.contexts import ApiLogin
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure
from tessera.client.sending.job_logs import LogPart, log_pieces
from tessera.kernel.errors import Transient
from tessera.kernel.ports import ApiError
from tests.unit.client.job_views import named

GATEWAY = ApiLogin("http://127.0.0.1:1", "tessera_a_b")


class Cluster:
    """No pod is there any more."""

    closed = False

    async def read_log(self, *_: Any, **__: Any) -> AsyncIterator[bytes]:
        raise ApiError(404, "NotFound", "pods not found")
        yield b""

    async def list(self, *_: Any, **__: Any) -> tuple[list[Any], str]:
        return [], ""

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(Where, "cluster", lambda _: made)
    return made


def stored(monkeypatch: pytest.MonkeyPatch, *given: bytes | Exception) -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = []

    async def pieces(self: Api, path: str, **query: Any) -> AsyncIterator[bytes]:
        asked.append({"path": path, **query})
        for each in given:
            if isinstance(each, Exception):
                raise each
            yield each

    monkeypatch.setattr(Api, "pieces", pieces)
    return asked


async def read(gateway: ApiLogin | None = GATEWAY) -> bytes:
    where = Where("main", gateway=gateway)
    return b"".join([each async for each in log_pieces(where, named("a", "failed"), LogPart(attempt=1, tail=5))])


async def test_the_stored_log_is_read_with_what_was_asked_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = stored(monkeypatch, b"one\n", b"two\n")
    assert await read() == b"one\ntwo\n"
    assert [(each["attempt"], each["tail"], each["path"]) for each in asked] == [(1, 5, f"/v1/jobs/{'a' * 20}/logs")]
    assert cluster.closed


@pytest.mark.parametrize("gateway", [None, GATEWAY], ids=["without a gateway", "while it is away"])
async def test_else_the_pod_is_said_to_be_gone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, gateway: ApiLogin | None
) -> None:
    stored(monkeypatch, Transient("away"))
    with pytest.raises(Failure, match="its pod is gone") as told:
        await read(gateway)
    assert told.value.code is Exit.CONFLICT


async def test_the_gateways_word_on_why_none_is_stored_is_said(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(monkeypatch, Failure(Exit.CONFLICT, "this gateway stores no logs"))
    with pytest.raises(Failure, match="this gateway stores no logs"):
        await read()


async def test_a_stored_log_that_is_cut_is_not_taken_for_whole(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(monkeypatch, b"one", Transient("the connection was lost"))
    with pytest.raises(Transient, match="lost"):
        await read()
