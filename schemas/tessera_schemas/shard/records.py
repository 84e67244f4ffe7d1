"""The forms that all kinds of facts and of records share, and records about budgets; all others are in `ledger`."""

from typing import Any, ClassVar, Literal

from tessera_schemas import events
from tessera_schemas.base import Count, Strict, Text
from tessera_schemas.work.budgets import BudgetName, WholeUnits

FACTS: list[type["AnyFact"]] = []
"""Every kind of fact, in the order in which they are declared."""


class AnyFact(Strict):
    """A fact of some kind, declared with the services that may send it (`sender` is one of them alone)."""

    kind: str
    senders: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, *, sender: str = "", senders: tuple[str, ...] = (), **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.senders = senders or (sender,)
        if not all(cls.senders):
            raise TypeError(f"{cls.__name__} names no service that may send it")
        FACTS.append(cls)


RECORDS: list[type["AnyRecord"]] = []
"""Every kind of record, in the order in which they are declared."""


class AnyRecord(Strict):
    """
    A record of some kind, declared with the public `event` that it gives and the line in its job's `story`.

    It is about the job of its field `job_id`, `owner` or `run_id`. The event says each of its fields that the record
    has; what cannot be said so is in projection. In the story, fields stand in braces: `{reason}` as its sentence,
    `{pods}` as how many.
    """

    kind: str
    event: ClassVar[type[events.PublicEvent] | None]
    story: ClassVar[str]

    def __init_subclass__(cls, *, event: type[events.PublicEvent] | None = None, story: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.event, cls.story = event, story
        RECORDS.append(cls)


class BudgetReached(AnyRecord):
    """
    So many percent of a budget are spent in this month. At 100 it is spent, with what `when_spent` says.

    Amounts are millionths of `unit`. `tenant` is the one to whom the budget belongs, "" for a queue of several.
    """

    kind: Literal["budget_reached"]
    budget: BudgetName
    percent: Literal[80, 100]
    spent_micros: Count
    limit_micros: Count
    unit: str
    when_spent: str
    tenant: str = ""


class BudgetReopened(AnyRecord):
    """A budget is below what was told of it last: by a new month, a grant or a configuration; `percent` is reached."""

    kind: Literal["budget_reopened"]
    budget: BudgetName
    percent: Literal[0, 80] = 0


class BudgetGranted(AnyRecord):
    """An operator added to a budget for this month, in whole units, for a reason; `by` is who, as its sender says."""

    kind: Literal["budget_granted"]
    budget: BudgetName
    amount: WholeUnits
    why: Text
    by: Text = ""
