"""
Ends of runs, and who pays for them: a row for each cause, asked by every service; no other place decides either.

*What stops a run.* A run that works is stopped only by a word that says stop: its owner's, its time limit, an
operator's, documented policy with a place or a claim proved, or proof that it is gone. What bounds new placement (a
cordon, allocatable, labels, quota, grants, an edit of the configuration) bounds nothing else.

*Who pays.* Only the program's own failures spend attempts, and only they end a job. What nodes, surroundings, other
people or the scheduler did costs time and nothing else; at a limit the job is put on hold, and `release` starts it.

A job may have rules of its own (`Retry.rules`), by which the table is read otherwise for it; none, and the table holds.

docs/run-ends.md shows the table (`python -m docs.make_tables`).
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tessera_schemas.base import Name, Strict, later
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.pod_template import LabelKey

RULES_MAX = 20
RULE_CODES_MAX = 32
DETAIL_MAX, TOLD_MAX = 1024, 512
"""Characters of a reason's detail, and of what a rule says in it."""
SIGNALED = 128
"""An exit code beyond tells the signal that ended a program."""


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
    STALL = "its limit without progress"
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
    `counted` is whether it spends an attempt by a rule of the job; None: by whose it is.
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
    counted: bool | None = None

    @property
    def spends(self) -> bool:
        """Whether it spends one of the job's attempts."""
        return self.whose is Whose.PROGRAM if self.counted is None else self.counted

    @property
    def troubles(self) -> bool:
        """Whether it counts towards the policy's `requeues_max`."""
        return self.pause in (PauseRule.SHORT, PauseRule.LATE) or (self.pause is PauseRule.OWN and not self.spends)

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
    Code.REPLICA_ENDED: RunEnd(_P, Word.ENDED, PauseRule.OWN),
    # a node's
    Code.POD_REFUSED_BY_NODE: RunEnd(_N, Word.ENDED, PauseRule.SHORT, Limit.HOLD, avoids=True, backs_off=True),
    Code.START_TIMEOUT: RunEnd(_N, Word.UNSTARTED, PauseRule.SHORT, Limit.HOLD, avoids=True, backs_off=True),
    Code.STRAGGLES: RunEnd(_N, Word.STALL, PauseRule.SHORT, Limit.HOLD, avoids=True, notice=True),
    Code.NODE_LOST: RunEnd(_N, Word.PROOF, avoids=True),
    Code.NODE_SHRUNK: RunEnd(_N, Word.PROOF, avoids=True),
    Code.NODE_SICK: RunEnd(_N, Word.OPERATOR, avoids=True, notice=True),
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
    Code.HUNG: RunEnd(_S, Word.STALL, PauseRule.SHORT, Limit.HOLD, avoids=True),  # nobody knows whose it is
    # an operator's, or another controller's
    Code.POD_EVICTED: RunEnd(_O, Word.ENDED, PauseRule.LATE),
    Code.POD_DELETED: RunEnd(_O, Word.ENDED, PauseRule.LATE),
    Code.NODE_DRAINED: RunEnd(_O, Word.OPERATOR, notice=True),
    Code.RESERVATION_BEGINS: RunEnd(_O, Word.OPERATOR, notice=True),
    Code.RESERVATION_OVER: RunEnd(_O, Word.OPERATOR, notice=True),
    Code.QUEUE_DRAINED: RunEnd(_O, Word.OPERATOR, notice=True),
    Code.CANCELLED: RunEnd(_O, Word.OWNER, notice=True),
    Code.REQUEUE_ASKED: RunEnd(_O, Word.OWNER, notice=True),
    Code.SCALED_DOWN: RunEnd(_O, Word.OWNER, notice=True),
    Code.NEW_REVISION: RunEnd(_O, Word.OWNER, notice=True),
    Code.TARGET_ENDED: RunEnd(_O, Word.OWNER, notice=True),
    Code.TARGET_NOT_RUNNING: RunEnd(_O, Word.OWNER, notice=True),
    Code.CANCELLED_BY_SCRIPT: RunEnd(_O, Word.OWNER),
    Code.REQUEUED_BY_SCRIPT: RunEnd(_O, Word.OWNER, PauseRule.RUNS),
    Code.PAUSED_AS_IDLE: RunEnd(_O, Word.OWNER),
    Code.ENDED_AS_IDLE: RunEnd(_O, Word.OWNER),
    # the scheduler's
    Code.PREEMPTED: RunEnd(_T, Word.POLICY, notice=True),
    Code.RECLAIMED: RunEnd(_T, Word.POLICY, notice=True),
    Code.DEFRAGMENTED: RunEnd(_T, Word.POLICY, notice=True),
}
"""Every cause for which a run may end before its success."""

DRAINS = frozenset({Code.NODE_DRAINED, Code.NODE_SICK})
"""Causes that are over once the nodes are open again: a run that has not stopped by then may go on."""

