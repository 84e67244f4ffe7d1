"""The rule of groups that start again sees each altered record, and nothing in a ledger of the committer's."""

from typing import Any

import pytest

from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker.group_rules import GroupRules
from tessera_schemas.cluster.gang_groups import GroupRestart, RoleGroup
from tessera_schemas.facts import RunEnded
from tessera_schemas.ledger import LEDGER_MESSAGE, LedgerMessage
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.records import GroupPermitted, GroupPodsMade, GroupRestarted, GroupResumed, GroupStarted
from tests.builders import admitted, job_spec, role
from tests.rounds import Rounds

PAIR = RoleGroup(name="pair", pods={"worker": 2}, restart=GroupRestart(max_restarts=2, backoff_seconds=0))


@pytest.fixture(scope="module")
def stored() -> list[LedgerMessage]:
    """A pair that starts again twice."""
    rounds = Rounds()
    rounds.commit(admitted("pairs", job_spec(role(replicas=4, gpus=1), groups=(PAIR,))))
    rounds.settle()
    for number in (1, 2):
        run = rounds.run("pairs")
        reason = Reason(code=Code.POD_FAILED, numbers={"rank": 2})
        ended = RunEnded(kind="run_ended", run_id=run.run_id, reason=reason, own=True, rank=2, uid=run.uids[2])
        rounds.commit(ended)
        of = {"run_id": run.run_id, "restart": number}
        rounds.commit(GroupPodsMade(kind="group_pods_made", uids=(f"two-{number}", f"three-{number}"), **of))
        rounds.commit(GroupStarted(kind="group_started", **of), ms=1000)
    return [LEDGER_MESSAGE.validate_json(message) for message in rounds.stored]


def violations(messages: list[LedgerMessage]) -> list[str]:
    report = Report()
    rules = GroupRules(report)
    for message in messages:
        rules.take(message)
    assert all(each.invariant == "group" for each in report.violations)
    return [each.text for each in report.violations]


def altered(messages: list[LedgerMessage], kind: type[Any], **changes: Any) -> list[LedgerMessage]:
    """The ledger with other fields in the last record of a kind."""
    found, done = list[LedgerMessage](), False
    for message in reversed(messages):
        records = list(message.records)
        at = [index for index, record in enumerate(records) if isinstance(record, kind)]
        if at and not done:
            records[at[-1]] = records[at[-1]].model_copy(update=changes)
            done = True
        found.append(message.model_copy(update={"records": tuple(records)}))
    assert done
    return found[::-1]


def test_a_ledger_of_the_committer_s_is_well(stored: list[LedgerMessage]) -> None:
    assert violations(stored) == []


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        (GroupRestarted, {"ranks": (1, 2)}, "is no copy of pair"),
        (GroupRestarted, {"ranks": (2,)}, "is no copy of pair"),
        (GroupRestarted, {"ranks": (0, 1), "copy_number": 0}, "and none ended"),
        (GroupRestarted, {"reason": Reason(code=Code.POD_DELETED)}, "and none ended"),
        (GroupRestarted, {"group": "other"}, "says nothing of that"),
        (GroupRestarted, {"count": 1}, "were due"),
        (GroupRestarted, {"restart": 3}, "were due"),
        (GroupPermitted, {"uids": ("two-2", "four")}, "nobody has seen"),
        (GroupPermitted, {"restart": 1}, "nobody has seen"),
        (GroupResumed, {"restart": 1}, "nobody said so"),
        (GroupResumed, {"run_id": "a" * 20 + "-1"}, "nobody knows"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else None,
)
def test_each_altered_record_is_seen(
    stored: list[LedgerMessage], kind: type[Any], changes: dict[str, Any], words: str
) -> None:
    assert any(words in text for text in violations(altered(stored, kind, **changes)))


def test_more_restarts_than_the_job_says_are_seen(stored: list[LedgerMessage]) -> None:
    once = PAIR.model_copy(update={"restart": GroupRestart(max_restarts=1)})
    fewer = list[LedgerMessage]()
    for message in stored:
        facts = tuple(
            taken.model_copy(
                update={
                    "fact": taken.fact.model_copy(
                        update={"spec": taken.fact.spec.model_copy(update={"groups": (once,)})}
                    )
                }
            )
            if taken.fact.kind == "job_admitted"
            else taken
            for taken in message.facts
        )
        fewer.append(message.model_copy(update={"facts": facts}))
    assert any("were due" in text for text in violations(fewer))
