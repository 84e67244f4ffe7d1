"""The rules of the ladder, of stalls and of blamed nodes see each altered record, and no true one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tessera.testkit.checker.report import Report
from tessera.testkit.pays_checker import check_pays
from tessera_schemas.cluster.health import (
    REPUTATION,
    Ailment,
    HealthCause,
    HealthPolicy,
    KnownAilment,
    ReputationPolicy,
)
from tessera_schemas.config import Queue
from tessera_schemas.facts import RunEnded
from tessera_schemas.job import JobProgress, RetryLadder
from tessera_schemas.ledger import LEDGER_MESSAGE, Allocated, AnyRecord, HealthNoted, LedgerMessage, Revoked
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.records import RungTaken, RunStalled, Stalled
from tests.builders import admitted, config_body, config_proposed, job_spec, node_seen, role, run_absent
from tests.ledgers import Committed
from tests.rounds import Rounds
from tests.unit.scheduler.ladder_jobs import FAILED, RACK, fail, running, stall

WARNS = JobProgress(hang_seconds=60)


@pytest.fixture(scope="module")
def climbs() -> list[LedgerMessage]:
    """A job fails twice in place, then on two nodes of a rack."""
    rounds = running(RetryLadder(in_place=2, domain_after=2))
    for _ in range(4):
        fail(rounds)
    return messages(rounds)


@pytest.fixture(scope="module")
def hangs() -> list[LedgerMessage]:
    """A run hangs, of which its job wants to be warned, and goes on."""
    rounds = running(None, progress=WARNS)
    rounds.commit(stall(rounds))
    rounds.commit(RunStalled(kind="run_stalled", run_id=rounds.run("one").run_id))
    return messages(rounds)


@pytest.fixture(scope="module")
def blames() -> list[LedgerMessage]:
    """A node fails two jobs, and once the others are full a trial starts there."""
    rounds = Rounds(
        nodes=[node_seen(f"node-{at:02}").model_copy(update={"labels": {"at": str(at)}}) for at in range(10)]
    )
    body = config_body(Queue(name="research"), health=HealthPolicy(reputation=ReputationPolicy()))
    rounds.commit(config_proposed(body, rounds.state.config.version))
    there = role(gpus=8).model_copy(update={"node_selector": {"at": "3"}})
    for key in ("a", "b"):
        rounds.commit(admitted(key, job_spec(there, user=key)))
        rounds.settle()
        run = rounds.run(key).run_id
        rounds.commit(RunEnded(kind="run_ended", run_id=run, rank=0, reason=FAILED))
        rounds.commit(run_absent(run))
    for at in range(9):
        rounds.commit(admitted(f"fills-{at}", job_spec(role(gpus=8), preemptible=False)))
    rounds.settle()
    rounds.commit(admitted("trial", job_spec(role(gpus=8), preemptible=True, time_limit_seconds=600)))
    rounds.settle()
    assert rounds.run("trial").placements[0].node == "node-03"
    return messages(rounds)


def messages(ledger: Committed) -> list[LedgerMessage]:
    return [LEDGER_MESSAGE.validate_json(stored) for stored in ledger.stored]


def violations(ledger: list[LedgerMessage]) -> list[str]:
    report = Report()
    check_pays(report, [message.to_bytes() for message in ledger])
    return [f"{each.invariant}: {each.text}" for each in report.violations]


def altered(
    ledger: list[LedgerMessage], wanted: Callable[[Any], bool], change: Callable[[Any], tuple[AnyRecord, ...]]
) -> list[LedgerMessage]:
    """The ledger with something else in place of the last such record."""
    found, done = list[LedgerMessage](), False
    for message in reversed(ledger):
        at = [index for index, record in enumerate(message.records) if wanted(record)]
        if at and not done:
            records, done = message.records, True
            records = (*records[: at[-1]], *change(records[at[-1]]), *records[at[-1] + 1 :])
            message = message.model_copy(update={"records": records})
        found.append(message)
    assert done
    return found[::-1]


def test_what_the_committer_writes_is_well(
    climbs: list[LedgerMessage], hangs: list[LedgerMessage], blames: list[LedgerMessage]
) -> None:
    assert [violations(ledger) for ledger in (climbs, hangs, blames)] == [[], [], []]


@pytest.mark.parametrize(
    ("rung", "changes", "words"),
    [
        ("in_place", {"count": 1}, "takes rung in_place (1) after 1 failures"),
        ("in_place", {"rung": "elsewhere", "nodes": ("r1-0",), "count": 1}, "takes rung elsewhere"),
        ("elsewhere", {"rung": "in_place", "nodes": (), "count": 3}, "takes rung in_place (3) after 2"),
        ("elsewhere", {"count": 2}, "takes rung elsewhere (2)"),
        ("elsewhere", {"nodes": ("r1-0", "r2-0")}, "avoids"),
        ("domain", {"count": 3}, "for 3 nodes, and 2 failed it there"),
        ("domain", {"domain": f"{RACK}=r2"}, "avoids example.com/rack=r2 for 2 nodes, and 0 failed"),
        ("domain", {"rung": "elsewhere", "domain": "", "count": 2}, "avoids nodes alone, and 2 of one"),
        ("domain", {"job_id": "x" * 20}, "without a rung of its ladder"),
    ],
)
def test_each_altered_rung_is_seen(climbs: list[LedgerMessage], rung: str, changes: dict[str, Any], words: str) -> None:
    forged = altered(
        climbs,
        lambda record: isinstance(record, RungTaken) and record.rung == rung,
        lambda record: (record.model_copy(update=changes),),
    )
    assert any(text.startswith("ladder: ") and words in text for text in violations(forged))


def test_a_rung_that_is_left_out_and_one_without_a_stop_are_seen(climbs: list[LedgerMessage]) -> None:
    without = altered(climbs, lambda record: isinstance(record, RungTaken), lambda _: ())
    assert any("without a rung of its ladder" in text for text in violations(without))
    alone = altered(climbs, lambda record: isinstance(record, Revoked), lambda _: ())
    assert any("no run of it was stopped just before" in text for text in violations(alone))


@pytest.mark.parametrize(
    ("over", "changes", "words"),
    [
        (False, {"held_back": True}, "held back: True, only warned: True"),
        (False, {"nodes": ("r2-2",)}, "which are not its own"),
        (False, {"reason": Reason(code=Code.STRAGGLES, numbers={"seconds": 60})}, "nobody said so"),
        (False, {"reason": Reason(code=Code.HUNG, numbers={"seconds": 59})}, "sooner than its job says"),
        (False, {"run_id": "x" * 20 + "-1"}, "says nothing of progress"),
        (True, {"reason": Reason(code=Code.HUNG, numbers={"seconds": 60, "step": 7})}, "as was told before"),
    ],
)
def test_each_altered_stall_is_seen(
    hangs: list[LedgerMessage], over: bool, changes: dict[str, Any], words: str
) -> None:
    forged = altered(
        hangs,
        lambda record: isinstance(record, Stalled) and (record.reason is None) is over,
        lambda record: (record.model_copy(update=changes),),
    )
    assert any(text.startswith("stalls: ") and words in text for text in violations(forged))


@pytest.mark.parametrize(("unused", "warns"), [(30, True), (29, False)])
def test_a_stall_that_unused_gpus_made_sooner_is_a_true_one(unused: int, warns: bool) -> None:
    rounds = running(None, progress=JobProgress(hang_seconds=3600, unused_seconds=30))
    fact = stall(rounds, seconds=40)
    said = {"reason": fact.reason.model_copy(update={"numbers": {**fact.reason.numbers, "unused_seconds": unused}})}
    assert bool(rounds.commit(fact.model_copy(update=said)).records) is warns
    assert violations(messages(rounds)) == []


def test_a_stall_of_which_nothing_follows_and_an_end_of_none_are_seen(hangs: list[LedgerMessage]) -> None:
    forged = altered(hangs, lambda record: isinstance(record, Stalled) and record.reason is not None, lambda _: ())
    found = violations(forged)
    assert any("and nothing follows" in text for text in found)
    assert any("and did not before" in text for text in found)


def blamed(cause: HealthCause, jobs: int) -> tuple[KnownAilment, ...]:
    ailment = Ailment(cause=cause, evidence=f"{jobs} jobs failed there within 1 h")
    return (KnownAilment(source=REPUTATION, ailment=ailment, since_ts=1),)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ailments": blamed(HealthCause.FAILURES, 2)}, "is blamed (failures) for 2 jobs"),
        ({"ailments": blamed(HealthCause.FAILURES, 3)}, "for 3 jobs; 2 of 2 users failed there"),
        ({"ailments": blamed(HealthCause.SUSPECTED, 3)}, "for 3 jobs; 2 of 2 users failed there"),
        ({"ailments": blamed(HealthCause.LINK_ERRORS, 2)}, "and nobody asks for that"),
        ({"node": "node-04"}, "node-04 is blamed (suspected) for 2 jobs; 0 of 0"),
    ],
)
def test_a_node_that_is_blamed_for_more_than_failed_there_is_seen(
    blames: list[LedgerMessage], changes: dict[str, Any], words: str
) -> None:
    forged = altered(
        blames,
        lambda record: isinstance(record, HealthNoted),
        lambda record: (record.model_copy(update=changes),),
    )
    assert any(text.startswith("blame: ") and words in text for text in violations(forged))


def test_a_job_that_is_no_trial_is_seen_on_a_suspect(blames: list[LedgerMessage]) -> None:
    moved = altered(
        blames,
        lambda record: isinstance(record, Allocated) and record.placements[0].node != "node-03",
        lambda record: (record.model_copy(update={"placements": (replace(record.placements[0], node="node-03"),)}),),
    )
    assert any("starts on ['node-03'], and is no trial" in text for text in violations(moved))