DISPLACING = frozenset(
    {Code.NODE_LOST, Code.NODE_SHRUNK, Code.NODE_SICK, Code.NODE_RESTARTED, Code.NODE_SHUT_DOWN},
)
"""Causes by which a node, or devices of it, broke under a run: its job may start again on spare nodes."""

UNFORESEEN = RunEnd(_S, Word.UNSTARTED, PauseRule.SHORT)
"""What a refusal with another code is taken for: something around the job that may be mended."""


def end_of(code: Code) -> RunEnd:
    """The row of a cause."""
    return RUN_ENDS.get(code, UNFORESEEN)


CANCELS_FROM_WITHIN = (Code.CANCELLED_BY_SCRIPT, Code.ENDED_AS_IDLE)
"""Ends by which a run's own pod cancels its job."""


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

OOM_KILLED = "OOMKilled"
RULED = {
    code.value
    for code, end in RUN_ENDS.items()
    if end.word not in (Word.OWNER, Word.OPERATOR, Word.POLICY) and code is not Code.REPLICA_ENDED
}
"""Causes for which a job may have a rule: nobody's word stopped the run, or its time limit did."""
CAUSES = (*sorted({*RULED, OOM_KILLED}), *(whose.value for whose in Whose if whose is not Whose.SCHEDULER))
"""The words of rules: one cause, or all causes of one party."""
SIGNALS = {
    "SIGHUP": 1,
    "SIGINT": 2,
    "SIGQUIT": 3,
    "SIGILL": 4,
    "SIGTRAP": 5,
    "SIGABRT": 6,
    "SIGBUS": 7,
    "SIGFPE": 8,
    "SIGKILL": 9,
    "SIGUSR1": 10,
    "SIGSEGV": 11,
    "SIGUSR2": 12,
    "SIGPIPE": 13,
    "SIGALRM": 14,
    "SIGTERM": 15,
}
"""The signals of Linux that end programs, as `128 + n` in an exit code."""


def _known_cause(word: str) -> str:
    if word not in CAUSES:
        raise ValueError(f"there is no cause {word}; known are {', '.join(CAUSES)}")
    return word


def _known_signal(word: str) -> str:
    if word not in SIGNALS:
        raise ValueError(f"there is no signal {word}; known are {', '.join(SIGNALS)}")
    return word


RuledCause = Annotated[str, AfterValidator(_known_cause), Field(json_schema_extra={"enum": list(CAUSES)})]
SignalName = Annotated[str, AfterValidator(_known_signal), Field(json_schema_extra={"enum": list(SIGNALS)})]
RuledExitCode = Annotated[int, Field(ge=1, le=255, strict=True)]
RuleNumber = Annotated[
    int, Field(ge=0, le=RULES_MAX, description="Number of the job's retry rule that decided, from 1; 0: none did")
]


class RetryRule(Strict):
    """
    One rule for ends of runs: of the given conditions all hold, and of each one of its values.

    Without `causes` it is about the program's own failures alone, so that nobody else's become the program's unasked.
    """

    exit_codes: Annotated[
        tuple[RuledExitCode, ...], Field(max_length=RULE_CODES_MAX, description="Exit codes of the program that failed")
    ] = ()
    signals: Annotated[
        tuple[SignalName, ...],
        Field(max_length=len(SIGNALS), description="Signals that ended it: each is the exit code 128 and its number"),
    ] = ()
    causes: Annotated[
        tuple[RuledCause, ...],
        Field(max_length=RULE_CODES_MAX, description="Causes, or whose doing: program, node, surroundings, others"),
    ] = ()
    roles: Annotated[
        tuple[Name, ...], Field(max_length=16, description="Roles of the pod that ended the run; empty: any")
    ] = ()
    action: Annotated[
        Literal["retry", "retry_elsewhere", "fail"],
        Field(description="Try again, try again and avoid the nodes that failed the run, or fail the job"),
    ]
    count: Annotated[
        bool | None, Field(description="Whether it spends one of the attempts; null: if the program failed")
    ] = None

    @model_validator(mode="after")
    def _can_hold(self) -> Self:
        if self.action == "fail" and self.count is not None:
            raise ValueError("count: a job that fails has no attempts to spend; leave it out")
        of_programs = {Whose.PROGRAM.value, Code.POD_FAILED.value, OOM_KILLED}
        if self.codes and self.causes and not of_programs.intersection(self.causes):
            raise ValueError(f"causes: exit codes and signals are those of {', '.join(sorted(of_programs))} alone")
        return self

    @property
    def codes(self) -> frozenset[int]:
        """The exit codes of its conditions, those of signals among them."""
        return frozenset((*self.exit_codes, *(SIGNALED + SIGNALS[name] for name in self.signals)))

    def matches(self, reason: Reason, role: str, oom: bool) -> bool:
        """Whether its conditions hold for a run that ended for this reason; `role` is "" where no pod ended it."""
        code, failed = reason.code, reason.code is Code.POD_FAILED
        if self.codes and not (failed and reason.numbers.get("exit_code") in self.codes):
            return False
        if self.roles and role not in self.roles:
            return False
        end = end_of(code)
        if end.word in (Word.OWNER, Word.OPERATOR, Word.POLICY):
            return False
        words = {code.value, end.whose.value} | ({OOM_KILLED} if oom and failed else set())
        return not words.isdisjoint(self.causes or (Whose.PROGRAM.value,))

    def describe(self, number: int, end: RunEnd) -> str:
        """The rule in words, with what it makes of the row of a cause."""
        names = (("exit code", self.exit_codes), ("", self.signals), ("", self.causes), ("role", self.roles))
        given = [f"{name} {' or '.join(map(str, values))}".strip() for name, values in names if values]
        counted = "" if self.action == "fail" else ", counted" if end.spends else ", not counted"
        when = ", ".join(given) or "any failure of the program"
        return f"rule {number} ({when}) says: {self.action.replace('_', ' ')}{counted}"


