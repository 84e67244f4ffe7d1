"""
Ends of runs, and who pays for them: a row for each cause, asked by every service; no other place decides either.

*What stops a run.* A run that works is stopped only by a word that says stop: its owner's, its time limit, an
operator's, documented policy with a place or a claim proved, or proof that it is gone. What bounds new placement (a
cordon, allocatable, labels, quota, grants, an edit of the configuration) bounds nothing else.

*Who pays.* Only the program's own failures spend attempts, and only they end a job. What nodes, surroundings, other
people or the scheduler did costs time and nothing else; at a limit the job is put on hold, and `release` starts it.

docs/run-ends.md shows the table (`python -m docs.make_tables`).
"""

from dataclasses import dataclass
from enum import StrEnum

from tessera_schemas.reasons import Code


class Whose(StrEnum):
    """The party to which the end of a run is put down."""

    PROGRAM = "program"
    NODE = "node"
    SURROUNDINGS = "surroundings"
    OTHERS = "others"
    SCHEDULER = "scheduler"


class Word(StrEnum):
    """The word by which a run stops: it has ended already, or one of those that stop a run which works."""

    ENDED = "it has ended"
    UNSTARTED = "it has not started"
    LIMIT = "its time limit"
    OWNER = "its owner"
    OPERATOR = "an operator"
    POLICY = "policy"
    PROOF = "proof that it is gone"


class PauseRule(StrEnum):
    """
    Time before the next attempt.

    OWN: the job's own back-off, doubled with each attempt spent. SHORT: from a second, doubled with each trouble in a
    row up to a minute. LATE: none for the first troubles in a row, then as SHORT. RUNS: as SHORT by the job's runs up
    to then, unless the last one held; no trouble, which a node's refusal would add to.
    """

    NONE = "none"
    OWN = "own"
    SHORT = "short"
    LATE = "late"
    RUNS = "runs"


class Limit(StrEnum):
    """Consequence for a job that was tried too often in a row: it fails, is put on hold, or is tried without end."""

    FAIL = "fails"
    HOLD = "on hold"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class RunEnd:
    """
    One cause of a run's end.

    `avoids`: the job's next attempt avoids the node while there is room on others. `backs_off`: the node takes nobody,
    of any job, for a while. `notice`: the run is well until
    then, so that its program gets its checkpoint notice. `learns`: how long the run took tells how long such jobs run.
    The job's place in line is its age, which no end of a run changes.
    """

    whose: Whose
    word: Word
    pause: PauseRule = PauseRule.NONE
    limit: Limit = Limit.NONE
    avoids: bool = False
    backs_off: bool = False
    notice: bool = False
    learns: bool = False

    @property
    def spends(self) -> bool:
        """Whether it spends one of the job's attempts."""
        return self.whose is Whose.PROGRAM

    @property
    def keeps_place(self) -> bool:
        """Whether a gang may keep its place for the next attempt: nobody stopped the run to have its room."""
        return self.word not in (Word.LIMIT, Word.OWNER, Word.POLICY)


_P, _N, _S, _O, _T = Whose.PROGRAM, Whose.NODE, Whose.SURROUNDINGS, Whose.OTHERS, Whose.SCHEDULER

