"""`report_health` of the SDK: a node's health, as an agent sees it, through the gateway."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tessera.client import Failure, Refused, SyncTessera
from tessera.client.outcomes import Exit
from tests.unit.client.small_gateway import Gateway

PATH = "/v1/nodes/gpu-7/health"


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    served = Gateway()
    monkeypatch.setenv("TESSERA_API", served.url)
    monkeypatch.setenv("TESSERA_TOKEN", "tessera_a_b")
    yield served
    served.close()


def problem(code: str, field: str, detail: str) -> dict[str, Any]:
    reason = {"code": code, "field": field, "detail": detail}
    return {"code": code, "sentence": f"{code}: {field}: no ({detail})", "reasons": [reason]}


def test_an_agent_says_what_it_sees_and_then_that_all_is_well(gateway: Gateway) -> None:
    gateway.answers |= {PATH: (202, {"node": "gpu-7", "source": "rack-agent", "state": "accepted", "as_of": 2})}
    link = {"cause": "link_errors", "evidence": "CRC errors on link 3"}
    with SyncTessera.connect() as tessera:
        tessera.report_health("gpu-7", [link])
        tessera.report_health("gpu-7", source="rack-agent")
    assert [json.loads(body) for body in gateway.sent] == [
        {"ailments": [link]},
        {"ailments": [], "source": "rack-agent"},
    ]


def test_a_node_that_is_not_there_is_named(gateway: Gateway) -> None:
    gateway.answers |= {PATH: (404, problem("NoSuchNode", "node", "gpu-7"))}
    with SyncTessera.connect() as tessera, pytest.raises(Failure, match=r"gpu-7.*tessera nodes") as failed:
        tessera.report_health("gpu-7")
    assert failed.value.code is Exit.NOT_FOUND


def test_an_unknown_cause_is_refused_with_the_gateways_words(gateway: Gateway) -> None:
    gateway.answers |= {PATH: (422, problem("InvalidField", "ailments.0.cause", "haunted is none of gpu_lost"))}
    with SyncTessera.connect() as tessera, pytest.raises(Refused) as refused:
        tessera.report_health("gpu-7", [{"cause": "haunted"}])
    assert [each.field for each in refused.value.reasons] == ["ailments.0.cause"]
