"""`tessera lab churn`, as somebody types it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tessera.client.commands.lab import lab

NODES = "cpu_milli,memory_mib,gpu,model\n" + "32000,1000000,4,A\n" * 4
PODS = "cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n" + "".join(
    f"1000,10,{gpus},{milli},0,{life},0\n"
    for gpus, milli, life in ((1, 500, 600), (1, 1000, 900), (2, 1000, 4000), (4, 1000, 300), (1, 1000, 9000))
)


@pytest.fixture
def own(tmp_path: Path) -> list[str]:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text(NODES)
    pods.write_text(PODS)
    return ["churn", "mine", "--nodes", str(nodes), "--pods", str(pods), "--policy", "bestfit", "--days", "1"]


def test_json_has_every_load_without_and_with_moving_and_is_the_same_every_time(own: list[str]) -> None:
    arguments = [*own, "--load", "90,100", "--seeds", "1,2", "-o", "json"]
    first, second = (CliRunner().invoke(lab, arguments) for _ in range(2))
    assert first.exit_code == 0, first.output
    assert first.stdout == second.stdout
    told = json.loads(first.stdout)
    assert [(row["load_pct"], row["defragment"]) for row in told["figures"]] == [
        (90, False), (90, True), (100, False), (100, True),
    ]  # fmt: skip
    assert told["left_out"] == {"never_scheduled": 0, "never_ended": 1}


def test_the_table_says_what_was_left_out_and_a_report_holds_a_plot_per_load(own: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(lab, [*own, "--load", "90", "--seeds", "1", "--report", str(tmp_path / "report")])
    assert result.exit_code == 0, result.output
    assert "1 never ended" in result.stdout
    assert (tmp_path / "report" / "mine-churn-90.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--load", "ninety"], "names no loads"),
        (["--load", "0"], "not between 1 and 150"),
        (["--policy", "best"], "no policy is called best"),
        (["--seeds", "x"], "names no seeds"),
        (["--days", "0"], "a run is 1 to 90 days"),
        (["-o", "csv"], "csv is not offered"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_what_cannot_be_is_refused_in_words(own: list[str], more: list[str], said: str) -> None:
    result = CliRunner().invoke(lab, [*own, *more])
    assert result.exit_code not in (0, 1) or "error:" in result.output
    assert said in result.output
    assert "Traceback" not in result.output
