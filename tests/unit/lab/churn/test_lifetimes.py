"""How long pods ran, read from tables."""

from pathlib import Path

import pytest

from tessera.kernel.errors import StartupError
from tessera_lab.churn.lifetimes import read_timed
from tessera_lab.traces import MalformedRow

NODES = "cpu_milli,memory_mib,gpu,model\n8000,1000,2,A\n"
HEAD = "cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n"


def files(directory: Path, rows: str, head: str = HEAD) -> tuple[Path, Path]:
    nodes, pods = directory / "nodes.csv", directory / "pods.csv"
    nodes.write_text(NODES)
    pods.write_text(head + rows)
    return nodes, pods


def read(directory: Path, rows: str, head: str = HEAD):  # type: ignore[no-untyped-def]
    return read_timed("own", {}, directory, *files(directory, rows, head))


def test_a_pod_runs_from_when_it_was_scheduled_to_when_it_was_deleted(tmp_path: Path) -> None:
    timed = read(tmp_path, "1000,10,1,1000,5,30,10\n2000,10,1,500,0,90,40\n1,1,1,1000,0,100,0\n")
    assert timed.life_s == (20, 50)
    assert [pod.cpu_milli for pod in timed.trace.pods] == [1000, 2000]
    assert timed.gpu_milli_seconds == 20 * 1000 + 50 * 500


def test_pods_never_scheduled_and_pods_that_outlived_the_trace_are_left_out_and_counted(tmp_path: Path) -> None:
    timed = read(tmp_path, "1,1,1,1000,5,30,\n1,1,1,1000,5,30,10\n1,1,1,1000,5,99,10\n1,1,1,1000,5,99,20\n")
    assert (timed.life_s, timed.never_scheduled, timed.never_ended) == ((20,), 1, 2)


def test_a_pod_that_ended_in_the_second_it_started_ran_for_one(tmp_path: Path) -> None:
    assert read(tmp_path, "1,1,1,1000,5,10,10\n1,1,1,1000,5,99,10\n").life_s == (1,)


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ("1,1,1,1000,5,8,10", "deletion_time"),
        ("1,1,1,1000,50,90,10", "scheduled_time"),
        ("1,1,1,1000,5,soon,10", "deletion_time"),
        ("1,1,1,1000,,30,10", "creation_time"),
        ("1,1,1,1000,5,30,-1", "scheduled_time"),
    ],
    ids=["ends before it starts", "starts before it is made", "no number", "nothing", "negative"],
)
def test_a_row_that_cannot_be_is_refused_with_file_line_and_field(tmp_path: Path, row: str, field: str) -> None:
    with pytest.raises(MalformedRow, match=f"pods.csv, line 3, {field}"):
        read(tmp_path, f"1,1,1,1000,5,30,10\n{row}\n")


def test_a_trace_without_times_is_refused_by_the_missing_column(tmp_path: Path) -> None:
    with pytest.raises(MalformedRow, match="line 1, creation_time: no such column"):
        read(tmp_path, "1,1,1,1000\n", "cpu_milli,memory_mib,num_gpu,gpu_milli\n")


def test_a_trace_of_which_no_pod_with_gpu_ended_says_so(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="nothing says how long pods run"):
        read(tmp_path, "1,1,1,1000,5,99,10\n1,1,0,0,5,30,10\n")
