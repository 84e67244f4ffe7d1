"""What kube-scheduler places by claims on devices Tessera can place, in generated worlds on one API server."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.kubernetes.conftest import running
from tests.kubernetes.oracle.comparing import compare
from tests.kubernetes.oracle.deciding import Deciding
from tests.kubernetes.oracle.judging import Judge
from tests.kubernetes.oracle.placing import Objects, Placing
from tests.kubernetes.oracle.worlds import make_world

WORLDS = range(1, 31)
BATCH = 10


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, list[Objects]]]:
    """Two rounds of kube-scheduler of each world."""
    folder = tmp_path_factory.mktemp("kubernetes")
    with running(folder, kubelets=False, scheduler=True, silence_seconds=3600) as plane:
        placing, found = Placing(plane), dict[int, list[Objects]]()
        for first in WORLDS[::BATCH]:
            worlds = [make_world(seed) for seed in WORLDS if first <= seed < first + BATCH]
            found |= placing.play(worlds, rounds=2)
        yield found


def test_what_kube_scheduler_places_is_placed_and_nothing_illegal(played: dict[int, list[Objects]]) -> None:
    verdicts = [compare(seed, rounds) for seed, rounds in played.items()]
    assert [f"world {each.seed}: {fault}" for each in verdicts for fault in each.faults] == []
    counts = sum((each.counts for each in verdicts), Counter[str]())
    # Worlds in which nobody places or follows anything would prove nothing.
    assert counts["followed"] > len(WORLDS)
    assert counts["tessera_gangs"] >= counts["kube_gangs"] > len(WORLDS)
    assert counts["gangs"] > counts["tessera_gangs"], "in some worlds there is too little"


def test_the_judge_sees_devices_that_are_had_twice_or_are_no_answer(played: dict[int, list[Objects]]) -> None:
    wrong = Counter[str]()
    for rounds in played.values():
        objects = rounds[0]
        judge = Judge(objects.slices, objects.classes)
        pods = [pod for placed in Deciding(objects).decide(list(objects.gangs())).values() for pod in placed]
        if not pods:
            continue
        (spec, results), *others = pods[0].claims
        spoilt = {
            "nothing": [],
            "one too few": results[1:],
            "one twice": [*results, results[0]],
            "another access": [{**each, "adminAccess": not each.get("adminAccess")} for each in results],
            "strange": [{**each, "device": "none"} for each in results],
        }
        for name, devices in spoilt.items():
            wrong[name] += bool(judge.faults([replace(pods[0], claims=((spec, devices), *others))]))
        elsewhere = [node["metadata"]["name"] for node in objects.nodes if node["metadata"]["name"] != pods[0].node]
        wrong["another node"] += bool(judge.faults([replace(pods[0], node=elsewhere[0])]))
        wrong["judged"] += 1
    assert wrong["judged"] > len(WORLDS) // 2
    assert set(wrong.values()) == {wrong["judged"]}


def test_the_judge_says_what_fits_of_what_is_free_and_nothing_where_all_is_had(
    played: dict[int, list[Objects]],
) -> None:
    """A gang that was placed fits where it was, and its claims fit nowhere on nodes without devices."""
    asked = 0
    for rounds in played.values():
        objects = rounds[0]
        judge, bare = Judge(objects.slices, objects.classes), Judge([], objects.classes)
        for gang, placed in Deciding(objects).decide(list(objects.gangs())).items():
            specs, nodes = [objects.specs_of(pod) for pod in objects.gangs()[gang]], [pod.node for pod in placed]
            # An expression may fail on a device that another choice, or an order of devices, never comes to.
            assert judge.fits(specs, [], nodes) or judge.met_wrong_expression
            assert not bare.fits(specs, [], nodes)
            asked += 1
    assert asked > len(WORLDS)
