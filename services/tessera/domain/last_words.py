"""
The last word of a run's first pod: what its script asked for its job, and the steps that it made. Pure.

The step runner, or what watches a session, leaves it as the last line of its container's termination message, behind
what the program wrote there.
The line is the tenant's, who can write anything into it: it is bounded, read strictly, put aside where it is not in
form, and can ask for no more than the job's owner may do to that job.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, ValidationError, model_validator

from tessera_schemas.base import Count, Json, Strict, printable
from tessera_schemas.cluster.labels import SESSION_LABEL
from tessera_schemas.reasons import Code
from tessera_schemas.work.pod_template import STEPS_CONTAINER
from tessera_schemas.work.run_steps import STEPS_AT_EACH_END, ExitCode, RunStep, RunSteps, Small, StepName

MARK, VERSION = "tessera-steps/", "1"
BYTES_MAX = 4096
"""The kubelet keeps no more of a container's message."""
UNREAD_MAX = 200
ASKS: dict[str, Code] = {
    "requeue": Code.REQUEUED_BY_SCRIPT,
    "cancel": Code.CANCELLED_BY_SCRIPT,
    "pause": Code.PAUSED_AS_IDLE,
    "end": Code.ENDED_AS_IDLE,
}

CodedStep = tuple[StepName, Small, Small, Small, ExitCode]
"""A step: name ("": as the one before), tasks, seconds from the start of the one before, seconds, exit code."""
CodedSteps = Annotated[tuple[CodedStep, ...], Field(max_length=STEPS_AT_EACH_END)]


class WordForm(Strict):
    """The word as it is written; `began` is when the first step began, in seconds since the Unix epoch."""

    ask: Literal["requeue", "cancel", "pause", "end", ""] = ""
    who: Annotated[str, StringConstraints(max_length=160), AfterValidator(printable)] = ""
    steps: Small = 0
    began: Annotated[Count, Field(alias="from", le=2**40)] = 0
    head: CodedSteps = ()
    tail: CodedSteps = ()

    @model_validator(mode="after")
    def _has_no_more_than_it_counts(self) -> Self:
        if len(self.head) + len(self.tail) > self.steps:
            raise ValueError(f"{len(self.head)} and {len(self.tail)} steps of {self.steps}")
        return self


@dataclass(frozen=True, slots=True)
class PodWord:
    """What a pod said at its end: the code of what was asked, by whom, and the steps of its run."""

    ask: Code | None = None
    who: str = ""
    steps: RunSteps | None = None


def word_of(pod: Json) -> PodWord | None:
    """The last word of a pod with a step runner, or of a session's; None where it left none."""
    status: Json = pod.get("status") or {}
    has_runner = any(one.get("name") == STEPS_CONTAINER for one in status.get("initContainerStatuses") or ())
    if not has_runner and SESSION_LABEL not in (pod["metadata"].get("labels") or {}):
        return None
    ends = ((one.get("state") or {}).get("terminated") or {} for one in status.get("containerStatuses") or ())
    return next((word for end in ends if (word := read_word(end.get("message") or "")) is not None), None)


def read_word(message: str) -> PodWord | None:
    """The word at the end of a termination message; None where there is none."""
    _, mark, rest = f"\n{message}".rpartition(f"\n{MARK}")
    if not mark:
        return None
    line = rest.partition("\n")[0]
    version, _, form = line.partition(" ")
    if len(line) > BYTES_MAX:
        return _unread(f"it is longer than {BYTES_MAX} bytes")
    if version != VERSION:
        return _unread(f"it is of version {version[:16]!r}, and {VERSION} is what is known here")
    try:
        said = WordForm.model_validate_json(form)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        return _unread(f"{where}: {first['msg']}" if where else str(first["msg"]))
    return PodWord(ASKS.get(said.ask), said.who, _steps(said) if said.steps else None)


def _unread(why: str) -> PodWord:
    shown = "".join(letter if letter.isprintable() else "?" for letter in why)
    return PodWord(steps=RunSteps(unread=shown[:UNREAD_MAX]))


def _steps(said: WordForm) -> RunSteps:
    found, at, name = list[RunStep](), said.began, ""
    first_of_tail = said.steps - len(said.tail)
    for index, row in enumerate((*said.head, *said.tail)):
        at, name = at + row[2], row[0] or name
        number = index if index < len(said.head) else first_of_tail + index - len(said.head)
        found.append(RunStep(number, name, row[1], at, row[3], row[4]))
    return RunSteps(count=said.steps, steps=tuple(found))
