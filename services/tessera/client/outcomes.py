"""Outcomes of commands: the exit code, one sentence if it is not 0, and a submit that is stored."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tessera.kernel.errors import Conflict, KernelError, StartupError, Transient

if TYPE_CHECKING:
    from tessera_schemas.commands import JobEnd
    from tessera_schemas.reasons import PublicReason


class Exit(IntEnum):
    """
    Exit codes. Stable, since scripts depend on them.

    TIMED_OUT is a job that its time limit ended; GAVE_UP a command that waited as long as it may, so that what it
    waited for may still come.
    """

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNAVAILABLE = 5
    REFUSED = 6
    TIMED_OUT = 7
    CANCELLED = 8
    NOT_RECOMPUTED = 9
    GAVE_UP = 10


class Failure(Exception):
    """The command cannot do what was asked; its text is one sentence: what, where, how to mend it."""

    def __init__(self, code: Exit, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class Mistaken(Failure):
    """Values that cannot be meant; `reasons` say the same by field, where there is more against the command."""

    def __init__(self, sentence: str, reasons: "tuple[PublicReason, ...]") -> None:
        super().__init__(Exit.USAGE, sentence)
        self.reasons = reasons


class NotYet(Failure):
    """The job or pod does not run, and may do so soon."""


class Refused(Exception):
    """The command had no effect; `reasons` are all that there is against it."""

    def __init__(self, reasons: "tuple[PublicReason, ...]", job_id: str = "") -> None:
        super().__init__("; ".join(reason.sentence() for reason in reasons))
        self.reasons, self.job_id = reasons, job_id


@dataclass(frozen=True, slots=True)
class Submitted:
    """The submit is stored and will not be lost. `admitted` is False while admission has not answered yet."""

    job_id: str
    admitted: bool
    key: str
    ended: "JobEnd | None" = None
    """How the job ended, where it is known that it had ended before this submit repeated it."""
    notes: tuple[str, ...] = ()
    """What was decided where the job said nothing, such as its CPU and memory, in words."""
    number: int = 0
    """Of the shard's jobs, by which Slurm's words name it; 0 while the ledger has not answered."""
    state: str = "stored"
    """
    `queued`: the ledger has it; `existing`: it had it before, under the same key. These are final. `admitted`: the
    ledger has not answered in time; `stored`: nor has admission. Whoever repeats the submit with its key hears more.
    """


def with_all_else(against: Mistaken | Refused, found: "Iterable[PublicReason]") -> Mistaken | Refused:
    """The reasons against a command, with those that others found besides; mistakes alone stay a usage error."""
    from tessera_schemas.text.reading import besides

    reasons = besides(against.reasons, found)
    return Refused(reasons) if len(reasons) > len(against.reasons) else against


def exit_of(error: Exception) -> Exit:
    """The exit code that an error stands for."""
    if isinstance(error, Failure):
        return error.code
    if isinstance(error, Conflict):
        return Exit.CONFLICT
    if isinstance(error, Transient | StartupError | ConnectionError):
        return Exit.UNAVAILABLE
    return Exit.FAILED


def check_checkout(package: str, command: str) -> None:
    """Raises Failure where a package that the wheel of the product comes without is not installed."""
    if find_spec(package) is None:
        way = f"install {GUESTS[package]}, or " if package in GUESTS else ""
        raise Failure(
            Exit.UNAVAILABLE, f"{command}: {package} is not installed; {way}run it from a checkout of the sources"
        )


GUESTS = {"tessera_local": "tessera-local", "tessera_lab": "tessera-lab"}
"""Packages with wheels of their own, by the names of the wheels."""


EXPECTED = (Failure, KernelError, StartupError, ConnectionError)
"""Errors that are told in one sentence; anything else is a mistake of ours and keeps its traceback."""
