"""Which function applies which record: each registers itself by the record's class."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tessera.domain.state import State
from tessera_schemas.ledger import AnyRecord, TakenFact

Apply = Callable[[State, Any, Sequence[TakenFact]], None]
ApplyT = TypeVar("ApplyT", bound=Apply)
APPLY: dict[type[AnyRecord], Apply] = {}


def applies(*records: type[AnyRecord]) -> Callable[[ApplyT], ApplyT]:
    """Register the function below as the one that applies these records."""

    def register(apply: ApplyT) -> ApplyT:
        APPLY.update(dict.fromkeys(records, apply))
        return apply

    return register