class RetryLadder(Strict):
    """Rungs of the places at which a job starts again: where it was, on other nodes, in another domain."""

    in_place: Annotated[
        int,
        Field(ge=0, le=100, strict=True, description="Failures in a row after which it starts again where it was"),
    ] = 0
    domain_after: Annotated[
        int,
        Field(
            ge=0,
            le=16,
            strict=True,
            description="Nodes of one domain on which it failed, from which all of the domain is avoided; 0: never",
        ),
    ] = 0
    level: Annotated[
        LabelKey | None,
        Field(description="Topology level of these domains; null: the narrowest of the configuration"),
    ] = None


class Retry(Strict):
    """
    Retries of a job whose own program failed, and the time between them.

    A run that anything else broke spends no attempt, and its job is tried again without end, unless a rule of the job
    says otherwise (docs/run-ends.md).
    """

    max_attempts: Annotated[
        int, Field(ge=1, le=1000, strict=True, description="Number of failed runs of the program until the job fails")
    ] = 3
    backoff_seconds: Annotated[
        int, Field(ge=0, le=86_400, strict=True, description="Pause before a retry, doubled each time")
    ] = 10
    backoff_max_seconds: Annotated[
        int, Field(ge=0, le=86_400, strict=True, description="Longest pause in seconds between two attempts")
    ] = 600
    on_failure: Annotated[bool, Field(description="Whether a failed program is tried again")] = False
    give_up_seconds: Annotated[
        int, Field(ge=0, le=31_536_000, strict=True, description="Seconds from the first start until it is given up")
    ] = 1_209_600
    ladder: Annotated[
        RetryLadder | None,
        Field(description="Places at which it starts again after failures; null: never on nodes that failed it"),
    ] = later(None)
    rules: Annotated[
        tuple[RetryRule, ...],
        Field(max_length=RULES_MAX, description="Rules by kind of failure: the first that matches decides"),
    ] = later(())

    def find_rule(self, reason: Reason, role: str, oom: bool) -> int:
        """Number of the rule that decides what follows this end, from 1; 0: none does."""
        return next((at for at, rule in enumerate(self.rules, 1) if rule.matches(reason, role, oom)), 0)

    def rule_at(self, number: int) -> RetryRule | None:
        """The rule of this number; None for 0."""
        return self.rules[number - 1] if 0 < number <= len(self.rules) else None

    def end_by(self, number: int, code: Code) -> RunEnd:
        """The row of a cause as the rule of this number has it; for 0 as it stands in the table."""
        end, rule = end_of(code), self.rule_at(number)
        if rule is None:
            return end
        avoids = rule.action == "retry_elsewhere"
        # What is counted costs as a failure of the program does, whoever failed.
        if rule.count or (rule.count is None and end.spends):
            return replace(end, avoids=avoids, pause=PauseRule.OWN, limit=Limit.FAIL, counted=True)
        # Such failures could follow one another for ever otherwise: nothing but the hold ends them.
        limit = Limit.HOLD if end.spends else end.limit
        return replace(end, avoids=avoids, limit=limit, counted=False)

    def told_by(self, number: int, reason: Reason) -> Reason:
        """The reason, and which rule decided what follows."""
        rule = self.rule_at(number)
        if rule is None:
            return reason
        said = rule.describe(number, self.end_by(number, reason.code))[:TOLD_MAX]
        parts = (reason.detail[: DETAIL_MAX - len(said) - 2], said)
        return reason.model_copy(update={"detail": "; ".join(filter(None, parts))})

    def fault_in(self, roles: Collection[str], is_service: bool) -> str:
        """Fault of rules that do not go with the rest of a job, beginning with the field; "" for nothing."""
        if self.rules and is_service:
            return "retry.rules: a replica of a service is started again, whatever ended it; leave the rules out"
        for index, rule in enumerate(self.rules):
            unknown = sorted({*rule.roles}.difference(roles))
            if unknown:
                return f"retry.rules[{index}].roles: there is no role {', '.join(unknown)}"
        return ""
