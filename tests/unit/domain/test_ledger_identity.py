"""The name of a ledger: made by chance, once, and the same in every copy and continuation of it."""

import pytest

from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.scheduler import decide
from tests.ledgers import Committed


def test_a_ledger_is_called_by_its_first_message_and_two_ledgers_differ() -> None:
    one, other = Committed(name="one").begin(), Committed(name="other").begin()
    assert (one.state.ledger_id, other.state.ledger_id) == ("one-00000001", "other-00000001")


def test_a_copy_that_is_folded_anew_and_goes_on_has_the_same_name() -> None:
    first = Committed(name="one").begin()
    copy = Committed.continuing(first.stored)
    copy.tx_name = "later"
    copy.commit(holder="scheduler-2")
    assert copy.state.ledger_id == first.state.ledger_id


def test_a_snapshot_keeps_the_name_and_its_hash_vouches_for_it() -> None:
    state = Committed(name="one").begin().state
    hasher = StateHash()
    restored = load(dump(state), hasher)
    assert restored.ledger_id == state.ledger_id
    before = hasher.of(restored)
    restored.ledger_id = "another"
    assert hasher.of(restored) != before


def test_a_ledger_of_an_earlier_version_gets_its_name_as_its_format_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(decide, "FORMAT", 3)
        older = Committed(name="old").begin()
    assert older.state.ledger_id == ""
    assert b"ledger_id" not in next(dump(older.state))
    older.tx_name = "new"
    raised = older.commit(holder="scheduler-2")
    assert older.state.ledger_id == raised.tx == f"new-{raised.n:08d}"
    older.commit()
    assert older.state.ledger_id == raised.tx
