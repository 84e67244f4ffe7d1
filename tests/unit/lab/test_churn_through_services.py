"""Churn through all services in one process: as much is in use as through the engine alone, and the ledger holds."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tessera.client.commands.lab import lab
from tessera.client.outcomes import Failure
from tessera_lab.churn.arrivals import HOUR_MS, RAN, WAITED
from tessera_lab.churn.lifetimes import Timed
from tessera_lab.churn.offered import offer
from tessera_lab.churn.replay import Ready, Span, replay
from tessera_lab.churn.services import ChurnThroughServices, CountedWindow, lines_of, through_services, window
from tessera_lab.traces.alibaba import WHOLE, TraceNode, TracePod
from tests.unit.lab.churn.made import NODE, timed

SEED = 1
SHORT = timed([(TracePod(1000, 1000, gpus, 1000), life) for gpus, life in ((1, 600), (2, 900), (4, 300), (1, 1500))])


def by_themselves(made: Timed, load: int, hours: int) -> tuple[float, float]:
    """Per cent allocated and GPUs that wait, in the first hours, by best fit through the engine alone."""
    outcome = replay(Ready(made, load, SEED, Span(0, 1)), "bestfit", False)
    ran, waited = (int(outcome.hours[:hours, column].sum()) / (hours * HOUR_MS) for column in (RAN, WAITED))
    return 100 * ran / made.trace.gpu_milli, waited / WHOLE


def run(made: Timed, load: int, hours: int, policy: str = "bestfit") -> ChurnThroughServices:
    offered = offer(made, load, SEED, hours * HOUR_MS)
    counted = CountedWindow(0, hours * HOUR_MS, len(offered.pod))
    return through_services(made, policy, load, SEED, offered, counted)


def test_use_equals_the_offer_and_that_of_the_engine_alone_while_all_pods_fit() -> None:
    allocated, _ = by_themselves(SHORT, 50, 1)
    found = run(SHORT, 50, 1)
    assert found.allocated_pct == pytest.approx(allocated, abs=0.5)
    assert found.offered_pct == pytest.approx(allocated, abs=0.5)
    assert found.waiting_gpus < 0.1
    assert found.recomputed == found.messages > found.arrivals


def test_when_too_much_is_offered_who_does_not_fit_waits() -> None:
    allocated, waiting = by_themselves(SHORT, 140, 1)
    found = run(SHORT, 140, 1)
    assert found.allocated_pct == pytest.approx(allocated, abs=2)
    assert found.waiting_gpus == pytest.approx(waiting, rel=0.2)
    assert found.allocated_pct < found.offered_pct
    assert found.waiting_pods > 1


def test_what_fits_no_node_even_when_all_are_empty_waits_for_nothing_and_is_counted() -> None:
    made = timed([(TracePod(1000, 1000, 1, 1000), 600), (TracePod(1000, 1000, 1, 1000, ("none",)), 600)], (NODE,) * 2)
    found = run(made, 50, 1)
    assert 0 < found.refused < found.arrivals
    assert found.waiting_pods < 1


def test_most_ends_a_run_early_and_its_second_half_counts_when_the_warm_up_is_no_shorter() -> None:
    offered, span = offer(SHORT, 90, SEED, 2 * 24 * HOUR_MS), Span(1, 1)
    whole, short = window(offered, span, None), window(offered, span, 200)
    assert whole == CountedWindow(24 * HOUR_MS, 48 * HOUR_MS, len(offered.pod))
    assert short == CountedWindow(short.end_ms // 2, int(offered.at_ms[200]), 200)
    with pytest.raises(Failure, match="from the start"):
        window(offered, span, 1)


def test_a_policy_that_the_platform_does_not_have_is_refused() -> None:
    with pytest.raises(Failure, match="not by gpu-clustering"):
        run(SHORT, 50, 1, "gpu-clustering")


def test_the_table_has_a_line_per_run() -> None:
    head, line = lines_of([run(timed([(TracePod(1000, 1000, 1, 1000), 600)], (TraceNode(8000, 9000, 2, "A"),)), 50, 1)])
    assert head.split()[:4] == ["trace", "load", "policy", "seed"]
    assert line.split()[:4] == ["made", "50", "bestfit", "1"]


def test_the_command_goes_through_the_services_and_refuses_what_they_cannot(tmp_path: Path) -> None:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text("cpu_milli,memory_mib,gpu,model\n" + "32000,1000000,4,A\n" * 2)
    pods.write_text(
        "cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n"
        "1000,10,1,500,0,600,0\n1000,10,1,1000,0,900,0\n1000,10,2,1000,0,4000,0\n"
    )
    asked = ["churn", "mine", "--nodes", str(nodes), "--pods", str(pods), "--services", "--seeds", "1", "--days", "1"]
    result = CliRunner().invoke(lab, [*asked, "--policy", "bestfit", "--load", "90", "--most", "60", "-o", "json"])
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["runs"]
    assert found["arrivals"] == 60
    assert found["recomputed"] == found["messages"]
    for more, said in (
        (["--policy", "gpu-clustering"], "not by gpu-clustering"),
        (["-o", "csv"], "csv is not offered"),
    ):
        refused = CliRunner().invoke(lab, [*asked, *more])
        assert refused.exit_code != 0
        assert said in refused.output
