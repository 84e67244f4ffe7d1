"""
The pays checker: who pays for the ends of runs (docs/run-ends.md), by a short table of its own.

Like the invariant checker it imports the contract and nothing else that decides, and keeps a book of its own.
"""

from collections.abc import Iterable

from pydantic import ValidationError

from tessera.testkit.checker.report import Report
from tessera.testkit.pays_checker.who_pays import WhoPays
from tessera_schemas.ledger import LEDGER_MESSAGE

__all__ = ["check_pays"]


def check_pays(report: Report, ledger: Iterable[bytes]) -> None:
    """
    Attempts are spent, and jobs fail, by the ends of their own programs; the scheduler holds after troubles in a row.

    No simulated program that is to end with 0 is blamed.

    Args:
        report: what is found goes here, beside what the other checkers found; each violation names the rule `pays`.
        ledger: the stored bytes of every message, in order, from n = 1. The first that cannot be read ends the check.
    """
    who_pays = WhoPays(report)
    for stored in ledger:
        try:
            message = LEDGER_MESSAGE.validate_json(stored)
        except ValidationError:
            return
        who_pays.take(message)
