"""The reader of the queueing trace says where a row is wrong."""

from pathlib import Path

import pytest

from tessera_lab.traces import MalformedRow, MissingTrace
from tessera_lab.traces.philly import TraceJob, read_jobs

HEADING = "submit_s,duration_s,num_gpus,vc\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(text)
    return path


def test_jobs_come_by_submit_time_then_by_line(tmp_path: Path) -> None:
    path = written(tmp_path, HEADING + "9,5,8,a\n3,60,1,b\n3,7,2,a\n")
    assert read_jobs({}, tmp_path, path) == (
        TraceJob(3, 3, 60, 1, "b"),
        TraceJob(4, 3, 7, 2, "a"),
        TraceJob(2, 9, 5, 8, "a"),
    )


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ("x,5,1,a", "submit_s"),
        ("-1,5,1,a", "submit_s"),
        ("1,0,1,a", "duration_s"),
        ("1,2.5,1,a", "duration_s"),
        ("1,5,0,a", "num_gpus"),
        ("1,5,99999999,a", "num_gpus"),
        ("1,5,1,", "vc"),
        ("1,5,1", "vc"),
        ("1,5,1,a,b", "(end)"),
    ],
)
def test_a_malformed_row_is_refused_with_file_line_and_field(tmp_path: Path, row: str, field: str) -> None:
    path = written(tmp_path, f"{HEADING}1,5,1,a\n{row}\n")
    with pytest.raises(MalformedRow) as refused:
        read_jobs({}, tmp_path, path)
    assert (refused.value.path, refused.value.line, refused.value.field) == (path, 3, field)


def test_a_missing_column_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(MalformedRow, match="line 1, vc"):
        read_jobs({}, tmp_path, written(tmp_path, "submit_s,duration_s,num_gpus\n1,2,3\n"))


def test_a_missing_trace_says_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(MissingTrace, match="get it from github"):
        read_jobs({"TESSERA_DATA": str(tmp_path)}, tmp_path)
