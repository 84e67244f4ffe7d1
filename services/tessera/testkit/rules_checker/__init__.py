"""
The rules checker: what operators and the policy say, against what the ledger did (I6, and the rules of evictions).

Like the invariant checker it imports the contract and nothing else that decides, and keeps a book of its own.
"""

from collections.abc import Iterable

from pydantic import ValidationError

from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker.backoff_rules import BackoffRules, FenceRules, SickFences, SpareRules
from tessera.testkit.rules_checker.group_rules import GroupRules
from tessera.testkit.rules_checker.line_rules import RepeatRules
from tessera.testkit.rules_checker.move_rules import MoveRules
from tessera.testkit.rules_checker.never_rules import AskedSpecs, NeverRules
from tessera.testkit.rules_checker.rules import Rules
from tessera.testkit.rules_checker.size_rules import ShiftRules
from tessera.testkit.rules_checker.unmade_rules import UnmadeRules
from tessera_schemas.ledger import LEDGER_MESSAGE

__all__ = ["check_rules"]


UNKNOWN: AskedSpecs = {}
"""Then a refusal is held to what it says of itself alone."""


def check_rules(report: Report, ledger: Iterable[bytes], asked: AskedSpecs = UNKNOWN) -> None:
    """
    Quotas with borrowing and lending, flavors, stopped queues, holds, drains, nodes that back off, plans that evict,
    refusals for good, starts of a tenant of which many runs have no pods, shifts between roles, groups that start again
    by themselves, reasons that are told again and again, nodes that are turned off, spare nodes, moves that ask.

    Args:
        report: what is found goes here, beside what the invariant checker found; each violation names I6 or its rule.
        ledger: the stored bytes of every message, in order, from n = 1. The first that cannot be read ends the check.
        asked: what was submitted, by job id. The ledger does not have the spec of a job that was refused.
    """
    rules = Rules(report)
    backoffs = BackoffRules(report, rules.quotas.cut)
    nevers, unmade, repeats = NeverRules(report, asked), UnmadeRules(report), RepeatRules(report)
    shifts, groups, fences, spares = ShiftRules(report), GroupRules(report), FenceRules(report), SpareRules(report)
    sick_fences = SickFences(report)
    moves = MoveRules(report)
    for stored in ledger:
        try:
            message = LEDGER_MESSAGE.validate_json(stored)
        except ValidationError:
            return
        rules.take(message)
        backoffs.take(message)
        nevers.take(message)
        unmade.take(message)
        repeats.take(message)
        shifts.take(message)
        groups.take(message)
        fences.take(message)
        sick_fences.take(message)
        spares.take(message)
        moves.take(message)
