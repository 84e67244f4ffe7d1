"""What agents say of nodes has a subject of its own, on which nothing else is taken."""

import pytest

from tessera_schemas.cluster.health import Ailment, HealthCause
from tessera_schemas.commands import REPLY_HEADER
from tessera_schemas.facts import HealthReported, JobRefused
from tests.builders import SHARD, config_body
from tests.unit.admission.admission_world import World, submit

SUBJECT = f"control.{SHARD}.health"
REPORT = {
    "kind": "report_health",
    "v": 1,
    "node": "node-a",
    "source": "rack-agent",
    "ailments": [{"cause": "link_errors", "evidence": "CRC errors on link 3"}],
    "by": "token 4f1d0c2ab37e",
}
SENTENCE = "agents report the health of nodes and order nothing"


async def test_a_report_becomes_a_fact_and_the_gateway_is_answered() -> None:
    world = World()
    await world.controls(REPORT, headers={REPLY_HEADER: "_INBOX.operator.gateway.1"}, subject=SUBJECT)
    (fact,) = world.facts
    assert isinstance(fact, HealthReported)
    assert (fact.node, fact.source, fact.by) == ("node-a", "rack-agent", "token 4f1d0c2ab37e")
    assert fact.ailments == (Ailment(cause=HealthCause.LINK_ERRORS, evidence="CRC errors on link 3"),)
    ((inbox, answer),) = world.answers
    assert (inbox, answer.accepted) == ("_INBOX.operator.gateway.1", True)


@pytest.mark.parametrize(
    "command",
    [
        {"kind": "drain_node", "v": 1, "node": "node-a"},
        {"kind": "cancel_job", "v": 1, "job_id": "a" * 20},
        {"kind": "apply_config", "v": 1, "expected_version": 0, "body": config_body().model_dump(mode="json")},
        submit(),
    ],
    ids=lambda command: command["kind"],
)
async def test_an_order_on_the_subject_of_reports_is_refused(command: dict[str, object]) -> None:
    """The gateway may write there: who takes it over must not drain a node or change the configuration."""
    world = World()
    await world.controls(command, subject=SUBJECT)
    (refused,) = world.facts
    assert isinstance(refused, JobRefused)
    assert [(each.code.value, each.field, each.detail) for each in refused.reasons] == [
        ("InvalidField", "kind", SENTENCE)
    ]


@pytest.mark.parametrize(
    ("cause", "named"), [("haunted", "haunted"), ("x" * 5000, "x" * 20), (None, "None"), (["gpu_lost"], "['gpu_lost']")]
)
async def test_a_report_of_an_unknown_cause_is_refused_with_the_vocabulary(cause: object, named: str) -> None:
    world = World()
    await world.controls({**REPORT, "ailments": [{"cause": cause}]}, subject=SUBJECT)
    (refused,) = world.facts
    assert isinstance(refused, JobRefused)
    (reason,) = refused.reasons
    assert reason.field == "ailments[0].cause"
    assert reason.detail == f"{named} is none of {' '.join(HealthCause)}"
