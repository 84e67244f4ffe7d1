"""Services that were submitted: replicas that come back, a size that changes, and a minimum that no plan stops."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tessera.client.input import files
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.engine.explain.consequences import consequences
from tessera.engine.explain.explanation import explain
from tessera.testkit.checker import check
from tessera.testkit.pays_checker import check_pays
from tessera.testkit.relations_checker import check_relations
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.base import job_id
from tessera_schemas.commands import ScaleService
from tessera_schemas.config import Queue
from tessera_schemas.facts import CancelRequested, HoldRequested, RunEnded
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.arrays import SERVICE_TASKS, JobArray
from tests.builders import SHARD, admitted, node_seen, run_absent
from tests.rounds import Rounds
from tests.unit.scheduler.service_rounds import let_go, records, replica, replicas, scale, submit

FAILED = Reason(code=Code.POD_FAILED, numbers={"exit_code": 3})


@pytest.fixture
def rounds() -> Any:
    made = Rounds(nodes={"node-a": 8})
    yield made
    report = check(made.stored)
    check_rules(report, made.stored)
    check_relations(report, made.stored)
    check_pays(report, made.stored)
    assert report.violations == []
    restored = load(dump(made.state))
    assert StateHash().of(restored) == made.shard.hasher.of(made.state)
    assert dict(restored.services.items()) == dict(made.state.services.items())
    assert restored.relations.open == made.state.relations.open


def test_a_service_begins_with_its_replicas_as_jobs_of_their_own(rounds: Rounds) -> None:
    service = submit(rounds, min_replicas=1, max_replicas=3, replicas=2)
    assert replicas(rounds, service) == {0: "running", 1: "running"}
    said = explain(rounds.state, service, rounds.ts)
    assert said is not None
    assert said.reason is not None
    assert (said.reason.code, said.reason.numbers["running"]) == (Code.SERVICE_REPLICAS, 2)


def told(rounds: Rounds, service: str, number: int) -> tuple[list[str], list[str]]:
    """Replicas whose runs a scale would stop, and the sentences about the others."""
    order = ScaleService(kind="scale_service", v=1, job_id=service, replicas=number)
    found = consequences(rounds.state, order, rounds.ts)
    assert {each.code for each in found.stopped} <= {Code.SCALED_DOWN}
    return sorted(each.job_id for each in found.stopped), list(found.notes)


def test_what_a_scale_would_do_is_said_before_and_comes_true(rounds: Rounds) -> None:
    service = submit(rounds, gpus=2, min_replicas=1, max_replicas=8, replicas=6)
    assert sorted(replicas(rounds, service).values()) == ["queued"] * 2 + ["running"] * 4
    assert told(rounds, service, 8) == (
        [],
        ["brings 2 more replicas into line, for what is free, or what the usual plans take from preemptible work"],
    )
    assert told(rounds, service, 9) == told(rounds, service, 6) == ([], [])
    stopped, notes = told(rounds, service, 3)
    assert (len(stopped), notes) == (1, ["takes 2 waiting replicas out of line"])
    scale(rounds, service, 3)
    left = [task for task, phase in replicas(rounds, service).items() if phase == "parked"]
    parked = {replica(rounds, service, task).job_id for task in left}
    assert set(stopped) < parked
    assert len(parked) == 3
    rounds.commit(HoldRequested(kind="hold_requested", job_id=service))
    assert told(rounds, service, 1) == ([], ["it is held: its replicas stay as they are until it is released"])


def test_scaling_starts_replicas_and_stops_the_youngest(rounds: Rounds) -> None:
    service = submit(rounds, min_replicas=1, max_replicas=4)
    scale(rounds, service, 3)
    assert replicas(rounds, service) == {0: "running", 1: "running", 2: "running"}
    scale(rounds, service, 1)
    assert replicas(rounds, service) == {0: "running", 1: "parked", 2: "parked"}
    assert rounds.state.held_by_queue("research").gpu_milli == 2000
    scale(rounds, service, 4)
    assert replicas(rounds, service) == dict.fromkeys(range(4), "running")
    assert [record.replicas for record in records(rounds, "service_scaled")] == [3, 1, 4]


def test_a_service_without_a_minimum_goes_to_zero_and_its_quota_comes_back(rounds: Rounds) -> None:
    service = submit(rounds, min_replicas=0, max_replicas=2, replicas=1)
    scale(rounds, service, 0)
    assert replicas(rounds, service) == {0: "parked"}
    assert not rounds.state.held_by_queue("research").gpu_milli
    assert replica(rounds, service, 0).reason.code is Code.SCALED_DOWN
    scale(rounds, service, 2)
    assert replicas(rounds, service) == {0: "running", 1: "running"}


@pytest.mark.parametrize("wanted", [0, 4], ids=["below its minimum", "above its maximum"])
def test_no_scale_beyond_its_bounds_is_carried_out(rounds: Rounds, wanted: int) -> None:
    service = submit(rounds, min_replicas=1, max_replicas=3)
    scale(rounds, service, wanted)
    assert not records(rounds, "service_scaled")


def test_no_other_tenant_scales_it(rounds: Rounds) -> None:
    service = submit(rounds, min_replicas=1, max_replicas=3)
    scale(rounds, service, 2, tenant="other")
    assert not records(rounds, "service_scaled")


@pytest.mark.parametrize("reason", [None, FAILED], ids=["well", "as failed"])
def test_a_replica_that_ends_is_started_again_after_its_pause(rounds: Rounds, reason: Reason | None) -> None:
    service = submit(rounds, min_replicas=1, max_replicas=1)
    for attempt in range(1, 7):
        job = replica(rounds, service, 0)
        assert (job.attempt, job.phase.value) == (attempt, "running")
        rounds.commit(RunEnded(kind="run_ended", run_id=job.run_id, reason=reason, own=reason is not None))
        rounds.commit(run_absent(job.run_id))
        waits = replica(rounds, service, 0)
        assert waits.not_before - rounds.ts == min(600, 10 << (attempt - 1)) * 1000
        rounds.ts = waits.not_before
        rounds.settle()
    assert not records(rounds, "finished")


def test_a_cancelled_replica_is_replaced_and_a_cancelled_service_ends(rounds: Rounds) -> None:
    service = submit(rounds, min_replicas=1, max_replicas=2, replicas=2)
    gone = replica(rounds, service, 0)
    rounds.commit(CancelRequested(kind="cancel_requested", job_id=gone.job_id, tenant="lab"))
    let_go(rounds)
    rounds.settle()
    assert replicas(rounds, service) == {1: "running", 2: "running"}
    rounds.commit(CancelRequested(kind="cancel_requested", job_id=service, tenant="lab"))
    rounds.settle()
    let_go(rounds)
    rounds.settle()
    assert rounds.state.ended.get(service).phase.value == "cancelled"
    assert not replicas(rounds, service)


def test_a_held_service_starts_none_and_goes_on_as_wanted_when_released(rounds: Rounds) -> None:
    service = submit(rounds, min_replicas=0, max_replicas=3, replicas=1)
    rounds.commit(HoldRequested(kind="hold_requested", job_id=service, tenant="lab"))
    scale(rounds, service, 2)
    assert replicas(rounds, service) == {0: "running"}
    rounds.commit(HoldRequested(kind="hold_requested", job_id=service, tenant="lab", undo=True))
    rounds.settle()
    rounds.settle()
    assert replicas(rounds, service) == {0: "running", 1: "running"}


def test_the_minimum_is_kept_and_the_others_make_room(rounds: Rounds) -> None:
    service = submit(rounds, min_replicas=2, max_replicas=4, replicas=4)
    assert [replica(rounds, service, at).in_minimum for at in range(4)] == [True, True, False, False]
    rounds.submit("urgent", gpus=8, priority="high")
    rounds.settle()
    assert not rounds.evicted()
    rounds.submit("small", gpus=4, priority="high")
    rounds.settle()
    assert rounds.running("small")
    assert replicas(rounds, service) == {0: "running", 1: "running", 2: "queued", 3: "queued"}


PAGE = Path(__file__).parents[3] / "docs" / "services.md"


def test_a_service_grows_and_shrinks_by_whole_groups_each_in_its_rack() -> None:
    text = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    asked = JobSpec.model_validate_json(json.dumps(files.job_spec(yaml.safe_load(text), "services.md")))
    spec = asked.model_copy(update={"array": JobArray(tasks=SERVICE_TASKS)})
    names = [f"{rack}{node}" for rack in "abc" for node in (1, 2)]
    nodes = [node_seen(name, 4, labels={"rack": name[0], "kubernetes.io/hostname": name}) for name in names]
    rounds = Rounds(Queue(name="default"), nodes=nodes)
    rounds.commit(admitted("served", spec))
    rounds.settle()
    service = job_id(SHARD, "lab", "served")
    stood = places(rounds, service)
    assert [len(of_one) for of_one in stood.values()] == [6]
    scale(rounds, service, 4)
    grown = places(rounds, service)
    racks = [{place.node[0] for place in of_one} for of_one in grown.values()]
    assert (len(grown), [len(rack) for rack in racks], len(set.union(*racks))) == (3, [1, 1, 1], 3)
    assert {task: grown[task] for task in stood} == stood
    assert replicas(rounds, service)[3] == "queued", "a part of it would have room, and no rack has for all of it"
    scale(rounds, service, 2)
    assert places(rounds, service) == {task: grown[task] for task in list(grown)[:2]}


def places(rounds: Rounds, service: str) -> dict[int, Any]:
    """Places of the replicas that run, by index."""
    tasks = [job for job in rounds.state.jobs.values() if job.task_of == service]
    runs = {job.task: rounds.state.runs.get(job.run_id) for job in sorted(tasks, key=lambda job: job.task)}
    return {task: run.placements for task, run in runs.items() if run is not None}
