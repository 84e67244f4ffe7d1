"""CPU and memory beside free GPUs are kept for jobs with GPUs, and come back to who is within its nominal GPUs."""

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.domain.devices.resources import Need, RoleNeed
from tessera.domain.storing.fast import replace
from tessera.domain.work.evidence import FitFailure
from tessera.domain.work.gang import gang_of
from tessera.engine.explain.explanation import explain
from tessera.engine.placement.fits import count_bundles, fits, kind_of
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.placement.rows import room_counts
from tessera.testkit.checker import check
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.config import Queue, Quota
from tessera_schemas.reasons import Code, Reason
from tests.builders import GIB, node_seen
from tests.ledgers import rechain
from tests.rounds import Rounds, share
from tests.unit.engine.engine_builders import node

MINUTE = 60_000


def cluster(percent: int = 50, nodes: Any = None, queues: tuple[Queue, ...] = (), **policy: Any) -> Rounds:
    """Two queues without a parent, as for two teams in the file of `config init`; one node of 8 GPUs and 64 CPUs."""
    queues = queues or (share("train", 8, parent=None), share("prep", 0, parent=None))
    return Rounds(*queues, nodes=nodes, kept_beside_gpus_percent=percent, **policy)


def texts(rounds: Rounds, key: str) -> str:
    said = explain(rounds.state, rounds.job(key).job_id, rounds.ts)
    assert said is not None
    return "\n".join([*said.sentences, *said.holders.describe()])


@pytest.mark.parametrize(("cpus", "starts"), [(32, True), (33, False)])
def test_a_job_without_gpus_gets_what_is_beyond_the_part_that_is_kept_beside_free_gpus(cpus: int, starts: bool) -> None:
    rounds = cluster()
    rounds.submit("prep", gpus=0, queue="prep", cpu_milli=cpus * 1000)
    rounds.settle()
    assert rounds.running("prep") is starts
    if not starts:
        reason = rounds.job("prep").reason
        assert reason is not None
        assert (reason.code, reason.numbers[FitFailure.KEPT]) == (Code.NO_FIT, 1)
        assert "policy.kept_beside_gpus_percent" in texts(rounds, "prep")


@pytest.mark.parametrize(("gib", "starts"), [(256, True), (257, False)])
def test_memory_is_kept_likewise(gib: int, starts: bool) -> None:
    rounds = cluster()
    rounds.submit("prep", gpus=0, queue="prep", memory_bytes=gib * GIB)
    rounds.settle()
    assert rounds.running("prep") is starts


@pytest.mark.parametrize(("pods", "starts"), [(5, True), (6, False)])
def test_places_for_pods_are_kept_likewise(pods: int, starts: bool) -> None:
    """Of ten; tiny pods that fill them all would leave its GPUs idle for as long as they run."""
    rounds = cluster(nodes=(node_seen("gpu-a").model_copy(update={"pods": 10}),))
    rounds.submit("prep", gpus=0, queue="prep", pods=pods, cpu_milli=1)
    rounds.settle()
    assert rounds.running("prep") is starts
    for number in range(5):
        rounds.submit(f"train-{number}", gpus=1, queue="train", cpu_milli=1)
    rounds.settle()
    assert all(rounds.running(f"train-{number}") for number in range(5))


@pytest.mark.parametrize(("cpus", "starts"), [(47, True), (48, False)])
def test_beside_gpus_that_are_held_nothing_is_kept(cpus: int, starts: bool) -> None:
    """Four of eight are free: half of their 32 CPUs is kept, of the 63 that the other run leaves."""
    rounds = cluster()
    rounds.submit("train", gpus=4, queue="train", cpu_milli=1000)
    rounds.settle()
    rounds.submit("prep", gpus=0, queue="prep", cpu_milli=cpus * 1000)
    rounds.settle()
    assert rounds.running("prep") is starts


def test_a_job_without_gpus_starts_once_gpus_are_taken() -> None:
    rounds = cluster()
    rounds.submit("prep", gpus=0, queue="prep", cpu_milli=40_000)
    rounds.settle()
    assert not rounds.running("prep")
    rounds.submit("train", gpus=8, queue="train", cpu_milli=8000)
    rounds.settle()
    assert rounds.running("prep", "train")


def test_nodes_without_gpus_keep_nothing_and_without_the_policy_no_node_does() -> None:
    rounds = cluster(nodes=[node_seen("cpu-a", gpus=0, gpu_model="")])
    rounds.submit("prep", gpus=0, queue="prep", cpu_milli=64_000)
    rounds.settle()
    assert rounds.running("prep")
    rounds = cluster(percent=0)
    rounds.submit("prep", gpus=0, queue="prep", cpu_milli=64_000)
    rounds.settle()
    assert rounds.running("prep")
    assert not rounds.state.nodes.get("node-a").kept_percent


def test_pods_without_gpus_of_a_gang_with_gpus_may_use_what_is_kept() -> None:
    driver = RoleNeed("driver", 1, Need(40_000, GIB))
    worker = RoleNeed("worker", 1, Need(20_000, GIB, 8))
    for gang in (gang_of((driver, worker)), gang_of((worker, driver))):
        room = FreeCapacity([replace(node("a"), kept_percent=100)])
        assert not isinstance(room.find(gang), Reason)
        assert not room.is_short(gang)
    assert isinstance(FreeCapacity([replace(node("a"), kept_percent=100)]).find(gang_of((driver,))), Reason)


