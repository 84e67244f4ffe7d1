"""What is declared once has everything that follows from it: a class without its function is named here."""

from tessera.domain.fold import APPLY
from tessera.scheduler.decide import JUDGE
from tessera_schemas.facts import FACTS
from tessera_schemas.ledger import RECORDS


def names(classes: object) -> set[str]:
    return {each.__name__ for each in classes}  # type: ignore[attr-defined]


def test_every_fact_is_judged() -> None:
    assert names(set(FACTS) - set(JUDGE)) == set()


def test_every_record_is_applied() -> None:
    assert names(set(RECORDS) - set(APPLY)) == set()
