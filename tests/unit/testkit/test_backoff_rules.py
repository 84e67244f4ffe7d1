"""The checker's rules of nodes that back off: what a committer does passes, and each of these lies is found."""

from collections.abc import Callable

import pytest

from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker.backoff_rules import BackoffRules
from tessera_schemas.ledger import LEDGER_MESSAGE, LedgerMessage, NodeBackedOff
from tessera_schemas.reasons import Code, Reason
from tests.builders import admitted, job_spec, node_seen, role, run_absent
from tests.unit.scheduler.committer_world import World, ended, made

REFUSED = Reason(code=Code.POD_REFUSED_BY_NODE)


def story() -> list[LedgerMessage]:
    """A node refuses a pod, backs off, and takes another job once that is over."""
    world = World(node_seen("node-a"))
    world.commit(admitted("k1", job_spec(role(gpus=8))))
    world.place()
    run = world.job.run_id
    world.commit(made(run))
    world.commit(ended(run, REFUSED))
    world.commit(run_absent(run))
    world.place(ms=60_000)
    return [LEDGER_MESSAGE.validate_json(stored) for stored in world.stored]


def violations(messages: list[LedgerMessage]) -> list[str]:
    report = Report()
    rules = BackoffRules(report, {})
    for message in messages:
        rules.take(message)
    assert report.examined["backoff"]
    return [violation.text for violation in report.violations]


def test_a_committers_story_breaks_no_rule() -> None:
    assert violations(story()) == []


def changed(change: Callable[[NodeBackedOff], dict[str, object]]) -> list[LedgerMessage]:
    return [
        message.model_copy(
            update={
                "records": tuple(
                    record.model_copy(update=change(record)) if isinstance(record, NodeBackedOff) else record
                    for record in message.records
                )
            }
        )
        for message in story()
    ]


@pytest.mark.parametrize(
    ("lie", "found"),
    [
        (lambda record: {"until_ts": record.until_ts + 120_000}, "take no pods for now"),
        (lambda record: {"until_ts": record.until_ts + 400_000}, "for too long"),
        (lambda record: {"node": "node-b"}, "no run of this message stops there"),
    ],
)
def test_a_lie_is_found(lie: Callable[[NodeBackedOff], dict[str, object]], found: str) -> None:
    assert any(found in text for text in violations(changed(lie)))
