"""
Test jobs of nodes, the last one of each, and whether the test itself can be believed. Pure.

A test is configured by people and may be broken: an image that is gone, a program that fails anywhere. It can only be
told from a bad node by other nodes. So the failure of a test counts where it has passed on some node, or has failed on
no other; once it has failed on two nodes and passed on none, it is broken, and nobody is tested until it is another.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from tessera.domain.storing.fast import fast_init, replace
from tessera.domain.table import Table
from tessera.domain.work.phases import Phase
from tessera_schemas.reasons import Reason
from tessera_schemas.work.run_ends import Whose, end_of

BROKEN_NODES = 2
"""A test that has failed on so many nodes, and passed on none, is broken."""
PASSED, FAILED, NOTHING = "passed", "failed", "nothing"
"""Outcomes of a test. One that was cancelled, or that the surroundings ended, says nothing."""


class Tested(Protocol):
    """Results of the test on one node."""

    @property
    def passes(self) -> int: ...

    @property
    def failures(self) -> int: ...


@fast_init
@dataclass(frozen=True, slots=True)
class NodeTest:
    """
    The last test job of a node, queued at `since_ts`; `ended_ts` is 0 and `outcome` "" while it lives.

    `passes` and `failures` are what tests of the configured kind came to there. `void`: the configuration has another
    test since, or an operator has spoken, so that its end says nothing. `detail` is why it failed.
    """

    node: str
    job_id: str
    since_ts: int
    ended_ts: int = 0
    outcome: str = ""
    detail: str = ""
    passes: int = 0
    failures: int = 0
    void: bool = False

    @property
    def is_alive(self) -> bool:
        """Whether the job waits or runs."""
        return not self.outcome

    def ended(self, outcome: str, ts: int, detail: str) -> "NodeTest":
        """The row once the job has ended."""
        passes, failures = self.passes + (outcome == PASSED), self.failures + (outcome == FAILED)
        changes = {"ended_ts": ts, "outcome": outcome, "detail": detail, "passes": passes, "failures": failures}
        return replace(self, void=False, **changes)


NodeTests = Table[NodeTest]


def outcome_of(row: NodeTest, phase: Phase, reason: Reason | None) -> str:
    """Outcome of a test that ended so: what its program or its node broke has failed, whatever else stopped it not."""
    if row.void or phase is Phase.CANCELLED:
        return NOTHING
    if phase is Phase.SUCCEEDED:
        return PASSED
    # Sickness that others told of is their word, and the test was ended for it before it could say anything.
    end = None if reason is None else end_of(reason.code)
    failed = end is not None and end.whose in (Whose.PROGRAM, Whose.NODE) and not end.notice
    return FAILED if failed else NOTHING


def counts_against(rows: Iterable[NodeTest], node: str) -> bool:
    """Whether a failure on the node is put down to it, and not to the test."""
    others = [row for row in rows if row.node != node or row.passes]
    return any(row.passes for row in others) or not any(row.failures for row in others)


def is_broken(rows: Iterable[Tested]) -> bool:
    """Whether the test fails wherever it is tried."""
    known = list(rows)
    return sum(row.failures > 0 for row in known) >= BROKEN_NODES and not any(row.passes for row in known)


def forget_ended(rows: NodeTests) -> None:
    """The configuration has another test: what the former one said of itself is over."""
    for name, row in list(rows.items()):
        if row.is_alive:
            rows.put(name, replace(row, void=True, passes=0, failures=0))
        else:
            rows.drop(name)
