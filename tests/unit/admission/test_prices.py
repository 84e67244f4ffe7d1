"""Prices at the door: those that cannot be meant are refused by field, and a dry run says what a run may cost."""

from typing import Any

import orjson
import pytest

from tessera.kernel.ids import random_key
from tessera_schemas.commands import ApplyConfig
from tessera_schemas.text.reading import read_operator_command
from tests.builders import config_body
from tests.unit.admission.admission_world import SPEC, World, submit

FLAVORS = [{"name": "a100", "gpu_models": ["a100"]}, {"name": "spot"}]
A100 = {"flavor": "a100", "gpu_hour_micros": 2_000_000}


def config(*prices: dict[str, Any], currency: str = "EUR") -> dict[str, Any]:
    return config_body().model_dump(mode="json") | {
        "flavors": FLAVORS,
        "money": {"currency": currency, "prices": list(prices)},
    }


@pytest.mark.parametrize(
    ("prices", "said"),
    [
        ([A100 | {"gpu_hour_micros": -1}], "money.prices[0].gpu_hour_micros"),
        ([A100 | {"gpu_hour_micros": 2.1}], "money.prices[0].gpu_hour_micros"),
        ([A100 | {"since": "2026-02-30"}], "money.prices[0].since"),
        ([A100 | {"since": "2026-12-01T08:30"}], "money.prices[0].since"),
        ([A100 | {"flavor": "h100"}], "money.prices: no such flavor: h100"),
        ([A100, A100], "money prices: two prices of flavor a100 begin in the same hour"),
        (
            [A100 | {"since": "2026-12-01"}, A100 | {"since": "2026-12-01T00"}],
            "prices: two prices of flavor a100 begin in the same hour",
        ),
    ],
)
def test_a_price_that_cannot_be_meant_is_refused_by_its_field(prices: list[dict[str, Any]], said: str) -> None:
    command = {"kind": "apply_config", "v": 1, "expected_version": 0, "body": config(*prices)}
    parsed = read_operator_command(orjson.dumps(command))
    assert parsed.command is None
    assert any(said in f"{reason.field} {reason.detail}" for reason in parsed.reasons), parsed.reasons


def test_prices_of_one_flavor_follow_each_other_by_the_hour() -> None:
    body = config(A100, A100 | {"since": "2026-12-01"}, A100 | {"since": "2026-12-01T01"})
    command = {"kind": "apply_config", "v": 1, "expected_version": 0, "body": body}
    assert isinstance(read_operator_command(orjson.dumps(command)).command, ApplyConfig)


async def notes(body: dict[str, Any], dry_run: bool = True, **changes: Any) -> list[str]:
    world = await World.with_policy(type(config_body()).model_validate(body))
    role = SPEC["roles"][0]
    gpus = {**role["resources"], "gpus": 4}
    spec = {**SPEC, "roles": [{**role, "resources": gpus, "replicas": 2}], **changes}
    asked = submit(random_key()) | {"spec": spec, "dry_run": dry_run}
    await world.batch(("lab", asked), headers={"Tessera-Reply": "_INBOX.lab.x"})
    return [note for _, answer in world.answers for note in answer.notes if "cost" in note]


async def test_a_dry_run_says_the_most_that_a_run_costs() -> None:
    body = config(A100, {"flavor": "spot", "gpu_hour_micros": 500_000})
    assert await notes(body, time_limit_seconds=1800) == ["a run costs at most 8.00 EUR in its time limit"]
    assert await notes(body, time_limit_seconds=None) == ["a run costs at most 16.00 EUR in an hour"]
    assert await notes(body, dry_run=False, time_limit_seconds=1800) == []
    assert await notes(config_body().model_dump(mode="json"), time_limit_seconds=1800) == []
