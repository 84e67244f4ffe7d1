"""
The pods of a batch script: each is a node of Slurm's, with the resources of all tasks that lie on it. Pure.

Where a script says no number of nodes, it gets as few pods as the pool's nodes allow.
"""

from collections.abc import Sequence
from dataclasses import dataclass

FOLDED_MAX = 64
"""Most pods that a pool's nodes are tried with, where a script says none."""


@dataclass(frozen=True, slots=True)
class NodeSize:
    """Size of one node in all: CPU in thousandths, memory in bytes, whole GPUs and their model."""

    cpu_milli: int
    memory_bytes: int
    gpus: int = 0
    gpu_model: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """
    A script's words on its tasks; None and 0 where it says nothing.

    `most_tasks` of a node, `gpus` of the whole job, and what each task takes of its node.
    """

    nodes: int | None = None
    tasks: int | None = None
    most_tasks: int | None = None
    gpus: int = 0
    model: str = ""
    gpus_of_task: int = 0
    cpu_milli_of_task: int = 0
    memory_bytes_of_task: int = 0


@dataclass(frozen=True, slots=True)
class PodLayout:
    """
    Tasks of each pod, in the order of ranks; `total` is what the script says of all (None: nothing), which may be less.
    """

    tasks: tuple[int, ...]
    total: int | None = None

    @property
    def most(self) -> int:
        """Tasks of the largest pod, after which all are sized."""
        return max(self.tasks)

    @property
    def folded(self) -> str:
        """Tasks of each pod as Slurm writes them: `4(x2),3`."""
        return folded(self.tasks)


def folded(numbers: Sequence[int]) -> str:
    """Numbers in order, those that repeat once with how often: `4(x2),3`."""
    runs = list[list[int]]()
    for number in numbers:
        if runs and runs[-1][0] == number:
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
    return ",".join(str(number) if times == 1 else f"{number}(x{times})" for number, times in runs)


def layout_of(wanted: Wanted, rooms: Sequence[NodeSize]) -> PodLayout:
    """The tasks on pods, as Slurm lays them out. Raises ValueError with a sentence where they do not lie so."""
    total, most = wanted.tasks, wanted.most_tasks
    if wanted.nodes is None:
        return _as_few_as_possible(wanted, rooms)
    if total is None:
        return PodLayout((most or 1,) * wanted.nodes, None if most is None else most * wanted.nodes)
    nodes = min(wanted.nodes, total)  # Slurm takes no node without a task
    if most is not None and total > nodes * most:
        raise ValueError(f"{total} tasks do not lie on {nodes} nodes with {most} of them each; mend one of the numbers")
    return PodLayout(spread(total, nodes), total)


def spread(total: int, parts: int) -> tuple[int, ...]:
    """As evenly as whole numbers allow, the larger parts first."""
    return tuple(total // parts + (part < total % parts) for part in range(parts))


def _as_few_as_possible(wanted: Wanted, rooms: Sequence[NodeSize]) -> PodLayout:
    total, most = wanted.tasks, wanted.most_tasks
    if total is not None and most is not None:
        return PodLayout((min(most, total),) * -(-total // most), total)
    if total is None and most is not None:
        return PodLayout((most,), most)
    tasks = total or 1
    fit = [room for room in rooms if not wanted.model or room.gpu_model == wanted.model]
    for pods in range(1, min(FOLDED_MAX, max(tasks, wanted.gpus)) + 1):
        if wanted.gpus % pods or (total is not None and pods > total):
            continue
        of_pod = -(-tasks // pods)
        if any(_holds(room, wanted, of_pod, wanted.gpus // pods) for room in fit):
            return PodLayout(spread(tasks, pods) if total is not None else (1,) * pods, total)
    return PodLayout((tasks,), total)  # nothing is known that holds it: admission says so, with what there is


def _holds(room: NodeSize, wanted: Wanted, tasks: int, gpus: int) -> bool:
    return (
        room.gpus >= max(gpus, tasks * wanted.gpus_of_task)
        and room.cpu_milli >= tasks * wanted.cpu_milli_of_task
        and room.memory_bytes >= tasks * wanted.memory_bytes_of_task
    )
