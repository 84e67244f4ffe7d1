"""All that is against a script, collected so that it is told at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tessera.client.outcomes import Exit, Failure, Mistaken, Refused, exit_of
from tessera.client.slurm.scripts.script import Script
from tessera_schemas.reasons import Code, Reason

T = TypeVar("T")


class Against:
    """Options that nothing honours, and mistakes, sentences by what they are about, each once; and notes beside."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._mistakes: dict[str, str] = {sentence: name for name, sentence in script.mistakes}
        self.notes: list[str] = list(script.notes)
        self.away: Exception | None = None
        """Why nobody answers about some of it, which is told only where nothing is against the script itself."""

    def tried(self, name: str, work: Callable[[], T], otherwise: T) -> T:
        """The result of the work about an option; `otherwise` where it fails, which is noted."""
        try:
            return work()
        except Failure as failure:
            self.add(name, str(failure))
            return otherwise

    def failed(self, name: str, failure: Exception) -> None:
        """Note what failed about the option of this name: a mistake, unless nobody answers."""
        if exit_of(failure) is Exit.UNAVAILABLE:
            self.away = failure
        else:
            self.add(name, str(failure))

    def add(self, name: str, sentence: str) -> None:
        """Note a mistake about the option of this name."""
        self._mistakes.setdefault(sentence, name)

    @property
    def error(self) -> Refused | Mistaken | None:
        """All of it: a usage error where there are mistakes alone, None where there is nothing."""
        mistakes = tuple(
            Reason(code=Code.INVALID_FIELD, field=f"--{name}" if name else self._script.where[:300], detail=why[:1024])
            for why, name in self._mistakes.items()
        )
        if self._script.against:
            return Refused((*self._script.against, *mistakes))
        return Mistaken("; ".join(self._mistakes), mistakes) if mistakes else None


@dataclass(frozen=True, slots=True)
class Lost:
    """A sentence about a line of a script and the command that it is about; a note unless `refused`."""

    line: int
    said: str
    refused: bool = True
    about: str = "srun"


@dataclass(frozen=True, slots=True)
class Tasks:
    """The job's tasks, each of which is a pod, how many of them a node has as the job says it, and GPUs of each."""

    in_all: int
    of_a_node: int = 1
    gpus: int = 0
