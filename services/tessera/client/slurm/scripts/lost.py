"""What a batch script means and no pod does, as a sentence about one of its lines."""

from dataclasses import dataclass


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
