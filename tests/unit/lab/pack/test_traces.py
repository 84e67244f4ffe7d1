"""Readers of traces: what is missing is told with its source, what is malformed with file, line and field."""

import pytest

from tessera_lab.traces import MalformedRow, MissingTrace
from tessera_lab.traces.alibaba import TracePod, read_trace

NODES = "cpu_milli,memory_mib,gpu,model\n96000,1000,8,G2\n"
PODS = "cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"


def read(tmp_path, pods, nodes=NODES):
    for name, text in (("nodes.csv", nodes), ("pods.csv", pods)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    return read_trace("mine", {}, tmp_path, tmp_path / "nodes.csv", tmp_path / "pods.csv")


def test_a_trace_of_ones_own_is_read(tmp_path):
    trace = read(tmp_path, PODS + "4000,16,1,460,B|A|B\n8000,32,0,0,\n")
    assert trace.pods == (TracePod(4000, 16, 1, 460, ("A", "B")), TracePod(8000, 32, 0, 0))
    assert trace.gpu_milli == 8000


def test_the_column_of_models_may_be_left_out(tmp_path):
    assert read(tmp_path, "cpu_milli,memory_mib,num_gpu,gpu_milli\n1,2,1,1000\n").pods[0].models == ()


def test_a_missing_trace_says_where_it_was_looked_for_and_where_to_get_it(tmp_path):
    with pytest.raises(MissingTrace, match=r"openb_pod_list_none\.csv is not below .*mine.* and .*clusterdata"):
        read_trace("none", {"TESSERA_DATA": str(tmp_path / "mine")}, tmp_path)


MALFORMED = [
    pytest.param("x,1,1,500,\n", "cpu_milli", id="no number"),
    pytest.param("1,-1,1,500,\n", "memory_mib", id="negative"),
    pytest.param("1,1,0,500,\n", "gpu_milli", id="a share of no GPU"),
    pytest.param("1,1,1,0,\n", "gpu_milli", id="nothing of a GPU"),
    pytest.param("1,1,2,500,\n", "gpu_milli", id="shares of two"),
    pytest.param("1,1\n", "num_gpu", id="a row that ends early"),
    pytest.param("1,1,1,500,,9\n", "(end)", id="a row that does not end"),
]


@pytest.mark.parametrize(("row", "field"), MALFORMED)
def test_a_malformed_row_is_refused_with_its_file_line_and_field(tmp_path, row, field):
    with pytest.raises(MalformedRow, match=r"pods\.csv, line 3") as refused:
        read(tmp_path, PODS + "1,1,1,500,\n" + row)
    assert refused.value.field == field


def test_a_missing_column_is_refused(tmp_path):
    with pytest.raises(MalformedRow, match="line 1, model"):
        read(tmp_path, PODS, "cpu_milli,memory_mib,gpu\n")