@pytest.mark.parametrize("one_by_one", [0, room_counts.CELLS_ONE_BY_ONE], ids=["in-columns", "one-by-one"])
@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=8), st.integers(0, 100), st.integers(-9, 99), st.data())
def test_counts_of_the_table_are_those_of_the_fit(
    one_by_one: int, free: list[int], percent: int, cpu: int, data: Any
) -> None:
    there = replace(node("a", free=tuple(free)), kept_percent=percent, cpu_free=cpu * 1000)
    need = Need(data.draw(st.integers(1, 40)) * 1000, data.draw(st.integers(0, 64)) * GIB)
    kind, room = kind_of((need,)), FreeCapacity([there])
    count = count_bundles(kind, there)
    assert room.table.total(kind) == count
    assert (fits(need, there) is None) == (count > 0) == (room.table.misses(kind)[0] == 0)
    other = replace(there, gpu_free=tuple(1000 for _ in free))
    room.put(other)
    with patch.object(room_counts, "CELLS_ONE_BY_ONE", one_by_one):
        assert room.table.total(kind) == count_bundles(kind, other)


def test_an_owner_within_its_nominal_gpus_takes_back_what_lies_beside_them() -> None:
    rounds = held_by_prep(min_runtime_seconds=60)
    rounds.submit("owner", gpus=8, queue="train", cpu_milli=64_000)
    rounds.settle()
    assert not rounds.running("owner")
    assert "56 CPUs held by prep" in texts(rounds, "owner")
    young = "not reclaimable before it has run for 60 s (policy.min_runtime_seconds)"
    assert f"Beside GPUs, 1 run of queue prep without any hold 56 CPUs: {young}." in texts(rounds, "owner")
    rounds.commit(ms=MINUTE)
    rounds.settle()
    assert rounds.running("owner")
    assert rounds.evicted() == [["prep"]]
    assert broken(rounds.stored) == set()


def broken(stored: list[bytes]) -> set[str]:
    """What the checkers, which share no code with decisions, find against a ledger."""
    report = check(stored)
    check_rules(report, stored)
    return {violation.invariant for violation in report.violations}


@pytest.mark.parametrize(("cpus", "found"), [(32, set()), (33, {"I1"})])
def test_the_checker_knows_what_is_kept(cpus: int, found: set[str]) -> None:
    rounds = cluster(percent=0)
    rounds.submit("prep", gpus=0, queue="prep", cpu_milli=cpus * 1000)
    rounds.settle()
    assert broken(with_percent(rounds.stored, 50)) == found


def test_the_checker_knows_who_takes_back_what_is_kept() -> None:
    rounds = held_by_prep()
    rounds.submit("owner", gpus=8, queue="train", cpu_milli=64_000)
    rounds.settle()
    assert broken(with_percent(rounds.stored, 0)) == {"plan"}


def with_percent(stored: list[bytes], percent: int) -> list[bytes]:
    """The ledger as if its configuration said so."""

    def change(message: dict[str, Any]) -> None:
        message["facts"][0]["fact"]["body"]["policy"]["kept_beside_gpus_percent"] = percent

    return rechain(stored, 2, change)


def held_by_prep(queues: tuple[Queue, ...] = (), **policy: Any) -> Rounds:
    """A run with 8 GPUs and few CPUs has ended; a job without GPUs has the other 56 CPUs, and all GPUs are free."""
    rounds = cluster(queues=queues, **policy)
    rounds.submit("train", gpus=8, queue="train", cpu_milli=8000)
    rounds.settle()
    rounds.submit("prep", gpus=0, queue="prep", cpu_milli=56_000)
    rounds.settle()
    assert rounds.running("train", "prep")
    rounds.finish("train")
    return rounds


def test_who_asks_for_more_than_its_gpus_part_of_the_node_takes_nothing_back() -> None:
    rounds = held_by_prep()
    rounds.submit("greedy", gpus=4, queue="train", cpu_milli=32_001)
    rounds.settle()
    assert not rounds.running("greedy")
    rounds.submit("modest", gpus=4, queue="train", cpu_milli=32_000)
    rounds.settle()
    assert rounds.running("modest")


def test_who_would_borrow_gpus_takes_nothing_back() -> None:
    queues = (Queue(name="all"), share("train", 0), share("lender", 8), share("prep", 0, parent=None))
    rounds = held_by_prep(queues)
    rounds.submit("borrows", gpus=8, queue="train", cpu_milli=64_000)
    rounds.settle()
    assert not rounds.running("borrows")
    rounds.submit("own", gpus=8, queue="lender", cpu_milli=64_000)
    rounds.settle()
    assert rounds.running("own")


def test_cpus_that_a_quota_promises_are_not_taken_back() -> None:
    cpus = Queue(name="prep", quotas=(Quota(resource="cpu_milli", nominal=56_000),))
    rounds = held_by_prep((share("train", 8, parent=None), cpus))
    rounds.submit("owner", gpus=8, queue="train", cpu_milli=64_000)
    rounds.settle()
    assert not rounds.running("owner")


def test_reclaim_never_takes_nothing_back() -> None:
    rounds = held_by_prep((share("train", 8, parent=None, reclaim="never"), share("prep", 0, parent=None)))
    rounds.submit("owner", gpus=8, queue="train", cpu_milli=64_000)
    rounds.settle()
    assert not rounds.running("owner")