RUN_ENDS: dict[Code, RunEnd] = {
    # the program's own
    Code.POD_FAILED: RunEnd(_P, Word.ENDED, PauseRule.OWN, Limit.FAIL, avoids=True, learns=True),
    Code.TIME_LIMIT: RunEnd(_P, Word.LIMIT, PauseRule.OWN, Limit.FAIL, learns=True),
    Code.IDLE: RunEnd(_P, Word.POLICY, PauseRule.OWN, notice=True),
    # a node's
    Code.POD_REFUSED_BY_NODE: RunEnd(_N, Word.ENDED, PauseRule.SHORT, Limit.HOLD, avoids=True, backs_off=True),
    Code.START_TIMEOUT: RunEnd(_N, Word.UNSTARTED, PauseRule.SHORT, Limit.HOLD, avoids=True, backs_off=True),
    Code.NODE_LOST: RunEnd(_N, Word.PROOF, avoids=True),
    Code.NODE_SHRUNK: RunEnd(_N, Word.PROOF, avoids=True),
    Code.NODE_RESTARTED: RunEnd(_N, Word.ENDED, PauseRule.LATE),
    Code.NODE_SHUT_DOWN: RunEnd(_N, Word.ENDED, PauseRule.LATE, avoids=True, backs_off=True),
    Code.NODE_PRESSURE: RunEnd(_N, Word.ENDED, PauseRule.LATE, avoids=True, backs_off=True),
    # the surroundings': the API server, its webhooks, registries, volumes
    Code.BIND_REFUSED: RunEnd(_S, Word.UNSTARTED, PauseRule.SHORT),
    Code.IMAGE_NOT_PULLED: RunEnd(_S, Word.UNSTARTED, PauseRule.SHORT, avoids=True),
    Code.IMAGE_NOT_FOUND: RunEnd(_S, Word.UNSTARTED, PauseRule.SHORT, Limit.HOLD),
    Code.STARTS_STALL: RunEnd(_S, Word.UNSTARTED, PauseRule.SHORT),
    Code.VOLUME_NOT_READY: RunEnd(_S, Word.UNSTARTED, PauseRule.SHORT),
    Code.CLAIM_CONFLICT: RunEnd(_S, Word.UNSTARTED, PauseRule.SHORT),
    Code.DEVICE_NOT_READY: RunEnd(_S, Word.UNSTARTED, PauseRule.SHORT, avoids=True),
    # an operator's, or another controller's
    Code.POD_EVICTED: RunEnd(_O, Word.ENDED, PauseRule.LATE),
    Code.POD_DELETED: RunEnd(_O, Word.ENDED, PauseRule.LATE),
    Code.NODE_DRAINED: RunEnd(_O, Word.OPERATOR, notice=True),
    Code.QUEUE_DRAINED: RunEnd(_O, Word.OPERATOR, notice=True),
    Code.CANCELLED: RunEnd(_O, Word.OWNER, notice=True),
    Code.REQUEUE_ASKED: RunEnd(_O, Word.OWNER, notice=True),
    Code.CANCELLED_BY_SCRIPT: RunEnd(_O, Word.OWNER),
    Code.REQUEUED_BY_SCRIPT: RunEnd(_O, Word.OWNER, PauseRule.RUNS),
    # the scheduler's
    Code.PREEMPTED: RunEnd(_T, Word.POLICY, notice=True),
    Code.RECLAIMED: RunEnd(_T, Word.POLICY, notice=True),
    Code.DEFRAGMENTED: RunEnd(_T, Word.POLICY, notice=True),
}
"""Every cause for which a run may end before its success."""

UNFORESEEN = RunEnd(_S, Word.UNSTARTED, PauseRule.SHORT)
"""What a refusal with another code is taken for: something around the job that may be mended."""


def end_of(code: Code) -> RunEnd:
    """The row of a cause."""
    return RUN_ENDS.get(code, UNFORESEEN)


def _codes(*, whose: Whose | None = None, **flags: bool) -> frozenset[Code]:
    return frozenset(
        code
        for code, end in RUN_ENDS.items()
        if (whose is None or end.whose is whose) and all(getattr(end, flag) is value for flag, value in flags.items())
    )


EVICTIONS = _codes(whose=Whose.SCHEDULER)
"""Causes that stop a run for another job's sake: they count against the job's eviction budget."""
WORTH_A_NOTICE = _codes(notice=True)
"""Causes that stop a run which is well: it can still save its work. A gang that broke cannot."""
ENDS_OF_ITS_OWN = _codes(learns=True)
"""Causes that tell how long such runs take; the others cut a run short."""
FAILURES_OF_NODES = frozenset(code for code, end in RUN_ENDS.items() if end.avoids and end.word is Word.ENDED)
"""Causes of one pod that count against its node, for its job and for the pods that its owner makes next."""
