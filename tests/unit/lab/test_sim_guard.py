"""The simulator: a seed that fails or never ends is named, and devices are held by what the kubelets run."""

from typing import Any

import pytest

from tessera.testkit.sim import __main__ as sim_main
from tessera.testkit.sim import world
from tessera.testkit.sim.coverage import Coverage
from tessera.testkit.sim.guard import SeedFailed, again
from tessera_local.cluster.core import SimCluster
from tests.unit.local.cluster_world import NS
from tests.unit.local.cluster_world import World as Cluster


async def never_ends(self: Any) -> Any:
    while True:
        try:
            while True:
                pass
        except Exception:  # as a service does that goes on after whatever fails
            pass


async def fails(self: Any) -> Any:
    raise ValueError("what went wrong")


@pytest.mark.parametrize(
    ("run", "words"), [(never_ends, "not at its end after 0.2 s"), (fails, "ValueError: what went wrong")]
)
def test_a_seed_that_fails_or_never_ends_is_named_with_how_to_run_it_again(
    monkeypatch: pytest.MonkeyPatch, run: Any, words: str
) -> None:
    monkeypatch.setattr(world.World, "run", run)
    with pytest.raises(SeedFailed, match=rf"^seed 41: {words}.*; again: make sim FIRST=41 SEEDS=1$"):
        world.run_seed(41, seconds=0.2)
    (violation,) = world.judge_seed(41, seconds=0.2).violations
    assert violation.startswith("seed 41: ")
    assert run.__name__ in violation, "where it was"


def test_failed_seeds_are_the_last_that_a_run_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = world.SeedOutcome(41, ["I10: late"], Coverage())
    monkeypatch.setattr(sim_main, "_outcomes", lambda *_: iter((wrong, world.SeedOutcome(42, [], Coverage()))))
    monkeypatch.setattr("sys.argv", ["sim", "--seeds", "2", "--first", "41"])
    assert sim_main.main() == 1
    assert capsys.readouterr().out.splitlines()[-2:] == [f"seed 41 fails; {again(41)}", "  I10: late"]


def bound(reachable: bool = False) -> tuple[Cluster, Any]:
    """A pod that runs on a node that is cut off."""
    cluster = Cluster()
    cluster.node()
    cluster.pod("p", seconds="1000")
    cluster.wait(1000)
    pod = cluster.get("p").object
    cluster.core.set_reachable("n1", reachable)
    return cluster, pod


def test_a_pod_whose_object_was_deleted_by_force_on_a_node_that_is_cut_off_still_runs() -> None:
    cluster, pod = bound()
    cluster.core.delete("pods", NS, "p", {"gracePeriodSeconds": 0})
    assert cluster.is_gone("p")
    assert cluster.core.still_runs(pod)
    cluster.core.set_reachable("n1", True)
    cluster.wait(60_000)
    assert not cluster.core.still_runs(pod), "its kubelet is back and has ended it"


def fenced(core: SimCluster) -> None:
    core.set_out_of_service("n1", True)
    core.delete("pods", NS, "p", {"gracePeriodSeconds": 0})


def node_removed(core: SimCluster) -> None:
    core.remove_node("n1")
    core.delete("pods", NS, "p", {"gracePeriodSeconds": 0})


@pytest.mark.parametrize("go", [fenced, node_removed, lambda core: core.vanish(NS, "p")])
def test_whoever_fences_a_node_or_forces_an_object_off_vouches_that_nothing_runs(go: Any) -> None:
    cluster, pod = bound()
    go(cluster.core)
    assert cluster.is_gone("p")
    assert not cluster.core.still_runs(pod)


def test_a_machine_that_lost_power_runs_nothing_when_it_is_back() -> None:
    """A forced deletion that was under way when its operator brought the machine back ends nothing that runs."""
    cluster, pod = bound()
    cluster.core.set_out_of_service("n1", True)
    cluster.core.set_out_of_service("n1", False)
    cluster.core.set_reachable("n1", True)
    cluster.core.delete("pods", NS, "p", {"gracePeriodSeconds": 0})
    assert cluster.is_gone("p")
    assert not cluster.core.still_runs(pod)


def test_a_machine_that_answers_has_its_power_whatever_its_operator_says() -> None:
    cluster, pod = bound(reachable=True)
    cluster.core.set_out_of_service("n1", True)
    cluster.core.set_out_of_service("n1", False)
    cluster.core.set_reachable("n1", False)
    cluster.core.delete("pods", NS, "p", {"gracePeriodSeconds": 0})
    assert cluster.core.still_runs(pod)
