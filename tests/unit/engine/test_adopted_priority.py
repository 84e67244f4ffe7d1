"""The priority that Kubernetes gave adopted work stands in place of a priority class, wherever one is asked for."""

from typing import Any

import pytest

from tessera.domain.storing.snapshot import dump, load
from tessera.queueing.decide import order
from tessera_schemas.facts import JobAdmitted, PriorityRequested
from tessera_schemas.work.adopted import Adopted
from tests.builders import admitted, job_spec, role
from tests.ledgers import Committed
from tests.rounds import Rounds


def adopted(key: str, priority: int, gpus: int = 1, **more: Any) -> JobAdmitted:
    owner = Adopted(owner_kind="Job", owner_name=key, priority=priority, priority_class="from-kubernetes")
    spec = job_spec(role(gpus=gpus), **more)
    return admitted(key, spec).model_copy(update={"adopted": owner})


def line_of(ledger: Committed) -> list[str]:
    names = {job.job_id: job.key for job in ledger.state.jobs.values()}
    return [names[job_id] for job_id in order(ledger.state, "default", ledger.ts)]


def test_adopted_work_stands_in_line_by_its_number_among_classes() -> None:
    ledger = Committed().begin()
    ledger.commit(adopted("below", -5), admitted("n", job_spec()), adopted("above", 1_000_000))
    ledger.commit(admitted("h", job_spec(priority_class="high")))
    high = ledger.state.tree.priority("high")
    assert 0 < high < 1_000_000
    assert line_of(ledger) == ["above", "h", "n", "below"]


def test_a_restored_state_has_the_same_line() -> None:
    ledger = Committed().begin()
    ledger.commit(adopted("below", -5), admitted("n", job_spec()), adopted("above", 1_000_000))
    restored = load(iter(list(dump(ledger.state))))
    assert [job.adopted for job in restored.jobs.values()] == [job.adopted for job in ledger.state.jobs.values()]
    assert order(restored, "default", ledger.ts) == order(ledger.state, "default", ledger.ts)


def test_a_priority_class_does_not_change_it() -> None:
    ledger = Committed().begin()
    fact = adopted("below", -5)
    ledger.commit(fact, admitted("n", job_spec()))
    wanted = PriorityRequested(kind="priority_requested", job_id=fact.job_id, priority_class="high")
    records = ledger.commit(wanted).records
    assert [record.kind for record in records] == []
    assert line_of(ledger) == ["n", "below"]


@pytest.mark.parametrize(("waiting", "evicts"), [(1_000_000, True), (0, False), (-1, False)])
def test_adopted_work_evicts_what_kubernetes_gave_a_lower_priority(waiting: int, evicts: bool) -> None:
    rounds = Rounds(preset="priority")
    rounds.commit(adopted("victim", 0, gpus=8, name="victim"))
    rounds.settle()
    rounds.commit(adopted("waits", waiting, gpus=8, name="waits"))
    assert rounds.victims("waits") == (["victim"] if evicts else [])
    rounds.settle()
    assert rounds.running("waits") is evicts
    assert rounds.running("victim") is not evicts
