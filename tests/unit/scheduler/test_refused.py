"""Refused work of users is noted once, cleared when it is refused no more, and bounded in number for each tenant."""

from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tests.builders import node_seen, work_refused
from tests.ledgers import Committed


def kinds(books: Committed, *facts: object) -> list[str]:
    return [record.kind for record in books.commit(*facts).records]  # type: ignore[arg-type]


def begun() -> Committed:
    books = Committed()
    books.begin(node_seen("a"))
    return books


def test_a_refusal_is_noted_once_and_again_when_its_reason_changes_and_cleared_once():
    books = begun()
    assert kinds(books, work_refused()) == ["refusal_noted"]
    assert kinds(books, work_refused(number=3)) == []
    assert kinds(books, work_refused(field="another")) == ["refusal_noted"]
    (work,) = books.state.refused.values()
    assert work.reasons[0].field == "another"
    assert work.since_ts <= books.state.ts
    assert kinds(books, work_refused(refused=False)) == ["refusal_noted"]
    assert kinds(books, work_refused(refused=False)) == []
    assert len(books.state.refused) == 0


def test_of_a_tenant_so_much_is_shown_and_of_others_too():
    books = begun()
    for number in range(40):
        books.commit(work_refused(f"pod/lab/{number}"))
    assert len(books.state.refused) == 32
    books.commit(work_refused("pod/sales/1", tenant="sales"))
    assert len(books.state.refused) == 33
    books.commit(work_refused("pod/lab/0", refused=False))
    books.commit(work_refused("pod/lab/39"))
    assert {"pod/lab/39", "pod/sales/1"} <= {work.group for work in books.state.refused.values()}


def test_nobody_clears_or_changes_what_is_another_tenants():
    books = begun()
    books.commit(work_refused())
    assert kinds(books, work_refused(tenant="sales", field="another")) == []


def test_a_snapshot_brings_refused_work_back_and_hashes_alike():
    books = begun()
    books.commit(work_refused())
    again = load(dump(books.state))
    assert list(again.refused.values()) == list(books.state.refused.values())
    whole, hashed = StateHash().of(books.state), StateHash()
    assert hashed.of(again) == whole
    again.refused.drop(work_refused().work_id)
    assert hashed.of(again) != whole
