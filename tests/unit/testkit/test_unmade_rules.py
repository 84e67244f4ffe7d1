"""The checker's rule of runs without pods: what a committer decides passes, and one start beyond the bound is found."""

from collections.abc import Sequence

import pytest

from tessera.engine.queueing import readiness
from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.facts import PodsMade
from tessera_schemas.ledger import LEDGER_MESSAGE
from tests.builders import admitted, first_run, job_spec, node_seen, role
from tests.unit.scheduler.reserving_world import shard

KEYS = tuple(f"k{at:02}" for at in range(66))


def flood(*made: str) -> list[bytes]:
    """A tenant's 66 jobs before 80 free GPUs: what starts at once, and what does once these have pods."""
    ledger = shard(*(node_seen(f"node-{at}") for at in range(10)), backfill="off")
    ledger.commit(*(admitted(key, job_spec(role(gpus=1)), "lab") for key in KEYS))
    ledger.commit(orders=(ledger.line(),))
    for key in made:
        ledger.commit(PodsMade(kind="pods_made", run_id=first_run(key, "lab"), uids=(f"{key}-0",)))
    return ledger.stored


def violations(stored: Sequence[bytes]) -> list[str]:
    report = Report()
    check_rules(report, stored)
    assert report.examined["unmade"]
    return [each.text for each in report.violations if each.invariant == "unmade"]


def begun(stored: Sequence[bytes]) -> list[str]:
    """The jobs that a ledger starts, in their order."""
    records = [record for each in stored for record in LEDGER_MESSAGE.validate_json(each).records]
    return [record.job_id for record in records if record.kind == "allocated"]


def test_what_a_committer_starts_of_a_flood_breaks_no_rule() -> None:
    assert violations(flood()) == []


def test_the_next_one_starts_with_the_pods_of_another() -> None:
    first = next(key for key in KEYS if admitted(key, tenant="lab").job_id == begun(flood())[0])
    ledger = flood(first)
    assert (len(begun(ledger)), violations(ledger)) == (65, [])


def test_a_start_beyond_the_bound_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "UNMADE_MAX", 65)
    assert [text.partition(" ")[2] for text in violations(flood())] == ["starts while 64 runs of lab have no pods"]
