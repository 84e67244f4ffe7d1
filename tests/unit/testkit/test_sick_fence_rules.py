"""The checker's rules of sick nodes that are turned off: a committer's story passes, each of these lies is found."""

from collections.abc import Callable

import pytest

from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker.backoff_rules import FenceRules, SickFences
from tessera_schemas.cluster.fencing import FenceDue
from tessera_schemas.cluster.health import HealthAction, HealthCause, HealthPolicy
from tessera_schemas.ledger import (
    LEDGER_MESSAGE,
    FenceAsked,
    HealthNoted,
    LedgerMessage,
    NodeChanged,
    NodeDrained,
    Released,
    Revoked,
)
from tests.builders import node_seen, run_absent
from tests.unit.scheduler.fenced_park import Park

Lie = Callable[[LedgerMessage], LedgerMessage]


def story() -> list[LedgerMessage]:
    """A sick node is turned off while its run still holds it, and the run is released once nothing of it is left."""
    park = Park(health=HealthPolicy(actions={HealthCause.GPU_LOST: HealthAction.FENCE}))
    park.sicken("node-3")
    (run,) = park.state.runs_on("node-3")
    assert park.fence("node-3", sick=True, ms=600_000)
    park.commit(node_seen("node-3", ready=False))
    assert park.answer("node-3") == ["off"]
    park.commit(run_absent(run.run_id))
    return [LEDGER_MESSAGE.validate_json(stored) for stored in park.stored]


def violations(messages: list[LedgerMessage]) -> list[str]:
    report = Report()
    rules, fences = SickFences(report), FenceRules(report)
    for message in messages:
        rules.take(message)
        fences.take(message)
    assert report.examined["fence"]
    return [violation.text for violation in report.violations]


def without(kind: type) -> Lie:
    return lambda message: message.model_copy(
        update={"records": tuple(record for record in message.records if not isinstance(record, kind))}
    )


def sooner(message: LedgerMessage) -> LedgerMessage:
    asks = any(isinstance(record, FenceAsked) for record in message.records)
    return message.model_copy(update={"ts": message.ts - 595_000}) if asks else message


def for_silence(message: LedgerMessage) -> LedgerMessage:
    facts = tuple(
        taken.model_copy(update={"fact": taken.fact.model_copy(update={"sick": False})})
        if isinstance(taken.fact, FenceDue)
        else taken
        for taken in message.facts
    )
    return message.model_copy(update={"facts": facts})


def twice(message: LedgerMessage) -> LedgerMessage:
    asked = tuple(record for record in message.records if isinstance(record, FenceAsked))
    return message.model_copy(update={"records": (*message.records, *asked)})


def test_a_committers_story_breaks_no_rule() -> None:
    assert violations(story()) == []


@pytest.mark.parametrize(
    ("lie", "found"),
    [
        (sooner, "which has time to save its work"),
        (without(Revoked), "which has time to save its work"),
        (without(NodeDrained), "is to be turned off for gpu_lost"),
        (without(HealthNoted), "is to be turned off for gpu_lost"),
        (without(NodeChanged), "is said to be off, and answers"),
        (twice, "is turned off again, and was not well since"),
        (for_silence, "nobody asked to fence node-3"),
    ],
)
def test_a_lie_is_found(lie: Lie, found: str) -> None:
    assert any(found in text for text in violations([lie(message) for message in story()]))


def test_a_run_that_has_left_bars_no_fence() -> None:
    released = without(Revoked)
    messages = story()
    (at,) = [n for n, message in enumerate(messages) if any(isinstance(r, FenceAsked) for r in message.records)]
    (gone,) = [message for message in messages if any(isinstance(r, Released) for r in message.records)]
    messages.insert(at, gone)
    assert violations([released(message) for message in messages]) == []
