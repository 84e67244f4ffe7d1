"""
The relations checker: tasks against their arrays, and jobs against what they wait for or are attached to.

Like the other checkers it imports the contract and nothing else that decides, and keeps a book of its own.
"""

from collections.abc import Iterable

from pydantic import ValidationError

from tessera.testkit.checker.report import Report
from tessera.testkit.relations_checker.attachments import Attachments
from tessera.testkit.relations_checker.relations import Relations
from tessera_schemas.ledger import LEDGER_MESSAGE

__all__ = ["check_relations"]


def check_relations(report: Report, ledger: Iterable[bytes]) -> None:
    """
    Order and number of an array's tasks, how arrays end, and that whoever waits for others starts when it may.

    Args:
        report: what is found goes here; each violation names the rule `array`, `after` or `attach`.
        ledger: the stored bytes of every message, in order, from n = 1. The first that cannot be read ends the check.
    """
    relations, attachments = Relations(report), Attachments(report)
    for stored in ledger:
        try:
            message = LEDGER_MESSAGE.validate_json(stored)
        except ValidationError:
            return
        relations.take(message)
        attachments.take(message)
