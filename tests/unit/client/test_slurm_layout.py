"""Pods of a batch script: nodes as Slurm counts them, and as few as hold the tasks where nobody counts."""

import pytest

from tessera.client.slurm.scripts.layout import NodeSize, PodLayout, Wanted, folded, layout_of

GIB = 2**30
H100 = NodeSize(64_000, 512 * GIB, 8, "h100")
CPUS = NodeSize(128_000, 256 * GIB)
POOL = (H100, CPUS)


@pytest.mark.parametrize(
    ("wanted", "tasks", "total"),
    [
        (Wanted(), (1,), None),
        (Wanted(nodes=2), (1, 1), None),
        (Wanted(nodes=2, most_tasks=4), (4, 4), 8),
        (Wanted(most_tasks=4), (4,), 4),
        (Wanted(nodes=2, tasks=3), (2, 1), 3),
        (Wanted(nodes=4, tasks=2), (1, 1), 2),
        (Wanted(nodes=3, tasks=8, most_tasks=3), (3, 3, 2), 8),
        (Wanted(tasks=4, most_tasks=3), (3, 3), 4),
        (Wanted(tasks=6), (6,), 6),
        (Wanted(tasks=8, gpus_of_task=1), (8,), 8),
        (Wanted(tasks=16, gpus_of_task=1), (8, 8), 16),
        (Wanted(tasks=12, gpus_of_task=1, cpu_milli_of_task=8_000), (6, 6), 12),
        (Wanted(tasks=3, cpu_milli_of_task=100_000), (1, 1, 1), 3),
        (Wanted(tasks=4, memory_bytes_of_task=200 * GIB), (2, 2), 4),
        (Wanted(gpus=16), (1, 1), None),
        (Wanted(gpus=8), (1,), None),
        (Wanted(gpus=12), (1, 1), None),
        (Wanted(tasks=2, gpus=16), (1, 1), 2),
        (Wanted(tasks=2, gpus_of_task=9), (2,), 2),
        (Wanted(tasks=4, gpus_of_task=1, model="a100"), (4,), 4),
    ],
)
def test_tasks_lie_on_pods_as_on_slurms_nodes(wanted: Wanted, tasks: tuple[int, ...], total: int | None) -> None:
    assert layout_of(wanted, POOL) == PodLayout(tasks, total)


def test_more_tasks_than_the_nodes_take_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="9 tasks do not lie on 2 nodes with 4 of them each"):
        layout_of(Wanted(nodes=2, tasks=9, most_tasks=4), POOL)


def test_one_pod_is_taken_where_no_node_is_known() -> None:
    assert layout_of(Wanted(tasks=64), ()) == PodLayout((64,), 64)


@pytest.mark.parametrize(
    ("numbers", "text"), [((4,), "4"), ((4, 4), "4(x2)"), ((4, 4, 3), "4(x2),3"), ((1, 2, 1), "1,2,1")]
)
def test_numbers_are_folded_as_slurm_writes_them(numbers: tuple[int, ...], text: str) -> None:
    assert folded(numbers) == text
