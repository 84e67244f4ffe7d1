"""
The pays checker: who pays for the ends of runs (docs/run-ends.md), by a short table of its own: programs, nodes that
are blamed, and the places at which jobs start again.

Like the invariant checker it imports the contract and nothing else that decides, and keeps a book of its own.
"""

from collections.abc import Iterable

from pydantic import ValidationError

from tessera.testkit.checker.report import Report
from tessera.testkit.pays_checker.blamed_nodes import BlamedNodes
from tessera.testkit.pays_checker.reputations import EvidenceRules
from tessera.testkit.pays_checker.rungs import LadderRules
from tessera.testkit.pays_checker.who_pays import WhoPays
from tessera_schemas.ledger import LEDGER_MESSAGE, AnyRecord

__all__ = ["check_pays"]


def check_pays(report: Report, ledger: Iterable[bytes]) -> None:
    """
    Attempts are spent, and jobs fail, by the ends of their own programs; the scheduler holds after troubles in a row.

    No simulated program that is to end with 0 is blamed. Rungs of the ladder are those that failures in a row ask for,
    stalls have what their job wants, and nodes are blamed as the ends of runs say, by no more jobs than failed there.

    Args:
        report: what is found goes here, beside what the other checkers found; each violation names the rule `pays`,
            `ladder`, `stalls` or `blame`.
        ledger: the stored bytes of every message, in order, from n = 1. The first that cannot be read ends the check.
    """
    who_pays = WhoPays(report)
    ladder, blamed = LadderRules(report, who_pays.jobs), BlamedNodes(report, who_pays.jobs, who_pays.array_of)
    reputations = EvidenceRules(report, who_pays.array_of)
    for stored in ledger:
        try:
            message = LEDGER_MESSAGE.validate_json(stored)
        except ValidationError:
            return
        before: AnyRecord | None = None
        who_pays.open(message)
        reputations.open(message)
        for record in message.records:
            who_pays.take(record)
            ladder.take(message, record, before)
            blamed.take(message, record)
            reputations.take(record)
            before = record
        ladder.end(message, before)
        reputations.end()
