"""
Rule of reasons: a message that only tells jobs why they wait does not tell them what the one before told.

Nothing has moved between two such messages, so that a third would say it again, and so on: the ledger would fill while
nothing happens.
"""

from tessera.testkit.checker.report import Report
from tessera_schemas import ledger as m

ToldCodes = tuple[tuple[str, str], ...]
"""Jobs and the codes of the reasons that they were told, in order."""


class RepeatRules:
    """Remembers what the last message told, if it did nothing else."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._told: ToldCodes = ()

    def take(self, message: m.LedgerMessage) -> None:
        """Compare what a message tells with what the one before told."""
        told = _told_alone(message)
        if told:
            text = f"{told[0][0]} and {len(told) - 1} more are told again what they were told: {told[0][1]}"
            self._report.demand(told != self._told, "repeat", message.n, text)
        self._told = told


def _told_alone(message: m.LedgerMessage) -> ToldCodes:
    """Jobs and codes that the message tells, if it has no fact, no order and no other record; else nothing."""
    records = [record for record in message.records if not isinstance(record, m.Checkpoint)]
    waits = [record for record in records if isinstance(record, m.Waiting)]
    if message.facts or message.orders or len(waits) < len(records):
        return ()
    return tuple((record.job_id, record.reason.code.value) for record in waits)
